"""The build hook: a library where there is a compiler, a working package where there is none."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from stethoscope.kernels import cpu

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_kernels", ROOT / "build_kernels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path: Path, hook: ModuleType) -> Path:
    folder = tmp_path / hook.FOLDER
    folder.mkdir(parents=True)
    for source in (ROOT / hook.FOLDER).glob("*.[ch]"):
        shutil.copy(source, folder)
    return tmp_path


def test_the_compiled_library_loads(hook: ModuleType, tree: Path) -> None:
    if hook.compiler() is None:
        pytest.skip("no compiler here")
    built = hook.compile_library(tree)
    assert built is not None
    assert cpu.Library(built).level >= 0
    assert [path.name for path in built.parent.glob("_cpu*")] == ["_cpu.so"]


def test_without_a_compiler_the_build_goes_on(
    hook: ModuleType, tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    assert hook.compile_library(tree) is None
    assert "no C compiler" in capsys.readouterr().err


def test_a_source_that_does_not_compile_is_said_and_leaves_nothing(
    hook: ModuleType, tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if hook.compiler() is None:
        pytest.skip("no compiler here")
    (tree / hook.FOLDER / "cpu.c").write_text("not C at all")
    assert hook.compile_library(tree) is None
    assert "did not compile" in capsys.readouterr().err
    assert not list((tree / hook.FOLDER).glob("_cpu*"))


def test_nothing_of_fast_math_reaches_the_linker(hook: ModuleType) -> None:
    assert not {"-ffast-math", "-Ofast", "-funsafe-math-optimizations"} & set(hook.FLAGS)
