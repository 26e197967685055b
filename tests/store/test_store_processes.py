"""Processes that are killed, fork or exit without a word."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from stethoscope.store import RunWriter, open_run
from stethoscope.store.encoding import stored_floats
from tests.store.run_making import assert_rows, some_rows, some_sites, write_steps

ROOT = Path(__file__).parents[2]
WRITE_FOREVER = """
import sys
from pathlib import Path
import numpy as np
from tests.store.run_making import some_rows, some_sites
from stethoscope.store import RunWriter, spool
spool.ROTATE_STEPS = 40
writer = RunWriter.create(Path(sys.argv[1]), {})
writer.sites(some_sites(20))
print("begun", flush=True)
step = 0
while True:
    for _ in range(7):
        writer.rows(step, np.arange(20), some_rows(20, step))
        writer.scalars(step, {"loss": float(step)})
        step += 1
    if writer.flush():
        print(step, flush=True)
"""


def kill_once(folder, seed):
    """Starts a writing process, kills it at a random moment; returns how many steps it was promised."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE_FOREVER, str(folder)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    time.sleep(random.Random(seed).uniform(0.0, 0.4))
    process.send_signal(signal.SIGKILL)
    promised = process.stdout.read().split()
    process.stdout.close()
    process.wait()
    return int(promised[-1]) if promised else 0


def check_killed(folder, promised):
    run = open_run(folder)
    assert run.state == "crashed"
    assert all(problem.is_torn_tail for problem in run.problems)
    steps = run.steps
    assert list(steps) == list(range(len(steps)))
    assert len(steps) >= promised
    if promised:
        block = run.block(0, promised - 1)
        assert block.present.all()
        for step in (0, promised // 2, promised - 1):
            np.testing.assert_array_equal(block.rows[step], stored_floats(some_rows(20, step)))


@pytest.mark.parametrize("seed", range(8))
def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path, seed):
    check_killed(tmp_path, kill_once(tmp_path, seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 150))
def test_kill_9_fifty_times_more(tmp_path, seed):
    check_killed(tmp_path, kill_once(tmp_path, seed))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_inert(tmp_path):
    writer = RunWriter.create(tmp_path, {})
    writer.sites(some_sites(3))
    expected = write_steps(writer, range(3), 3)
    for attempt in range(20):
        with writer._queue._lock:  # as if the other thread held it at the moment of the fork
            child = os.fork()
        if child == 0:
            write_steps(writer, range(50, 60), 3)
            writer.event(0, "child", {})
            flushed = writer.flush()
            writer.close("exception")
            os._exit(3 if flushed or writer.state != "closed" else 0)
        deadline = time.monotonic() + 60
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
            assert time.monotonic() < deadline, "the child hangs"
            time.sleep(0.005)
        assert ended[1] == 0
        expected |= write_steps(writer, range(3 + attempt, 4 + attempt), 3)
    assert writer.flush()
    writer.close()
    run = open_run(tmp_path)
    assert_rows(run, expected)
    assert run.events("child") == []
    assert run.state == "finished"
    assert not run.problems


def run_script(folder, body):
    code = f"""
        import sys
        from pathlib import Path
        from tests.store.run_making import some_sites, write_steps
        from stethoscope.store import RunWriter
        writer = RunWriter.create(Path({str(folder)!r}), {{}})
        writer.sites(some_sites(3))
        write_steps(writer, range(10), 3)
        {body}
    """
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, cwd=ROOT
    )


@pytest.mark.parametrize(("body", "code"), [("", 0), ("sys.exit(4)", 4), ("raise KeyError(1)", 1)])
def test_a_process_that_only_exits_loses_nothing(tmp_path, body, code):
    shown = run_script(tmp_path, body)
    assert shown.returncode == code
    assert len(open_run(tmp_path).steps) == 10


def test_closing_inside_a_signal_handler_does_not_deadlock(tmp_path):
    body = """
        import signal, os, threading, time
        import numpy as np
        def handle(number, frame):
            writer.close("signal"); os._exit(7)
        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        step = 10
        while True:
            write_steps(writer, range(step, step + 10), 3); step += 10
    """.replace("\n        ", "\n        ")
    shown = run_script(tmp_path, body.strip().replace("\n", "\n"))
    assert shown.returncode == 7, shown.stderr
    run = open_run(tmp_path)
    assert run.state == "crashed"
    assert run.ended is not None
    assert run.ended["ended"] == "signal"
    assert len(run.steps) >= 10


def test_threads_may_all_write(tmp_path):
    import threading

    writer = RunWriter.create(tmp_path, {})
    writer.sites(some_sites(3))
    threads = [threading.Thread(target=write_steps, args=(writer, range(50 * n, 50 * n + 50), 3)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    expected = {step: stored_floats(some_rows(3, step)) for step in range(300)}
    assert_rows(open_run(tmp_path), expected)
