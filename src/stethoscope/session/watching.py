"""`watch`: a training under observation by one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethoscope.capture.guard import can_be_kept
from stethoscope.config import DebugConfig
from stethoscope.record import WatchError
from stethoscope.session import arguments, running
from stethoscope.session.session import DebugSession
from stethoscope.session.shield import in_words

if TYPE_CHECKING:
    import torch


def watch(
    model: torch.nn.Module | Mapping[str, torch.nn.Module] | Sequence[torch.nn.Module],
    optimizer: Any = None,
    *,
    run: str | Path | None = None,
    name: str | None = None,
    ema: Any = None,
    expect: Any = None,
    ignore: Any = None,
    detectors: Sequence[type | str] | None = None,
    config: DebugConfig | None = None,
    **config_fields: Any,
) -> DebugSession:
    """Watch a model train: every step recorded, findings as they appear. Returns the started session.

    `model` may be several, as a dict of names or a list (a GAN): one run then holds them all.
    `optimizer` may be one, a list, or None (then every optimizer that holds a parameter of the model counts).
    `run` continues or names a run folder. Watching the same model again replaces its session.
    `ema` is an average of the weights that the script keeps itself.
    `detectors` are further classes of `stethoscope.detect.Detector`, or their names as "module:Class".
    """
    arguments.refuse_not_needed(config_fields)
    names = arguments.use_detectors(detectors) if detectors is not None else None
    settings = DebugConfig.load(config, name=name, expect=expect, ignore=ignore, detectors=names, **config_fields)
    arguments.use_detectors(settings.detectors)
    try:
        given: list[Any] = list(model.values()) if isinstance(model, Mapping) else [model]
        given = list(model) if isinstance(model, (list, tuple)) else given
        watched = arguments.check_model(model)
        optimizers = arguments.check_optimizers(optimizer)
        arguments.check_average(ema)
    except WatchError:
        raise
    except BaseException as error:
        if not can_be_kept(error):
            raise
        raise WatchError(f"watch cannot use what it was given ({type(error).__name__}: {in_words(error)})") from error
    running.stop_those_of(given)
    session = DebugSession(settings, model=watched, optimizers=optimizers, run=run, ema=ema).start()
    if session.is_watching:
        running.remember(session, given)
    return session


def debug_session(config: DebugConfig | None = None) -> DebugSession:
    """A session without a model: the instruments, to be fed by hand."""
    return DebugSession(config)
