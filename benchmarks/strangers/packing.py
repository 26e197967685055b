"""What another machine needs to run the programs, as one small folder: `python -m benchmarks.strangers.packing`.

Of each fetched repository the files that its programs read; the packages that are pure Python, from downloaded wheels, as one
archive that is unpacked there; scikit-learn's digits, which that machine may lack.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Final

import numpy as np
from benchmarks.strangers import development, held_out
from benchmarks.strangers.program import Program

PICTURES: Final = {
    ".gif",
    ".png",
    ".jpg",
    ".jpeg",
    ".pdf",
    ".mp4",
    ".svg",
    ".pt",
    ".pth",
    ".ckpt",
    ".ipynb",
    ".gz",
    ".csv",
    ".lock",
}
MOST_BYTES: Final = 2_000_000
FOLDERS_LEFT_OUT: Final = {".git", ".github", "docs", "figures", "images", "assets", "archive"}


def main() -> None:
    """Pack."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fetched", type=Path, required=True, help="the fetched repositories, owner+name")
    parser.add_argument("--wheels", type=Path, required=True, help="downloaded wheels, pure Python")
    parser.add_argument("--into", type=Path, default=Path(".strangers"))
    asked = parser.parse_args()
    shutil.rmtree(asked.into, ignore_errors=True)
    asked.into.mkdir()
    programs = (*development.PROGRAMS, *held_out.PROGRAMS)
    for one in {program.repository: program for program in programs}.values():
        copy(one.folder(asked.fetched), one.folder(asked.into))
    for program in programs:
        if program.script.endswith(".ipynb"):
            copy_notebook(program, asked.fetched, asked.into)
    pack_wheels(asked.wheels, asked.into / "site")
    digits(asked.into / "digits.npz")
    size = sum(path.stat().st_size for path in asked.into.rglob("*") if path.is_file())
    print(f"{asked.into}: {len({p.repository for p in programs})} repositories, {size / 2**20:.1f} MiB")


def copy(source: Path, into: Path) -> None:
    """The small files of a work tree that are no pictures."""
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source)
        is_left_out = path.suffix.lower() in PICTURES or FOLDERS_LEFT_OUT & {part.lower() for part in name.parts}
        if path.is_file() and not is_left_out and path.stat().st_size <= MOST_BYTES:
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, into / name)


def copy_notebook(program: Program, fetched: Path, into: Path) -> None:
    """Its cells without what they gave, which is most of its size."""
    notebook = json.loads((program.folder(fetched) / program.script).read_text())
    cells = [{"cell_type": cell["cell_type"], "source": cell["source"]} for cell in notebook["cells"]]
    path = program.folder(into) / program.script
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cells": cells}))


def pack_wheels(wheels: Path, archive: Path) -> None:
    """All of them in one archive, to be unpacked to a folder of PYTHONPATH."""
    with tempfile.TemporaryDirectory() as folder:
        for wheel in sorted(wheels.glob("*-none-any.whl")):
            zipfile.ZipFile(wheel).extractall(folder)
        shutil.make_archive(str(archive), "zip", folder)


def digits(path: Path) -> None:
    """Pictures of 16 levels of grey, and what they show."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    np.savez_compressed(path, images=loaded.images.astype(np.uint8), target=loaded.target.astype(np.uint8))


if __name__ == "__main__":
    main()
