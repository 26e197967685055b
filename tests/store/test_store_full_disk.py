"""A disk that fills and stays full, a folder that goes: what is lost is known by step, said at once, and kept in the run."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from stethoscope.store import RunWriter, open_run
from stethoscope.store.losses import StepRanges, lost_steps_text
from stethoscope.store.reserve import RESERVE_BYTES
from tests.store.run_making import journals, some_sites, write_steps

ROOT = Path(__file__).parents[2]
SITES = 20


@pytest.fixture
def small_disk(tmp_path):
    mount = tmp_path / "small"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(mount)], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {made.stderr.strip()}")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def begin(folder: Path, **options) -> RunWriter:
    writer = RunWriter.create(folder, {}, **options)
    writer.sites(some_sites(SITES))
    return writer


def write_until_it_fails(writer: RunWriter, most: int = 2000) -> int:
    """Steps one by one until the writer says that the disk takes no more; how many there were."""
    for step in range(most):
        write_steps(writer, range(step, step + 1), SITES)
        if step % 20 == 0 and not writer.flush():
            return step + 1
    raise AssertionError("the disk never filled")


def test_every_step_is_on_the_disk_or_counted_as_lost(small_disk):
    writer = begin(small_disk / "run")
    num = write_until_it_fails(writer)
    total = num + 300
    write_steps(writer, range(num, total), SITES)
    (notice,) = writer.take_notices()
    assert "No space left on device" in notice
    assert "Training goes on" in notice
    writer.close()
    run = open_run(small_disk / "run")
    assert run.state == "finished", "the last word found room in the reserve"
    assert not run.problems
    lost = run.losses
    assert len(run.steps) + lost["lost_steps"] == total
    assert lost["dropped_rows"] == SITES * lost["lost_steps"]
    assert (lost["first_lost_step"], lost["last_lost_step"]) == (len(run.steps), total - 1)
    assert run.ended["lost_steps"] == [[len(run.steps), total - 1]]
    assert {name: writer.unwritten()[name] for name in lost} == lost
    assert not list((small_disk / "run").glob("rank-0/reserve*"))


def test_a_process_that_is_killed_on_a_full_disk_has_said_that_it_was_full(small_disk):
    script = f"""
        import sys, time
        from pathlib import Path
        from tests.store.test_store_full_disk import begin, write_until_it_fails
        writer = begin(Path({str(small_disk / "run")!r}))
        write_until_it_fails(writer)
        print("full", flush=True)
        time.sleep(60)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout.readline() == "full\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    run = open_run(small_disk / "run")
    assert run.state == "crashed"
    assert run.losses["unwritten_since_step"] == len(run.steps)


def test_a_full_disk_is_tried_seldom_and_costs_bounded_memory(small_disk):
    writer = begin(small_disk / "run", queue_bytes=200_000)
    num = write_until_it_fails(writer)
    before = writer.counters["write_errors"]
    until = time.monotonic() + 1.6
    while time.monotonic() < until:
        write_steps(writer, range(num, num + 20), SITES)
        num += 20
        time.sleep(0.01)
    assert writer.counters["write_errors"] - before <= 3, "half a second, one second, two: not with every step"
    assert writer._queue.num_bytes <= 2 * 200_000
    assert writer.counters["dropped_rows"] > 0
    writer.close()
    run = open_run(small_disk / "run")
    assert len(run.steps) + run.losses["lost_steps"] == num


def test_it_goes_on_when_there_is_room_and_holds_a_reserve_again(small_disk):
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(200_000))
    writer = begin(small_disk / "run")
    num = write_until_it_fails(writer)
    ballast.unlink()
    assert writer.flush()
    (reserve,) = (small_disk / "run").glob("rank-0/reserve*")
    assert reserve.stat().st_size == RESERVE_BYTES
    assert "nothing was lost" in writer.take_notices()[-1]
    writer.close()
    run = open_run(small_disk / "run")
    assert len(run.steps) == num
    assert "lost_steps" not in run.losses
    assert "unwritten_since_step" not in run.losses


def test_no_room_for_the_next_file_still_leaves_room_for_the_end(small_disk, monkeypatch):
    from stethoscope.store import spool

    monkeypatch.setattr(spool, "ROTATE_STEPS", 4)
    writer = RunWriter.create(small_disk / "run", {})
    writer.sites(some_sites(4000))  # described again in every file, in more bytes than the reserve has
    for step in range(400):
        write_steps(writer, range(step, step + 1), 20)
        if step % 4 == 3 and not writer.flush():
            break
    writer.close()
    run = open_run(small_disk / "run")
    assert run.state == "finished"
    assert len(run.steps) + run.losses["lost_steps"] == step + 1


def test_a_deleted_folder_is_said_and_every_later_step_counted(tmp_path):
    folder = tmp_path / "run"
    writer = begin(folder)
    write_steps(writer, range(5), SITES)
    assert writer.flush()
    shutil.rmtree(folder)
    write_steps(writer, range(5, 9), SITES)
    assert not writer.flush()
    (notice,) = writer.take_notices()
    assert "the run folder was deleted" in notice
    writer.close()
    assert lost_steps_text(writer.unwritten()) == "4 steps (5 to 8)"
    assert not folder.exists()


def test_a_folder_that_cannot_be_made_is_not_written_while_nothing_waits(tmp_path, monkeypatch):
    from stethoscope.store import condition

    monkeypatch.setattr(condition, "FIRST_RETRY_S", 0.01)
    (tmp_path / "file").write_text("in the way")
    writer = RunWriter.create(tmp_path / "file" / "run", {})
    time.sleep(0.2)
    assert writer.state == "memory"
    assert writer.take_notices() == []
    writer.close()


def test_a_disk_that_hangs_is_known_and_its_steps_count_as_unwritten(tmp_path, monkeypatch):
    import threading

    from stethoscope.store import condition

    gate, real = threading.Event(), os.fsync
    monkeypatch.setattr(condition, "HANGS_S", 0.1)
    writer = begin(tmp_path)
    assert writer.flush()
    monkeypatch.setattr(os, "fsync", lambda descriptor: (gate.wait(30), real(descriptor))[1])
    write_steps(writer, range(10), SITES)
    assert not writer.flush(timeout=0.5)
    assert "does not answer" in writer.trouble
    writer.close(timeout=0.2)
    assert lost_steps_text(writer.unwritten()) == "10 steps (0 to 9)"
    gate.set()
    writer._thread.join(10)
    assert lost_steps_text(writer.unwritten()) == ""
    assert len(journals(tmp_path)) == 1


def test_lost_steps_are_ranges_whatever_the_order():
    steps = StepRanges([5, 3, 4, 9, 5, 7, 8, 1])
    assert steps.ranges == [(1, 1), (3, 5), (7, 9)]
    assert len(steps) == 7
    said = {"lost_steps": 7, "first_lost_step": 1, "last_lost_step": 9}
    assert lost_steps_text(said) == "7 steps (between 1 and 9)"
    assert lost_steps_text({"lost_steps": 1, "first_lost_step": 1234, "last_lost_step": 1234}) == "1 step (1,234)"
    assert lost_steps_text({}) == ""
