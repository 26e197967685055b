"""Is the first loss far worse than knowing nothing?

Knowing nothing is the user's own loss at an output of zeros: ln C for cross entropy whatever its options, the mean
square of the targets for a regression. A pretrained or well biased head begins below it. Flagged is a loss far above it
that the size of the last layer explains.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from stethoscope.checkup.examination import Examination
from stethoscope.checkup.findings import WARNING, found
from stethoscope.checkup.observation import LOSS_PLACE
from stethoscope.checkup.scale import weight_gain
from stethoscope.checkup.structure import map_tensors
from stethoscope.checkup.subject import output_tensors
from stethoscope.record import Finding

MIN_HEAD_GAIN: Final = 3.5
"""Right initialisations have 0.5 to 1.5, a trained head up to about 2."""
MAX_BIAS_SPREAD: Final = 12.0
"""Log priors spread less: e to the 12 is a class in 160,000."""


def examine(exam: Examination) -> Iterator[Finding]:
    """bad_initial_loss."""
    outputs = output_tensors(exam.first.output)
    if len(outputs) != 1 or not exam.finite:
        return
    chance = _at_zero(exam)
    loss = float(exam.first.loss.detach())
    if chance is None or chance <= 0 or loss <= 0:
        return
    exam.saw(f"the first loss is {loss:.3g}; knowing nothing gives {chance:.3g}")
    names = {s.name for s in exam.first.observer.softmaxes if s.path == LOSS_PLACE}
    is_classifier = bool(
        names & {"_log_softmax", "binary_cross_entropy_with_logits", "log_sigmoid_forward", "logsumexp"}
    )
    far = loss > max(chance + 2.0, 1.75 * chance) if is_classifier else loss > 100 * chance
    if not far:
        return
    head = exam.tail()
    module = dict(exam.subject.model.named_modules()).get(head[0]) if head else None
    if not isinstance(module, (torch.nn.Linear, torch.nn.modules.conv._ConvNd)):
        return
    if _is_embedding(exam, module):
        # An embedding of size 1 is torch's own beginning, and a head tied to it takes that over.
        return
    gain = weight_gain(module)
    bias = module.bias.detach() if module.bias is not None else torch.zeros(1, device="cpu")
    spread = float(bias.max() - bias.min()) if is_classifier else float(bias.abs().max())
    layer = exam.first.observer.layers.get(head[0])
    # An input of rms 10 to the head makes the same of right weights; a tied embedding counts as a head too large.
    fed = layer.rms_in if layer is not None else 0.0
    if gain < MIN_HEAD_GAIN and spread < MAX_BIAS_SPREAD and fed < 10.0:
        return
    why = (
        f"the weights of {head[0]} begin {gain:.3g} times too large"
        if gain >= MIN_HEAD_GAIN
        else (
            f"the bias of {head[0]} spreads over {spread:.3g}"
            if spread >= MAX_BIAS_SPREAD
            else f"what goes into {head[0]} is {fed:.3g} in size"
        )
    )
    yield found(
        "bad_initial_loss",
        WARNING,
        f"The first loss is {loss:.3g}, where knowing nothing gives {chance:.3g}: {why}.",
        sites=[head[0]],
        numbers={"first loss": loss, "loss at zero output": chance, "gain of the last layer": gain},
        remedy=f'nn.init.normal_(model.get_submodule("{head[0]}").weight, std=0.01)',
        confidence=0.9,
    )


def _is_embedding(exam: Examination, head: torch.nn.Module) -> bool:
    tables = [m.weight for m in exam.subject.model.modules() if isinstance(m, torch.nn.Embedding)]
    return any(table is head.weight for table in tables)


def _at_zero(exam: Examination) -> float | None:
    """The loss where the model says nothing at all."""

    def nothing(tensor: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(tensor) if tensor.is_floating_point() else tensor

    try:
        zero = exam.first.twin.loss(map_tensors(nothing, exam.first.output))
    except Exception as error:
        exam.notes.append(f"the loss cannot be taken at an output of zeros: {error!r}")
        return None
    return float(zero.detach()) if bool(torch.isfinite(zero)) else None
