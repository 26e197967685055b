"""Cases for the Triton kernels, for triton's interpreter here and for a real device in benchmarks/gpu."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from stethoscope.kernels import Extras, Slots, launching, reference, triton, triton_gather, variants
from stethoscope.kernels.pointers import collect, collect_pieces
from tests.kernels.agreement import (
    FLOATS,
    FP8,
    INTEGERS,
    assert_rows_agree,
    ordinary_tensor,
    tensor_of_bits,
    with_specials,
)

SPAN = triton.LEAST_SPAN
FEW_LANES = 8
"""Spans that one look combines in the interpreter, which is slow."""


def groups() -> Iterator[list[torch.Tensor]]:
    """Lists of tensors to be measured in one call each."""
    for dtype in (*FLOATS, *FP8, *INTEGERS):
        yield [tensor_of_bits(dtype, 300, 1), ordinary_tensor(dtype, 9000, 2), tensor_of_bits(dtype, 0, 1)]
    yield [with_specials(ordinary_tensor(dtype, 8192 + 5, 3), 4) for dtype in FLOATS]
    yield [torch.randn(5000) * 1e-42, torch.randn(5000) * 3e37, torch.zeros(9), torch.full((9000,), 0.1)]
    far = torch.randn(9000, dtype=torch.float64) * 1e200
    yield [far, torch.tensor([5e-324, -1e-310], dtype=torch.float64)]
    yield [torch.randn(20_000) + 1e6, torch.full((8192,), float("nan")), torch.randn(40, 50).t()]
    yield [torch.randn(9001)[1:], torch.randn(16384), torch.tensor(2.5)]
    yield [ordinary_tensor(dtype, 9000, 9).relu_() for dtype in FLOATS]
    for dtype in FP8:
        yield [
            tensor_of_bits(dtype, 9001, 5)[1:],
            torch.full((5,), 1.0).to(dtype),
            every_byte(dtype),
            every_byte(dtype)[:2],
        ]
    yield from several_spans()


def every_byte(dtype: torch.dtype) -> torch.Tensor:
    """All 256 of an 8-bit dtype."""
    return torch.arange(256, dtype=torch.int16).to(torch.uint8).view(dtype)


def several_spans() -> Iterator[list[torch.Tensor]]:
    """Tensors of more than one span, which whoever is done last puts together: far apart, with zeros in some, not finite in one."""
    count = SPAN + 77
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        mixed = ordinary_tensor(dtype, count, 5)
        mixed[SPAN:] = mixed[SPAN:] * 3 + 1
        yield [
            mixed,
            ordinary_tensor(dtype, 50, 6),
            ordinary_tensor(dtype, count, 7).relu_(),
            ordinary_tensor(dtype, 0, 8),
        ]
    yield many_spans()
    lost = torch.randn(count) + 1e4
    lost[:SPAN] = float("nan")
    lost[-1] = float("inf")
    yield [lost, torch.zeros(count), torch.randn(count) * 1e-40]


def many_spans() -> list[torch.Tensor]:
    """More spans than one look combines: groups of them are combined first, of which one holds zeros and one is lost."""
    lanes = variants.MERGE_LANES
    tensor = torch.randn(2 * lanes * SPAN + 3 * SPAN + 5) + 100
    tensor[: SPAN // 2] = 0
    tensor[lanes * SPAN : 2 * lanes * SPAN] = float("nan")
    tensor[-7:] *= 1e20
    return [torch.randn(3 * SPAN), tensor, ordinary_tensor(torch.float32, 300, 3)]


def compiled_first(work: Callable[[], Any]) -> Any:
    """What `work` gives, done again when the device code that it takes was compiled."""
    found = work()
    if found is None or found is False:
        for waiting in launching.preparations():
            waiting.wait()
        found = work()
    assert found is not None, launching.backend()
    return found


def check(tensors: list[torch.Tensor], limit: float | None, seed: int) -> None:
    """Rows, histograms and sketches against the reference."""
    table = collect(tensors, ordered=True)
    assert table is not None
    limits = [limit] * len(tensors)
    measured = compiled_first(lambda: triton.launch(table, limits, Extras(True, True, seed))).result()
    host = [tensor.cpu() for tensor in tensors]
    assert_rows_agree(measured.rows, reference.rows(host, limits))
    plain = compiled_first(lambda: triton.launch(collect(tensors), None, None)).result()
    assert_rows_agree(plain.rows, reference.rows(host))
    assert measured.histograms is not None
    assert measured.sketches is not None
    for tensor, histogram, sketch in zip(host, measured.histograms, measured.sketches, strict=True):
        np.testing.assert_array_equal(histogram, reference.histogram(tensor))
        flat, _ = reference.values(tensor)
        with np.errstate(over="ignore"):
            total = np.abs(flat[np.isfinite(flat)]).sum()
        if np.isfinite(total):
            np.testing.assert_allclose(sketch, reference.sketch(tensor, seed), rtol=1e-5, atol=1e-9 * total)


def check_gather(tensors: list[torch.Tensor]) -> None:
    """All elements of each tensor, backwards."""
    table = collect(tensors)
    assert table is not None
    counts = [tensor.numel() for tensor in tensors]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    offsets = np.concatenate([np.arange(count)[::-1] for count in counts]).astype(np.int64)
    found = compiled_first(lambda: triton_gather.gather(table, starts, offsets, ("check", *counts)))
    truth = np.concatenate([reference.values(tensor)[0][::-1] for tensor in tensors])
    np.testing.assert_array_equal(found.cpu().numpy(), truth)
    pieces = compiled_first(lambda: triton.launch(collect_pieces(found, starts), None, None)).result()
    assert_rows_agree(pieces.rows, reference.rows(np.split(truth, starts[1:-1])))


def check_slots(tensors: list[torch.Tensor]) -> None:
    """What a captured graph would do, done at once; then nothing more is written."""
    slots = Slots(tensors[0].device)
    for number, tensor in enumerate(tensors):
        assert compiled_first(lambda t=tensor, n=number: slots.record(t, n, captured=n % 2 == 0))
    assert not slots.record(tensors[0][:0], 0, captured=False)
    labels, pending = slots.fetch()
    first = pending.result()
    assert first.unsupported == ()
    assert_rows_agree(first.rows, reference.rows([tensors[label].cpu() for label in labels]))
    again, pending = slots.fetch()
    assert again == labels[: (len(tensors) + 1) // 2]
    assert pending.result().unsupported == tuple(range(len(again)))


def main(device: str = "cpu", part: int = 0, parts: int = 1) -> int:
    """Every case, or one part of them; the number of cases."""
    done = 0
    if device == "cpu":
        variants.MERGE_LANES = FEW_LANES  # type: ignore[misc]
    for position, group in enumerate(groups()):
        if position % parts == part:
            check([tensor.to(device) for tensor in group], (None, 1.0)[position % 2], position)
            done += 1
    if part == 0:
        check_gather([ordinary_tensor(dtype, 700, 1).to(device) for dtype in (*FLOATS, *FP8, *INTEGERS)])
        check_slots([ordinary_tensor(dtype, 9001, 1).to(device) for dtype in FLOATS])
        done += 2
    return done


def pairs() -> Iterator[list[torch.Tensor]]:
    """What is read two numbers at a time: with zeros and without, with subnormal numbers, several spans, nothing finite."""
    for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2):
        some = ordinary_tensor(dtype, 9000, 2)
        mixed = torch.randn(2 * SPAN + 77)
        mixed[::3] = 0
        lost = torch.randn(9000)
        lost[7], lost[8500] = float("nan"), float("inf")
        small = torch.randn(9000) * torch.finfo(dtype).smallest_normal * 4
        if dtype == torch.bfloat16:  # of which the interpreter reads the subnormal ones wrongly
            small = torch.randn(9000) * 1e-30
        small[::9] = 0
        yield [some, mixed.to(dtype), (mixed.abs() + 1).to(dtype), lost.to(dtype), small.to(dtype)]
        yield [small.relu().to(dtype), torch.zeros(9000, dtype=dtype), torch.full((9000,), 0.5).to(dtype)]


def check_pairs() -> int:
    """Those cases by the interpreter, with a device's instructions for two numbers written out."""
    from tests.kernels import pairs_by_hand

    pairs_by_hand.use()
    variants.MERGE_LANES = FEW_LANES  # type: ignore[misc]
    found = list(pairs())
    for position, group in enumerate(found):
        check(group, (None, 1.0)[position % 2], position)
    return len(found)


if __name__ == "__main__":
    given = sys.argv[1:]
    if given == ["pairs"]:
        print(check_pairs())
        sys.exit()
    print(main(*given[:1], *map(int, given[1:])))
