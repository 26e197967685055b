"""The ledger of gradients: were they cleared, did they reach the step, how many backwards made them.

Nothing is computed on tensors. A gradient's identity and version counter, looked at when a backward begins and
ends and when the optimizer steps, tell exactly whether somebody cleared or changed it in between. At most
`MAX_PARAMETERS` of an optimizer's parameters are looked at, spread evenly, so that the cost stays in microseconds.
"""

from __future__ import annotations

from typing import Any, Final

from stethoscope.record import metrics

MAX_PARAMETERS: Final = 64
ABSENT: Final = (0, -1)


State = tuple[int, int]


def states_of(parameters: list[Any]) -> list[State]:
    """Which gradient each parameter holds and how often it was written; ABSENT where there is none.

    Asked four times a step of every parameter that is looked at, so in as few operations as can be.
    """
    return [
        ABSENT if (gradient := parameter.grad) is None else (id(gradient), gradient._version)
        for parameter in parameters
    ]


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
        self._seen: list[State] = states_of(self.parameters)
        self._held_after_step = [False] * len(self.parameters)
        self._cleared = [True] * len(self.parameters)
        self._is_all_cleared = False
        """Whether no gradient at all was there when a backward of this step began."""
        self._after_backward: list[State] = [ABSENT] * len(self.parameters)
        self.num_backwards = 0
        """Backward passes since this optimizer's last step."""
        self.num_steps = 0
        self._at_step: list[State] | None = None
        """What the optimizer found when its step began."""
        self._writes_gradients = False
        """Whether its steps were seen to change gradients."""
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

    def backward_begins(self) -> bool:
        """Whatever changed since we last looked was done by the user: cleared, replaced or scaled.

        True where gradients of an earlier backward were thrown away by an optimizer that never stepped.
        """
        now = states_of(self.parameters)
        if now.count(ABSENT) == len(now):
            self._is_all_cleared = True
        elif now != self._seen:
            changed = [state != seen for state, seen in zip(now, self._seen, strict=True)]
            self._cleared = [cleared or new for cleared, new in zip(self._cleared, changed, strict=True)]
        if self.num_steps or not self.num_backwards:
            return False
        arrived = [p for p, state in zip(self.parameters, self._after_backward, strict=True) if state != ABSENT]
        return bool(arrived) and all(is_cleared(p) for p in arrived)

    def backward_ends(self) -> None:
        """Remember what the backward left."""
        self.num_backwards += 1
        self._seen = self._after_backward = states_of(self.parameters)

    def step_begins(self) -> dict[str, float]:
        """The accounts of this step, as counts over the parameters looked at."""
        now = self._at_step = states_of(self.parameters)
        if self._is_all_cleared and now == self._after_backward:
            # Nearly every step: all gradients were cleared before, and what arrived is still as it came.
            self.kept = []
            return self._accounts(len(now) - now.count(ABSENT), 0, 0, 0)
        arrived = [position for position, state in enumerate(self._after_backward) if state is not ABSENT]
        kept = self._kept_of(arrived)
        self.kept = [self.parameters[p] for p in kept] if len(kept) < len(arrived) else []
        vanished = sum(now[p] == ABSENT for p in arrived)
        touched = sum(now[p] != self._after_backward[p] for p in arrived)
        return self._accounts(len(arrived), len(kept), vanished, touched)

    def _kept_of(self, arrived: list[int]) -> list[int]:
        """Those whose gradients of the step before nobody cleared."""
        if not self.num_backwards or self._is_all_cleared:
            return []
        return [p for p in arrived if self._held_after_step[p] and not self._cleared[p]]

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
        self._held_after_step = [state is not ABSENT for state in self._seen]
        self._cleared, self._is_all_cleared = [False] * len(self.parameters), False
        self._after_backward = [ABSENT] * len(self.parameters)
        self.num_backwards = 0
        self.num_steps += 1
