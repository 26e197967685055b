"""Every code has a page and every page a code; pages are whole, quote the limits that the rules have, and print anywhere."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import json
from pathlib import Path

import pytest

from stethoscope.cli import main
from stethoscope.detect.registry import builtin
from stethoscope.explain.pages import SECTIONS, THEMES, by_theme, codes, page
from stethoscope.record import StethoscopeError, did_you_mean

ROOT = Path(__file__).parents[2]


@functools.cache
def _checkup_codes() -> frozenset[str]:
    """The first argument of every `found(...)` in the experiments."""
    found = set()
    for file in (ROOT / "src/stethoscope/checkup").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "found":
                first = node.args[0]
                assert isinstance(first, ast.Constant), f"{file.name}: a code that cannot be read"
                found.add(str(first.value))
    return frozenset(found)


def test_every_code_has_a_page_and_every_page_a_code() -> None:
    emitted = set(builtin().codes) | _checkup_codes()
    assert emitted - set(codes()) == set(), "write src/stethoscope/explain/codes/CODE.md for these"
    assert set(codes()) - emitted == set(), "nothing says these any more"


@pytest.mark.parametrize("code", codes())
def test_a_page_is_whole(code: str) -> None:
    found = page(code)
    assert found.theme in THEMES, f"{code}.md names the theme {found.theme!r}: choose one of explain/pages.py:THEMES"
    assert found.tier in ("exact", "statistical", "advice")
    assert set(found.found_by) <= {"watch", "checkup", "finished run", "several ranks"}
    assert ("checkup" in found.found_by) == (code in _checkup_codes())
    assert (found.found_by != ("checkup",)) == (code in builtin().codes)
    assert all(found.section(name) for name in SECTIONS)
    assert found.section("The fix").startswith("```python\n")
    for word in ("**Measured:**", "**Rule:**", "**Not seen:**"):
        assert word in found.section("How we know")


@pytest.mark.parametrize("code", [code for code in codes() if page(code).limits])
def test_the_limits_that_a_page_quotes_are_those_of_the_rules(code: str) -> None:
    for name, value in page(code).limits:
        module, _, constant = name.rpartition(".")
        where = module if module.startswith("checkup.") else f"detect.{module}"
        held = getattr(importlib.import_module(f"stethoscope.{where}"), constant)
        assert float(held) == value, f"{name} is {held} now: read codes/{code}.md again"


def test_the_index_is_current() -> None:
    spec = importlib.util.spec_from_file_location("make_codes", ROOT / "docs/make_codes.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert made.INDEX.read_text(encoding="utf-8") == made.index(), "run: make docs"


def test_no_page_is_left_out_of_its_theme() -> None:
    assert sorted(one.code for pages in by_theme().values() for one in pages) == sorted(codes())


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_page_fits_the_terminal(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "nonfinite_origin", "--width", str(width), "--ascii"]) == 0
    out = capsys.readouterr().out
    assert out.isascii()
    assert max(map(len, out.splitlines())) <= width
    assert out.startswith("X critical")
    assert "`" not in out
    assert "**" not in out
    assert "not the result" in " ".join(out.split())


def test_the_list_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    out = capsys.readouterr().out
    assert all(code in out for code in codes())
    assert main(["explain", "dead_units", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["schema_version"] == 1
    assert body["code"] == "dead_units"
    assert "nn.init" in body["the_fix"]
    assert main(["explain", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["themes"]) == list(THEMES)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["explain", "dead_unit"], "Did you mean dead_units"),
        (["diagnos"], "Did you mean diagnose?"),
        (["show", "--kind", "gradeint"], "Did you mean gradient?"),
        (["get", "latest", "*", "wieght"], "Did you mean weight?"),
        (["explain", "zzz"], "stethoscope explain lists them all"),
    ],
)
def test_a_word_that_is_nearly_right(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_the_nearest_words() -> None:
    assert did_you_mean("vanishing", ["vanishing_gradients", "plateau"]) == "Did you mean vanishing_gradients?"
    assert did_you_mean("xyz", ["plateau"]) == ""
    with pytest.raises(StethoscopeError, match="Did you mean plateau"):
        page("platau")
