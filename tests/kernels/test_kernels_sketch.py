"""The sketch keeps norms and distances, whatever the structure of the tensor."""

from __future__ import annotations

import numpy as np
import pytest

from stethoscope.kernels import SKETCH_WIDTH, reference
from stethoscope.kernels.sketch import blocks, distance


def test_a_sketch_is_linear() -> None:
    random = np.random.default_rng(0)
    a, b = random.normal(size=1000), random.normal(size=1000)
    np.testing.assert_allclose(reference.sketch(a, 7) - reference.sketch(b, 7), reference.sketch(a - b, 7), atol=1e-4)


@pytest.mark.parametrize("shape", ["bell", "zipf rows", "one column", "constant"])
def test_the_norm_of_the_sketch_estimates_the_norm(shape: str) -> None:
    random = np.random.default_rng(1)
    if shape == "bell":
        values = random.normal(size=20_000)
    elif shape == "zipf rows":
        values = (random.normal(size=(200, 64)) / np.arange(1, 201)[:, None]).reshape(-1)
    elif shape == "one column":
        values = np.where(np.arange(20_000) % 64 == 3, random.normal(size=20_000), 0.0)
    else:
        values = np.ones(20_000)
    sketches = [reference.sketch(values, seed).astype(float) for seed in range(60)]
    ratios = [np.linalg.norm(sketch) / np.linalg.norm(values) for sketch in sketches]
    assert np.mean(np.square(ratios)) == pytest.approx(1.0, abs=0.09)
    assert np.std(ratios) < 0.13


def test_distance_between_two_steps() -> None:
    random = np.random.default_rng(2)
    before = random.normal(size=50_000)
    after = before + 0.01 * random.normal(size=50_000)
    found = [distance(reference.sketch(before, seed), reference.sketch(after, seed)) for seed in range(20)]
    assert np.mean(found) == pytest.approx(np.linalg.norm(after - before), rel=0.1)


def test_rotations_and_signs_are_fair() -> None:
    rotation, signs = blocks(0, 20_000, seed=5)
    assert np.bincount(rotation, minlength=SKETCH_WIDTH).min() > 200
    bits = (signs[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 0.02
    assert not np.array_equal(blocks(0, 8, 5)[1], blocks(0, 8, 6)[1])


def test_blocks_do_not_depend_on_where_one_starts() -> None:
    np.testing.assert_array_equal(blocks(0, 10, 3)[1][4:], blocks(4, 6, 3)[1])
