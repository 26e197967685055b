"""Where do NaN and Inf come from: the batch, a constant feature, an attention row with nothing to see, an operation?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from stethoscope.checkup.examination import Examination
from stethoscope.checkup.findings import CRITICAL, INFO, found, listed
from stethoscope.checkup.observation import Observer, Softmax, nonfinite_names
from stethoscope.checkup.structure import map_tensors, tensors
from stethoscope.checkup.subject import output_tensors
from stethoscope.record import ROOT_NAME, Finding, plural


def examine(exam: Examination) -> Iterator[Finding]:
    """nonfinite_batch, nonfinite_buffer, constant_feature, fully_masked_attention, nonfinite_origin."""
    yield from _check_weights(exam)
    exam.saw(f"the batch, {plural(len(exam.first.parameters), 'parameter')}, their gradients, the loss")
    gradients = nonfinite_names([(n, g) for n, g in exam.first.gradients.items() if g is not None and not g.is_sparse])
    broken = bool(gradients) or not exam.finite
    masked = list(_check_masks(exam, broken))
    yield from masked
    batch = list(_check_batch(exam))
    yield from batch
    if not broken or batch:
        return
    constant = _constant_features(exam)
    site, operation = _find_origin(exam) if not masked else ("", "")
    if constant:
        yield _constant_finding(constant, site)
    if constant or masked:
        return
    yield found(
        "nonfinite_origin",
        CRITICAL,
        f"{operation} in {site} makes NaN or Inf out of finite numbers."
        if operation
        else f"The loss is finite, but the gradients of {listed(gradients)} are NaN or Inf.",
        sites=[site] if operation else gradients,
        numbers={"gradients that are not finite": len(gradients)},
        remedy="x.clamp(min=1e-6)  # before log, sqrt or a division",
    )


def _check_weights(exam: Examination) -> Iterator[Finding]:
    model = exam.subject.model
    weights = nonfinite_names(list(model.named_parameters()))
    buffers = [name for name in nonfinite_names(list(model.named_buffers())) if "running_" in name]
    if weights:
        yield found(
            "nonfinite_origin",
            CRITICAL,
            f"{listed(weights)} {'holds' if len(weights) == 1 else 'hold'} NaN or Inf before training.",
            sites=weights,
            numbers={"parameters that are not finite": len(weights)},
            remedy="# load a checkpoint from before they broke, or initialise them again",
        )
    if buffers:
        yield found(
            "nonfinite_buffer",
            CRITICAL,
            f"{listed(buffers)} {'holds' if len(buffers) == 1 else 'hold'} NaN or Inf.",
            sites=buffers,
            numbers={"buffers that are not finite": len(buffers)},
            remedy="module.reset_running_stats()",
        )


def _check_batch(exam: Examination) -> Iterator[Finding]:
    for word, value in (("input", exam.subject.inputs), ("target", exam.subject.targets)):
        for tensor in tensors(value):
            if not tensor.is_floating_point() or not tensor.numel():
                continue
            bad = ~torch.isfinite(tensor.detach())
            if not bool(bad.any()):
                continue
            if word == "input" and tensor.ndim == 2 and len(tensor) > 3:
                columns = bad.all(0).nonzero().flatten().tolist()
                if columns and not bool(bad[:, [c for c in range(tensor.shape[1]) if c not in columns]].any()):
                    yield _constant_finding(columns, "(input)")
                    return
            first = [int(i) for i in bad.nonzero()[0].tolist()]
            yield found(
                "nonfinite_batch",
                CRITICAL,
                f"The {word}s hold NaN or Inf, first at {first}.",
                sites=[f"({word})"],
                numbers={"numbers that are not finite": int(bad.sum())},
                remedy="assert torch.isfinite(x).all()  # in the dataset",
            )
            return


def _constant_finding(columns: list[int], site: str) -> Finding:
    names = [f"input[:, {column}]" for column in columns]
    return found(
        "constant_feature",
        CRITICAL,
        f"{listed(names)} {'is' if len(names) == 1 else 'are'} the same for every sample, and dividing by "
        f"{'its' if len(names) == 1 else 'their'} deviation of 0 makes NaN.",
        sites=[*([site] if not site.startswith("(") else []), *names[:8]],
        numbers={"constant features": len(columns)},
        remedy="x = (x - mean) / std.clamp(min=1e-6)",
        confidence=0.95,
    )


def _constant_features(exam: Examination) -> list[int]:
    """Features that are constant, where varying them takes the NaN away."""
    given = tensors(exam.subject.inputs)
    if len(given) != 1 or not given[0].is_floating_point() or given[0].ndim < 2 or len(given[0]) < 2:
        return []
    flat = given[0].detach().flatten(1)
    same = (flat == flat[:1]).all(0)
    if not bool(same.any()) or bool(same.all()):
        return []
    noise = torch.randn(flat.shape, generator=torch.Generator().manual_seed(5), device="cpu").to(flat)
    varied = torch.where(same, flat + noise, flat).view_as(given[0])
    twin = exam.subject.twin(train=exam.first.trains)
    with torch.no_grad():
        output = twin.forward(map_tensors(lambda _: varied, exam.subject.inputs))
        loss = twin.loss(output)
    mended = all(bool(torch.isfinite(t).all()) for t in (loss, *output_tensors(output)))
    return [int(c) for c in same.nonzero().flatten().tolist()] if mended else []


def _find_origin(exam: Examination) -> tuple[str, str]:
    """Module and operation that first made a NaN or Inf, "" where the forward pass is finite."""
    twin = exam.subject.twin(train=exam.first.trains)
    observer = Observer(twin.model, find_nonfinite=True)
    with observer:
        output = twin.forward()
        observer.in_loss()
        twin.loss(output)
    return observer.first_bad or (ROOT_NAME, "")


def _check_masks(exam: Examination, broken: bool) -> Iterator[Finding]:
    rows: list[Softmax] = [s for s in exam.first.observer.softmaxes if s.masked_rows and s.name == "_softmax"]
    if not rows:
        return
    first = rows[0]
    row: Any = first.masked_rows[0]
    yield found(
        "fully_masked_attention",
        CRITICAL if broken else INFO,
        f"In {first.path} everything that sample {row[0] if row else 0} could look at is masked"
        f"{f' (row {list(row)})' if len(row) > 1 else ''}: softmax over nothing is NaN.",
        sites=[first.path],
        numbers={"sample": row[0] if row else 0, "masked rows": len(first.masked_rows)},
        remedy="scores = scores.masked_fill(mask & ~mask.all(-1, keepdim=True), float('-inf'))",
        confidence=0.95,
    )
