"""Files cut, flipped, padded, overwritten: the valid part is read, the rest is named, no number is wrong."""

import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stethoscope.record import Finding, RunDamagedError, RunError, RunFormatError, RunNotFoundError, Severity
from stethoscope.store import FindingsWriter, RunWriter, open_run, seal
from stethoscope.store.runfile import dump, load
from stethoscope.store.sealed_file import SUFFIX, BlockDamagedError, VerifiedFile
from tests.store.run_making import assert_rows, journals, make_run, some_sites, write_steps


@pytest.fixture
def _dead_writer(monkeypatch):
    """The tests' own process wrote the run: without this an unclosed journal would count as live."""
    monkeypatch.setattr("stethoscope.store.process.is_known_dead", lambda who: True)


def all_numbers(run):
    """Everything a reader can get, as one comparable thing: from (step, site) to row, scalars, events."""
    block = run.block(-(10**9), 10**9) if len(run.sites) else None
    rows = {}
    if block is not None:
        for s, step in enumerate(block.steps):
            for n, info in enumerate(block.sites):
                if block.present[s, n]:
                    rows[int(step), str(info.site)] = (*block.rows[s, n].tolist(), int(block.calls[s, n]))
    loss = run.metric("loss")
    scalars = dict(zip(loss.steps.tolist(), loss.values.tolist(), strict=True))
    events = {(event.step, event.kind, str(event.body)) for event in run.events()}
    findings = {str(finding) for finding in run.findings()}
    return rows, scalars, events, findings


def is_part_of(some, whole):
    rows, scalars, events, findings = some
    return (
        rows.items() <= whole[0].items()
        and scalars.items() <= whole[1].items()
        and events <= whole[2]
        and findings <= whole[3]
    )


def test_a_journal_cut_at_every_byte_gives_its_valid_prefix(tmp_path):
    folder = tmp_path / "run"
    make_run(folder, num_steps=3, num_sites=2)
    (journal,) = journals(folder)
    whole, data = all_numbers(open_run(folder)), journal.read_bytes()
    counts = []
    for size in range(len(data) + 1):
        journal.write_bytes(data[:size])
        run = open_run(folder)
        found = all_numbers(run)
        assert is_part_of(found, whole)
        counts.append(len(found[0]) + len(found[1]) + len(found[2]))
        assert all(problem.is_torn_tail for problem in run.problems)
        assert run.state == ("finished" if size == len(data) else run.state)
    assert counts == sorted(counts)
    assert counts[-1] == sum(len(part) for part in whole[:3])


@pytest.mark.usefixtures("_dead_writer")
@pytest.mark.parametrize("ended", ["finished", None])
@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_every_bit_of_a_run_flipped_one_at_a_time_is_noticed(tmp_path, ended, stride):
    folder = tmp_path / "run"
    make_run(folder, num_steps=1, num_sites=2, ended=ended)
    writer = FindingsWriter(folder)
    writer.write([Finding("nan", Severity.CRITICAL, "NaN", 0, 0, ("blocks.0.weight",))])
    writer.close()
    whole = all_numbers(open_run(folder))
    assert not open_run(folder).problems
    for path in [folder / "run.json", *journals(folder), *folder.glob("findings/*")]:
        data = path.read_bytes()
        for bit in range(0, 8 * len(data), stride):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << (bit % 8)
            path.write_bytes(flipped)
            try:
                run = open_run(folder)
            except (RunDamagedError, RunFormatError):
                continue
            assert run.problems, f"{path.name} bit {bit} was not noticed"
            assert any(problem.file.endswith(path.name) for problem in run.problems)
            assert is_part_of(all_numbers(run), whole), f"{path.name} bit {bit} gave a wrong number"
        path.write_bytes(data)


@pytest.mark.parametrize("stride", [13, pytest.param(1, marks=pytest.mark.slow)])
def test_every_bit_of_every_sealed_file_is_under_a_hash(tmp_path, stride):
    folder = tmp_path / "run"
    make_run(folder, num_steps=1, num_sites=2)
    seal(folder, final=True)
    catalogue = open_run(folder).catalogue
    files = [file for piece in catalogue.segments() for file in piece.segment.files.values()]
    assert len(files) >= 3
    for sealed in files:
        for path in [folder / sealed.path, folder / (sealed.path + SUFFIX)]:
            data = path.read_bytes()
            with path.open("r+b", buffering=0) as file:
                for bit in range(0, 8 * len(data), stride):
                    place, byte = bit // 8, data[bit // 8]
                    file.seek(place)
                    file.write(bytes([byte ^ 1 << bit % 8]))
                    with VerifiedFile(folder, sealed) as found:
                        found.verify()
                        assert found.damage, f"{path.name} bit {bit} was not noticed"
                        good = path.suffix == SUFFIX
                        assert good == _reads_all(found), f"{path.name} bit {bit}"
                    file.seek(place)
                    file.write(bytes([byte]))


