"""Events on the wire: what is written is read back equal, and no body, of whatever origin, makes reading fail."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Union

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stethoscope.record import events
from stethoscope.record.wire import EventBody, WireRecord
from stethoscope.store import open_run
from tests.record.unread import unread

KINDS = sorted(events.KINDS.values(), key=lambda kind: kind.KIND)
OLD_RUNS = sorted(path.parent for path in (Path(__file__).parents[1] / "data").glob("runs-*/*/run.json"))
RENAMED = {"leak": {".place"}}
TEXTS = st.text(max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda some: st.lists(some, max_size=3) | st.dictionaries(TEXTS, some, max_size=3),
    max_leaves=8,
)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    float: st.floats(allow_nan=False),
    int: st.integers(-(2**63), 2**63 - 1),
    str: TEXTS,
    bool: st.booleans(),
    Any: st.none() | st.booleans() | st.integers(-9, 9) | TEXTS,
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a declared type."""
    if hint in (events.Count, events.Hash):
        return st.integers(0, 2**62) if hint is events.Count else st.integers(0, 2**64 - 1).map("{:016x}".format)
    origin, given_types = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return st.none() | values(next(one for one in given_types if one is not type(None)))
    if origin is tuple and given_types[-1] is Ellipsis:
        return st.lists(values(given_types[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, given_types))
    if origin is Mapping:
        return st.dictionaries(TEXTS, values(given_types[1]), max_size=3)
    if origin is typing.Literal:
        return st.sampled_from(given_types)
    return records(hint) if isinstance(hint, type) and issubclass(hint, WireRecord) else PLAIN[hint]


def records(kind: type[WireRecord]) -> st.SearchStrategy[Any]:
    """Records of a declared kind."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{field.name: values(hints[field.name]) for field in dataclasses.fields(kind)})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.KIND)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_what_is_written_is_read_back_equal(kind: type[EventBody], data: st.DataObject) -> None:
    said = data.draw(records(kind))
    read = kind.from_body(json.loads(json.dumps(said.to_body())))
    assert read == said
    assert read.to_body() == json.loads(json.dumps(said.to_body()))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.KIND)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_body_makes_reading_fail(kind: type[EventBody], data: st.DataObject) -> None:
    names = [field.name for field in dataclasses.fields(kind)]
    body = data.draw(JSON | st.dictionaries(st.sampled_from([*names, "more"]), JSON))
    said = kind.from_body(body)
    assert _is_of(said, kind)
    # What was read is a record like any other: written and read once more it says the same.
    assert repr(kind.from_body(said.to_body())) == repr(said)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.KIND)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_one_wrong_field_takes_no_other_with_it(kind: type[EventBody], data: st.DataObject) -> None:
    fields = [field.name for field in dataclasses.fields(kind)]
    if not fields:
        return
    said, wrong = data.draw(records(kind)), data.draw(st.sampled_from(fields))
    body = said.to_body()
    read = kind.from_body({key: value for key, value in body.items() if key != wrong} | {wrong: object()})
    assert [getattr(read, name) for name in fields if name != wrong] == [
        getattr(said, name) for name in fields if name != wrong
    ]
    assert _is_of(read, kind)


@pytest.mark.parametrize("run", OLD_RUNS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_events_of_old_runs_are_read_whole(run: Path) -> None:
    with open_run(run) as opened:
        told = opened.events()
    assert len(told) > 20
    for event in told:
        assert event.typed is not None, event.kind
        missed = set(unread(event.body, event.typed))
        assert missed == RENAMED.get(event.kind, set()), event.kind


def test_a_field_that_is_not_said_is_told_from_one_that_is() -> None:
    assert events.Batch.from_body({}).constant is None
    assert events.Batch.from_body({"constant": []}).constant == ()
    assert math.isnan(events.Backward.from_body({"factor": "1"}).factor)
    assert events.Backward.from_body({"factor": 1}).factor == 1.0
    assert events.Batch.from_body({"num_samples": -1, "class_counts": [3, -1]}) == events.Batch()
    assert events.Batch.from_body({"fingerprints": ["00ff", "no hash"]}).fingerprints == ()


def test_what_is_not_said_accuses_nobody() -> None:
    assert events.Twins.from_body({"pairs": [{"embedding": "a"}]}).pairs[0].equal
    assert events.Averages.from_body({"averages": [{"type": "EMA"}]}).averages[0].moved
    assert events.Modes.from_body({}).training
    assert not events.EvalForward.from_body({}).training


def test_a_name_of_before_is_still_read() -> None:
    assert events.Leak.from_body({"place": "train.py:3"}).location == "train.py:3"


def _is_of(value: Any, hint: Any) -> bool:
    """Whether a value is what was declared."""
    origin, given_types = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _is_of(value, given_types[0])
    if origin in (Union, types.UnionType):
        return any(_is_of(value, one) for one in given_types)
    if origin is tuple and given_types[-1] is Ellipsis:
        return isinstance(value, tuple) and all(_is_of(one, given_types[0]) for one in value)
    if origin is tuple:
        return isinstance(value, tuple) and len(value) == len(given_types) and all(map(_is_of, value, given_types))
    if origin is Mapping:
        return isinstance(value, dict) and all(_is_of(one, given_types[1]) for one in value.values())
    if origin is typing.Literal:
        return value in given_types
    if hint is Any:
        return True
    if isinstance(hint, type) and issubclass(hint, WireRecord):
        hints = typing.get_type_hints(hint, include_extras=True)
        return type(value) is hint and all(
            _is_of(getattr(value, field.name), hints[field.name]) for field in dataclasses.fields(hint)
        )
    return type(value) is hint
