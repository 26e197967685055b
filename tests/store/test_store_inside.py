"""Nothing in a run folder leads out of it, and every hostile folder costs what a good one costs."""

import ast
import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

import stethoscope.store
from stethoscope.record import RunError
from stethoscope.store import folder_bytes, open_run, seal, thin
from stethoscope.store.inside import (
    MOST_ENTRIES,
    RefusedFileError,
    list_folder,
    open_file,
    read_file,
    remove_file,
)
from stethoscope.store.sealed_table import _check_types
from tests.store.hostile_commands import COMMANDS, attempt
from tests.store.hostile_folders import CASES, make_case, make_good
from tests.store.run_making import make_run

STORE = Path(stethoscope.store.__file__).parent
BANNED = frozenset(
    {
        "open",
        "read_bytes",
        "read_text",
        "write_bytes",
        "write_text",
        "rmtree",
        "glob",
        "rglob",
        "iterdir",
        "scandir",
        "listdir",
        "walk",
        "unlink",
        "rmdir",
        "read_table",
        "OSFile",
        "memory_map",
    }
)
OWN = {
    "runfile.py": {"open", "unlink"},  # the file it is just writing, and its folder to fsync
    "journal.py": {"unlink"},  # the file it is just writing
    "process.py": {"read_text"},  # of /proc
    "sql.py": {"OSFile"},  # of a descriptor that is open already
    "private.py": {"open"},
    "reserve.py": {"unlink"},
    "spool.py": {"open"},  # its own method
    "writer.py": {"open"},
}
TOO_SLOW_TO_MAKE = {
    "a Parquet file of 200 million rows",
    "scalars of 100 million rows",
    "60,000 names in a rank's folder",
    "a frame of 1 GB in 33 kB",
    "findings of 1 GB in 33 kB",
    "300 frames of 60 MB each",
    "150,000 empty events",
    "a page of Parquet that unpacks to 1 GB",
    "5,000 empty journals",
    "2,000 ranks",
    "an event of 30 million values",
}
NAMES = [name for name in CASES if name not in TOO_SLOW_TO_MAKE]


@pytest.mark.parametrize("path", sorted(STORE.rglob("*.py")), ids=lambda path: path.name)
def test_only_one_module_opens_lists_and_removes(path):
    if path.name == "inside.py":
        return
    used = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            used |= {name} & BANNED
    assert used <= OWN.get(path.name, set()), f"{path.name} calls {used}: go through store/inside.py"


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good") / "run"
    make_good(folder)
    return folder


