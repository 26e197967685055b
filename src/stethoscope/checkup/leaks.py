"""Does one feature give the label away, and are validation samples among the training samples?

A feature that was computed from the label has one narrow cluster of values for each class, far apart; a feature that
merely decides it (a threshold) has not. Needs 200 samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from stethoscope.checkup.examination import Examination
from stethoscope.checkup.findings import WARNING, found, listed
from stethoscope.checkup.structure import tensors
from stethoscope.record import Finding, plural

MIN_SAMPLES: Final = 200
MAX_FEATURES: Final = 20_000
MAX_CLASSES: Final = 100
MIN_SEPARATION: Final = 8.0
"""Distance of neighbouring classes over the deviation within them."""
MIN_CORRELATION: Final = 0.999
"""Where no other feature comes near: a target that was rounded, or carries a little noise, is a target still."""
MIN_OVERLAP: Final = 0.05


def examine(exam: Examination) -> Iterator[Finding]:
    """label_leak, train_val_overlap."""
    x, y = _feature_table(exam.subject.inputs, exam.subject.targets)
    if exam.val_batch is not None and x is not None:
        val_x, val_y = _feature_table(*exam.val_batch)
        if val_x is not None and val_x.shape[1:] == x.shape[1:]:
            yield from _shared_samples(x, val_x)
            if y is not None and val_y is not None and y.dtype == val_y.dtype:
                x, y = torch.cat([x, val_x]), torch.cat([y, val_y])
    if x is None or y is None or len(x) < MIN_SAMPLES or x.shape[1] < 2:
        return
    exam.saw(f"{x.shape[1]:,} features of {plural(len(x), 'sample')} against the target")
    if not y.is_floating_point() or int(torch.unique(y).numel()) <= min(MAX_CLASSES, len(y) // 10):
        scores = _class_separations(x, y)
        leaking = (scores >= MIN_SEPARATION).nonzero().flatten().tolist()
    else:
        scores = _target_correlations(x, y)
        leaking = (scores >= MIN_CORRELATION).nonzero().flatten().tolist()
        rest = scores[[column for column in range(len(scores)) if column not in leaking]]
        if len(rest) < 2 or float(rest.max()) > 0.95:
            return
    # Where many features tell, the classes are easy to tell.
    if leaking and len(leaking) <= max(1, x.shape[1] // 10):
        names = [f"input[:, {column}]" for column in leaking]
        yield found(
            "label_leak",
            WARNING,
            f"{listed(names)} alone gives the target away for all {len(x)} samples: was it computed from it?",
            sites=names,
            numbers={"separation or correlation": min(float(scores[leaking[0]]), 1e9), "samples": len(x)},
            remedy=f"x = np.delete(x, {leaking}, axis=1)",
            confidence=0.9,
        )


def _feature_table(inputs: object, targets: object) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """One row of numbers a sample and one target a sample."""
    given, wanted = tensors(inputs), tensors(targets)
    if len(given) != 1 or not given[0].is_floating_point() or given[0].ndim < 2:
        return None, None
    x = given[0].detach().double().flatten(1).cpu()
    if x.shape[1] > MAX_FEATURES or not bool(torch.isfinite(x).all()):
        return None, None
    if len(wanted) != 1 or wanted[0].numel() != len(x):
        return x, None
    return x, wanted[0].detach().reshape(-1).cpu()


def _class_separations(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """For each feature, how far apart neighbouring classes are, in deviations within them; 0 for one class."""
    classes = torch.unique(y)
    if len(classes) < 2:
        return torch.zeros(x.shape[1], device="cpu")
    groups = [x[y == label] for label in classes]
    if min(len(group) for group in groups) < 3:
        return torch.zeros(x.shape[1], device="cpu")
    means = torch.stack([group.mean(0) for group in groups])
    widths = torch.stack([group.std(0) for group in groups]).max(0).values
    # Every class must be clear of its neighbours, value by value too.
    ordered, _ = means.sort(dim=0)
    gaps = (ordered[1:] - ordered[:-1]).min(0).values
    return torch.where(gaps > 0, gaps / widths.clamp(min=1e-9 * (1 + x.abs().max())), torch.zeros_like(gaps))


def _target_correlations(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    centered = x - x.mean(0)
    wanted = y.double() - y.double().mean()
    norms = centered.norm(dim=0) * wanted.norm()
    return torch.where(
        norms > 0,
        (centered * wanted[:, None]).sum(0).abs() / norms.clamp(min=1e-300),
        torch.zeros_like(norms),
    )


def _shared_samples(x: torch.Tensor, val: torch.Tensor) -> Iterator[Finding]:
    """Samples of the validation batch that are in the training batch, number by number."""
    if x.shape[1] < 4:
        return
    rows = {row.numpy().tobytes() for row in x}
    # Blank samples are equal to each other and say nothing.
    shared = sum(row.numpy().tobytes() in rows for row in val if bool((row != row[0]).any()))
    if shared >= max(2, MIN_OVERLAP * len(val)):
        yield found(
            "train_val_overlap",
            WARNING,
            f"{shared} of {len(val)} validation samples are in the training batch.",
            sites=["(input)"],
            numbers={"share of the validation batch": shared / len(val)},
            remedy="train_set, val_set = torch.utils.data.random_split(dataset, [0.9, 0.1])",
            confidence=0.95,
        )
