"""No room but `record` writes the name of an event or of one of our metrics: they are declared once, and taken from there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from stethoscope.record import events, metrics

PACKAGE = Path(events.__file__).parents[1]
FILES = sorted(path for path in PACKAGE.rglob("*.py") if "record" not in path.relative_to(PACKAGE).parts)
NAMES = {*events.KINDS, *metrics.OWN}
PLAIN = {name for name in NAMES if name.isalpha()}
"""Names that are words of everyday too: "loss" is also a key of what the page gets, "lr" a setting of an optimizer's group."""
ASKING = {"event", "events", "events_alone", "metric", "recorded", "metric_series", "over_ranks", "curve"}
"""Functions that take the name of an event or metric."""
HOLDING = {"scalars", "accounts", "pending_scalars", "latest", "metrics", "known"}
"""What is asked for a metric by its name."""
OTHERS = {
    "capture/seams.py": {"clip_value"},  # an argument of torch's clip_grad_value_
    "capture/watcher.py": {"found_inf"},  # an attribute of torch's optimizers
    "instruments/animator_export.py": {"grad_norm"},  # a column of the instrument's own files
    "instruments/diagnostics.py": {"loss"},  # a field of the instrument's own record
}
"""Words of other rooms and of torch that are spelt like ours."""


def strings(node: ast.AST) -> Iterator[tuple[str, int]]:
    """The names of ours that stand as strings in an expression, with their lines."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str) and inner.value in NAMES:
            yield inner.value, inner.lineno


def bare_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Names of ours where a name is asked for; names that can be nothing else, wherever they stand."""
    for name, line in strings(tree):
        if name not in PLAIN:
            yield name, line
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _last(node.func) in ASKING:
            yield from (found for argument in node.args for found in strings(argument))
        elif isinstance(node, ast.Call) and _last(node.func) == "Need" and len(node.args) > 2:
            yield from strings(node.args[2])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _last(node.func.value) in HOLDING:
            yield from (found for argument in node.args for found in strings(argument))
        elif isinstance(node, ast.Subscript) and _last(node.value) in HOLDING:
            yield from strings(node.slice)
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(
                _last(side) in HOLDING or (_last(side) == "kind" and _last_but_one(side) == "event") for side in sides
            ):
                yield from (found for side in sides for found in strings(side))


def _last(node: ast.AST) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _last_but_one(node: ast.AST) -> str:
    return _last(node.value) if isinstance(node, ast.Attribute) else ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_names_are_taken_from_where_they_are_declared(path: Path) -> None:
    found = set(bare_names(ast.parse(path.read_text(encoding="utf-8"))))
    allowed = OTHERS.get(path.relative_to(PACKAGE).as_posix(), set())
    assert sorted(f"line {line}: {name!r}" for name, line in found if name not in allowed) == []


@pytest.mark.parametrize(
    "line",
    [
        'run.events("units")',
        'event.kind == "batch"',
        'if event.kind in ("batch", "eval_end"): pass',
        'span.metric("loss")',
        '"loss" in run.metrics()',
        'rows.scalars["lr"] = 1.0',
        'rows.scalars.setdefault("loss", 1.0)',
        'self.sink.event(step, "alert", {})',
        'Need("totals", "event", ("totals",))',
        'names = ["grad_norm"]',
    ],
)
def test_a_bare_name_would_be_found(line: str) -> None:
    assert list(bare_names(ast.parse(line)))


@pytest.mark.parametrize("line", ['{"loss": 1.0}', 'group.get("lr")', 'headline.kind == "units"', 'print("graph")'])
def test_a_word_of_everyday_is_let_be(line: str) -> None:
    assert not list(bare_names(ast.parse(line)))


def test_what_is_let_be_is_still_there() -> None:
    for path, names in OTHERS.items():
        assert names <= {name for name, _ in strings(ast.parse((PACKAGE / path).read_text(encoding="utf-8")))}
