"""ARCHITECTURE.md says what is so: its picture is the import graph's, and every file and function it names is there."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/stethoscope"
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
MOST_WORDS = 20
NAMED = re.findall(r"`([\w/]+\.py):([\w.]+)`", TEXT)


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_is_that_of_the_import_graph() -> None:
    made = load(ROOT / "docs/make_architecture.py")
    assert "-->" in made.picture()
    assert made.page_with(made.picture()) == TEXT, "run: make docs"


def test_the_way_of_a_gradient_is_told() -> None:
    assert len(NAMED) > 15


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_what_is_named_is_there(path: str, name: str) -> None:
    body: list[ast.stmt] = ast.parse((PACKAGE / path).read_text(encoding="utf-8")).body
    for part in name.split("."):
        found = [n for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name == part]
        assert found, f"{path} has no {name}"
        body = found[0].body


def test_every_room_is_described() -> None:
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    told = set(re.findall(r"`(\w+)`", TEXT))
    assert {room for room in rooms if not room.startswith("__")} - {"py"} <= told


def test_the_words_to_learn_are_few() -> None:
    words = TEXT.split("## Words")[1].count("\n| ") - 2
    assert 10 <= words <= MOST_WORDS


@pytest.mark.parametrize(
    "target", re.findall(r"`((?:detect|explain/codes|kernels|checkup|cli|views/pagedata)/[\w./]*)`", TEXT)
)
def test_every_place_to_put_something_is_there(target: str) -> None:
    assert (PACKAGE / target).exists()
