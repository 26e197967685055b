"""Samples known by a hash of 64 bits, so that one that comes again is known again.

Of small samples every byte counts. Of large ones a fixed set of places does, unless the values there are nearly all alike
(one-hot codes, masks): two such samples may well differ elsewhere only, so then every byte counts after all.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Final

import numpy as np
import torch

from stethoscope.kernels.tensors import bytes_of

MAX_SAMPLES: Final = 256
SMALL_BYTES: Final = 8192
MAX_BENT: Final = 16
NUM_PLACES: Final = 1024
VARIED: Final = 64
"""So many of the places must differ from the first one."""
KEPT: Final = 64
"""About how many hashes of a batch are told where nobody asked for them."""
PLACES_SEED: Final = 0x5E7


def fingerprints(samples: torch.Tensor) -> list[str]:
    """One hash per sample along the first dimension, of all its bytes and its shape."""
    shape = str(tuple(samples.shape[1:])).encode()
    plain = samples.detach()[:MAX_SAMPLES].resolve_conj().resolve_neg().contiguous()
    return [_hash(row.tobytes() + shape) for row in _bytes(plain)]


def quick_fingerprints(samples: torch.Tensor) -> list[str]:
    """The same for batches that come by themselves: what one costs is bounded, however large its samples are."""
    num_elements = samples[0].numel() if len(samples) else 0
    if num_elements * samples.element_size() <= SMALL_BYTES:
        return fingerprints(samples)
    if not samples.is_contiguous():
        samples = samples[:MAX_BENT]  # in logical order they must be copied whole
    shape = str(tuple(samples.shape[1:])).encode()
    few = samples.detach()[:MAX_SAMPLES].flatten(1).index_select(1, _sampled_positions(num_elements))
    varied = ((few != few[:, :1]).sum(1) >= VARIED).tolist()
    found = [_hash(row.tobytes() + shape) for row in _bytes(few)]
    for number, is_varied in enumerate(varied):
        if not is_varied:
            found[number] = fingerprints(samples[number : number + 1])[0]
    return found


def joined(parts: list[list[str]]) -> list[str]:
    """One hash per sample of samples with several parts."""
    if len(parts) == 1:
        return parts[0]
    return [_hash("".join(names).encode()) for names in zip(*parts, strict=True)]


def thinned(names: list[str]) -> tuple[list[str], int]:
    """About as many hashes as are kept, chosen by their own value so that two batches stay comparable, and the mask."""
    mask = 0
    while len(names) > KEPT * (mask + 1):
        mask = 2 * mask + 1
    if len(set(names)) == 1:
        return names[:2], mask
    return [name for name in names if int(name, 16) & mask == 0], mask


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _bytes(samples: torch.Tensor) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    raw = samples if samples.dim() > 1 else samples.reshape(len(samples), 1)
    return bytes_of(raw).reshape(len(raw), -1)


@functools.lru_cache(maxsize=16)
def _sampled_positions(num_elements: int) -> torch.Tensor:
    # A generator of our own: the user's random numbers stay as they are.
    generator = np.random.Generator(np.random.PCG64(PLACES_SEED))
    return torch.from_numpy(np.sort(generator.choice(num_elements, NUM_PLACES, replace=False, shuffle=False)))
