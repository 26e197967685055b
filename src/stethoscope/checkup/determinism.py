"""Does the same input give the same output in evaluation mode?

Noise that belongs to the model (a latent sample, diffusion noise) is drawn from a normal or another distribution and
used as numbers; a mask (dropout, drop path) is drawn to leave things out. Only masks are flagged, and randomness that
torch did not draw.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from stethoscope.checkup.examination import Examination, differ
from stethoscope.checkup.findings import WARNING, found, listed
from stethoscope.checkup.observation import Observer
from stethoscope.checkup.subject import SEED
from stethoscope.record import Finding


def examine(exam: Examination) -> Iterator[Finding]:
    """nondeterministic_eval."""
    twin = exam.subject.twin()
    observer = Observer(twin.model)
    with torch.no_grad(), observer:
        twin.forward(seed=SEED + 1)
    other = exam.run(seed=SEED + 2)
    exam.saw("two passes over the batch with different seeds, in evaluation mode")
    apart = max((differ(a, b, times=50) for a, b in zip(exam.evaluated, other, strict=True)), default=0.0)
    if apart <= 1:
        return
    masks = list(dict.fromkeys(draw.path for draw in observer.draws if draw.is_mask))
    if observer.draws and not masks:
        return
    where = listed(masks) if masks else "something that torch did not draw"
    yield found(
        "nondeterministic_eval",
        WARNING,
        f"The same input gives two outputs after model.eval(): {where} draws at random.",
        sites=masks,
        numbers={"change over what rounding explains": min(apart, 1e12)},
        remedy="F.dropout(x, p, training=self.training)  # or nn.Dropout(p), which eval() switches off",
    )
