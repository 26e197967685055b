"""How far apart are training and evaluation mode on the same batch? A note, never a cause: BatchNorm begins so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from stethoscope.checkup.examination import Examination
from stethoscope.checkup.findings import INFO, found
from stethoscope.record import Finding

MIN_RATIO: Final = 3.0


def examine(exam: Examination) -> Iterator[Finding]:
    """train_eval_gap."""
    trained = [
        m
        for m in exam.subject.model.modules()
        if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)
        and m.num_batches_tracked is not None
        and int(m.num_batches_tracked) > 0
    ]
    if not exam.finite or not exam.first.trains or not trained:
        return
    twin = exam.subject.twin()
    with torch.no_grad():
        loss = float(twin.loss(twin.forward()))
    train = float(exam.first.loss.detach())
    exam.saw(f"the loss is {train:.3g} in training and {loss:.3g} in evaluation mode")
    if loss > MIN_RATIO * train > 0:
        yield found(
            "train_eval_gap",
            INFO,
            f"The loss of this batch is {train:.3g} in training mode and {loss:.3g} in evaluation mode.",
            numbers={"loss in training mode": train, "loss in evaluation mode": loss},
            remedy="# BatchNorm's running statistics do not fit this data: train longer, or check its preprocessing",
        )
