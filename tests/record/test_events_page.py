"""docs/events.md says what the wire is: it is made from the declarations."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

from stethoscope.record import events, metrics

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/events.md").read_text(encoding="utf-8")


def test_the_page_is_current() -> None:
    spec = importlib.util.spec_from_file_location("make_events", ROOT / "docs/make_events.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert made.page() == PAGE, "run: make docs"


def test_every_field_of_every_event_is_on_it() -> None:
    for kind, body in events.KINDS.items():
        above = next((one for one in body.__mro__[1:] if getattr(one, "KIND", "")), body)
        part = PAGE.split(f"### `{above.KIND}`\n")[1].split("###")[0]
        assert f"### `{kind}`" in PAGE
        assert all(f"| `{field.name}` |" in part for field in dataclasses.fields(body))  # type: ignore[arg-type]


def test_every_metric_is_on_it_and_says_what_it_is() -> None:
    for name, one in metrics.OWN.items():
        assert one.label
        assert f"| `{name}` | {one.label} | {one.unit} |" in PAGE
