"""The data every program trains on: small, real, and the same each time."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from sklearn import datasets


class Split(NamedTuple):
    """Training and validation samples."""

    x: torch.Tensor
    y: torch.Tensor
    val_x: torch.Tensor
    val_y: torch.Tensor


def _split(x: np.ndarray, y: np.ndarray, seed: int = 0) -> Split:
    order = np.random.default_rng(seed).permutation(len(x))
    x, y = x[order].astype(np.float32), y[order]
    cut = len(x) * 4 // 5
    labels = y.astype(np.float32) if y.dtype.kind == "f" else y.astype(np.int64)
    return Split(*(torch.as_tensor(part.copy()) for part in (x[:cut], labels[:cut], x[cut:], labels[cut:])))


@functools.cache
def _digits() -> tuple[np.ndarray, np.ndarray]:
    bunch = datasets.load_digits()
    return bunch.data, bunch.target


def digits() -> Split:
    """1,797 images of 8 x 8 as 64 standardised numbers; ten classes."""
    x, y = _digits()
    return _split((x - x.mean()) / x.std(), y)


def digits_raw() -> Split:
    """The same with pixels from 0 to 16, as they are loaded."""
    return _split(*_digits())


def digit_images() -> Split:
    """The same as (N, 1, 8, 8)."""
    data = digits()
    return data._replace(x=data.x.view(-1, 1, 8, 8), val_x=data.val_x.view(-1, 1, 8, 8))


def cancer() -> Split:
    """569 samples of 30 standardised features; two classes."""
    bunch = datasets.load_breast_cancer()
    return _split((bunch.data - bunch.data.mean(0)) / bunch.data.std(0), bunch.target)


def cancer_raw() -> Split:
    """The same unscaled: features from 0.05 to 4,000."""
    bunch = datasets.load_breast_cancer()
    return _split(bunch.data, bunch.target)


def cancer_regression() -> Split:
    """Predict the mean area (feature 3, standardised) from the other 29 features."""
    bunch = datasets.load_breast_cancer()
    x = (bunch.data - bunch.data.mean(0)) / bunch.data.std(0)
    return _split(np.delete(x, 3, axis=1), x[:, 3])


def diabetes() -> Split:
    """442 samples of 10 features, a standardised number to predict."""
    x, y = datasets.load_diabetes(return_X_y=True)
    return _split(x / x.std(0), (y - y.mean()) / y.std())


def wine() -> Split:
    """178 samples of 13 standardised features; three classes."""
    x, y = datasets.load_wine(return_X_y=True)
    return _split((x - x.mean(0)) / x.std(0), y)


def moons(num_samples: int = 1000, noise: float = 0.2) -> Split:
    """Two interleaved half circles."""
    return _split(*datasets.make_moons(num_samples, noise=noise, random_state=0))


@functools.cache
def _text() -> str:
    loaders = (datasets.load_digits, datasets.load_breast_cancer, datasets.load_wine, datasets.load_diabetes)
    return "".join(loader().DESCR for loader in loaders)


@functools.cache
def text() -> tuple[torch.Tensor, int]:
    """About 10,000 characters of English as numbers, and how many different ones there are; 0 is kept for padding."""
    letters = sorted(set(_text()))
    place = {letter: number for number, letter in enumerate(letters, start=1)}
    return torch.tensor([place[letter] for letter in _text()]), len(letters) + 1


def batches(
    x: torch.Tensor, y: torch.Tensor, size: int = 64, steps: int = 150, seed: int = 0
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Shuffled batches, epoch after epoch, until there were `steps` of them."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    done = 0
    while done < steps:
        order = torch.randperm(len(x), generator=generator)
        for start in range(0, max(len(x) - size + 1, 1), size):
            if done == steps:
                return
            rows = order[start : start + size]
            yield x[rows], y[rows]
            done += 1


def windows(
    length: int = 32, size: int = 16, steps: int = 150, seed: int = 0
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pieces of the text and the same pieces one letter later."""
    ids, _ = text()
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(len(ids) - length - 1, (size,), generator=generator)
        rows = starts[:, None] + torch.arange(length + 1)
        piece = ids[rows]
        yield piece[:, :-1], piece[:, 1:]


def adding_problem(
    length: int = 100, size: int = 32, steps: int = 150, seed: int = 0
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Sequences of (number, mark): the target is the sum of the two marked numbers."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    for _ in range(steps):
        numbers = torch.rand(size, length, generator=generator)
        marks = torch.zeros(size, length)
        first = torch.randint(length // 2, (size,), generator=generator)
        second = torch.randint(length // 2, length, (size,), generator=generator)
        marks[torch.arange(size), first] = marks[torch.arange(size), second] = 1.0
        yield torch.stack([numbers, marks], dim=-1), (numbers * marks).sum(1)