def _reads_all(file):
    file.seek(0)
    try:
        file.read()
    except BlockDamagedError:
        return False
    return True


@pytest.mark.usefixtures("_dead_writer")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_garbage_put_anywhere_costs_only_what_it_hits(tmp_path, data):
    folder = tmp_path / "run"
    if not folder.exists():
        make_run(folder, num_steps=5, num_sites=2)
        shutil.copy(journals(folder)[0], tmp_path / "good")
    (journal,) = journals(folder)
    good = (tmp_path / "good").read_bytes()
    journal.write_bytes(good)
    whole = all_numbers(open_run(folder))
    place = data.draw(st.integers(0, len(good)))
    garbage = data.draw(st.binary(min_size=1, max_size=300))
    over = data.draw(st.integers(0, 200))
    journal.write_bytes(good[:place] + garbage + good[place + over :])
    if journal.read_bytes() == good:
        return
    run = open_run(folder)
    assert run.problems
    found = all_numbers(run)
    assert is_part_of(found, whole)
    # Garbage shorter than two frames takes at most a few frames' worth of rows with it, two each; the scalars lie in one frame.
    assert len(found[0]) >= len(whole[0]) - 3 * 2 or place < 900
    assert found[1] in ({}, whole[1])


def test_damage_in_the_middle_is_located_and_counted(tmp_path):
    folder = tmp_path / "run"
    expected = make_run(folder, num_steps=6)
    (journal,) = journals(folder)
    data = bytearray(journal.read_bytes())
    middle = data.index(b"\x93StF", len(data) // 2)
    data[middle + 10] ^= 0xFF
    journal.write_bytes(data)
    run = open_run(folder)
    (problem,) = run.problems
    assert problem.offset == middle
    assert problem.frames_lost == 1
    assert run.state == "damaged"
    assert run.ended is not None
    assert len(run.steps) + len(run.metric("loss")) == 2 * len(expected) - 1


@pytest.mark.parametrize("ended", ["finished", None])
def test_a_tail_of_zeros_is_the_end_of_the_file(tmp_path, ended):
    folder = tmp_path / "run"
    expected = make_run(folder, ended=ended)
    (journal,) = journals(folder)
    journal.write_bytes(journal.read_bytes() + bytes(5000))
    run = open_run(folder)
    assert_rows(run, expected)
    assert len(run.problems) == (1 if ended else 0), "a live file may have been extended and not yet filled"


def test_frames_of_another_file_are_not_taken_for_its_own(tmp_path):
    expected = make_run(tmp_path / "a", num_steps=3)
    make_run(tmp_path / "b", num_steps=9)
    (mine,), (other,) = journals(tmp_path / "a"), journals(tmp_path / "b")
    mine.write_bytes(mine.read_bytes() + other.read_bytes())
    run = open_run(tmp_path / "a")
    assert_rows(run, expected)
    assert run.problems


def test_a_newer_format_is_refused_clearly(tmp_path):
    folder = tmp_path / "run"
    make_run(folder)
    body = load(folder)
    (folder / "run.json").write_bytes(dump({**body, "format_version": 99}))
    with pytest.raises(RunFormatError, match=r"format 99.*newer version"):
        open_run(folder)


def test_no_run_and_no_description(tmp_path):
    with pytest.raises(RunNotFoundError):
        open_run(tmp_path / "nothing")
    folder = tmp_path / "run"
    expected = make_run(folder)
    (folder / "run.json").write_bytes(b"{}")
    with pytest.raises(RunDamagedError, match="checksum"):
        open_run(folder)
    run = open_run(folder, trust_description=False)
    assert_rows(run, expected)
    assert run.problems
    assert issubclass(RunDamagedError, RunError)


def test_rows_whose_sites_were_lost_are_left_out_and_said(tmp_path):
    folder = tmp_path / "run"
    writer = RunWriter.create(folder, {})
    writer.sites(some_sites(3))
    write_steps(writer, range(2), 3)
    assert writer.flush()
    writer.rows(5, np.array([0, 77]), np.zeros((2, 17)))
    writer.close()
    run = open_run(folder)
    assert "1 rows of step 5" in run.problems[0].what
    assert run.block(5, 5).present.sum() == 1


def test_rows_of_a_run_without_any_site(tmp_path):
    writer = RunWriter.create(tmp_path, {})
    writer.rows(5, np.array([0, 7]), np.zeros((2, 17)))
    writer.close()
    run = open_run(tmp_path)
    assert "2 rows of step 5" in run.problems[0].what
    assert run.block(0, 9).rows.size == 0


def test_reading_changes_nothing(tmp_path):
    folder = tmp_path / "run"
    make_run(folder)
    before = {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None) for path in folder.rglob("*")
    }
    for path in folder.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    run = open_run(folder)
    all_numbers(run)
    run.refresh()
    run.close()
    after = {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None) for path in folder.rglob("*")
    }
    assert before == after
