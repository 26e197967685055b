"""Hypothesis strategies: tensors of any dtype, size, layout and content."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from tests.kernels.agreement import FLOATS, FP8, INTEGERS, laid_out, ordinary_tensor, tensor_of_bits, with_specials

LAYOUTS = ("plain", "transposed", "strided", "window", "expanded", "shifted", "misaligned")
COUNTS = st.one_of(
    st.integers(0, 70), st.sampled_from([255, 256, 257, 1023, 1024, 1025, 2047, 2049, 4095, 4096, 4097, 9000])
)


@st.composite
def tensors(draw: st.DrawFn, dtypes: tuple[torch.dtype, ...] = (*FLOATS, *FP8, *INTEGERS)) -> torch.Tensor:
    dtype, count, seed = draw(st.sampled_from(dtypes)), draw(COUNTS), draw(st.integers(0, 2**31))
    making = draw(st.sampled_from(["bits", "ordinary", "specials"]))
    if making == "bits":
        tensor = tensor_of_bits(dtype, count, seed)
    else:
        tensor = ordinary_tensor(dtype, count, seed)
    if making == "specials":
        tensor = with_specials(tensor, seed)
    return laid_out(tensor, draw(st.sampled_from(LAYOUTS)))
