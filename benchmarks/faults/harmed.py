"""Trainings that are worse than they should be for reasons that have no code, each beside the same training done right.

Mechanical faults in data, loss and model, written down before any symptom was tuned on them. Whether each does harm is
measured: the score on data that was never trained on, against the right program's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished
from benchmarks.faults.data import Split, batches, digits
from benchmarks.faults.models import mlp
from torch import nn

import stethoscope

STEPS: Final = 200
EVERY: Final = 20


@dataclasses.dataclass(slots=True)
class Recipe:
    """A training of a classifier, one part of which a fault replaces."""

    data: Split
    model: nn.Module
    rate: float = 1e-3
    loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = F.cross_entropy
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam
    num_steps: int = STEPS
    at_step: Callable[[int, Recipe, torch.optim.Optimizer], None] = lambda *_: None
    on_batch: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]] = lambda x, y: (x, y)
    on_validation: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]] = lambda x, y: (x, y)


Fault = Callable[[Recipe], None]


def train(change: Fault | None, seed: int, *, validates: bool, logs_batches: bool) -> tuple[Outcome, float]:
    """Run the recipe with one fault, or none; what was recorded, and the accuracy on clean data."""
    torch.manual_seed(seed)
    data = digits()
    recipe = Recipe(data, mlp(64, 64, 10))
    if change is not None:
        change(recipe)
    optimizer = recipe.optimizer(recipe.model.parameters(), lr=recipe.rate)
    session = stethoscope.watch(recipe.model, optimizer)
    for step, (x, y) in enumerate(batches(recipe.data.x, recipe.data.y, steps=recipe.num_steps, seed=seed)):
        recipe.at_step(step, recipe, optimizer)
        x, y = recipe.on_batch(x, y)
        if logs_batches:
            session.log_batch(x, y)
        optimizer.zero_grad()
        recipe.loss_fn(recipe.model(x), y).backward()
        optimizer.step()
        if validates and (step + 1) % EVERY == 0:
            recipe.model.eval()
            val_x, val_y = recipe.on_validation(data.val_x, data.val_y)
            with session.evaluating(), torch.no_grad():
                logits = recipe.model(val_x)
                accuracy = (logits.argmax(-1) == val_y).float().mean()
                session.log(loss=F.cross_entropy(logits, val_y), accuracy=accuracy)
            recipe.model.train()
    outcome = finished(session)
    recipe.model.eval()
    with torch.no_grad():
        answers = recipe.model(data.val_x).argmax(-1)
    return outcome, float((answers == data.val_y).float().mean())


def _labels_of_others(recipe: Recipe) -> None:
    order = torch.randperm(len(recipe.data.y))
    recipe.data = recipe.data._replace(y=recipe.data.y[order])


def _half_of_the_labels(recipe: Recipe) -> None:
    wrong = torch.rand(len(recipe.data.y)) < 0.5
    recipe.data = recipe.data._replace(y=torch.where(wrong, torch.randint(10, recipe.data.y.shape), recipe.data.y))


def _labels_shifted_by_one(recipe: Recipe) -> None:
    recipe.on_batch = lambda x, y: (x, y.roll(1))


def _classes_renamed(recipe: Recipe) -> None:
    order = torch.randperm(10)
    recipe.on_validation = lambda x, y: (x, order[y])


def _validation_of_another_scale(recipe: Recipe) -> None:
    recipe.data = recipe.data._replace(x=recipe.data.x * 0.02)


def _inputs_mixed_among_samples(recipe: Recipe) -> None:
    recipe.on_batch = lambda x, y: (x[:, torch.randperm(x.shape[1])], y)


def _softmax_of_one_output(recipe: Recipe) -> None:
    recipe.model = nn.Sequential(mlp(64, 64, 1), nn.Softmax(-1), nn.Linear(1, 10))


def _probabilities_as_log(recipe: Recipe) -> None:
    recipe.loss_fn = lambda logits, y: F.nll_loss(F.softmax(logits, -1), y)


def _ascent(recipe: Recipe) -> None:
    recipe.optimizer = lambda parameters, lr: torch.optim.Adam(parameters, lr=lr, maximize=True)


def _rate_far_too_high(recipe: Recipe) -> None:
    recipe.optimizer, recipe.rate = torch.optim.SGD, 8.0


def _rate_raised_midway(recipe: Recipe) -> None:
    def raise_it(step: int, _: Recipe, optimizer: torch.optim.Optimizer) -> None:
        if step == STEPS // 2:
            optimizer.param_groups[0]["lr"] = 1.0

    recipe.at_step = raise_it


def _rate_too_low(recipe: Recipe) -> None:
    recipe.optimizer, recipe.rate = torch.optim.SGD, 3e-4


def _one_weight_for_all(recipe: Recipe) -> None:
    recipe.model = nn.Sequential(mlp(64, 64, 1), nn.Linear(1, 10))


class _Wipe(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Standardises each sample over a single number, which leaves nothing of it."""
        return x - x.mean(-1, keepdim=True) - (x - x.mean(-1, keepdim=True)).detach()


def _features_wiped(recipe: Recipe) -> None:
    recipe.model = nn.Sequential(nn.Linear(64, 64), _Wipe(), nn.Linear(64, 10))


def _wide_noise(recipe: Recipe) -> None:
    recipe.on_batch = lambda x, y: (x + 20.0 * torch.randn_like(x), y)


def _weights_forgotten(recipe: Recipe) -> None:
    def forget(step: int, it: Recipe, _: torch.optim.Optimizer) -> None:
        if step == STEPS - 25:
            with torch.no_grad():
                for parameter in it.model.parameters():
                    parameter.normal_(std=1.5)

    recipe.at_step = forget


FAULTS: Final[dict[str, Fault]] = {
    "labels of other samples": _labels_of_others,
    "half of the labels at random": _half_of_the_labels,
    "labels shifted by one sample": _labels_shifted_by_one,
    "classes in another order in validation": _classes_renamed,
    "training inputs of another scale than validation's": _validation_of_another_scale,
    "features shuffled anew in each batch": _inputs_mixed_among_samples,
    "softmax over one output inside": _softmax_of_one_output,
    "probabilities into nll_loss": _probabilities_as_log,
    "maximize=True": _ascent,
    "learning rate far too high": _rate_far_too_high,
    "learning rate raised midway": _rate_raised_midway,
    "learning rate too low for the time": _rate_too_low,
    "a bottleneck of one unit": _one_weight_for_all,
    "features wiped out by a hand-made norm": _features_wiped,
    "inputs drowned in noise": _wide_noise,
    "weights drawn anew near the end": _weights_forgotten,
}
