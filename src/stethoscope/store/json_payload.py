"""JSON as payload bytes, and back: whatever a file holds, no more of it is unpacked than any run says."""

from __future__ import annotations

import json
import re
from typing import Any, Final

_MOST_NODES: Final = 4 << 20
"""Values in one JSON text: as objects they are some hundred megabytes."""
_MOST_DEPTH: Final = 64


class EncodingError(ValueError):
    """A payload that does not have the form its kind asks for."""


def encode_json(body: object) -> bytes:
    """JSON, whatever the strings hold; what JSON cannot say is said as text."""
    return json.dumps(body, ensure_ascii=True, default=str, separators=(",", ":")).encode("ascii")


def decode_json(raw: bytes) -> Any:
    """The inverse of `encode_json`; EncodingError also for more values or deeper ones than any run holds."""
    num_open = raw.count(b"[") + raw.count(b"{")
    if num_open + raw.count(b",") > _MOST_NODES:
        raise EncodingError(f"JSON of more than {_MOST_NODES} values")
    try:
        decoder = _DECODER if _LONG_NUMBER.search(raw) else _SHORT_DECODER
        found = decoder.decode(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise EncodingError(f"this is not JSON: {error}") from error
    if num_open > _MOST_DEPTH and _is_deeper(found, _MOST_DEPTH):
        raise EncodingError(f"JSON nested more than {_MOST_DEPTH} deep")
    return found


def _parse_int64(text: str) -> int:
    """A whole number that fits in 64 bits: larger ones would break whatever puts them in an array."""
    number = int(text) if len(text) <= 20 else 2**64
    if not -(2**63) <= number < 2**63:
        raise EncodingError(f"a whole number of more than 64 bits ({text:.24})")
    return number


_DECODER: Final = json.JSONDecoder(parse_int=_parse_int64)
_SHORT_DECODER: Final = json.JSONDecoder()
"""For JSON without a number of 19 digits, as nearly all is: it does not call Python for each of them."""
_LONG_NUMBER: Final = re.compile(rb"[0-9]{19}")
_NESTED: Final = frozenset({dict, list})


def _is_deeper(value: Any, most: int) -> bool:
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(most):
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if type(child) in _NESTED
        ]
        if not level:
            return False
    return True
