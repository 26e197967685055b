"""Steps that become too large for the curvature there is: warmup, sharpening, momentum, decay under a normalization."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from benchmarks.early_warning.training import Forward, Training, diverging
from benchmarks.faults.data import batches, digit_images, digits
from benchmarks.faults.models import CharModel, mlp
from torch import nn


def _classify(model: nn.Module, seed: int, steps: int, *, images: bool = False, size: int = 64) -> Forward:
    data = digit_images() if images else digits()
    source = iter(batches(data.x, data.y, size=size, steps=steps, seed=seed))

    def loss(step: int) -> torch.Tensor:
        x, y = next(source)
        return F.cross_entropy(model(x), y)

    return loss


def _warm_up(optimizer: torch.optim.Optimizer, rate: float, steps: int) -> Callable[[int], None]:
    """The rate rises in a straight line over the whole run."""

    def before(step: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = rate * (step + 1) / steps

    return before


@diverging("learning rate rises through warmup beyond what the model bears", steps=800, bad=3.0, good=0.1)
def warmup_mlp_momentum(seed: int, rate: float) -> Training:
    model = mlp(64, 64, 64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate / 800, momentum=0.9)
    return Training(model, optimizer, _classify(model, seed, 800), before=_warm_up(optimizer, rate, 800))


@diverging("learning rate rises through warmup beyond what the model bears", steps=600, bad=0.3, good=0.003)
def warmup_conv_adam(seed: int, rate: float) -> Training:
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=rate / 600)
    return Training(model, optimizer, _classify(model, seed, 600, images=True), before=_warm_up(optimizer, rate, 600))


@diverging("rate too high for late training: curvature grows while the loss falls", steps=1000, bad=1.5, good=0.3)
def sharpening_deep_linear(seed: int, rate: float) -> Training:
    """From small weights the curvature begins near zero and ends with the map that is learned."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(256, 10, generator=generator)
    y = x @ torch.diag(torch.linspace(0.2, 2.0, 10))
    model = nn.Sequential(*(nn.Linear(10, 10, bias=False) for _ in range(3)))
    for layer in model:
        nn.init.normal_(layer.weight, std=0.02, generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    return Training(model, optimizer, lambda step: F.mse_loss(model(x), y))


@diverging("momentum of 0.99 with a high rate", steps=800, bad=0.06, good=0.002)
def heavy_momentum(seed: int, rate: float) -> Training:
    model = mlp(64, 128, 128, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.99)
    return Training(model, optimizer, _classify(model, seed, 800), before=_warm_up(optimizer, rate, 800))


@diverging("activations that multiply: a quadratic net with a high rate", steps=800, bad=0.3, good=0.01)
def quadratic_units(seed: int, rate: float) -> Training:
    """Squares of squares: what a layer gives grows with the fourth power of the weights before it."""

    class Square(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 0.5 * x * x

    model = mlp(64, 32, 32, 10, activation=Square)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    return Training(model, optimizer, _classify(model, seed, 800), before=_warm_up(optimizer, rate, 800))


@diverging("attention logits grow: no normalization of queries and keys, high rate", steps=700, bad=0.1, good=0.001)
def attention_growth(seed: int, rate: float) -> Training:
    generator = torch.Generator().manual_seed(seed)
    model = CharModel(20, width=32, length=24, depth=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.9, 0.95))

    def loss(step: int) -> torch.Tensor:
        """Tell the letter that came eight places before."""
        ids = torch.randint(20, (16, 24), generator=generator)
        return F.cross_entropy(model(ids)[:, 8:].flatten(0, 1), ids[:, :-8].flatten())

    return Training(model, optimizer, loss, before=_warm_up(optimizer, rate, 700))


@diverging("transformer without normalization, rate rises", steps=700, bad=0.1, good=0.001)
def transformer_without_norm(seed: int, rate: float) -> Training:
    generator = torch.Generator().manual_seed(seed)
    model = CharModel(20, width=32, length=24, depth=2)
    for block in model.blocks:
        block.norm1 = block.norm2 = nn.Identity()
    model.norm = nn.Identity()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)

    def loss(step: int) -> torch.Tensor:
        """Tell the letter before each."""
        ids = torch.randint(20, (16, 24), generator=generator)
        return F.cross_entropy(model(ids)[:, 1:].flatten(0, 1), ids[:, :-1].flatten())

    return Training(model, optimizer, loss, before=_warm_up(optimizer, rate, 700))
