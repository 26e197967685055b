"""JSON of a run folder taken apart with its types tested: an error names the field, nothing is trusted by its position."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from stethoscope.store.json_payload import EncodingError

MOST_TEXT: Final = 1 << 20
MOST_NUMBER: Final = 2.0**36
"""What can be a time is below it."""
_NEEDED: Final = object()
_WORDS: Final = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}


class Fields:
    """The fields of one JSON object, each asked for by name and type; EncodingError where one is not so."""

    def __init__(self, body: Any, what: str) -> None:
        if not isinstance(body, dict):
            raise EncodingError(f"{what} is {_type_word(body)}, not an object")
        self._body, self._what = body, what

    def whole(self, name: str, low: int = 0, high: int = 2**53, default: Any = _NEEDED) -> Any:
        """A whole number from `low` to `high`."""
        value = self._get_field(name, default)
        if value is default:
            return value
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._type_error(name, value, "a whole number")
        if not low <= value <= high:
            raise EncodingError(f"{name} of {self._what} is {value}, outside of {low} to {high}")
        return value

    def number(self, name: str, default: Any = _NEEDED) -> Any:
        """A finite number, by default one that can be a time."""
        value = self._get_field(name, default)
        if value is default:
            return value
        if (
            not isinstance(value, (int, float))
            or isinstance(value, bool)
            or not math.isfinite(value)
            or abs(value) > MOST_NUMBER
        ):
            raise self._type_error(name, value, "a finite number")
        return value

    def text(self, name: str, default: Any = _NEEDED, most: int = MOST_TEXT) -> Any:
        """A text of a bounded length."""
        value = self._get_field(name, default)
        if value is default:
            return value
        if not isinstance(value, str) or len(value) > most:
            raise self._type_error(name, value, f"a text of at most {most} characters")
        return value

    def flag(self, name: str, default: Any = _NEEDED) -> Any:
        """True or false."""
        value = self._get_field(name, default)
        if not isinstance(value, bool):
            raise self._type_error(name, value, "true or false")
        return value

    def items(self, name: str, kind: type = object, default: Any = _NEEDED) -> Any:
        """A list, all of one type."""
        value = self._get_field(name, default)
        if value is default:
            return value
        if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
            raise self._type_error(name, value, "a list" if kind is object else f"a list of {kind.__name__}")
        return value

    def object(self, name: str, default: Any = _NEEDED) -> Any:
        """An object of any fields."""
        value = self._get_field(name, default)
        if value is not default and not isinstance(value, dict):
            raise self._type_error(name, value, "an object")
        return value

    def _get_field(self, name: str, default: Any) -> Any:
        value = self._body.get(name, default)
        if value is _NEEDED:
            raise EncodingError(f"{self._what} lacks {name}")
        return value

    def _type_error(self, name: str, value: Any, wanted: str) -> EncodingError:
        return EncodingError(f"{name} of {self._what} is {_type_word(value)}, not {wanted}")


def checked_head(body: Any) -> dict[str, Any]:
    """What a file says of the process that wrote it, with the fields that readers use tested."""
    head = Fields(body, "the file's head")
    head.number("started_at", None)
    columns = head.items("columns", str, [])
    if len(set(columns)) != len(columns):
        raise EncodingError("columns of the file's head names one twice")
    who = Fields(head.object("process", {}), "process")
    who.whole("pid", 0, 2**31, None)
    for name in ("host", "boot", "pid_namespace"):
        who.text(name, "", 1000)
    return dict(body)


def checked_end(body: Any) -> tuple[dict[str, Any], dict[str, int]]:
    """What the last frame of a process says, and its losses."""
    ended = Fields(body, "the end")
    ended.text("ended", "")
    return dict(body), checked_losses(ended.object("losses", {}))


def checked_losses(body: Any) -> dict[str, int]:
    """Counters by name."""
    counters = Fields(body, "the losses")
    return {name: counters.whole(name, -(2**53)) for name in body}


def checked_info(body: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The description of a run without the fields that are not what readers take them for, and which those are."""
    kept, wrong = dict(body), []
    for name, test in _INFO.items():
        try:
            test(Fields(kept, "run.json"))
        except EncodingError as error:
            del kept[name]
            wrong.append(f"{error}; left out")
    return kept, wrong


def _test_config(info: Fields) -> None:
    config = Fields(info.object("config", {}), "config")
    for name in ("ignore", "expect"):
        config.items(name, str, [])
    config.text("companion", "")


def _test_model(info: Fields) -> None:
    model = Fields(info.object("model", {}), "model")
    model.text("type", "")
    for entry in model.items("modules", dict, []):
        module = Fields(entry, "a module")
        module.text("path")
        module.text("type", "")
        module.text("detail", "")
        module.whole("num_parameters", 0, 2**62, 0)
        module.object("source", None)


_INFO: Final[dict[str, Callable[[Fields], object]]] = {
    "config": _test_config,
    "model": _test_model,
    "optimizers": lambda info: info.items("optimizers", str, []),
    "versions": lambda info: info.object("versions", {}),
    "created_at": lambda info: info.number("created_at", None),
    "created": lambda info: info.number("created", None),
    "world_size": lambda info: info.whole("world_size", 0, 2**31, None),
    "disk_bytes": lambda info: info.whole("disk_bytes", 0, 2**62, None),
    "launch_id": lambda info: info.text("launch_id", None),
}


def _type_word(value: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value:.17g}" if isinstance(value, float) else str(value)
    return _WORDS.get(type(value), type(value).__name__)
