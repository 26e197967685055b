"""Rows 1 to 4: processes killed at any moment, memory that runs out, a power cut."""

from __future__ import annotations

import itertools
import random
import shutil
import signal
import time
from pathlib import Path

from stethoscope.store import open_run
from tests.robustness.lab import HERE, Lab, Outcome, Try
from tests.robustness.registry import row

QUEUE_BYTES = 64 << 20


@row(1, "kill -9 at random moments, half of them inside a write", short=4, long=100)
def kill_at_random(lab: Lab, tries: int, outcome: Outcome) -> None:
    lab.need_shim()
    for seed in range(tries):
        # More steps than it lives to take, on any machine.
        chosen, one = random.Random(seed), lab.prepare(steps=3000, flush_every=3, pause_s=0.002)
        if seed % 2:
            one.rules(f"write tear 0 {chosen.randrange(4, 300)} 1 journal")
        one.start()
        assert one.child.wait_for("begun"), one.child.err
        if not seed % 2:
            time.sleep(chosen.uniform(0.0, 0.8))
            one.child.send(signal.SIGKILL)
        one.finish(outcome, code=-9)
        run = one.check_run(outcome)
        if run is not None:
            outcome.expect(run.state == "crashed", "wrong", f"a killed run is called {run.state}")
            outcome.expect(
                all(p.is_torn_tail for p in run.problems), "wrong", f"damage where there is none: {run.problems}"
            )


@row(2, "out-of-memory kill while the disk hangs", short=1, long=5)
def run_out_of_memory(lab: Lab, tries: int, outcome: Outcome) -> None:
    """The kill comes where an allocation fails, as the kernel sends it; the queue in front of a hanging disk stays bounded."""
    lab.need_shim()
    for _ in range(tries):
        one = lab.prepare()
        one.given = {"folder": str(one.runs / "run"), "num_sites": 2000, "kept_steps": 10}
        one.start("hoard.py")
        outcome.tries += 1
        assert one.child.wait_for("kept"), one.child.err
        one.rules("write block 0 1 0 journal")
        one.child.wait_for("grown")
        one.go()
        outcome.expect(one.child.wait(60) == -9, "harmed", f"exit code {one.child.code}: {one.child.err[-300:]}")
        grown = int(next((line.split()[1] for line in one.child.out.splitlines() if line.startswith("grown")), "0"))
        most = 2 * QUEUE_BYTES
        outcome.expect(0 < grown < most, "harmed", f"the process grew by {grown >> 20} MB while the disk hung")
        steps = set(open_run(one.runs / "run").steps.tolist())
        outcome.lost += len(set(range(10)) - steps)


@row(3, "power cut: only what was fsynced is left", short=2, long=20)
def cut_the_power(lab: Lab, tries: int, outcome: Outcome) -> None:
    """Without a flush of the user's own every second try: then at most the last second or so may be gone."""
    lab.need_shim()
    for seed in range(tries):
        one = lab.prepare(steps=400, pause_s=0.01, flush_every=0 if seed % 2 else 3)
        one.start(FAULTS_LOG=str(one.log))
        assert one.child.wait_for("begun"), one.child.err
        time.sleep(random.Random(seed).uniform(0.3, 1.5) + 2 * (seed % 2))
        one.child.send(signal.SIGKILL)
        cut_at = time.monotonic()
        done = one.finish(outcome, code=-9)
        left = one.folder / "left"
        copy_what_was_durable(one, left)
        found = sorted(left.glob("runs/*"))
        if not found:
            outcome.expect(done.kept < 0, "lost", "nothing was durable")
            continue
        run = one.check_run(outcome, folder=found[0])
        assert run is not None
        gone = [at for step, at in enumerate(done.step_at) if step not in set(run.steps.tolist())]
        age = cut_at - min(gone, default=cut_at)
        outcome.expect(age < 4.0, "lost", f"{age:.1f} s of steps are gone, a flush comes every second")


def copy_what_was_durable(one: Try, left: Path) -> None:
    """What a disk holds after the power went, at worst: names whose folder was fsynced, bytes that were fsynced, every removal."""
    names: dict[str, int] = {}
    durable: set[str] = set()
    sizes: dict[int, int] = {}
    for line in one.log.read_text().splitlines():
        call, result, path, amount, inode = line.split("\t")
        if result != "done":
            continue
        if call in ("create", "mkdir"):
            names.setdefault(path, int(inode))
        elif call == "rename":
            names[amount] = names.pop(path)
            if path in durable:
                durable.add(amount)
        elif call == "unlink":
            names.pop(path, None)
        elif call in ("fsync", "fdatasync"):
            sizes[int(inode)] = int(amount)
            durable |= {name for name in names if str(Path(name).parent) == path}
    for name in sorted(durable & names.keys()):
        to = left / Path(name).relative_to(one.folder)
        if not all(str(above) in durable for above in Path(name).parents if one.runs in above.parents):
            continue
        if Path(name).is_dir():
            to.mkdir(parents=True, exist_ok=True)
        elif Path(name).is_file():
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(Path(name).read_bytes()[: sizes.get(names[name], 0)])


@row(4, "kill at each system call of sealing", short=5, long=10_000)
def kill_at_each_call_of_sealing(lab: Lab, tries: int, outcome: Outcome) -> None:
    """In the long form every call in turn, until a seal comes through; after each the run reads the same and seals again."""
    lab.need_shim()
    from tests.store.run_making import make_run
    from tests.store.test_store_damage import all_numbers

    base = lab.new_folder() / "run"
    make_run(base, num_steps=12, num_sites=4)
    whole = all_numbers(open_run(base))
    for number in itertools.count(1, 1 if tries > 100 else 9):
        one = lab.prepare()
        folder = one.runs / "run"
        shutil.copytree(base, folder)
        one.given = {"folder": str(folder)}
        one.rules(f"any kill 0 {number} 1 -")
        one.start("sealing.py").child.wait()
        if one.child.code == 0 or outcome.tries >= tries:
            break
        outcome.tries += 1
        outcome.expect(one.child.code == -9, "harmed", f"exit code {one.child.code}: {one.child.err[-300:]}")
        for when in ("at once", "after the next seal"):
            run = open_run(folder)
            outcome.expect(
                all_numbers(run) == whole, "lost", f"killed at call {number}: the run reads differently {when}"
            )
            outcome.expect(not run.problems, "wrong", f"killed at call {number}: {run.problems}")
            one.rules()
            again = lab.forks.start(one.folder, HERE / "sealing.py", one.given, {})
            outcome.expect(
                again.wait() == 0, "harmed", f"killed at call {number}: cannot be sealed again: {again.err[-300:]}"
            )
        shutil.rmtree(one.folder)
