"""Of downloaded wheels, what a short benchmark needs, as one small archive that can travel with a checkout.

    python -m benchmarks.gpu.pack_wheels .gpu_wheels

reads .gpu_wheels/raw/*.whl and writes .gpu_wheels/site-cp312.zip, named by the Python that they are for. Of pyarrow only tables,
Parquet and computing stay; debugging symbols go where there is a `strip`. The raw wheels are removed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PYARROW_EXTENSIONS = ("lib", "_parquet", "_compute", "_fs", "_json", "_csv", "_dataset", "_dataset_parquet", "_acero")
LEFT_OUT_OF_PYARROW = ("flight", "s3", "gcsfs", "azurefs", "hdfs", "orc", "gandiva", "cuda")
FOLDERS_LEFT_OUT = ("tests", "include", "includes", "src")


def is_needed(path: Path) -> bool:
    """Whether a file of a wheel is used: `path` is relative to the folder that wheels are unpacked to."""
    package, name = path.parts[0], path.name
    if package == "pyarrow":
        if any(part in FOLDERS_LEFT_OUT for part in path.parts):
            return False
        if ".cpython-" in name:
            return name.partition(".")[0] in PYARROW_EXTENSIONS
        if ".so" in name:
            # Each library is there under three names; the one with its major version is what others ask for.
            return name.count(".") == 2 and not any(word in name for word in LEFT_OUT_OF_PYARROW)
        return name.endswith(".py")
    if package == "zstandard":
        return "_cffi" not in name
    return True


def pack(folder: Path) -> Path:
    """Unpack, keep what is needed, zip."""
    raw = folder / "raw"
    with tempfile.TemporaryDirectory() as work:
        for wheel in sorted(raw.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                names = [name for name in archive.namelist() if not name.endswith("/") and is_needed(Path(name))]
                archive.extractall(work, names)
        for library in Path(work).rglob("*.so*"):
            if shutil.which("strip"):
                subprocess.run(["strip", "--strip-unneeded", str(library)], check=False)
        made = shutil.make_archive(str(folder / f"site-{_python_of(raw)}"), "zip", work)
    shutil.rmtree(raw)
    return Path(made)


def _python_of(raw: Path) -> str:
    """As wheels name it: cp312."""
    return next(raw.glob("pyarrow-*.whl")).name.split("-")[2]


if __name__ == "__main__":
    done = pack(Path(sys.argv[1]))
    print(f"{done}: {done.stat().st_size / 1e6:.0f} MB")
