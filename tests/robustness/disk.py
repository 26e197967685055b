"""Rows 5 to 13: disks that are full, broken, read-only, slow or gone, and no file descriptors left."""

from __future__ import annotations

import contextlib
import errno
import random
import shutil
import time
from pathlib import Path

from tests.robustness.lab import Lab, Outcome, Try
from tests.robustness.registry import row

MOST_STEP_MS = 1000.0
"""No step may wait for the disk; a busy machine alone makes single steps of some tens of milliseconds."""
HALF = 20
CHANGES = "write,pwrite,writev,fsync,fdatasync,ftruncate,open,rename,mkdir,unlink,close"


def stop_half_way(lab: Lab, **given: object) -> Try:
    """A training that waits for us at its twentieth step."""
    one = lab.prepare(wait_at=HALF, **given).start()
    assert one.child.wait_for("waiting"), one.child.err
    return one


def finish_and_check(one: Try, outcome: Outcome, *, whole: bool = False) -> None:
    """The training ends as a plain one; what was kept is right, what is missing is told, or nothing is missing."""
    done = one.finish(outcome)
    slowest = max(done.step_ms, default=0.0)
    outcome.expect(slowest < MOST_STEP_MS, "harmed", f"a step took {slowest:.0f} ms")
    run = one.check_run(outcome)
    one.check_told(outcome, run)
    if run is not None:
        harm = [problem for problem in run.problems if not problem.is_torn_tail]
        outcome.expect(not harm, "wrong", f"what is on disk is damaged: {harm}")
        missing = len(done.losses) - len(run.steps)
        if whole:
            outcome.expect(not missing, "lost", f"{missing} steps are missing although the disk came back")


def check_one_warning(one: Try, outcome: Outcome, word: str) -> None:
    """Said once, not at every step."""
    said = [line for line in one.child.err.splitlines() if word in line]
    outcome.expect(0 < len(said) <= 2, "wrong", f"{len(said)} lines on stderr name {word!r}")


@row(5, "disk full from the middle on, for good and for a while", short=1, long=5)
def fill_the_disk(lab: Lab, tries: int, outcome: Outcome) -> None:
    for _ in range(tries):
        for room_again in (False, True):
            one = lab.prepare(
                wait_at=HALF,
                steps=100 if room_again else 40,
                pause_s=0.03 if room_again else 0.0,
                watch={"companion": "process" if not room_again else "off"},
                flush_until=HALF,
            )
            with lab.small_disk(one.runs, "size=2m"):
                one.start()
                assert one.child.wait_for("waiting"), one.child.err
                fill(one.runs / "ballast")
                one.go()
                if room_again:
                    one.child.wait_for("step 40")
                    (one.runs / "ballast").unlink()
                finish_and_check(one, outcome, whole=room_again)


