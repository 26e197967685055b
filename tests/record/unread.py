"""What a body says and its record does not."""

from __future__ import annotations

import dataclasses
from typing import Any

from stethoscope.record.wire import WireRecord


def unread(body: dict[str, Any], said: WireRecord) -> list[str]:
    """The paths in a body whose values were not read."""
    return _unread(body, dataclasses.asdict(said), "")  # type: ignore[call-overload]


def _unread(body: Any, said: Any, path: str) -> list[str]:
    if isinstance(body, dict) and isinstance(said, dict):
        found = [f"{path}.{key}" for key in body if key not in said]
        both = [key for key in body if key in said]
        return found + [where for key in both for where in _unread(body[key], said[key], f"{path}.{key}")]
    if isinstance(body, (list, tuple)) and isinstance(said, tuple) and len(body) == len(said):
        pairs = enumerate(zip(body, said, strict=True))
        return [where for number, (one, other) in pairs for where in _unread(one, other, f"{path}.{number}")]
    return [] if body == said or (body != body and said != said) else [path]
