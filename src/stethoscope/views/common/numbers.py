"""Numbers as people read them: three significant digits, commas, powers of ten spelled out.

Measured values go through `number`, whole counts and steps through `count`, comparisons with the usual
through `ratio`. What is not a number says so in a word.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

USUAL: Final = 1.5
"""A value within this factor of its median, either way, is usual."""

_SUPERSCRIPTS: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def count(value: int) -> str:
    """A whole number with commas."""
    return f"{value:,}"


def number(value: float | None, *, ascii: bool = False) -> str:  # noqa: A002 - what the option is called
    """A measured value: 13.0, 7,827, 0.203, 5.62 × 10⁻⁴, NaN; nothing for None."""
    if value is None:
        return ""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    if value == 0:
        return "0"
    size = abs(float(f"{value:.2e}"))
    if size < 1e-3 or size >= 1e6:
        return _power_text(value, ascii=ascii)
    if size >= 1000:
        return f"{value:,.0f}"
    decimals = 2 - math.floor(math.log10(size))
    return f"{value:.{decimals}f}"


def json_number(value: float) -> float | str:
    """A float as JSON can hold it: NaN and infinities by name."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def strict_json(body: Any) -> str:
    """Compact JSON that any parser takes; a float that it has no word for, as an event may hold, is null and costs nothing else."""
    try:
        return json.dumps(body, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_without_nonfinite(body), allow_nan=False, separators=(",", ":"))


def _without_nonfinite(body: Any) -> Any:
    if isinstance(body, dict):
        return {key: _without_nonfinite(value) for key, value in body.items()}
    if isinstance(body, (list, tuple)):
        return [_without_nonfinite(value) for value in body]
    return None if isinstance(body, float) and not math.isfinite(body) else body


def quantity(value: float | None, other: float | None = None, *, unit: str = "", ascii: bool = False) -> str:  # noqa: A002
    """A number of some evidence: a count where it and the one it stands beside are whole and have no unit."""
    both = [one for one in (value, other) if one is not None]
    if (
        value is not None
        and not unit
        and all(math.isfinite(one) and one == int(one) and abs(one) < 1e6 for one in both)
    ):
        return count(int(value))
    return number(value, ascii=ascii)


def _power_text(value: float, *, ascii: bool) -> str:  # noqa: A002
    mantissa, exponent = f"{value:.2e}".split("e")
    power = str(int(exponent))
    return f"{mantissa}e{power}" if ascii else f"{mantissa} × 10{power.translate(_SUPERSCRIPTS)}"


def ratio(value: float | None, *, ascii: bool = False) -> str:  # noqa: A002
    """A value over its usual one: ×12, 1/6, usual."""
    if value is None:
        return ""
    if math.isnan(value):
        return "NaN"
    if value <= 0:
        return "0"
    times = "x" if ascii else "×"
    if math.isinf(value):
        return f"{times}Inf"
    if value >= USUAL:
        return times + _factor_text(value, ascii=ascii)
    if value <= 1 / USUAL:
        return "1/" + _factor_text(1 / value, ascii=ascii)
    return "usual"


def _factor_text(value: float, *, ascii: bool) -> str:  # noqa: A002
    if not math.isfinite(value) or value >= 1e6:
        power = str(math.floor(math.log10(value))) if math.isfinite(value) else "308"
        return f"1e{power}" if ascii else f"10{power.translate(_SUPERSCRIPTS)}"
    if value < 9.95:
        return f"{value:.1f}".removesuffix(".0")
    return f"{float(f'{value:.2e}'):,.0f}"


def percent(share: float) -> str:
    """A share of one in percent: 96%, 0.7%."""
    value = 100 * share
    if 0 < value < 0.05:
        return "under 0.1%"
    return f"{value:.0f}%" if value >= 9.95 or value == 0 else f"{value:.1f}%"


def size(num_bytes: int) -> str:
    """Bytes in the unit that keeps the number short."""
    value = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 99.5 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def duration(seconds: float) -> str:
    """A span of time in its two largest units: 21 min 31 s, 1 h 49 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s"
