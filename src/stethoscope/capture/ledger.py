"""The ledger of gradients: were they cleared, did they reach the step, how many backwards made them.

Nothing is computed on tensors. A gradient's identity and version counter, looked at when a backward begins and
ends and when the optimizer steps, tell exactly whether somebody cleared or changed it in between. At most
`MAX_PARAMETERS` of an optimizer's parameters are looked at, spread evenly, so that the cost stays in microseconds.
"""

from __future__ import annotations

import operator
from typing import Any, Final

from stethoscope.record import metrics

MAX_PARAMETERS: Final = 64
ABSENT: Final = id(None)

States = tuple[list[int], list[int]]
"""Of each parameter: which gradient it holds, ABSENT where none, and how often that was written, -1 where there is none."""

_gradient_of: Final = operator.attrgetter("grad")
_version_of: Final = operator.attrgetter("_version")


def states_of(parameters: list[Any]) -> States:
    """What each parameter holds now. Asked three times a step, so the interpreter does as little of it as can be."""
    gradients = list(map(_gradient_of, parameters))
    held = list(map(id, gradients))
    if ABSENT not in held:
        return held, list(map(_version_of, gradients))
    if held.count(ABSENT) == len(held):
        return held, [-1] * len(held)
    return held, [-1 if gradient is None else gradient._version for gradient in gradients]


def is_cleared(parameter: Any) -> bool:
    """Whether the gradient is gone, or holds only zeros (looked at on the CPU alone: elsewhere it would wait)."""
    gradient = parameter.grad
    if gradient is None:
        return True
    return gradient.device.type == "cpu" and not gradient.is_sparse and not bool(gradient.any())


