"""Can the output take the values that the targets have?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from stethoscope.checkup.examination import Examination
from stethoscope.checkup.findings import WARNING, found
from stethoscope.checkup.observation import history_of
from stethoscope.checkup.structure import tensors
from stethoscope.checkup.subject import output_tensors
from stethoscope.record import Finding

RANGES: Final = {
    "Relu": (0.0, float("inf")),
    "Softplus": (0.0, float("inf")),
    "Sigmoid": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
    "Hardtanh": (-1.0, 1.0),
    "Threshold": (0.0, float("inf")),
    "Softmax": (0.0, 1.0),
    "Clamp": (None, None),
    "Abs": (0.0, float("inf")),
    "Hardsigmoid": (0.0, 1.0),
}
MIN_SHARE: Final = 0.05


def examine(exam: Examination) -> Iterator[Finding]:
    """output_clipped."""
    output, target = _output_and_target(exam)
    if output is None or target is None:
        return
    made_by = next(iter(history_of(output)), "").removesuffix("Backward0").removesuffix("Backward1")
    limits = RANGES.get(made_by)
    if limits is None:
        exam.saw("the last operation sets no limit to the output")
        return
    exam.saw(f"the output of {made_by.lower()} against the range of the targets")
    low, high = limits
    numbers = output.detach().float()
    if made_by in ("Clamp", "Hardtanh"):
        low, high = float(numbers.min()), float(numbers.max())
        at_ends = float(((numbers == low) | (numbers == high)).float().mean())
        if at_ends < MIN_SHARE:
            return
    assert low is not None
    assert high is not None
    wanted = target.detach().float()
    slack = 1e-3 + 0.01 * float(wanted.abs().max())
    beyond = float(((wanted < low - slack) | (wanted > high + slack)).float().mean())
    if beyond < MIN_SHARE:
        return
    yield found(
        "output_clipped",
        WARNING,
        f"The output ends in {made_by.lower()} and stays between {low:g} and {high:g}, "
        f"but {beyond:.0%} of the targets lie beyond.",
        sites=exam.tail() or ["(output)"],
        numbers={
            "share of targets beyond": beyond,
            "smallest target": float(wanted.min()),
            "largest target": float(wanted.max()),
            "smallest output": float(numbers.min()),
            "largest output": float(numbers.max()),
        },
        remedy=f"# take {made_by.lower()} off the last layer, or scale the targets into its range",
        confidence=0.95,
    )


def _output_and_target(exam: Examination) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Output and target where they are one tensor of numbers each, of one size, compared number by number."""
    outputs = output_tensors(exam.first.output)
    targets = [t for t in tensors(exam.subject.targets) if t.is_floating_point()]
    if len(outputs) != 1 or len(targets) != 1 or outputs[0].numel() != targets[0].numel():
        return None, None
    if any(s.path == "(loss)" for s in exam.first.observer.softmaxes):
        return None, None
    return outputs[0], targets[0]
