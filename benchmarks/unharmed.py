"""Every kind of training plain and watched, each a process of its own: the same bits, the same words, the same end.

    PYTHONPATH=src python -m benchmarks.unharmed [--only WORD] [--no-distributed] > benchmarks/results/unharmed.md

Watched is `stethoscope run SCRIPT` with the companion on. Compared are the exit code, all of stdout (every kind prints digests of
its losses, weights, names and random states, and whether its models can be copied and pickled) and stderr, of which our own
lines are left out: those that begin with "stethoscope: ", and frames of our package in a traceback. Kinds on several ranks
are compared by every rank's losses, weights, optimizer state and number of collectives. Exits 1 where one kind differs.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import platform
import sys

from tests.styles import distributed_kinds, kinds
from tests.styles.unharmed import Verdict, compare_kind, compare_ranks


def table(title: str, verdicts: list[Verdict]) -> None:
    """Print one table."""
    print(f"\n{title}\n\n| kind | as without us | plain, s | watched, s |\n| --- | --- | --- | --- |")
    for found in verdicts:
        said = f"**no: {found.differs}** {found.words}" if found.differs else "yes"
        print(f"| {found.name} | {said} | {found.plain_s:.1f} | {found.watched_s:.1f} |", flush=True)


def _told(found: Verdict) -> Verdict:
    """Say on stderr how far it has come."""
    print(f"{found.name}: {found.differs or 'the same'}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Compare all kinds, or those whose name holds a word."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="kinds whose name contains this")
    parser.add_argument("--no-distributed", action="store_true", help="leave out those on several ranks")
    asked = parser.parse_args()
    import torch

    names = [name for name in kinds.KINDS if asked.only in name]
    ranked = [] if asked.no_distributed else [kind for kind in distributed_kinds.KINDS if asked.only in kind.name]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        alone = [_told(one) for one in pool.map(compare_kind, names)]
        together = [_told(one) for one in pool.map(compare_ranks, ranked)]
    found = [*alone, *together]
    num_same = sum(not one.differs for one in found)
    print("# Trainings that are as without us\n")
    print(
        f"`benchmarks/unharmed.py`, {datetime.date.today()}, torch {torch.__version__}, Python {platform.python_version()}, CPU."
    )
    print(f"**{num_same} of {len(found)} kinds of training are the same with and without watching.**\n")
    print(" ".join((__doc__ or "").split("\n\n")[2].split()))
    table("## In one process", alone)
    if together:
        table("## On several gloo ranks", together)
    sys.exit(num_same < len(found))


if __name__ == "__main__":
    main()
