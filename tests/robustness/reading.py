"""Rows 14 to 17, 46, 48 and 49: files cut, flipped, padded; read while they are sealed; of a newer format; read-only."""

from __future__ import annotations

import contextlib
import io
import resource
import shutil
import struct
import subprocess
from pathlib import Path
from unittest import mock

from stethoscope.record import RunDamagedError, RunFormatError
from stethoscope.store import FindingsWriter, open_run, seal
from stethoscope.store.frames import HEADER_BYTES, checksum
from stethoscope.store.runfile import dump, load
from tests.robustness.lab import Lab, Outcome, SkipRowError
from tests.robustness.registry import row


def make(lab: Lab, **given: object) -> tuple[Path, Path]:
    """A small run that ended, and its one journal."""
    from tests.store.run_making import journals, make_run

    folder = lab.new_folder() / "run"
    make_run(folder, **given)  # type: ignore[arg-type]
    return folder, journals(folder)[0]


def numbers(folder: Path) -> tuple[object, ...]:
    from tests.store.test_store_damage import all_numbers

    return all_numbers(open_run(folder))


@row(14, "the journal cut at every byte", short=40, long=10**9)
def cut_the_journal(lab: Lab, tries: int, outcome: Outcome) -> None:
    from tests.store.test_store_damage import all_numbers, is_part_of

    folder, journal = make(lab, num_steps=3, num_sites=2)
    whole, data, most = numbers(folder), journal.read_bytes(), 0
    for size in range(0, len(data) + 1, max(len(data) // tries, 1)):
        journal.write_bytes(data[:size])
        run = open_run(folder)
        found = all_numbers(run)
        outcome.tries += 1
        outcome.expect(is_part_of(found, whole), "wrong", f"cut at {size}: numbers that were never written")
        outcome.expect(all(p.is_torn_tail for p in run.problems), "wrong", f"cut at {size}: {run.problems}")
        count = sum(map(len, found))
        outcome.expect(count >= most, "lost", f"cut at {size}: less than from a shorter file")
        most = max(most, count)


@row(15, "every bit of a small run flipped, one at a time", short=400, long=10**9)
def flip_every_bit(lab: Lab, tries: int, outcome: Outcome) -> None:
    """Once as it is written, once sealed: noticed and located, and no number is another one."""
    for sealed in (False, True):
        folder, _ = make(lab, num_steps=1, num_sites=2)
        FindingsWriter(folder).close()
        if sealed:
            seal(folder, final=True)
        whole = numbers(folder)
        files = [
            path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in (".gitignore", ".sealing")
        ]
        num_bits = 8 * sum(path.stat().st_size for path in files)
        with mock.patch(
            "stethoscope.store.process.is_known_dead", return_value=True
        ):  # we wrote it ourselves, and live
            for path in files:
                flip_bits(folder, path, whole, max(num_bits * 2 // tries, 1), outcome)


def flip_bits(folder: Path, path: Path, whole: object, stride: int, outcome: Outcome) -> None:
    from tests.store.test_store_damage import all_numbers, is_part_of

    data = path.read_bytes()
    for bit in range(0, 8 * len(data), stride):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        outcome.tries += 1
        with contextlib.suppress(RunDamagedError, RunFormatError):
            run = open_run(folder)
            found = all_numbers(run)
            problems = run.verify()
            where = f"{path.name} bit {bit}"
            outcome.expect(bool(problems), "wrong", f"{where} was not noticed")
            located = any(p.file.removesuffix(".sum").endswith(path.name.removesuffix(".sum")) for p in problems)
            outcome.expect(located, "wrong", f"{where} is told of {[p.file for p in problems]}")
            outcome.expect(is_part_of(found, whole), "wrong", f"{where} gave a wrong number")
    path.write_bytes(data)


@row(16, "a tail of zeros", short=6, long=60)
def pad_with_zeros(lab: Lab, tries: int, outcome: Outcome) -> None:
    for size in range(1, 100 * tries, 100):
        folder, journal = make(lab)
        whole = numbers(folder)
        journal.write_bytes(journal.read_bytes() + bytes(size))
        outcome.tries += 1
        outcome.expect(numbers(folder) == whole, "lost", f"{size} zeros changed what is read")


@row(17, "a length of 2^63 in a frame", short=4, long=4)
def claim_a_huge_length(lab: Lab, tries: int, outcome: Outcome) -> None:
    """With a header whose own checksum is right: refused without taking memory for it."""
    from tests.store.test_store_damage import is_part_of

    places = {"stored": 48, "unpacked": 56}  # in the header
    for name, size in (("stored", 2**63), ("stored", 2**62), ("unpacked", 2**63), ("unpacked", 2**40)):
        folder, journal = make(lab)
        whole, data = numbers(folder), bytearray(journal.read_bytes())
        start = data.index(b"\x93StF", len(data) // 2)
        struct.pack_into("<Q", data, start + places[name], size)
        fields = bytes(data[start : start + HEADER_BYTES - 8])
        data[start + HEADER_BYTES - 8 : start + HEADER_BYTES] = checksum(fields)
        journal.write_bytes(data)
        outcome.tries += 1
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found = numbers(folder)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        outcome.expect(grown < 64 << 10, "harmed", f"{name} length {size}: {grown >> 10} MB were taken")
        outcome.expect(is_part_of(found, whole), "wrong", f"{name} length {size}: a wrong number")
        outcome.expect(bool(open_run(folder).problems), "wrong", f"{name} length {size}: not noticed")


@row(46, "reading while another process seals", short=1, long=10)
def read_while_sealing(lab: Lab, tries: int, outcome: Outcome) -> None:
    """Every read during it gives the whole run, from journals or from segments."""
    from stethoscope.store import RunWriter, spool
    from tests.store.run_making import some_sites, write_steps
    from tests.store.test_store_damage import all_numbers

    for _ in range(tries):
        one = lab.prepare()
        folder = one.runs / "run"
        with mock.patch.object(spool, "ROTATE_STEPS", 20):
            writer = RunWriter.create(folder, {})
            writer.sites(some_sites(3))
            write_steps(writer, range(400), 3)
            writer.close()
        run = open_run(folder)
        whole = all_numbers(run)
        one.given = {"folder": str(folder)}
        if lab.shim is not None:
            one.rules("any hang 5 1 0 -")  # a slow disk: more moments to read between
        one.start("sealing.py")
        while one.child.poll() is None:
            outcome.tries += 1
            run.refresh()
            outcome.expect(
                all_numbers(run) == whole, "wrong", "a run that was followed reads differently while it is sealed"
            )
            outcome.expect(numbers(folder) == whole, "wrong", "a run opened while it is sealed reads differently")
        outcome.expect(one.child.code == 0, "harmed", one.child.err[-300:])
        outcome.expect(bool(open_run(folder).catalogue.segments()), "wrong", "nothing was sealed: nothing was tried")
        outcome.expect(numbers(folder) == whole, "lost", "the sealed run reads differently")


def ask(*words: str) -> tuple[int, str]:
    """Exit code and output of a command."""
    from stethoscope.cli import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            code = main(list(words))
        except SystemExit as ended:
            code = int(ended.code or 0)
    return code, out.getvalue()


@row(48, "a run of a newer format", short=1, long=1)
def open_a_newer_run(lab: Lab, tries: int, outcome: Outcome) -> None:
    folder, _ = make(lab)
    (folder / "run.json").write_bytes(dump({**load(folder), "format_version": 99}))
    before = files_of(folder)
    for command in ("show", "diagnose", "doctor", "get"):
        code, said = ask(command, str(folder), *(["loss"] if command == "get" else []))
        outcome.tries += 1
        clear = code != 0 and "format 99" in said and "Traceback" not in said
        outcome.expect(clear, "wrong", f"{command}: {code}: {said[-200:]!r}")
    one = lab.prepare(steps=10)
    one.given["watch"]["run"] = str(folder)
    one.start().finish(outcome)
    outcome.expect("newer version" in one.child.err, "wrong", f"watch() does not say why: {one.child.err!r}")
    outcome.expect(files_of(folder) == before, "wrong", "a run that was refused was changed")


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@row(49, "a run on a read-only file system", short=1, long=1)
def open_a_read_only_run(lab: Lab, tries: int, outcome: Outcome) -> None:
    folder, _ = make(lab)
    shutil.copytree(folder, folder.with_name("sealed"))
    seal(folder.with_name("sealed"), final=True)
    with lab.small_disk(lab.new_folder() / "disk", "size=8m") as disk:
        for name in ("run", "sealed"):
            shutil.copytree(folder.with_name(name), disk / name)
        if subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=False).returncode:
            raise SkipRowError("a tmpfs cannot be made read-only here")
        for name in ("run", "sealed"):
            outcome.expect(
                numbers(disk / name) == numbers(folder),
                "wrong",
                f"{name}: other numbers than on a disk that is written",
            )
            for command in ("show", "diagnose", "doctor"):
                code, said = ask(command, str(disk / name))
                outcome.tries += 1
                opens = code == 0 or (command == "diagnose" and code == 1)  # 1: it has findings
                outcome.expect(opens, "wrong", f"{command} of a read-only run: {code}: {said[-300:]!r}")
