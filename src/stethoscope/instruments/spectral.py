"""The spectral view of weight matrices: largest singular value, stable rank, tail exponent.

The largest singular value comes from power iteration on W'W with a fixed start, until it moves by less than
1e-6 relative or 200 rounds are done (`converged` says which). The stable rank is the squared Frobenius norm
over its square. The tail exponent needs all singular values: it is the maximum-likelihood power law
(Clauset, Shalizi and Newman 2009) of the eigenvalues of W'W over the half with the largest ones, and is
computed only up to `FULL_LIMIT` on the smaller side unless asked for. Kernels of convolutions are taken as
[out, everything else].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stethoscope.instruments.array_input import as_numpy, named_arrays
from stethoscope.record import FloatArray

FULL_LIMIT = 1024
TOLERANCE = 1e-6
MAX_ROUNDS = 200


@dataclass(frozen=True, slots=True)
class SpectralAnalysis:
    """One matrix."""

    layer: int | str
    shape: tuple[int, int]
    """[out, in] after flattening."""
    largest_singular_value: float
    frobenius_norm: float
    stable_rank: float
    """Between 1 and the rank: how many directions share the energy."""
    rounds: int
    converged: bool
    tail_exponent: float | None = None
    """Small (under 2) means a few directions dominate; None where not computed."""
    smallest_singular_value: float | None = None
    effective_rank: float | None = None
    """exp of the entropy of the normalised singular values (Roy and Vetterli 2007)."""


def analyze(arrays: Any, *, full: bool | None = None) -> list[SpectralAnalysis]:
    """Every array with two or more dimensions and elements; others are skipped.

    `full` computes all singular values: always, never, or (None) where the smaller side is at most 1024.
    """
    names, values = named_arrays(arrays)
    found = []
    for index, value in enumerate(values):
        layer: int | str = names[index] if names else index
        array = as_numpy(value, str(layer))
        if array.ndim < 2 or array.size == 0:
            continue
        matrix = np.asarray(array, dtype=np.float64).reshape(array.shape[0], -1)
        if not np.isfinite(matrix).all():
            found.append(_unknown_spectrum(layer, matrix))
            continue
        everything = full if full is not None else min(matrix.shape) <= FULL_LIMIT
        found.append(_one(layer, matrix, everything))
    return found


def _one(layer: int | str, matrix: FloatArray, everything: bool) -> SpectralAnalysis:
    largest, rounds, converged = power_iteration(matrix)
    norm = float(np.linalg.norm(matrix))
    shape = (matrix.shape[0], matrix.shape[1])
    rank = (norm / largest) ** 2 if largest > 0 else 0.0
    if not everything:
        return SpectralAnalysis(layer, shape, largest, norm, rank, rounds, converged)
    values = np.linalg.svd(matrix, compute_uv=False).astype(np.float64)
    return SpectralAnalysis(
        layer,
        shape,
        largest,
        norm,
        rank,
        rounds,
        converged,
        tail_exponent=tail_exponent(values**2),
        smallest_singular_value=float(values[-1]),
        effective_rank=effective_rank(values),
    )


def _unknown_spectrum(layer: int | str, matrix: FloatArray) -> SpectralAnalysis:
    nan = float("nan")
    return SpectralAnalysis(layer, (matrix.shape[0], matrix.shape[1]), nan, nan, nan, 0, False)


def power_iteration(matrix: FloatArray) -> tuple[float, int, bool]:
    """The largest singular value, rounds taken, and whether it settled."""
    scale = float(np.max(np.abs(matrix)))
    if scale == 0.0:
        return 0.0, 0, True
    matrix = matrix / scale
    if matrix.shape[0] < matrix.shape[1]:
        matrix = matrix.T
    vector = np.random.default_rng(0).standard_normal((matrix.shape[1],))
    vector /= float(np.linalg.norm(vector))
    sigma = 0.0
    for done in range(1, MAX_ROUNDS + 1):
        image = matrix @ vector
        latest = float(np.linalg.norm(image))
        back = matrix.T @ image
        length = float(np.linalg.norm(back))
        if length == 0.0:
            return latest * scale, done, True
        vector = back / length
        if abs(latest - sigma) <= TOLERANCE * latest:
            return latest * scale, done, True
        sigma = latest
    return sigma * scale, MAX_ROUNDS, False


def tail_exponent(eigenvalues: FloatArray) -> float | None:
    """alpha = 1 + n / sum(log(x / x_min)) over the larger half; None under 10 values or without a spread."""
    tail = np.sort(eigenvalues)[len(eigenvalues) // 2 :]
    tail = tail[tail > 0]
    if len(tail) < 10:
        return None
    logs = float(np.log(tail / tail[0]).sum())
    return 1.0 + len(tail) / logs if logs > 0 else None


def effective_rank(singular_values: FloatArray) -> float:
    """exp of the entropy of the singular values' shares; 0 for a zero matrix."""
    total = float(singular_values.sum())
    if total == 0.0:
        return 0.0
    share = singular_values[singular_values > 0] / total
    return float(np.exp(-(share * np.log(share)).sum()))
