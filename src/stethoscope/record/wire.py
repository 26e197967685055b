"""Typed records to and from JSON objects: written as declared, read without trust.

A record is a frozen dataclass. A field without a default is always written; one with a default is left out where it has that
value, unless it is declared by `always`. To read never raises: a field that is missing, or is not of its declared type, is
what the default says, or the empty value of its type, a number that is NaN. So a body of an older version, a newer one or
no known version gives a record all the same: what it lacks takes its default.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar, Union

Reader = Callable[[Any], Any]
Writer = Callable[[Any], Any]
_WRONG: Final = object()
_MOST_WHOLE: Final = 1 << 63
_ALWAYS: Final = "always"
_FORMERLY: Final = "formerly"
_T = TypeVar("_T", bound="WireRecord")
_C = TypeVar("_C")


@typing.dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field,))
def declared(kind: type[_C]) -> type[_C]:
    """A frozen dataclass whose fields are given by name."""
    return dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(kind)


def always(default: Any) -> Any:
    """A field that is written in any case; the default is what a reader takes where it is missing."""
    return dataclasses.field(default=default, metadata={_ALWAYS: True})


def formerly(name: str) -> Any:
    """A field that older versions wrote under another name."""
    return dataclasses.field(metadata={_FORMERLY: name})


class WireRecord:
    """A frozen dataclass that passes as a JSON object."""

    __slots__ = ()

    def to_body(self) -> dict[str, Any]:
        """As plain JSON values; `from_body` gives an equal record back."""
        kind: Any = type(self)
        body: dict[str, Any] = {}
        for field in _plan_fields(kind):
            value = getattr(self, field.name)
            if field.default is _WRONG or value != field.default:
                body[field.name] = value if field.write is None else field.write(value)
        return body

    @classmethod
    def from_body(cls: type[_T], body: object) -> _T:
        """The record that a body tells, whatever it is."""
        kind: Any = cls
        given: Mapping[Any, Any] = body if isinstance(body, Mapping) else {}
        values = {}
        for field in _plan_fields(kind):
            found = given.get(field.name, _WRONG)
            if found is _WRONG and field.formerly:
                found = given.get(field.formerly, _WRONG)
            value = found if found is _WRONG else field.read(found)
            values[field.name] = field.missing if value is _WRONG else value
        return cls(**values)


class EventBody(WireRecord):
    """What one event says; its step, rank and time belong to the store."""

    __slots__ = ()
    KIND: ClassVar[str] = ""
    """What stands in the files for this class."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    """How one field is read and written."""

    name: str
    formerly: str
    read: Reader
    write: Writer | None
    default: Any
    """The value that is not written; `_WRONG` where all are."""
    missing: Any
    """What is taken where a body does not say it."""


@functools.cache
def _plan_fields(kind: Any) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(kind, include_extras=True)
    found = []
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        default = _WRONG if field.default is dataclasses.MISSING else field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        missing = _empty_value(hint) if default is _WRONG else default
        if field.metadata.get(_ALWAYS):
            default = _WRONG
        former = field.metadata.get(_FORMERLY, "")
        found.append(_Field(field.name, former, _reader_of(hint), _writer(hint), default, missing))
    return tuple(found)


# ---- types: each has an empty value, a reader that tests, and a writer where JSON has no such type ----


def _empty_value(hint: Any) -> Any:
    origin, given = _taken_apart(hint)
    if origin is Annotated:
        return _empty_value(given[0])
    if origin is Union:
        return None
    if origin is tuple:
        return () if given[-1] is Ellipsis else tuple(map(_empty_value, given))
    if origin is Mapping:
        return {}
    if isinstance(hint, type) and issubclass(hint, WireRecord):
        return hint.from_body({})
    empties: dict[Any, Any] = {float: math.nan, int: 0, str: "", bool: False}
    return empties[hint]


def _reader_of(hint: Any) -> Reader:
    origin, given = _taken_apart(hint)
    if origin is Annotated:
        return functools.partial(_read_tested, _reader_of(given[0]), given[1])
    if origin is Union:
        (one,) = [part for part in given if part is not type(None)]
        return functools.partial(_read_optional, _reader_of(one))
    if origin is tuple and given[-1] is Ellipsis:
        return functools.partial(_read_list, _reader_of(given[0]))
    if origin is tuple:
        return functools.partial(_read_fixed, tuple(map(_reader_of, given)))
    if origin is Mapping:
        return functools.partial(_read_mapping, _reader_of(given[1]))
    if origin is Literal:
        return functools.partial(_read_choice, given)
    if isinstance(hint, type) and issubclass(hint, WireRecord):
        return functools.partial(_read_record, hint)
    plain: dict[Any, Reader] = {
        float: _read_number,
        int: _read_whole,
        str: lambda value: value if isinstance(value, str) else _WRONG,
        bool: lambda value: value if isinstance(value, bool) else _WRONG,
        Any: lambda value: value,
    }
    return plain[hint]


def _writer(hint: Any) -> Writer | None:
    origin, given = _taken_apart(hint)
    if origin is Annotated:
        return _writer(given[0])
    if origin is Union:
        (one,) = [part for part in given if part is not type(None)]
        write = _writer(one)
        return None if write is None else lambda value: None if value is None else write(value)
    if origin is tuple and given[-1] is Ellipsis:
        entry = _writer(given[0])
        return list if entry is None else lambda values: list(map(entry, values))
    if origin is tuple:
        return functools.partial(_write_fixed, tuple(map(_writer, given)))
    if origin is Mapping:
        value = _writer(given[1])
        return dict if value is None else lambda values: dict(zip(values, map(value, values.values()), strict=True))
    if isinstance(hint, type) and issubclass(hint, WireRecord):
        return hint.to_body
    return None


def _taken_apart(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    if isinstance(hint, types.UnionType):
        return Union, typing.get_args(hint)
    origin = typing.get_origin(hint)
    return origin, typing.get_args(hint)


def _read_number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return _WRONG
    try:
        return float(value)
    except OverflowError:
        return _WRONG


def _read_whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return _WRONG
    return value if -_MOST_WHOLE <= value < _MOST_WHOLE else _WRONG


def _read_tested(read: Reader, test: Callable[[Any], object], value: Any) -> Any:
    found = read(value)
    return found if found is not _WRONG and test(found) else _WRONG


def _read_optional(read: Reader, value: Any) -> Any:
    return None if value is None else read(value)


def _read_list(read: Reader, value: Any) -> Any:
    """All of it or nothing: where an entry stands often says what it is about."""
    if not isinstance(value, (list, tuple)):
        return _WRONG
    found = tuple(map(read, value))
    return _WRONG if any(one is _WRONG for one in found) else found


def _read_fixed(readers: tuple[Reader, ...], value: Any) -> Any:
    if not isinstance(value, (list, tuple)) or len(value) != len(readers):
        return _WRONG
    found = tuple(read(one) for read, one in zip(readers, value, strict=True))
    return _WRONG if any(one is _WRONG for one in found) else found


def _read_mapping(read: Reader, value: Any) -> Any:
    """The entries that can be read; each stands for itself."""
    if not isinstance(value, Mapping):
        return _WRONG
    found = {key: read(one) for key, one in value.items() if isinstance(key, str)}
    return {key: one for key, one in found.items() if one is not _WRONG}


def _read_choice(choices: tuple[Any, ...], value: Any) -> Any:
    return value if isinstance(value, str) and value in choices else _WRONG


def _read_record(kind: type[WireRecord], value: Any) -> Any:
    return kind.from_body(value) if isinstance(value, Mapping) else _WRONG


def _write_fixed(writers: tuple[Writer | None, ...], values: tuple[Any, ...]) -> list[Any]:
    return [value if write is None else write(value) for write, value in zip(writers, values, strict=True)]
