"""The random-sign sketch: 64 sums that keep distances.

Every element of a tensor, in logical order, is added with a random sign to one of `SKETCH_WIDTH` sums.
Elements are taken in blocks of 64: block k has a rotation r and 64 signs, both hashed from k and the seed;
element j of the block goes to sum (j + r) mod 64. So the sums of a difference are the difference of the sums,
and the norm of the sums is an unbiased estimate of the tensor's norm. Non-finite values are left out. Every
kernel computes the same sums, up to rounding.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

SKETCH_WIDTH: Final = 64

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MASK: Final = (1 << 64) - 1


def mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Scrambles 64-bit words (the finaliser of SplitMix64, Steele, Lea and Flood 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def stream(seed: int) -> int:
    """The 64-bit word that the hashes of this seed start from."""
    return int(mix(np.array([(seed + int(_GOLDEN)) & _MASK], dtype=np.uint64))[0])


def blocks(first: int, count: int, seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    """Rotation and sign word (bit j set: element j is subtracted) of the blocks first .. first+count-1."""
    number = np.arange(first, first + count, dtype=np.uint64)
    signs = mix(np.uint64(stream(seed)) + number * _GOLDEN)
    rotation = (mix(signs + _GOLDEN) >> np.uint64(58)).astype(np.int64)
    return rotation, signs


def distance(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    """Estimated L2 distance of the two tensors that were sketched with the same seed (about 12% off)."""
    return float(np.linalg.norm(np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)))
