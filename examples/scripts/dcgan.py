"""A small DCGAN on pictures of discs, in the style of PyTorch's DCGAN example."""

import argparse

import torch
from torch import nn, optim


def weights_init(m):
    if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(m.weight, 0.0, 0.05)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(16, 32, 4, 1, 0, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(True),
            nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(True),
            nn.ConvTranspose2d(16, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, noise):
        return self.main(noise)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, 16, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(16, 32, 4, 2, 1, bias=False),
            nn.BatchNorm2d(32),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(32, 1, 4, 1, 0, bias=False),
        )

    def forward(self, image):
        return self.main(image).view(-1)


def discs(count):
    """Bright discs at random places on a dark ground."""
    grid = torch.arange(16.0)
    centre = torch.rand(count, 2, 1, 1) * 8 + 4
    distance = (grid[None, :, None] - centre[:, 0]) ** 2 + (grid[None, None, :] - centre[:, 1]) ** 2
    return torch.tanh(4 - distance / 3)[:, None]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--niter", type=int, default=60)
    parser.add_argument("--fault", action="store_true", help="the generator is made again after its optimizer")
    args = parser.parse_args()
    torch.manual_seed(2)
    torch.set_num_threads(1)
    netG, netD = Generator().apply(weights_init), Discriminator().apply(weights_init)
    criterion = nn.BCEWithLogitsLoss()
    optimizerD = optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizerG = optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
    if args.fault:
        netG = Generator().apply(weights_init)
    for i in range(args.niter):
        netD.zero_grad()
        errD_real = criterion(netD(discs(32)), torch.full((32,), 1.0))
        errD_real.backward()
        fake = netG(torch.randn(32, 16, 1, 1))
        errD_fake = criterion(netD(fake.detach()), torch.full((32,), 0.0))
        errD_fake.backward()
        optimizerD.step()
        netG.zero_grad()
        errG = criterion(netD(fake), torch.full((32,), 1.0))
        errG.backward()
        optimizerG.step()
        if i % 10 == 0:
            print(f"[{i}/{args.niter}] Loss_D: {errD_real.item() + errD_fake.item():.4f} Loss_G: {errG.item():.4f}")


if __name__ == "__main__":
    main()
