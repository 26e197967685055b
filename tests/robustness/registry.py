"""The rows, in their order: what is tried, how often in the short form and in the long one."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable

from tests.robustness.lab import Lab, Outcome, SkipRowError

Function = Callable[[Lab, int, Outcome], None]


@dataclasses.dataclass(frozen=True)
class Row:
    """One promise."""

    number: int
    fault: str
    function: Function
    short: int
    """Tries in the short form; none for a row that takes too long for it."""
    long: int

    def run(self, lab: Lab, tries: int) -> Outcome:
        """Make the fault that often; what goes wrong with the try itself counts as harm."""
        outcome = Outcome(self.number, self.fault)
        if not tries:
            outcome.skipped = "takes too long for the short form"
            return outcome
        try:
            self.function(lab, tries, outcome)
        except SkipRowError as why:
            outcome.skipped = str(why)
        except (
            Exception
        ) as error:  # a row that cannot be tried to its end is no kept promise, and the others are still tried
            outcome.expect(False, "harmed", f"the try itself failed: {error!r}")
            outcome.notes += traceback.format_exc().splitlines()[-6:]
        return outcome


ROWS: dict[int, Row] = {}


def row(number: int, fault: str, *, short: int = 1, long: int = 5) -> Callable[[Function], Function]:
    """Register the function that makes this row's fault."""

    def register(function: Function) -> Function:
        ROWS[number] = Row(number, fault, function, short, long)
        return function

    return register


def all_rows() -> list[Row]:
    """Every row, in order."""
    from tests.robustness import disk, killing, processes, reading, serving, values  # noqa: F401 - they register their rows

    return [ROWS[number] for number in sorted(ROWS)]
