"""Sub-pixel super-resolution of made pictures, in the style of PyTorch's super_resolution example."""

import argparse
from math import log10

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, upscale_factor, activation):
        super().__init__()
        self.inp = nn.Conv2d(1, 16, 5, padding=2)
        self.body = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(8))
        self.out = nn.Conv2d(16, upscale_factor**2, 3, padding=1)
        self.pixel_shuffle = nn.PixelShuffle(upscale_factor)
        self.activation = activation
        self.residual = not isinstance(activation, nn.Sigmoid)

    def forward(self, x):
        x = self.activation(self.inp(x))
        for conv in self.body:
            x = x + 0.3 * self.activation(conv(x)) if self.residual else self.activation(conv(x))
        return self.pixel_shuffle(self.out(x))


def pictures(count):
    """Soft waves in random directions."""
    grid = torch.linspace(0, 3, 16)
    angle, phase = torch.rand(count, 1, 1) * 3.14, torch.rand(count, 1, 1) * 6.28
    wave = grid[None, :, None] * torch.cos(angle) + grid[None, None, :] * torch.sin(angle)
    return (0.5 + 0.5 * torch.sin(3 * wave + phase))[:, None]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--fault", action="store_true", help="sigmoids between ten layers, and no way around them")
    args = parser.parse_args()
    torch.manual_seed(5)
    torch.set_num_threads(1)
    large = pictures(320)
    small = nn.functional.avg_pool2d(large, 2)
    train_set, test_set = TensorDataset(small[:256], large[:256]), TensorDataset(small[256:], large[256:])
    loader = DataLoader(train_set, batch_size=16, shuffle=True)
    model = Net(2, nn.Sigmoid() if args.fault else nn.ReLU())
    criterion = nn.MSELoss()
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(1, args.epochs + 1):
        epoch_loss = 0.0
        for inputs, target in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), target)
            epoch_loss += loss.item()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            mse = criterion(model(test_set.tensors[0]), test_set.tensors[1])
        print(
            f"===> Epoch {epoch} Avg. Loss: {epoch_loss / len(loader):.4f} Avg. PSNR: {-10 * log10(mse.item()):.2f} dB"
        )


if __name__ == "__main__":
    main()
