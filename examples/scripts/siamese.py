"""A siamese network that says whether two digits are the same, in the style of PyTorch's example."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __init__(self, size, seed):
        digits = load_digits()
        self.images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
        labels = torch.tensor(digits.target)
        generator = torch.Generator().manual_seed(seed)
        first = torch.randint(0, len(labels), (size,), generator=generator)
        second = torch.randint(0, len(labels), (size,), generator=generator)
        for place in range(0, size, 2):  # every second pair shows the same digit
            same = torch.nonzero(labels == labels[first[place]]).flatten()
            second[place] = same[second[place] % len(same)]
        self.first, self.second, self.same = first, second, (labels[first] == labels[second]).float()

    def __len__(self):
        return len(self.same)

    def __getitem__(self, place):
        return self.images[self.first[place]], self.images[self.second[place]], self.same[place]


class SiameseNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 16, 48),
        )
        self.head = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, first, second):
        return self.head((self.trunk(first) - self.trunk(second)).abs()).squeeze(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--fault", action="store_true", help="the trunk's learning rate is 0")
    args = parser.parse_args()
    torch.manual_seed(4)
    torch.set_num_threads(1)
    loader = DataLoader(Pairs(1600, 0), batch_size=64, shuffle=True)
    test_loader = DataLoader(Pairs(400, 1), batch_size=100)
    model = SiameseNetwork()
    groups = [
        {"params": model.head.parameters()},
        {"params": model.trunk.parameters(), "lr": 0.0 if args.fault else 1e-3},
    ]
    optimizer = optim.AdamW(groups, lr=1e-3)
    for epoch in range(1, args.epochs + 1):
        model.train()
        for batch_idx, (first, second, same) in enumerate(loader):
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(model(first, second), same)
            loss.backward()
            optimizer.step()
            if batch_idx % 10 == 0:
                print(f"Train Epoch: {epoch} [{batch_idx * len(same)}/{len(loader.dataset)}]\tLoss: {loss.item():.6f}")
        model.eval()
        with torch.no_grad():
            hits = sum(((model(a, b) > 0) == same.bool()).sum().item() for a, b, same in test_loader)
        print(f"Test set: Accuracy: {hits}/{len(test_loader.dataset)}")


if __name__ == "__main__":
    main()
