"""Cockpit: its economy set of quantities around every backward, and the criterion of its EarlyStopping where it is defined.

Cockpit shows instruments and gives no verdicts: what can be counted is what it warns of, what breaks its quantities in
mid-run, and an early-stopping criterion above 0, which its manual says means stop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
import torch.nn.functional as F
from backpack import extend
from benchmarks.faults.catalogue import Program
from benchmarks.faults.peers.stage import backwards, first_line, without_us, words
from cockpit import Cockpit
from cockpit.context import CockpitCTX
from cockpit.quantities import EarlyStopping
from cockpit.utils import schedules
from cockpit.utils.configuration import configuration
from torch.overrides import TorchFunctionMode

LOSSES: Final = (
    F.cross_entropy,
    F.mse_loss,
    F.binary_cross_entropy_with_logits,
    F.l1_loss,
    F.smooth_l1_loss,
    F.nll_loss,
)
CANNOT: Final = "cannot run: "
STEPS_OF_STOPPING: Final = 10
"""How many steps in a row the criterion must be above 0: it is a noisy number."""


NOISE: Final = (
    "Full backward hook is firing",
    "does not have an extension for Module",
    "Encountered BatchNorm module in training mode",
)
"""Remarks about the stage: inputs that need no gradient, containers, samples that are mixed by a norm."""


class Losses(TorchFunctionMode):
    """Keeps the losses of the single samples, which Cockpit asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.single: torch.Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """As it is, and once more without a reduction."""
        kwargs = kwargs or {}
        if func in LOSSES and kwargs.get("reduction", "mean") == "mean":
            self.single = func(*args, **{**kwargs, "reduction": "none"})
        return func(*args, **kwargs)


class Deck:
    """One program under instruments."""

    def __init__(self) -> None:
        self.cockpit: Cockpit | None = None
        self.optimizer: Any = None
        self.losses = Losses()
        self.step, self.trouble = 0, ""

    def watched(self, model: Any, optimizer: Any) -> None:
        """Extend the model and set up the quantities."""
        try:
            extend(model)
            self.optimizer = optimizer
            always = schedules.linear(interval=1)
            quantities = configuration("economy", track_schedule=always)
            if type(optimizer) is torch.optim.SGD and not optimizer.param_groups[0]["momentum"]:
                quantities.append(EarlyStopping(always))
            self.cockpit = Cockpit([p for p in model.parameters() if p.requires_grad], quantities)
        except Exception as error:
            self.trouble = f"{CANNOT}{type(error).__name__}: {first_line(error)}"

    def heard(self, loss: torch.Tensor, go_on: Callable[..., None]) -> None:
        """One backward inside of Cockpit's context; without it once Cockpit failed."""
        single = self.losses.single
        if self.cockpit is None or self.trouble or single is None or loss.requires_grad is False:
            self.trouble = self.trouble or (f"{CANNOT}no loss of single samples" if self.cockpit is not None else "")
            go_on()
            return
        info = {
            "batch_size": len(single),
            "individual_losses": single.flatten(1).mean(1) if single.dim() > 1 else single,
            "loss": loss,
            "optimizer": self.optimizer,
        }
        done = False
        try:
            with self.cockpit(self.step, info=info):
                go_on(retain_graph=True)
                done = True
        except Exception as error:
            how = f"raised at step {self.step}: " if self.step else CANNOT
            self.trouble = f"{how}{type(error).__name__}: {first_line(error)}"
            if not done:
                go_on()
        self.step += 1

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """The stage."""
        with without_us(self.watched), backwards(self.heard), self.losses:
            yield

    def stop(self) -> list[str]:
        """The criterion's word."""
        if self.cockpit is None:
            return []
        values = [
            row["EarlyStopping"] for _, row in sorted(self.cockpit.get_output().items()) if "EarlyStopping" in row
        ]
        row = 0
        for number, value in enumerate(values):
            row = row + 1 if value > 0 else 0
            if row == STEPS_OF_STOPPING:
                return [f"EarlyStopping above 0 since step {number - row + 1}"]
        return []


def run(program: Program, seed: int) -> list[str]:
    """What Cockpit said."""
    deck = Deck()
    CockpitCTX.erase()
    said = [line for line in words(program, seed, deck.around()) if not any(noise in line for noise in NOISE)]
    return [*said, *deck.stop(), *([deck.trouble] if deck.trouble else [])]
