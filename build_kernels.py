"""Compiles the C kernel when the package is built or installed for development.

Hatchling's custom build hook. The library knows nothing of Python or torch, so one wheel serves every Python
on a platform (`py3-none-<platform>`). Where there is no C compiler the build still succeeds, as a pure Python
wheel, and the torch kernels are used; `stethoscope doctor` says which. `python build_kernels.py` compiles in
place.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a script outside of a build
    BuildHookInterface = object  # type: ignore[assignment,misc]

FOLDER = Path("src", "stethoscope", "kernels")
LIBRARY = "_cpu.so"

# Only single flags of -ffast-math, and only for compiling: linking with it would set the processor to flush
# subnormals to zero in the whole process.
FLAGS = [
    "-std=gnu11",
    "-O3",
    "-fPIC",
    "-fopenmp-simd",
    "-fno-strict-aliasing",
    "-fvisibility=hidden",
    "-ffinite-math-only",
    "-fno-signed-zeros",
    "-fno-trapping-math",
    "-fno-math-errno",
]


def compiler() -> str | None:
    """The C compiler: $CC, or the first of the usual names."""
    names = [os.environ.get("CC", "").split(" ")[0], "cc", "gcc", "clang"]
    return next((found for name in names if name and (found := shutil.which(name))), None)


def compile_library(root: Path) -> Path | None:
    """Compiles into the source tree; None, with the reason on stderr, where that is not possible."""
    folder, program = root / FOLDER, compiler()
    if program is None or platform.system() == "Windows":
        print("stethoscope: no C compiler, so no C kernel; torch operations will be used", file=sys.stderr)
        return None
    target = folder / LIBRARY
    partial = folder / f"{LIBRARY}.{os.getpid()}"
    command = [program, *FLAGS, "-shared", "-o", str(partial), str(folder / "cpu.c"), "-lm", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        partial.unlink(missing_ok=True)
        print(
            f"stethoscope: the C kernel did not compile; torch operations will be used\n{done.stderr}", file=sys.stderr
        )
        return None
    partial.replace(target)  # processes that have the old one loaded keep it
    return target


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the library to the wheel and names the platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects files; `version` is "standard" or "editable"."""
        if self.target_name != "wheel":
            return
        library = compile_library(Path(self.root))
        if library is None:
            return
        build_data["pure_python"] = False
        tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{tag}"
        if version != "editable":
            build_data["force_include"][str(library)] = f"stethoscope/kernels/{LIBRARY}"


if __name__ == "__main__":
    sys.exit(0 if compile_library(Path(__file__).parent) else 1)
