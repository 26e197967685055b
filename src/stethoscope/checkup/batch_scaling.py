"""Does the loss grow with the number of samples?

Outputs and targets are repeated twice and three times. A mean stays, a sum doubles and trebles, and a loss that
compares samples (contrastive) does neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from stethoscope.checkup.examination import Examination
from stethoscope.checkup.findings import INFO, WARNING, found
from stethoscope.checkup.structure import batch_axis, map_tensors
from stethoscope.checkup.subject import output_tensors
from stethoscope.record import Finding

TOLERANCE: Final = 0.01
SCALE_FREE: Final = (
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Adagrad",
    "Adadelta",
    "Rprop",
    "Adafactor",
    "Lion",
    "Muon",
)


def examine(exam: Examination) -> Iterator[Finding]:
    """loss_scales_with_batch."""
    subject = exam.subject
    size = subject.num_samples
    if size < 1 or not exam.finite or not any(t.ndim for t in output_tensors(exam.first.output)):
        return
    twin = exam.first.twin
    one = float(exam.first.loss.detach())
    if abs(one) < 1e-12:
        return
    ratios = []
    for times in (2, 3):

        def more(tensor: torch.Tensor, times: int = times) -> torch.Tensor:
            axis = batch_axis(tensor, size)
            if axis is None and tensor.ndim and tensor.shape[0] % size == 0:
                axis = 0
            return tensor.detach() if axis is None else torch.cat([tensor.detach()] * times, dim=axis)

        try:
            loss = twin.loss(
                map_tensors(more, exam.first.output),
                map_tensors(more, subject.targets),
                map_tensors(more, subject.inputs),
            )
        except Exception as error:
            exam.notes.append(f"the loss cannot be taken of a repeated batch: {type(error).__name__}")
            return
        ratios.append(float(loss.detach()) / one)
    exam.saw(f"the batch twice and three times over: {ratios[0]:.3g} and {ratios[1]:.3g} times the loss")
    if any(abs(ratio / times - 1) > TOLERANCE for ratio, times in zip(ratios, (2, 3), strict=True)):
        return
    # The sum of a reconstruction and a divergence is an evidence bound as it is written; Adam does not mind its size.
    several = len(output_tensors(exam.first.output)) > 1
    free = all(type(o).__name__ in SCALE_FREE for o in subject.optimizers)
    yield found(
        "loss_scales_with_batch",
        INFO if several and free else WARNING,
        f"Twice the batch gives {ratios[0]:.3g} times the loss: gradients, and with them the step, grow with the batch size.",
        sites=["(loss)"],
        numbers={"loss": one, "loss of twice the batch": ratios[0] * one, "ratio": ratios[0]},
        remedy='loss_fn = nn.CrossEntropyLoss(reduction="mean")  # or divide by the batch size',
    )
