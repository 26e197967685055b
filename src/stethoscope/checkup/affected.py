"""Where something gets in: the innermost module whose inputs are as they were and whose output is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stethoscope.capture.nested_tensors import tensors_in
from stethoscope.checkup.examination import Examination, differ
from stethoscope.checkup.subject import Twin
from stethoscope.record import ROOT_NAME

Part = Callable[[torch.Tensor], torch.Tensor | None]
Calls = list[tuple[str, list[torch.Tensor], list[torch.Tensor]]]


def first_affected(
    exam: Examination, inputs: Any, part: Part, *, around: Callable[[Twin], Any] | None = None
) -> str | None:
    """Run the batch and other inputs; compare what `part` picks of every module's inputs and outputs.

    `around` may change the second copy before it runs.
    """
    plain, changed = exam.subject.twin(), exam.subject.twin()
    before = _recorded_calls(exam, plain, None, part)
    if around is not None:
        around(changed)
    after = _recorded_calls(exam, changed, inputs, part)
    if [name for name, _, _ in before] != [name for name, _, _ in after]:
        return None
    affected = [
        path
        for (path, given, made), (_, given2, made2) in zip(before, after, strict=True)
        if all_equal(given, given2) and not all_equal(made, made2)
    ]
    # Calls are listed as they return: the innermost of the first affected ones comes first.
    return affected[0] if affected else None


def all_equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    """Whether two lists of results are equal but for rounding."""
    return len(a) == len(b) and all(differ(x, y) <= 1 for x, y in zip(a, b, strict=True))


def _recorded_calls(exam: Examination, twin: Twin, inputs: Any, part: Part) -> Calls:
    calls: Calls = []
    stack: list[list[torch.Tensor]] = []

    def parts(value: Any) -> list[torch.Tensor]:
        found = [part(t.detach()) for t in tensors_in(value) if t.is_floating_point()]
        return [t.clone() for t in found if t is not None]

    handles = []
    for path, module in twin.model.named_modules():

        def before(_: Any, args: Any, kwargs: Any) -> None:
            stack.append(parts((args, kwargs)))

        def after(_: Any, args: Any, output: Any, path: str = path or ROOT_NAME) -> None:  # noqa: ARG001
            calls.append((path, stack.pop(), parts(output)))

        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(module.register_forward_hook(after))
    try:
        exam.run(inputs, twin=twin)
    finally:
        for handle in handles:
            handle.remove()
    return calls
