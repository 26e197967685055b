"""Steps with a closure: the optimizer evaluates the loss itself, several times where it searches along a line (LBFGS).

Evaluations are told apart by the gradients, which a closure clears before its backward. The first one is at the weights
that the step began with, and its loss is what `step` returns.
"""

from __future__ import annotations

from typing import Any

import torch

from stethoscope.capture.ledger import Ledger


class Closure:
    """One step of an optimizer that was given a closure."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._has_begun = False
        self._is_first = True

    def backward_begins(self) -> bool:
        """Whether this backward is of the first evaluation."""
        if self._has_begun and self._ledger.was_changed():
            self._is_first = False
            self._ledger.evaluated_again()
        self._has_begun = True
        return self._is_first


def has_closure(args: Any, kwargs: Any) -> bool:
    """Whether a step with these arguments was given a closure."""
    return bool(kwargs.get("closure")) or any(
        callable(value) for value in args if not isinstance(value, torch.optim.Optimizer)
    )
