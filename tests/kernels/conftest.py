"""The C library is compiled once where a compiler is at hand, so that its tests run from a plain checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session", autouse=True)
def compiled_library() -> None:
    if not (ROOT / "src" / "stethoscope" / "kernels" / "_cpu.so").exists():
        subprocess.run([sys.executable, str(ROOT / "build_kernels.py")], check=False)


@pytest.fixture
def library():  # type: ignore[no-untyped-def]
    from stethoscope.kernels import cpu

    loaded = cpu.library()
    if loaded is None:
        pytest.skip(cpu.backend())
    level, threads = loaded.level, loaded.num_threads
    yield loaded
    loaded.level, loaded.num_threads = level, threads


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    from stethoscope.kernels import cpu

    monkeypatch.setattr(cpu, "library", lambda: None)
