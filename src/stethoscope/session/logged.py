"""What a script logs by itself, as numbers of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stethoscope.capture.guard import can_be_kept, warn
from stethoscope.record import printable

if TYPE_CHECKING:
    from stethoscope.capture.watcher import Watcher


def note_metric(watcher: Watcher, into: dict[str, float], name: str, value: Any) -> None:
    """A metric as a number, of a tensor when it has come; what is none is said and left out, and the others are kept."""
    import torch

    try:
        if issubclass(type(value), torch.Tensor):
            watcher.log(name, value)
        else:
            into[name] = float(value)
    except BaseException as error:
        if not can_be_kept(error):
            raise
        warn(f"log got {name}={_shown(value)}, which is no number: it was left out")


def _shown(value: Any) -> str:
    """A value as its repr shows it, or by its class where it has no repr."""
    try:
        return printable(repr(value), limit=80)
    except Exception:
        return f"a {type(value).__name__}"