def read_everything(run):
    """All that the store can be asked, and what a companion does with a folder."""
    signal.alarm(20)
    try:
        with open_run(run) as found:
            found.verify()
            found.series("*", stat="norm")
            found.block(0, 30)
            for name in found.metrics():
                found.metric(name)
            for info in found.sites[:3]:
                found.site_buckets(info.site, "norm")
                found.vectors("histogram", info.site)
            found.buckets(None, "norm", 0, 100, 6)
            found.events()
            found.findings()
            assert found.state
            assert found.losses is not None
            for table in ("rows", "scalars", "events", "sites", "findings"):
                found.to_arrow(table)
    except (RunError, FileNotFoundError):
        pass
    # A little thinner: every further halving goes the same way, with some twenty files to be synced each.
    for work in (lambda: seal(run, final=True), lambda: thin(run, folder_bytes(run) * 9 // 10)):
        with contextlib.suppress(RunError, OSError):
            work()
    return 0


def test_there_are_enough_hostile_folders():
    assert len(CASES) >= 80


@pytest.mark.parametrize("name", ["a norm of texts", "a norm of nulls", "a norm of lists"])
def test_a_column_that_cannot_be_read_leaves_the_page_its_other_files(good, tmp_path, name):
    """Its file is left out from there on, so that columns that were read before and after have other steps."""
    run, _ = make_case(name, good, tmp_path / "case")
    assert COMMANDS["ui"](run) == 0


@pytest.mark.parametrize("command", ["show", "diagnose", "ui", "report", "export"])
def test_every_kind_of_event_may_be_of_other_types(good, tmp_path, command):
    """The faces, not the store alone: what an event lacks must not cost a page, a report or a line."""
    run, _ = make_case("every kind of event, empty and of other types", good, tmp_path / "case")
    assert COMMANDS[command](run) in (0, 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("part", range(6))
def test_hostile_folders_are_read_in_bounds_and_lead_nowhere(good, tmp_path, part):
    """The short form of `python -m benchmarks.hostile`: every folder against the store itself."""
    plain = shutil.copytree(good, tmp_path / "plain" / "runs" / "run")
    attempt(read_everything, Path(plain), tmp_path / "said")
    shutil.rmtree(plain)
    usual = attempt(read_everything, Path(shutil.copytree(good, plain)), tmp_path / "said")
    assert usual.is_clean, usual.said
    wrong = {}
    for name in NAMES[part::6]:
        run, canaries = make_case(name, good, tmp_path / "case")
        ending = attempt(read_everything, run, tmp_path / "said")
        costs = ending.cpu_s - usual.cpu_s, ending.peak_mb - usual.peak_mb
        if not ending.is_clean or costs[0] > 5 or costs[1] > 500 or canaries.changes():
            wrong[name] = ending.code, costs, canaries.changes(), ending.said[-600:]
        shutil.rmtree(tmp_path / "case")
    assert not wrong, "\n\n".join(f"{name}: {why}" for name, why in wrong.items()).replace("\\n", "\n")


def test_sealing_and_thinning_touch_nothing_behind_a_link(tmp_path):
    run, outside = tmp_path / "run", tmp_path / "outside"
    make_run(run)
    seal(run, final=True)
    shutil.move(run / "rows/rank=0", outside)
    (outside / "mine.parquet").write_bytes(b"precious")
    (run / "rows/rank=0").symlink_to(outside)
    before = sorted((path.name, path.read_bytes()) for path in outside.iterdir())
    for work in (lambda: seal(run, final=True), lambda: thin(run, 1000)):
        with pytest.raises(OSError, match=r"link|folder"):
            work()
    assert sorted((path.name, path.read_bytes()) for path in outside.iterdir()) == before


def test_the_run_folder_itself_may_be_a_link(tmp_path):
    make_run(tmp_path / "elsewhere")
    (tmp_path / "here").symlink_to(tmp_path / "elsewhere")
    assert open_run(tmp_path / "here").last_step == 3


def test_what_is_no_plain_file_is_refused_without_waiting(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/file").write_bytes(b"x" * 100)
    (tmp_path / "in/link").symlink_to("file")
    (tmp_path / "way").symlink_to("in")
    os.mkfifo(tmp_path / "in/fifo")
    begun = time.monotonic()
    for label in ("in/link", "way/file", "in/fifo", "in", "../x", "in/../in/file", "/etc/passwd", "in//file", "in/\0"):
        with pytest.raises(RefusedFileError):
            open_file(tmp_path, label, 1000)
    with pytest.raises(RefusedFileError, match="100 bytes"):
        read_file(tmp_path, "in/file", 99)
    assert read_file(tmp_path, "in/file", 100) == b"x" * 100
    assert time.monotonic() - begun < 5
    remove_file(tmp_path, "in/link")
    assert (tmp_path / "in/file").exists()
    with pytest.raises(RefusedFileError):
        remove_file(tmp_path, "way/file")


def test_listings_are_bounded_and_sizes_follow_no_link(tmp_path, monkeypatch):
    make_run(tmp_path / "run")
    (tmp_path / "large").write_bytes(bytes(1 << 20))
    (tmp_path / "run/rank-0/link").symlink_to(tmp_path / "large")
    assert folder_bytes(tmp_path / "run") < 1 << 20
    assert MOST_ENTRIES > 10_000
    monkeypatch.setattr("stethoscope.store.inside.MOST_ENTRIES", 1)
    with pytest.raises(RefusedFileError, match="more than 1 names"):
        list_folder(tmp_path / "run")


def test_texts_that_point_beyond_their_words_are_refused():
    """Arrow reads such a file without a word; whoever takes the words then reads memory that is not theirs."""
    import pyarrow as pa

    beyond = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["a"]), safe=False)
    fine = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["a", "b"]))
    _check_types(pa.table({"module": fine}), ["module"])
    with pytest.raises(pa.ArrowInvalid):
        _check_types(pa.table({"module": beyond}), ["module"])
