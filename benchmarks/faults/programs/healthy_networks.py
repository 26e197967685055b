"""Healthy: several networks in one training, copies of them, and gradients that are stopped on purpose."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program
from benchmarks.faults.data import batches, digit_images, digits, moons
from benchmarks.faults.models import mlp
from torch import nn

import stethoscope


class GAN(nn.Module):
    """A generator and a discriminator for points in the plane."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = mlp(8, 64, 64, 2)
        self.discriminator = mlp(2, 64, 64, 1, activation=nn.LeakyReLU)


@program()
def h05_gan(seed: int) -> Outcome:
    """Two losses against each other, neither of which falls for long."""
    torch.manual_seed(seed)
    data, model = moons(), GAN()
    generator = torch.optim.Adam(model.generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    discriminator = torch.optim.Adam(model.discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    session = stethoscope.watch(model, [generator, discriminator])
    for x, _ in batches(data.x, data.y, size=128, steps=200, seed=seed):
        fake = model.generator(torch.randn(128, 8))
        discriminator.zero_grad()
        loss_d = F.softplus(-model.discriminator(x)).mean() + F.softplus(model.discriminator(fake.detach())).mean()
        loss_d.backward()
        discriminator.step()
        generator.zero_grad()
        loss_g = F.softplus(-model.discriminator(fake)).mean()
        loss_g.backward()
        generator.step()
        session.log(loss_d=loss_d, loss_g=loss_g)
    return finished(session)


class Distillation(nn.Module):
    """A student, and a teacher that is its moving average."""

    def __init__(self) -> None:
        super().__init__()
        self.student = mlp(64, 64, 10)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Both answers."""
        with torch.no_grad():
            target = self.teacher(x)
        return self.student(x + 0.1 * torch.randn_like(x)), target


@program()
def h21_teacher_network(seed: int) -> Outcome:
    """The teacher has no gradients and is in no optimizer; it follows the student by averaging."""
    torch.manual_seed(seed)
    data, model = digits(), Distillation()
    optimizer = torch.optim.Adam(model.student.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, steps=200, seed=seed):
        session.log_batch(x, y)
        answer, target = model(x)
        optimizer.zero_grad()
        loss = F.cross_entropy(answer, y) + 0.1 * F.mse_loss(answer, target)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(model.teacher.parameters(), model.student.parameters(), strict=True):
                slow.lerp_(fast, 0.02)
        session.log(loss=loss)
    return finished(session)


class ForwardForward(nn.Module):
    """Layers that each learn alone: what one hands on is detached."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(74, 128), nn.Linear(128, 128), nn.Linear(128, 128)])

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The goodness of every layer."""
        goodness = []
        for layer in self.layers:
            x = F.relu(layer(8 * F.normalize(x.detach())))
            goodness.append(x.square().mean(1))
        return goodness


@program()
def h22_forward_forward(seed: int) -> Outcome:
    """A local loss for each layer, and no gradient between them."""
    torch.manual_seed(seed)
    data, model = digits(), ForwardForward()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, size=128, steps=200, seed=seed):
        wrong = (y + torch.randint(1, 10, y.shape)) % 10
        good = model(torch.cat([x, 5.0 * F.one_hot(y, 10)], dim=1))
        bad = model(torch.cat([x, 5.0 * F.one_hot(wrong, 10)], dim=1))
        loss = torch.stack(
            [F.softplus(1.0 - g).mean() + F.softplus(b - 1.0).mean() for g, b in zip(good, bad, strict=True)]
        ).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)


class SimSiam(nn.Module):
    """Two views, one encoder, a predictor, and a stop-gradient on the other side."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32))
        self.predictor = nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 32))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """The loss: minus the cosine between prediction and the stopped other side."""
        za, zb = self.encoder(a), self.encoder(b)
        one = F.cosine_similarity(self.predictor(za), zb.detach()).mean()
        other = F.cosine_similarity(self.predictor(zb), za.detach()).mean()
        return -(one + other) / 2


@program()
def h22b_stop_gradient(seed: int) -> Outcome:
    """SimSiam: a negative loss with a detach in the middle of it."""
    torch.manual_seed(seed)
    data, model = digits(), SimSiam()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    session = stethoscope.watch(model, optimizer)
    for x, _ in batches(data.x, data.y, size=128, steps=150, seed=seed):
        optimizer.zero_grad()
        loss = model(x + 0.2 * torch.randn_like(x), x + 0.2 * torch.randn_like(x))
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)


class QNetworks(nn.Module):
    """The network that learns, and the target that is copied from it now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.online = mlp(2, 64, 64, 4)
        self.target = copy.deepcopy(self.online)


@program()
def h31_dqn_target_network(seed: int) -> Outcome:
    """A walk on a plane towards the origin: the target is an equal copy at the start and every 25 steps."""
    torch.manual_seed(seed)
    model = QNetworks()
    optimizer = torch.optim.Adam(model.online.parameters(), lr=1e-3)
    moves = torch.tensor([[0.1, 0.0], [-0.1, 0.0], [0.0, 0.1], [0.0, -0.1]])
    session = stethoscope.watch(model, optimizer)
    for number in range(250):
        here = torch.rand(64, 2) * 2 - 1
        action = torch.randint(4, (64,))
        there = here + moves[action]
        reward = here.norm(dim=1) - there.norm(dim=1)
        with torch.no_grad():
            goal = 10 * reward + 0.9 * model.target(there).max(1).values
        optimizer.zero_grad()
        loss = F.smooth_l1_loss(model.online(here).gather(1, action[:, None]).squeeze(1), goal)
        loss.backward()
        optimizer.step()
        if (number + 1) % 25 == 0:
            model.target.load_state_dict(model.online.state_dict())
        session.log(loss=loss)
    return finished(session)


class DCGAN(nn.Module):
    """Convolutions with BatchNorm on both sides, for 8 x 8 images."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.ConvTranspose2d(8, 2 * width, 2, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 1, 4, 2, 1),
            nn.Tanh(),
        )
        self.discriminator = nn.Sequential(
            nn.Conv2d(1, width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, 2, 1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 1, 2),
            nn.Flatten(0),
        )


@program()
def h33_dcgan_samples_in_train_mode(seed: int) -> Outcome:
    """Every 20 steps samples are drawn under no_grad, with the generator in training mode as in the paper's code."""
    torch.manual_seed(seed)
    data, model = digit_images(), DCGAN()
    generator = torch.optim.Adam(model.generator.parameters(), lr=5e-4, betas=(0.5, 0.999))
    discriminator = torch.optim.Adam(model.discriminator.parameters(), lr=5e-4, betas=(0.5, 0.999))
    fixed = torch.randn(16, 8, 1, 1)
    session = stethoscope.watch(model, [discriminator, generator])
    images = data.x / data.x.abs().max()
    for number, (x, _) in enumerate(batches(images, data.y, size=32, steps=120, seed=seed)):
        fake = model.generator(torch.randn(32, 8, 1, 1))
        discriminator.zero_grad()
        loss_d = F.softplus(-model.discriminator(x)).mean() + F.softplus(model.discriminator(fake.detach())).mean()
        loss_d.backward()
        discriminator.step()
        generator.zero_grad()
        loss_g = F.softplus(-model.discriminator(fake)).mean()
        loss_g.backward()
        generator.step()
        if number % 20 == 0:
            with torch.no_grad():
                model.generator(fixed)
    return finished(session)