def _chosen(parameters: list[Any]) -> list[Any]:
    trainable = [p for p in parameters if p.requires_grad]
    return trainable[:: max(1, -(-len(trainable) // MAX_PARAMETERS))]


class Ledger:
    """What happened to one optimizer's gradients since its last step."""

    def __init__(self, parameters: list[Any]) -> None:
        self.parameters = _chosen(parameters)
        count = len(self.parameters)
        self._nothing: States = [ABSENT] * count, [-1] * count
        self._seen = states_of(self.parameters)
        self._after_last_step = self._nothing
        self._cleared = [True] * count
        """Which gradients were cleared or changed since the last step, as far as anybody had to look."""
        self._is_all_cleared = False
        """Whether no gradient at all was there when a backward of this step began."""
        self._after_backward = self._nothing
        self.num_backwards = 0
        """Backward passes since this optimizer's last step."""
        self.num_steps = 0
        self._at_step: States | None = None
        """What the optimizer found when its step began."""
        self._writes_gradients = False
        """Whether its steps were seen to change gradients."""
        self.num_fresh = 0
        """Steps in a row in which all gradients were dropped before, and written once."""
        self._is_count_lost = False
        self.kept: list[Any] = []
        """At the latest step, the parameters whose gradients of the step before were still in, where others' were cleared."""

    def is_outdated(self, parameters: list[Any]) -> bool:
        """Whether other ones would be looked at by now, because some were frozen or unfrozen."""
        chosen = _chosen(parameters)
        return len(chosen) != len(self.parameters) or any(
            a is not b for a, b in zip(chosen, self.parameters, strict=True)
        )

    def was_changed(self) -> bool:
        """Whether anything was done to the gradients since we last looked."""
        return states_of(self.parameters) != self._seen

    def evaluated_again(self) -> None:
        """A closure is evaluated once more: what its last evaluation left counts no longer."""
        self.num_backwards = 0

    def backward_begins(self, now: States | None = None) -> bool:
        """Whatever changed since we last looked was done by the user: cleared, replaced or scaled.

        True where gradients of an earlier backward were thrown away by an optimizer that never stepped.
        """
        now = states_of(self.parameters) if now is None else now
        if now == self._nothing:
            self._is_all_cleared = True
        elif now != self._seen:
            self._cleared = [
                cleared or changed for cleared, changed in zip(self._cleared, _differing(now, self._seen), strict=True)
            ]
        if self.num_steps or not self.num_backwards:
            return False
        arrived = [p for p, held in zip(self.parameters, self._after_backward[0], strict=True) if held != ABSENT]
        return bool(arrived) and all(is_cleared(p) for p in arrived)

    def backward_ends(self, now: States | None = None) -> None:
        """Remember what the backward left."""
        self.num_backwards += 1
        self._seen = self._after_backward = states_of(self.parameters) if now is None else now

    def step_begins(self, now: States | None = None) -> dict[str, float]:
        """The accounts of this step, as counts over the parameters looked at."""
        now = self._at_step = states_of(self.parameters) if now is None else now
        if self._is_count_lost:
            self._is_count_lost, self.kept = False, []
            return {}
        if self._is_all_cleared and now == self._after_backward:
            # Nearly every step: all gradients were cleared before, and what arrived is still as it came.
            self.kept = []
            self.num_fresh += max(now[1], default=1) <= 0
            return self._accounts(len(now[0]) - now[0].count(ABSENT), 0, 0, 0)
        self.num_fresh = 0
        arrived = [position for position, held in enumerate(self._after_backward[0]) if held != ABSENT]
        kept = self._kept_of(arrived)
        self.kept = [self.parameters[p] for p in kept] if len(kept) < len(arrived) else []
        vanished = sum(now[0][p] == ABSENT for p in arrived)
        touched = sum(map(_differing(now, self._after_backward).__getitem__, arrived))
        return self._accounts(len(arrived), len(kept), vanished, touched)

    def _kept_of(self, arrived: list[int]) -> list[int]:
        """Those whose gradients of the step before nobody cleared."""
        if not self.num_backwards or self._is_all_cleared:
            return []
        return [p for p in arrived if self._after_last_step[0][p] != ABSENT and not self._cleared[p]]

    def _accounts(self, num_arrived: int, num_kept: int, num_vanished: int, num_touched: int) -> dict[str, float]:
        return {
            metrics.LEDGER_BACKWARDS: float(self.num_backwards),
            metrics.LEDGER_LOOKED_AT: float(len(self.parameters)),
            metrics.LEDGER_ARRIVED: float(num_arrived),
            metrics.LEDGER_KEPT: float(num_kept),
            metrics.LEDGER_VANISHED: float(num_vanished),
            metrics.LEDGER_TOUCHED: float(num_touched),
        }

    def step_ends(self) -> None:
        """A new account begins with what the step left.

        Nearly every optimizer leaves gradients as they are, which is asked at the first steps and at powers of two.
        """
        before, self._at_step = self._at_step, None
        if before is None or self._writes_gradients or self.num_steps & (self.num_steps - 1) == 0:
            self._seen = states_of(self.parameters)
            self._writes_gradients |= before is not None and self._seen != before
        else:
            self._seen = before
        self._after_last_step = self._seen
        if any(self._cleared):
            self._cleared = [False] * len(self.parameters)
        self._is_all_cleared = False
        self._after_backward = self._nothing
        self.num_backwards = 0
        self.num_steps += 1

    @property
    def is_settled(self) -> bool:
        """Whether a step has ended, no backward has run since, and steps leave gradients as they are."""
        return self.num_steps > 0 and not self.num_backwards and not self._writes_gradients

    def lose_count(self) -> None:
        """Nobody looked at the gradients before this step's backward: what became of them is not known, and not said."""
        self._is_count_lost, self.num_fresh = True, 0

    def stepped_plainly(self, at_step: States) -> None:
        """One step after one backward, before which all gradients were cleared."""
        self._seen = self._after_last_step = at_step
        self.num_steps += 1
        self.kept = []


def _differing(one: States, other: States) -> list[bool]:
    """Where two states are not the same."""
    before = zip(*other, strict=True)
    return [mine != theirs for mine, theirs in zip(zip(*one, strict=True), before, strict=True)]
