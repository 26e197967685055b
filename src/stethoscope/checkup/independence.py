"""Does a sample's output depend on the other samples?

Asked in evaluation mode (BatchNorm mixes samples in training, as it should), of the model's output (a contrastive loss
compares samples, as it should), and only of models that take any number of samples: one that knows who is whose
neighbour (a graph network) cannot be run on half of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from stethoscope.capture.nested_tensors import tensors_in
from stethoscope.checkup.affected import first_affected
from stethoscope.checkup.examination import Examination, differ
from stethoscope.checkup.findings import CRITICAL, INFO, found
from stethoscope.checkup.structure import is_open, select, tensors
from stethoscope.record import Finding, plural


def examine(exam: Examination) -> Iterator[Finding]:
    """batch_dependence."""
    subject = exam.subject
    size = subject.num_samples
    if size < 4 or not exam.finite or not is_open(subject.inputs) or _knows_neighbours(exam) or _batch_statistics(exam):
        return
    halves = torch.arange(size // 2, device="cpu"), torch.arange(size // 2, size, device="cpu")
    if not _takes_any_number(exam, halves[0]):
        return
    worst, changed, kept = 0.0, halves[0], halves[0]
    for same, other in (halves, halves[::-1]):
        # The other half becomes copies of this half in another order: numbers that the model may well see. Both ways,
        # because a recurrence along the batch carries things in one direction only.
        rows = torch.arange(size, device="cpu")
        rows[other] = same.flip(0).repeat(2)[: len(other)]
        try:
            outputs = exam.run(select(subject.inputs, size, rows))
        except (ValueError, RuntimeError, IndexError):
            return
        apart = max(
            (_largest_difference(exam, a, b, same) for a, b in zip(exam.evaluated, outputs, strict=True)), default=0.0
        )
        if apart > worst:
            worst, changed, kept = apart, rows, same
    exam.saw(f"each half of {plural(size, 'sample')} beside other samples")
    if worst > 1:
        unsure = _may_be_time_first(exam, size)
        yield found(
            "batch_dependence",
            INFO if unsure else CRITICAL,
            "The output of a sample changes with the other samples of the batch, in evaluation mode too.",
            sites=_first_mixing(exam, changed, kept),
            numbers={"change over what rounding explains": min(worst, 1e12), "samples replaced": size - len(kept)},
            remedy="F.softmax(x, dim=-1)  # not over dim 0; and x.transpose(0, 1) where a view mixes batch and time",
        )


def subject_is_time_first(exam: Examination, size: int) -> bool:
    """Whether the inputs count samples along their second axis."""
    return any(t.ndim > 1 and t.shape[0] != size and t.shape[1] == size for t in tensors(exam.subject.inputs))


def _takes_any_number(exam: Examination, kept: torch.Tensor) -> bool:
    """Whether half of the samples give outputs for half of the samples, of the same kind."""
    try:
        half = exam.run(select(exam.subject.inputs, exam.subject.num_samples, kept))
    except Exception:  # A model that is tied to its batch size says so in many ways; it is left alone.
        return False
    pairs = list(zip(exam.evaluated, half, strict=False))
    return (
        bool(pairs)
        and len(half) == len(exam.evaluated)
        and all(
            not a.ndim
            or a.shape[1:] == b.shape[1:]
            or (a.ndim > 1 and a.shape[2:] == b.shape[2:] and a.shape[0] == b.shape[0])
            for a, b in pairs
        )
    )


def _knows_neighbours(exam: Examination) -> bool:
    """Whether there is a list of edges among inputs or in the model, 2 x E or E x 2 of integers, or a sparse matrix.

    A dense adjacency shows by itself: it does not fit half of the samples.
    """
    own = [t for m in exam.subject.model.modules() for t in tensors_in([vars(m)["_buffers"], _plain(m)])]
    for tensor in [*tensors(exam.subject.inputs), *own]:
        if tensor.layout is not torch.strided:
            return True
        if tensor.ndim == 2 and not tensor.is_floating_point() and tensor.dtype is not torch.bool:
            rows, columns = tensor.shape
            if (rows == 2 or columns == 2) and exam.subject.num_samples != rows:
                return True
    return False


def _plain(module: torch.nn.Module) -> list[torch.Tensor]:
    return [value for value in vars(module).values() if isinstance(value, torch.Tensor)]


def _batch_statistics(exam: Examination) -> bool:
    """BatchNorm without running statistics uses the batch's own in evaluation too, because it is configured to."""
    return any(
        getattr(m, "track_running_stats", True) is False and "BatchNorm" in type(m).__name__
        for m in exam.subject.model.modules()
    )


def _may_be_time_first(exam: Examination, size: int) -> bool:
    """Whether the first axis may be time: a recurrent layer that is not batch_first, targets for every element."""
    recurrent = any(isinstance(m, torch.nn.RNNBase) and not m.batch_first for m in exam.subject.model.modules())
    targets = tensors(exam.subject.targets)
    flat = any(t.ndim == 1 and t.shape[0] == size for t in targets)
    unbatched = recurrent and any(t.ndim == 2 and t.is_floating_point() for t in tensors(exam.subject.inputs))
    return recurrent and bool(targets) and (not flat or unbatched)


def _largest_difference(exam: Examination, a: torch.Tensor, b: torch.Tensor, same: torch.Tensor) -> float:
    """How far the outputs of these samples are apart."""
    size = exam.subject.num_samples
    rows = same.to(a.device)
    if a.ndim and a.shape[0] == size:
        return differ(a[rows], b[rows])
    if a.ndim > 1 and a.shape[1] == size and subject_is_time_first(exam, size):
        return differ(a[:, rows], b[:, rows])
    return 0.0


def _first_mixing(exam: Examination, changed: torch.Tensor, same: torch.Tensor) -> list[str]:
    """The innermost module whose inputs keep these samples as they were and whose output does not."""
    size = exam.subject.num_samples

    def kept(tensor: torch.Tensor) -> torch.Tensor | None:
        return tensor[same.to(tensor.device)] if tensor.ndim and tensor.shape[0] == size else None

    site = first_affected(exam, select(exam.subject.inputs, size, changed), kept)
    return [site] if site else []
