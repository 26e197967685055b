"""Every hostile run folder against every command: what it costs more than a good one, how it ends, what it touches outside.

python -m benchmarks.hostile [--only WORD] [--commands show,ui] writes benchmarks/results/hostile.md where it runs whole.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

from tests.store.hostile_commands import COMMANDS, Ending, attempt
from tests.store.hostile_folders import CASES, HOSTILE, Canaries, make_case, make_good

warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads that are asleep
RESULT = Path(__file__).resolve().parent / "results" / "hostile.md"
MOST_S, MOST_MB = 5.0, 500.0
_IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


def main() -> int:
    """Prints a line for each case; exit 1 where a limit is passed, a command ends badly or anything outside is touched."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--commands", default=",".join(COMMANDS))
    options = parser.parse_args()
    names = [name for name in CASES if options.only in name]
    commands = options.commands.split(",")
    warm_up()
    with tempfile.TemporaryDirectory(prefix="hostile-", dir=_IN_MEMORY) as place:
        root = Path(place)
        make_good(root / "good")
        CASES["a good run"] = lambda run, outside: None
        good, _ = measure("a good run", root, commands)
        rows, failures = [], 0
        for name in names:
            endings, touched = measure(name, root, commands)
            line, is_fine = judged(name, endings, good, touched)
            failures += not is_fine
            rows.append(line)
            print(("      " if is_fine else "FAILS ") + line, flush=True)
    print(f"{len(names)} folders, {len(names) * len(commands)} commands, {failures} folders failed")
    if not options.only and len(commands) == len(COMMANDS):
        RESULT.write_text(report(rows, good, failures), encoding="utf-8")
    return int(failures > 0)


def warm_up() -> None:
    """What every child needs is loaded once, before it is forked."""
    import duckdb  # noqa: F401
    import pyarrow.compute
    import pyarrow.dataset  # noqa: F401
    import starlette.testclient  # noqa: F401
    import torch

    import stethoscope.explain
    import stethoscope.views.export
    import stethoscope.views.server  # noqa: F401

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="hostile-", dir=_IN_MEMORY) as place:
        COMMANDS["watch"](Path(place) / "run")


def measure(name: str, root: Path, commands: list[str]) -> tuple[dict[str, Ending], list[str]]:
    """The endings of all commands on one case, and what they touched outside."""
    place = root / "case"
    child = os.fork()
    if (
        not child
    ):  # what making a folder takes must not count for those who read it: they begin with this process's memory
        make_case(name, root / "good", place)
        os._exit(0)
    os.waitpid(child, 0)
    run, canaries = place / "runs" / HOSTILE, Canaries.of(place / "outside")
    keep = place / "kept"
    if "prune" in commands:
        subprocess.run(["cp", "-a", str(run.parent), str(keep)], check=True)
    endings = {}
    for command in commands:
        target = keep / run.name if command == "prune" else run
        endings[command] = attempt(COMMANDS[command], target, place / "said")
    touched = canaries.changes()
    shutil.rmtree(place)
    return endings, touched


def judged(name: str, endings: dict[str, Ending], good: dict[str, Ending], touched: list[str]) -> tuple[str, bool]:
    """The line of one case, and whether it keeps every promise."""
    slowest = max(endings, key=lambda command: endings[command].cpu_s - good[command].cpu_s)
    largest = max(endings, key=lambda command: endings[command].peak_mb - good[command].peak_mb)
    more_s = endings[slowest].cpu_s - good[slowest].cpu_s
    more_mb = endings[largest].peak_mb - good[largest].peak_mb
    bad = [f"{command}: {_last_line(ending)}" for command, ending in endings.items() if not ending.is_clean]
    is_fine = more_s <= MOST_S and more_mb <= MOST_MB and not bad and not touched
    refused = sum(ending.code not in (0, 1) for ending in endings.values())
    outcome = (
        "; ".join([*bad, *(f"touched {one}" for one in touched)])
        or f"{len(endings) - refused} answered, {refused} refused"
    )
    name = name.replace("|", "/").encode("ascii", "backslashreplace").decode()
    return f"| {name} | {max(more_s, 0):.1f} ({slowest}) | {max(more_mb, 0):.0f} ({largest}) | {outcome} |", is_fine


def _last_line(ending: Ending) -> str:
    if ending.code < 0:
        return f"ended by signal {-ending.code} after {ending.wall_s:.0f} s"
    return (ending.said.strip().splitlines() or [f"exit {ending.code}"])[-1][:160]


def report(rows: list[str], good: dict[str, Ending], failures: int) -> str:
    """The results as Markdown."""
    cost = ", ".join(f"{command} {ending.cpu_s:.1f} s" for command, ending in good.items())
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores"
    return "\n".join(
        [
            "# Hostile run folders",
            "",
            f"`python -m benchmarks.hostile`, {datetime.datetime.now(datetime.UTC).date().isoformat()}, {machine}.",
            "",
            f"{len(rows)} folders, {len(COMMANDS)} commands each ({', '.join(COMMANDS)}), every one in a process of its own. "
            "Seconds of CPU "
            f"and megabytes beyond the same command on a good run ({cost}); the command that costs most is named. "
            f"Limits: {MOST_S:.0f} s, {MOST_MB:.0f} MB, no traceback, nothing outside of the folder touched. {failures} failed.",
            "",
            "| folder | s more | MB more | outcome |",
            "| --- | --- | --- | --- |",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
