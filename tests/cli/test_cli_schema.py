"""docs/schema.md says what is written, and nothing else is: every field of every object, both ways."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

DOC = (Path(__file__).parents[2] / "docs/schema.md").read_text(encoding="utf-8")


def _fields(heading: str) -> dict[str, str]:
    """The table under a heading: from a field to its type."""
    part = re.split(r"^#+ ", DOC.partition(f"{heading}\n")[2], maxsplit=1, flags=re.M)[0]
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", part, re.M))


FINDING = _fields("### finding")
OBJECTS = {
    "verdict": _fields("### verdict"),
    "symptom": _fields("### symptom"),
    "suspect": _fields("### suspect"),
    "headline": _fields("### headline"),
    "finding": FINDING,
    "cause": FINDING | _fields("### cause"),
    "evidence": _fields("### evidence"),
    "looked at": _fields("### looked at"),
    "run": _fields("### run"),
    "experiment": _fields("### experiment"),
    "need": _fields("### need"),
    "reading": _fields("### reading"),
}
PLAIN = {
    "string": str,
    "integer": int,
    "boolean": bool,
    "object": dict,
    "null": type(None),
    "list of strings": list,
    "number": (int, float, str),
}


def check(body: dict[str, object], fields: dict[str, str], where: str) -> None:
    assert set(body) == set(fields), where
    for name, kind in fields.items():
        value = body[name]
        named = re.search(r"\[([a-z ]+)\]", kind)
        if named is None:
            kinds = tuple(k for word in kind.split(" or ") for k in _types(word))
            assert isinstance(value, kinds), f"{where}.{name} is {value!r}"
            assert not (isinstance(value, bool) and bool not in kinds), f"{where}.{name}"
            continue
        items = value if kind.startswith("list") else [value]
        assert isinstance(items, list)
        for item in items:
            check(item, OBJECTS[named[1]], f"{where}.{name}")


def _types(word: str) -> tuple[type, ...]:
    found = PLAIN[word]
    return found if isinstance(found, tuple) else (found,)


@pytest.fixture
def given(given_diagnosis: None) -> None:
    """The diagnosis of the synthetic story."""


@pytest.mark.usefixtures("given")
def test_diagnose(cli, sick, healthy):
    for run, kind, state in (("3f9a01", "cause", "trouble"), ("aaaaaa", "notes", "cannot_tell")):
        body = json.loads(cli("diagnose", run, "--json")[1])
        check(body, _fields("## `stethoscope diagnose [RUN] --json`"), "diagnose")
        assert body["verdict"]["state"] == state
        assert body["headline"]["kind"] == kind
        assert body["schema_version"] == 1


def test_why(cli, sick):
    for code in ("overfitting", "nonfinite_origin", "future_leak"):
        body = json.loads(cli("diagnose", "3f9a01", "--why", code, "--json")[1])
        check(body, _fields("## `stethoscope diagnose [RUN] --why CODE --json`"), code)


def test_explain(cli, base):
    body = json.loads(cli("explain", "dead_units", "--json")[1])
    check(body, _fields("## `stethoscope explain CODE --json`"), "explain")


def test_a_crash_without_a_cause_in_markdown_and_for_github(cli, base):
    from tests.views import synthetic

    synthetic.write_run(
        base / "20261116-140000-gone-bbbbbb",
        name="gone",
        ended="exception",
        body={"exception": "RuntimeError", "message": "the data | ran out"},
    )
    out = cli("diagnose", "bbbbbb", "--github")[1]
    assert out.splitlines()[0].startswith(
        "::warning title=stethoscope::trouble, cause unknown: The run crashed at step "
    )
    assert "RuntimeError: the data | ran out." in out
    text = cli("diagnose", "bbbbbb", "--markdown")[1]
    assert "**trouble, cause unknown**: " in text
    assert r"RuntimeError: the data \| ran out." in text
    body = json.loads(cli("diagnose", "bbbbbb", "--json")[1])
    assert body["headline"]["kind"] == "crashed"
