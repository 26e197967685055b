"""Does the output change with what stands in the padding?

Numbers are added to the embeddings of padded positions, and nowhere else: the model still knows by its ids or its mask
which positions are padding, so only a leak carries them to the output of a real position.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from stethoscope.checkup.affected import first_affected
from stethoscope.checkup.examination import Examination, differ
from stethoscope.checkup.findings import CRITICAL, INFO, found
from stethoscope.checkup.structure import is_open, tensors
from stethoscope.record import Finding, plural

NOISE: Final = 1.0


class Disturb(TorchFunctionMode):
    """Adds noise to what is looked up for padded positions."""

    def __init__(self, padded: torch.Tensor) -> None:
        super().__init__()
        self.padded, self.num_lookups = padded, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run it; look-ups come back changed."""
        out = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") != "embedding" or not isinstance(out, torch.Tensor):
            return out
        ids = next(
            (a for a in (*args, *(kwargs or {}).values()) if isinstance(a, torch.Tensor) and not a.is_floating_point()),
            None,
        )
        if ids is None or ids.shape != self.padded.shape:
            return out
        self.num_lookups += 1
        generator = torch.Generator().manual_seed(7)
        noise = torch.randn(out.shape, generator=generator, device="cpu").to(out) * (
            NOISE * float(out.detach().std()) + 0.1
        )
        return out + noise * self.padded.to(out.device).unsqueeze(-1).to(out.dtype)


def examine(exam: Examination) -> Iterator[Finding]:
    """padding_leak."""
    pad_id, asked = _pad_id(exam)
    if pad_id is None or not exam.finite or not is_open(exam.subject.inputs):
        return
    ids = next(
        (
            t
            for t in tensors(exam.subject.inputs)
            if t.ndim == 2 and not t.is_floating_point() and t.dtype is not torch.bool and bool((t == pad_id).any())
        ),
        None,
    )
    if ids is None:
        if asked:
            exam.notes.append(f"pad_id={pad_id}, but no padding is in this batch")
        return
    padded = _padding_mask(ids, pad_id)
    if not padded.any():
        return
    mode = Disturb(padded)
    with mode:
        other = exam.run()
    if not mode.num_lookups:
        exam.notes.append("padding was not examined: no embedding of the padded ids was seen")
        return
    exam.saw(f"other numbers in {plural(int(padded.sum()), 'padded site')}")
    worst = 0.0
    for a, b in zip(exam.evaluated, other, strict=True):
        if a.shape[:2] == padded.shape:
            real = (ids != pad_id).to(a.device)
            worst = max(worst, differ(a[real], b[real]))
        elif a.ndim == 3 and (a.shape[0], a.shape[2]) == padded.shape:
            real = (ids != pad_id).to(a.device)
            worst = max(worst, differ(a.transpose(1, 2)[real], b.transpose(1, 2)[real]))
        elif a.ndim in (1, 2) and a.shape[0] == padded.shape[0]:
            # With more axes some may be positions, and which of them are padding is not known.
            rows = (ids != pad_id).any(1).to(a.device)
            worst = max(worst, differ(a[rows], b[rows]))
    if worst > 1:
        yield found(
            "padding_leak",
            CRITICAL if asked else INFO,
            "The output changes with what stands in the padding: padded positions are not masked everywhere.",
            sites=_first_affected(exam, padded, ids != pad_id),
            numbers={
                "share of positions that are padding": float(padded.float().mean()),
                "change over what rounding explains": min(worst, 1e12),
            },
            remedy=f"mask = ids != {pad_id}; x = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)",
        )


def _pad_id(exam: Examination) -> tuple[int | None, bool]:
    """The padding's id, and whether the user named it."""
    if exam.pad_id is not None:
        return exam.pad_id, True
    known = {
        m.padding_idx
        for m in exam.subject.model.modules()
        if isinstance(m, torch.nn.Embedding) and m.padding_idx is not None
    }
    return (known.pop(), False) if len(known) == 1 else (None, False)


def _padding_mask(ids: torch.Tensor, pad_id: int) -> torch.Tensor:
    """Padding at the ends of rows; an id that also occurs among the text is text there."""
    is_pad = ids == pad_id
    after = is_pad.flip(1).long().cumprod(1).flip(1).bool()
    before = is_pad.long().cumprod(1).bool()
    whole = is_pad.all(1, keepdim=True)
    return (after | before) & ~whole


def _first_affected(exam: Examination, padded: torch.Tensor, real: torch.Tensor) -> list[str]:
    def part(tensor: torch.Tensor) -> torch.Tensor | None:
        if tensor.shape[:2] == padded.shape:
            return tensor[real.to(tensor.device)]
        return tensor if tensor.ndim in (1, 2) and tensor.shape[0] == padded.shape[0] else None

    modes: list[Disturb] = []

    def disturb(_: Any) -> None:
        modes.append(Disturb(padded))
        modes[0].__enter__()  # type: ignore[no-untyped-call]

    try:
        site = first_affected(exam, None, part, around=disturb)
    finally:
        if modes:
            modes[0].__exit__(None, None, None)  # type: ignore[no-untyped-call]
    return [site] if site else []
