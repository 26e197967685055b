"""Does what comes out at a moment depend on what comes in later?

Asked where the user says that the model is causal, or where the targets are the inputs one position later: then a model
that sees later inputs sees the answers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from stethoscope.checkup.affected import first_affected
from stethoscope.checkup.examination import Examination, differ
from stethoscope.checkup.findings import CRITICAL, found
from stethoscope.checkup.structure import is_open, map_tensors, tensors
from stethoscope.record import ROOT_NAME, Finding


def examine(exam: Examination) -> Iterator[Finding]:
    """future_leak."""
    if exam.causal is False or not exam.finite or not is_open(exam.subject.inputs):
        return
    length = _sequence_length(exam)
    if length is None or length < 3:
        if exam.causal:
            exam.notes.append("causal=True, but no axis of time is shared by inputs and outputs")
        return
    shifted = _shifted_inputs(exam)
    if exam.causal is None and not shifted:
        return
    moments = sorted({length // 4, length // 2, length - 2})
    exam.saw(f"positions up to {', '.join(map(str, moments))} of {length} with another future")
    for moment in moments:
        inputs = _with_other_future(exam, moment, length, shifted)
        other = exam.run(inputs)
        worst = max(
            (
                differ(a[:, : moment + 1], b[:, : moment + 1])
                for a, b in zip(exam.evaluated, other, strict=True)
                if a.ndim > 1 and a.shape[1] == length
            ),
            default=0.0,
        )
        if worst > 1:
            site = first_affected(exam, inputs, lambda t, m=moment: _upto_moment(t, m, length))  # type: ignore[misc]
            yield found(
                "future_leak",
                CRITICAL,
                f"The output at position {moment} changes with inputs after position {moment}: the model sees the future.",
                sites=[site or ROOT_NAME],
                numbers={"position": moment, "change over what rounding explains": min(worst, 1e12)},
                remedy="F.scaled_dot_product_attention(q, k, v, is_causal=True)",
            )
            return


def _upto_moment(tensor: torch.Tensor, moment: int, length: int) -> torch.Tensor | None:
    """What belongs to this moment and before: along the axis after the batch, or the next (heads)."""
    if tensor.ndim > 1 and tensor.shape[1] == length:
        return tensor[:, : moment + 1]
    if tensor.ndim == 3 and tensor.shape[2] == length:
        return tensor[:, :, : moment + 1]
    return None


def _sequence_length(exam: Examination) -> int | None:
    """The length of the second axis of inputs that outputs have too."""
    lengths = {t.shape[1] for t in exam.evaluated if t.ndim > 1}
    return next((t.shape[1] for t in tensors(exam.subject.inputs) if t.ndim > 1 and t.shape[1] in lengths), None)


def _shifted_inputs(exam: Examination) -> list[int]:
    """The indices of inputs that the targets repeat one moment later: what a causal model predicts."""
    found = []
    for site, x in enumerate(tensors(exam.subject.inputs)):
        for y in tensors(exam.subject.targets):
            if x.shape == y.shape and x.ndim > 1 and x.dtype == y.dtype and x.shape[1] > 3:
                changing = bool((x[:, 1:] != x[:, :-1]).any())
                if changing and torch.equal(x[:, 1:], y[:, :-1]):
                    found.append(site)
    return found


def _with_other_future(exam: Examination, moment: int, length: int, shifted: list[int]) -> object:
    """The inputs with everything after a moment taken from other samples and other positions.

    Where some inputs are the targets of a moment before, only those: a decoder may read all of its encoder's input.
    """
    indices = itertools.count()

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if shifted and next(indices) not in shifted:
            return tensor
        if tensor.ndim < 2 or tensor.shape[1] != length or tensor.dtype is torch.bool:
            return tensor
        later = tensor[:, moment + 1 :].flip(1).roll(1, 0)
        if bool((tensor == tensor.flatten()[0]).all()):
            return tensor
        if torch.equal(later, tensor[:, moment + 1 :]):
            later = tensor[:, moment + 1 :] * 0 + tensor.flatten()[0]
            if tensor.is_floating_point():
                later = later + 1.0
        return torch.cat([tensor[:, : moment + 1], later], dim=1)

    return map_tensors(change, exam.subject.inputs)