def fill(path: Path) -> None:
    """Write until there is no room for one more byte."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        for size in (4096, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass


@row(6, "over quota; no inodes left, at the start and at the next file", short=2, long=8)
def use_up_the_quota(lab: Lab, tries: int, outcome: Outcome) -> None:
    lab.need_shim()
    one = stop_half_way(lab, flush_until=HALF)
    one.rules(f"write,open,posix_fallocate error {errno.EDQUOT} 1 0 -")
    one.go()
    finish_and_check(one, outcome)
    for number in range(tries):
        one = lab.prepare(steps=40)
        with lab.small_disk(one.runs, f"size=1m,nr_inodes={2 + number}"):
            one.start()
            finish_and_check(one, outcome)
    one = lab.prepare(steps=600, wait_at=300, flush_until=300, flush_every=100)
    with lab.small_disk(one.runs, "size=16m,nr_inodes=64"):
        one.start()
        assert one.child.wait_for("waiting"), one.child.err
        with contextlib.suppress(OSError):
            for number in range(64):
                (one.runs / f"empty-{number}").touch()
        one.go()
        finish_and_check(one, outcome)


@row(7, "read-only file system, at the start and later", short=1, long=5)
def make_the_disk_read_only(lab: Lab, tries: int, outcome: Outcome) -> None:
    lab.need_shim()
    for _ in range(tries):
        one = lab.prepare()
        with lab.small_disk(one.runs, "size=1m,ro"):
            one.start()
            finish_and_check(one, outcome)
            check_one_warning(one, outcome, "Read-only")
        one = stop_half_way(lab, flush_until=HALF)
        one.rules(f"{CHANGES} error {errno.EROFS} 1 0 -")
        one.go()
        finish_and_check(one, outcome)
        check_one_warning(one, outcome, "Read-only")


@row(8, "EIO and short writes at a random write", short=2, long=30)
def fail_writes(lab: Lab, tries: int, outcome: Outcome) -> None:
    lab.need_shim()
    for seed in range(tries):
        chosen = random.Random(seed)
        first, count = chosen.randrange(1, 40), chosen.choice((1, 1, 3))
        one = lab.prepare(pause_s=0.05)
        one.rules(f"write error {errno.EIO} {first} {count} journal", f"write short 0 {first + 5} 3 journal")
        one.start()
        finish_and_check(one, outcome, whole=True)


@row(9, "EIO on a random fsync", short=2, long=30)
def fail_fsync(lab: Lab, tries: int, outcome: Outcome) -> None:
    lab.need_shim()
    for seed in range(tries):
        chosen = random.Random(seed)
        one = lab.prepare(pause_s=0.05)
        one.rules(f"fsync error {errno.EIO} {chosen.randrange(1, 8)} {chosen.choice((1, 1, 2))} journal")
        one.start(FAULTS_LOG=str(one.log))
        finish_and_check(one, outcome, whole=True)
        calls = [line.split("\t") for line in one.log.read_text().splitlines() if line.startswith("fsync")]
        failed: set[str] = set()
        for _, result, _, _, inode in calls:
            outcome.expect(inode not in failed, "wrong", "a failed fsync was tried again on the same file")
            failed |= {inode} if result == "failed" else set()
        outcome.expect(bool(failed), "wrong", "no fsync failed: nothing was tried")


@row(10, "network file system gone: every call fails, or hangs", short=2, long=10)
def lose_the_network(lab: Lab, tries: int, outcome: Outcome) -> None:
    lab.need_shim()
    for number in range(tries):
        one = stop_half_way(lab, flush_until=HALF)
        how = ("block 0", f"error {errno.ESTALE}", f"error {errno.EIO}")[number % 3]
        one.rules(f"{CHANGES} {how} 1 0 -")
        one.go()
        finish_and_check(one, outcome)


@row(11, "fsync hangs, for 60 s in the long form", short=1, long=2)
def hang_the_disk(lab: Lab, tries: int, outcome: Outcome) -> None:
    """Once it comes back while training goes on, and nothing is missing; once it still hangs at the end."""
    lab.need_shim()
    for _ in range(tries):
        hang_s = 2.0 if tries == 1 else 60.0
        one = lab.prepare(steps=100, wait_at=HALF, pause_s=(hang_s + 2) / 80, flush_until=HALF).start()
        assert one.child.wait_for("waiting"), one.child.err
        one.rules("fsync,write block 0 1 0 -")
        one.go()
        time.sleep(hang_s)
        one.rules()
        finish_and_check(one, outcome, whole=True)
        one = stop_half_way(lab, flush_until=HALF)
        one.rules("fsync block 0 1 0 -")
        one.go()
        finish_and_check(one, outcome)


@row(12, "run folder deleted while it is written", short=1, long=5)
def delete_the_folder(lab: Lab, tries: int, outcome: Outcome) -> None:
    for number in range(tries):
        one = stop_half_way(lab, flush_until=HALF, watch={"companion": ("off", "process")[number % 2]})
        assert one.run_folder is not None
        shutil.rmtree(one.run_folder)
        one.go()
        done = one.finish(outcome)
        said = [
            line
            for line in one.child.err.splitlines()
            if "delet" in line or "no longer there" in line or "gone" in line
        ]
        outcome.expect(bool(said), "wrong", f"{len(done.losses)} steps are gone and nobody was told: {one.child.err!r}")


@row(13, "no file descriptors left, at the start and later", short=1, long=5)
def take_all_descriptors(lab: Lab, tries: int, outcome: Outcome) -> None:
    for _ in range(tries):
        for when in (-1, HALF):
            one = lab.prepare(fill_descriptors_at=when, pause_s=0.05).start()
            finish_and_check(one, outcome)
