"""The settings of two runs beside each other, those that differ first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypedDict

from stethoscope.record.events import Ownership
from stethoscope.store import Run
from stethoscope.views.pagedata.packing import plain, text

_MAX_SETTINGS: Final = 60
_NO_SETTING: Final = frozenset({"dir", "name"})


class SettingRow(TypedDict):
    """One setting of both."""

    name: str
    a: str
    b: str


class Settings(TypedDict):
    """The settings of both, those that differ first."""

    rows: list[SettingRow]
    numDiffer: int
    num: int


def settings_data(a: Run, b: Run) -> Settings:
    """Settings that differ first, then those that do not."""
    left, right = _flat_settings(a), _flat_settings(b)
    names = [name for name in dict.fromkeys([*left, *right]) if name.rpartition(".")[2] not in _NO_SETTING]
    rows: list[SettingRow] = [
        {"name": text(name, 80), "a": left.get(name, ""), "b": right.get(name, "")} for name in names
    ]
    rows.sort(key=lambda row: row["a"] == row["b"])
    differ = sum(row["a"] != row["b"] for row in rows)
    return {"rows": rows[:_MAX_SETTINGS], "numDiffer": differ, "num": len(rows)}


def _flat_settings(run: Run) -> dict[str, str]:
    """Model, optimizer settings, versions and our own settings as words."""
    info, out = run.info, {}
    model: Any = info.get("model")
    if isinstance(model, Mapping):
        out["model"] = text(str(model.get("type", "")), 60)
    for _, ownership in run.events_of(Ownership)[:1]:
        for number_, group in enumerate(ownership.groups[:4]):
            where = "optimizer" if number_ == 0 else f"optimizer.{number_}"
            out[where] = text(group.optimizer, 40)
            out |= {f"{where}.{key}": _setting_text(value) for key, value in list(group.settings.items())[:24]}
    for part in ("versions", "config"):
        found = plain(info.get(part, {}), 60)
        if isinstance(found, Mapping):
            out |= {
                (key if part == "versions" else f"watch.{key}"): _setting_text(value) for key, value in found.items()
            }
    return out


def _setting_text(value: Any) -> str:
    """A setting as it is read: the members of a list without its brackets."""
    return text(", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value), 40)
