"""`python -m tests.robustness`: the table of faults and promises. Exits with 1 where a promise was broken."""

from __future__ import annotations

import argparse
import sys

from tests.robustness.lab import Lab, Outcome
from tests.robustness.registry import all_rows

HEAD = ("row", "fault", "tries", "lost", "silently wrong", "harmed", "s to exit", "")


def cells(outcome: Outcome) -> tuple[str, ...]:
    """One line of the table."""
    verdict = "kept" if outcome.is_kept else "BROKEN"
    if outcome.skipped:
        verdict = f"not tried: {outcome.skipped}"
    exit_s = f"{outcome.exit_s:.1f}" if outcome.exit_s is not None else "–"
    counts = (outcome.tries, outcome.lost, outcome.wrong, outcome.harmed)
    return (str(outcome.row), outcome.fault, *map(str, counts), exit_s, verdict)


def main() -> int:
    """Run the rows that were asked for, a line each as soon as it is known."""
    parser = argparse.ArgumentParser(prog="python -m tests.robustness")
    parser.add_argument("--rows", help="numbers with commas between them; all without")
    parser.add_argument("--tries", type=int, help="how often each fault is made, instead of the form's own number")
    parser.add_argument("--short", action="store_true", help="the form that `make test` runs")
    given = parser.parse_args()
    wanted = {int(number) for number in given.rows.split(",")} if given.rows else None
    lab, broken = Lab(), []
    print("| " + " | ".join(HEAD) + " |\n" + "|" + " --- |" * len(HEAD), flush=True)
    try:
        for row in all_rows():
            if wanted is None or row.number in wanted:
                outcome = row.run(
                    lab, given.tries if given.tries is not None else row.short if given.short else row.long
                )
                print("| " + " | ".join(cells(outcome)) + " |", flush=True)
                if not outcome.is_kept:
                    broken.append(outcome)
    finally:
        lab.close()
    for outcome in broken:
        print(f"row {outcome.row}: " + "; ".join(outcome.notes[:5]), file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
