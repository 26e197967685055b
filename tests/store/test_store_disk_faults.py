"""Disks that are full, broken, read-only or gone: training goes on, and what could be kept is kept."""

import errno
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from stethoscope.store import RunWriter, condition, open_run
from tests.store.run_making import assert_rows, journals, some_rows, some_sites, write_steps

ROOT = Path(__file__).parents[2]
IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


class Disk:
    """The system calls of the store, each of which can be told to fail."""

    def __init__(self, monkeypatch):
        self.write_error = self.sync_error = None
        self.room = None
        self.synced: list[int] = []
        self.failed_syncs: list[int] = []
        self._write, self._fsync = os.write, os.fsync
        monkeypatch.setattr(os, "write", self.write)
        monkeypatch.setattr(os, "fsync", self.fsync)

    def write(self, descriptor, data):
        if self.write_error is not None:
            raise OSError(self.write_error, os.strerror(self.write_error))
        if self.room is not None:
            if self.room <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = data[: self.room]
            self.room -= len(data)
        return self._write(descriptor, data)

    def fsync(self, descriptor):
        inode = os.fstat(descriptor).st_ino
        assert inode not in self.failed_syncs, "a failed fsync was tried again on the same file"
        if self.sync_error is not None:
            self.failed_syncs.append(inode)
            raise OSError(self.sync_error, os.strerror(self.sync_error))
        self.synced.append(inode)
        self._fsync(descriptor)


@pytest.fixture
def disk(monkeypatch):
    monkeypatch.setattr(condition, "FIRST_RETRY_S", 0.02)
    return Disk(monkeypatch)


def begin(folder, **options):
    writer = RunWriter.create(folder, {}, **options)
    writer.sites(some_sites(3))
    return writer


@pytest.mark.parametrize("room", [0, 1, 79, 100, 500])
def test_a_full_disk_is_waited_for_in_memory(tmp_path, disk, room):
    writer = begin(tmp_path)
    expected = write_steps(writer, range(5), 3)
    assert writer.flush()
    size = journals(tmp_path)[0].stat().st_size
    disk.room = room
    expected |= write_steps(writer, range(5, 40), 3)
    assert not writer.flush()
    assert writer.state == "memory"
    assert "No space left" in writer.trouble
    assert journals(tmp_path)[0].stat().st_size <= size + room
    run = open_run(tmp_path)
    assert not run.problems, "the file is cut back to its last good frame"
    assert set(range(5)) <= set(run.steps.tolist())
    disk.room = None
    assert writer.flush()
    assert writer.state == "writing"
    assert writer.trouble == ""
    writer.close()
    run = open_run(tmp_path)
    assert_rows(run, expected)
    assert run.losses["write_errors"] > 0
    assert len(journals(tmp_path)) == 1


def test_a_full_disk_that_stays_full_costs_bounded_memory_and_is_counted(tmp_path, disk):
    writer = begin(tmp_path, queue_bytes=50_000)
    assert writer.flush()
    disk.room = 0
    write_steps(writer, range(1000), 3)
    writer.event(999, "skipped_step", {})
    assert writer._queue.num_bytes <= 100_000
    assert writer.counters["dropped_rows"] > 0
    disk.room = None
    assert writer.flush()
    writer.close()
    run = open_run(tmp_path)
    assert run.losses["dropped_rows"] == writer.counters["dropped_rows"]
    rows_on_disk = int(run.block(0, 999).present.sum())
    assert rows_on_disk + run.losses["dropped_rows"] == 3000
    assert 999 in run.steps, "the oldest rows go first"
    assert len(run.events("skipped_step")) == 1
    assert len(run.metric("loss")) > rows_on_disk / 3, "scalars have a bound of their own"


