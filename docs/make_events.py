"""Writes docs/events.md from the declarations of `record`: every event, every metric of ours. `--check` says whether it is current."""

from __future__ import annotations

import ast
import inspect
import sys
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union

from stethoscope.record import events, metrics
from stethoscope.record.wire import WireRecord

PAGE = Path(__file__).parent / "events.md"
TYPES: dict[Any, str] = {float: "number", int: "integer", str: "string", bool: "boolean", Any: "any"}


def page() -> str:
    """The whole page."""
    lines = [
        "# Events and metrics of a run",
        "",
        "What a run holds beside its rows: `run.events()`, `run.metric(name)`, `stethoscope export RUN -o events.jsonl --table",
        "events`. Made from the declarations in `src/stethoscope/record/` by `docs/make_events.py`.",
        "",
        "- An event has a step, a rank, a time and a kind; what it says is its body, described here by kind.",
        "- A field is never renamed or given another meaning. Fields may be added, and a reader takes what it does not find, or",
        "  finds in another type, as not said.",
        "- A field with a default is not written where it has that value.",
        "",
        "## Events",
        "",
    ]
    parts: dict[type[WireRecord], None] = {}
    for kind in sorted(events.KINDS):
        body = events.KINDS[kind]
        lines += [f"### `{kind}`", "", _docstring(body), "", *_fields(body, parts)]
    lines += ["## Parts of events", ""]
    shown: set[type[WireRecord]] = set()
    while rest := [part for part in parts if part not in shown]:
        shown.update(rest)
        for part in rest:
            lines += [f"### {_title(part)}", "", _docstring(part), "", *_fields(part, parts)]
    lines += [
        "## Metrics",
        "",
        "Named numbers of a step that are recorded without being logged. The learning rates of further parameter groups are",
        "`lr.1`, `lr.2`, …; where several optimizers step for losses of their own, those of the second and further ones are",
        "`loss.1`, …; what was logged while evaluating stands under `eval/`.",
        "",
        "| name | what it is | unit |",
        "| --- | --- | --- |",
        *(f"| `{one.name}` | {one.label} | {one.unit} |" for one in metrics.OWN.values()),
    ]
    return "\n".join(lines) + "\n"


def _title(part: type[WireRecord]) -> str:
    """A record's class in words: `ParameterGroup` is "parameter group"."""
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in part.__name__).strip()


def _docstring(kind: type[WireRecord]) -> str:
    return inspect.cleandoc(kind.__doc__ or "")


def _fields(kind: type[WireRecord], parts: dict[type[WireRecord], None]) -> list[str]:
    above = kind.__mro__[1]
    if issubclass(above, events.EventBody) and above.KIND:
        return [f"Fields as of [`{above.KIND}`](#{above.KIND}).", ""]
    hints = typing.get_type_hints(kind)
    rows = [
        f"| `{name}` | {_type(hints[name], parts)} | {default} | {meaning} |"
        for name, default, meaning in _declared(kind)
    ]
    return ["| field | type | default | meaning |", "| --- | --- | --- | --- |", *rows, ""] if rows else []


def _declared(kind: type) -> Iterator[tuple[str, str, str]]:
    """Fields as they stand in the source, those of the class above first: name, default, docstring."""
    found: dict[str, tuple[str, str]] = {}
    for one in reversed(kind.__mro__):
        if one in (WireRecord, events.EventBody, object):
            continue
        (tree,) = ast.parse(inspect.getsource(one)).body
        assert isinstance(tree, ast.ClassDef)
        for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id != "KIND":
                told = after.value if isinstance(after, ast.Expr) else None
                meaning = told.value if isinstance(told, ast.Constant) and isinstance(told.value, str) else ""
                name = node.target.id
                found[name] = (_default(node.value), " ".join(meaning.split()) or found.get(name, ("", ""))[1])
    yield from ((name, *rest) for name, rest in found.items())


def _default(value: ast.expr | None) -> str:
    if isinstance(value, ast.Call):  # a default that is written all the same, a factory, or a name of before
        text = ast.unparse(value)
        return "`{}`" if "dict" in text else ""
    spelt = {"None": "null", "()": "[]", "True": "true", "False": "false"}
    text = "" if value is None else ast.unparse(value).replace("'", '"')
    return f"`{spelt.get(text, text)}`" if text else ""


def _type(hint: Any, parts: dict[type[WireRecord], None]) -> str:
    origin, given = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, UnionType):
        return " or null".join([*(_type(one, parts) for one in given if one is not NoneType), ""])
    if origin is tuple and given[-1] is Ellipsis:
        return f"list of {_type(given[0], parts)}"
    if origin is tuple:
        return f"[{', '.join(_type(one, parts) for one in given)}]"
    if origin is Mapping:
        return "object" if given[1] is Any else f"object of {_type(given[1], parts)}"
    if origin is Literal:
        return ", ".join(f'"{one}"' for one in given)
    if isinstance(hint, type) and issubclass(hint, WireRecord):
        parts.setdefault(hint)
        return f"[{_title(hint)}](#{_title(hint).replace(' ', '-')})"
    return TYPES[hint]


def main() -> int:
    """Write it, or compare."""
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
