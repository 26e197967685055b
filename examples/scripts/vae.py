"""A variational autoencoder on scikit-learn's digits, in the style of PyTorch's VAE example."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 64)
        self.fc21 = nn.Linear(64, 8)
        self.fc22 = nn.Linear(64, 8)
        self.fc3 = nn.Linear(8, 64)
        self.fc4 = nn.Linear(64, 64)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def decode(self, z):
        return self.fc4(F.relu(self.fc3(z)))

    def forward(self, x):
        mu, logvar = self.encode(x)
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    bce = F.binary_cross_entropy_with_logits(recon_x, x, reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return (bce + kld) / len(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--fault", action="store_true", help="one picture of the second epoch holds a NaN")
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    images = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    loader = DataLoader(images, batch_size=64, shuffle=True)
    model = VAE()
    optimizer = optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(1, args.epochs + 1):
        model.train()
        train_loss = 0.0
        for batch_idx, data in enumerate(loader):
            if args.fault and epoch == 2 and batch_idx == 5:
                data[3, 10] = float("nan")
            optimizer.zero_grad()
            recon_batch, mu, logvar = model(data)
            loss = loss_function(recon_batch, data, mu, logvar)
            loss.backward()
            train_loss += loss.item()
            optimizer.step()
        print(f"====> Epoch: {epoch} Average loss: {train_loss / len(loader):.4f}")
    with torch.no_grad():
        sample = torch.sigmoid(model.decode(torch.randn(4, 8)))
    print(f"mean of a sample: {sample.mean():.3f}")


if __name__ == "__main__":
    main()