def test_a_failed_fsync_means_a_new_file_with_everything_again(tmp_path, disk):
    writer = begin(tmp_path)
    expected = write_steps(writer, range(3), 3)
    assert writer.flush()
    disk.sync_error = errno.EIO
    expected |= write_steps(writer, range(3, 6), 3)
    writer.event(5, "once", {})
    assert not writer.flush()
    disk.sync_error = None
    expected |= write_steps(writer, range(6, 9), 3)
    assert writer.flush()
    writer.close()
    assert len(journals(tmp_path)) >= 2
    run = open_run(tmp_path)
    assert_rows(run, expected)
    assert len(run.events("once")) == 1, "a frame written twice is read once"
    assert run.losses["fsync_errors"] == writer.counters["fsync_errors"] > 0
    last = journals(tmp_path)[-1]
    assert {3, 4, 5} <= set(steps_of(last)), "what was not known to be durable is in the new file"


def steps_of(path):
    from stethoscope.store.frame_file import FrameFile
    from stethoscope.store.frames import FrameKind

    return [
        frame.header.step
        for frame, _ in FrameFile(path.parent, path.name).advance()
        if frame.header.kind == FrameKind.ROWS
    ]


def test_an_io_error_while_writing_means_a_new_file(tmp_path, disk):
    writer = begin(tmp_path)
    expected = write_steps(writer, range(3), 3)
    assert writer.flush()
    disk.write_error = errno.EIO
    expected |= write_steps(writer, range(3, 6), 3)
    assert not writer.flush()
    disk.write_error = None
    assert writer.flush()
    writer.close()
    assert_rows(open_run(tmp_path), expected)
    assert len(journals(tmp_path)) == 2


def test_the_disk_budget_holds_when_nobody_seals(tmp_path, disk):
    writer = begin(tmp_path, disk_bytes=100_000)
    for first in range(0, 1500, 50):
        write_steps(writer, range(first, first + 50), 3)
        assert writer.flush()
    assert "disk budget" in writer.trouble
    assert writer.state == "writing"
    assert sum(path.stat().st_size for path in journals(tmp_path)) < 500_000
    assert writer.counters["dropped_rows"] > 0
    journals(tmp_path)[0].write_bytes(b"")  # as if it had been sealed and thinned away
    assert writer.flush()
    write_steps(writer, range(2000, 2003), 3)
    assert writer.flush()
    writer.close()
    run = open_run(tmp_path)
    assert run.losses["dropped_rows"] == writer.counters["dropped_rows"]


def test_a_folder_deleted_while_live(tmp_path, disk):
    folder = tmp_path / "run"
    writer = begin(folder)
    write_steps(writer, range(3), 3)
    assert writer.flush()
    shutil.rmtree(folder)
    write_steps(writer, range(3, 6), 3)
    assert not writer.flush()
    assert writer.state == "memory"
    assert writer.trouble
    assert not folder.exists(), "what someone deleted is not made again"
    writer.close()
    assert writer.state == "closed"


def test_only_the_journal_deleted_while_live(tmp_path, disk):
    writer = begin(tmp_path)
    write_steps(writer, range(3), 3)
    assert writer.flush()
    shutil.rmtree(tmp_path / "rank-0")
    expected = write_steps(writer, range(3, 6), 3)
    assert writer.flush()
    writer.close()
    assert_rows(open_run(tmp_path), expected)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    writer = begin(tmp_path / "file" / "run")
    assert writer.state == "memory"
    assert "Not a directory" in writer.trouble
    write_steps(writer, range(3), 3)
    assert not writer.flush()
    writer.close()


def test_a_run_of_a_newer_format_is_not_written_to(tmp_path):
    from stethoscope.store.runfile import dump

    (tmp_path / "run.json").write_bytes(dump({"format_version": 99}))
    writer = begin(tmp_path)
    assert writer.state == "memory"
    assert "newer version" in writer.trouble
    write_steps(writer, range(2), 3)
    assert not writer.flush()
    writer.close()
    assert journals(tmp_path) == []


def test_no_file_descriptors_left(tmp_path):
    code = """
        import resource, sys, os
        from pathlib import Path
        from tests.store.run_making import some_sites, write_steps
        from stethoscope.store import RunWriter, open_run
        from stethoscope.store import condition
        condition.FIRST_RETRY_S = 0.02
        folder = Path({folder!r})
        writer = RunWriter.create(folder, {{}})
        writer.sites(some_sites(3))
        write_steps(writer, range(1), 3)
        taken = []
        try:
            while True: taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError: pass
        second = RunWriter.create(folder / "second", {{}})
        print(second.state, "|", second.trouble)
        second.sites(some_sites(3))
        write_steps(second, range(2), 3)
        print(second.flush())
        for descriptor in taken: os.close(descriptor)
        print(second.flush(), second.state)
        second.close(); writer.close()
        print(len(open_run(folder / "second").steps))
    """.format(folder=str(tmp_path / "run"))
    shown = subprocess.run(
        ["bash", "-c", f'ulimit -n 64; exec {sys.executable} -c "$0"', textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines()[1:] == ["False", "True writing", "2"]
    assert shown.stdout.startswith("memory | Too many open files")


@pytest.mark.skipif(not IS_ROOT, reason="mounting needs root")
def test_a_small_real_file_system_that_fills_up(tmp_path, monkeypatch):
    mount = tmp_path / "small"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mount)], capture_output=True).returncode:
        pytest.skip("no mounts here")
    try:
        monkeypatch.setattr(condition, "FIRST_RETRY_S", 0.02)
        (mount / "ballast").write_bytes(bytes(150_000))
        writer = begin(mount / "run")
        expected = write_steps(writer, range(400), 3)
        assert not writer.flush()
        assert "No space left" in writer.trouble
        assert not open_run(mount / "run").problems
        (mount / "ballast").unlink()
        assert writer.flush()
        writer.close()
        assert_rows(open_run(mount / "run"), expected)
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


@pytest.mark.skipif(not IS_ROOT, reason="mounting needs root")
def test_a_read_only_file_system_at_the_start_and_later(tmp_path, monkeypatch):
    mount = tmp_path / "small"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(mount)], capture_output=True).returncode:
        pytest.skip("no mounts here")
    try:
        monkeypatch.setattr(condition, "FIRST_RETRY_S", 0.02)
        subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
        writer = begin(mount / "run")
        assert writer.state == "memory"
        assert "Read-only" in writer.trouble
        expected = write_steps(writer, range(5), 3)
        assert not writer.flush()
        subprocess.run(["mount", "-o", "remount,rw", str(mount)], check=True)
        assert writer.flush()
        assert writer.state == "writing"
        subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=False)
        subprocess.run(["mount", "-o", "remount,rw", str(mount)], check=True)
        writer.close()
        assert_rows(open_run(mount / "run"), expected)
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


def test_a_limit_on_file_sizes_means_more_files(tmp_path):
    code = f"""
        import resource, sys
        from pathlib import Path
        from tests.store.run_making import some_sites, write_steps
        from stethoscope.store import RunWriter
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        writer = RunWriter.create(Path({str(tmp_path)!r}), {{}})
        writer.sites(some_sites(3))
        write_steps(writer, range(200), 3)
        print(writer.flush())
        writer.close()
    """
    shown = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT
    )
    assert shown.stdout.strip() == "True"
    assert len(journals(tmp_path)) > 2
    assert list(open_run(tmp_path).steps) == list(range(200))


def test_a_disk_that_hangs_holds_nobody_up(tmp_path, monkeypatch):
    import threading

    gate = threading.Event()
    real = os.fsync
    writer = begin(tmp_path, queue_bytes=100_000)
    assert writer.flush()
    opened = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: (opened.append(gate.wait(60)), real(descriptor))[1])
    table = some_rows(3, 0)
    for step in range(3000):
        writer.rows(step, np.arange(3), table)
        if step == 100:
            assert not writer.flush(timeout=0.1)
    gate.set()
    assert writer.flush()
    # The disk hung until the last row was handed in: who waits for it would have waited until the gate gave up.
    assert opened
    assert all(opened)
    writer.close()
    run = open_run(tmp_path)
    assert int(run.block(0, 3000).present.sum()) + run.losses["dropped_rows"] == 9000
