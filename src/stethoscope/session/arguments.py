"""What `watch` is given: taken as it is meant, refused where it can never be watched, told where it will miss something."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from stethoscope.capture.guard import warn
from stethoscope.record import WatchError

if TYPE_CHECKING:
    from stethoscope.capture.watcher import Watcher


NOT_NEEDED: Final = {
    "scaler": "a torch.amp.GradScaler, or a subclass of it, is seen where it scales the loss and steps the optimizer",
    "scheduler": "learning rates are read from the optimizer at every step, and torch's schedulers are seen where they step",
    "loss_fn": "the loss is seen at its backward; to test a loss function before training: stethoscope.checkup(model, batch, loss_fn)",
}
"""What other tools ask for and `watch` sees by itself."""


def refuse_not_needed(given: Mapping[str, Any]) -> None:
    """Say of an argument that would change nothing why it is not taken."""
    for name in given:
        if name in NOT_NEEDED:
            raise WatchError(f"watch takes no {name}", do=f"Leave it out: {NOT_NEEDED[name]}")


def check_model(model: Any) -> Any:
    """The model to watch; several, in a dict or list, as one that holds them. Refuses what can never be watched."""
    import torch

    from stethoscope.capture.sites import Ensemble, unwrap

    several = model if isinstance(model, Mapping) else None
    if isinstance(model, (list, tuple)):
        several = dict(zip(_names(model), model, strict=True))
    for one in [model] if several is None else several.values():
        if not isinstance(one, torch.nn.Module):
            raise WatchError(
                f"watch got a {type(one).__name__} as model",
                do="Pass the torch.nn.Module that you train: watch(model, optimizer); several as a dict or list",
            )
    if several is None:
        return model
    if not several:
        raise WatchError("watch got no model", do='Pass at least one: watch({"g": net_g, "d": net_d}, [opt_g, opt_d])')
    if len({id(unwrap(one)) for one in several.values()}) < len(several):
        raise WatchError("watch got one model twice", do="Pass each model once")
    try:
        return Ensemble(several)
    except (KeyError, TypeError) as error:
        raise WatchError(f"a model has a name that cannot be used ({error})", do="Use names without dots") from None


def _names(models: Sequence[Any]) -> list[str]:
    """Class names, numbered where several share one."""
    kinds = [type(model).__name__ for model in models]
    return [
        kind if kinds.count(kind) == 1 else f"{kind}_{kinds[:position].count(kind) + 1}"
        for position, kind in enumerate(kinds)
    ]


def check_optimizers(given: Any) -> list[Any]:
    """One optimizer, several, or none, as a list."""
    import torch

    optimizers = [] if given is None else list(given) if isinstance(given, (list, tuple, set)) else [given]
    for number, optimizer in enumerate(optimizers):
        inner = getattr(optimizer, "optimizer", optimizer)
        if isinstance(optimizer, torch.optim.Optimizer):
            continue
        if isinstance(inner, torch.optim.Optimizer):
            optimizers[number] = inner
            continue
        raise WatchError(
            f"watch got a {type(optimizer).__name__} as optimizer",
            do="Pass a torch.optim.Optimizer or a list of them, or leave it out to have it found",
        )
    return optimizers


def check_average(ema: Any) -> None:
    """Refuse what no averaged weights can be read from."""
    import torch

    is_readable = (
        isinstance(ema, (torch.nn.Module, dict, list, tuple)) or hasattr(ema, "shadow_params") or hasattr(ema, "shadow")
    )
    if ema is not None and not is_readable:
        raise WatchError(
            f"watch got a {type(ema).__name__} as ema",
            do="Pass the averaged model, a dict or list of averaged tensors, or an object that keeps them as shadow or shadow_params",
        )


def use_detectors(detectors: Sequence[type | str]) -> list[str]:
    """Makes the detectors of a session's own known to this process; returns their names.

    Called when a session starts and before its detectors are asked: another session of this process may have others.
    """
    if not detectors and "stethoscope.detect.registry" not in sys.modules:
        return []
    from stethoscope.detect import registry

    return registry.use(detectors)


def warn_of_gaps(model: Any, optimizers: Sequence[Any], watcher: Watcher) -> None:
    """Say at the start what will be missing, and what to do about it; training goes on."""
    parameters = watcher.names.tensors
    if not parameters and not watcher.names.lazy:
        warn(
            f"{type(model).__name__} has no parameters, so only its outputs are watched. If it should have some, assign "
            "its layers as attributes or in a torch.nn.ModuleList"
        )
        return
    num_meta = sum(p.is_meta for p in parameters)
    if num_meta:
        warn(
            f"{num_meta} of {len(parameters)} parameters of {type(model).__name__} are on the meta device and hold no "
            "values; they are measured once they are materialised. Call watch after model.to_empty(...) to see all of them"
        )
    known = {id(p) for p in [*parameters, *watcher.names.lazy]}
    holdings = [{id(p) for group in optimizer.param_groups for p in group["params"]} for optimizer in optimizers]
    learning = {id(p) for p in parameters if p.requires_grad}
    if learning and learning <= set().union(*holdings):
        # All of the model is trained: one more optimizer is for a tensor beside it, such as a temperature.
        return
    for optimizer, held in zip(optimizers, holdings, strict=True):
        if held and not held & known:
            warn(
                f"the {type(optimizer).__name__} given to watch holds none of {type(model).__name__}'s parameters: it "
                "trains another model. Make it from this model's parameters()"
            )
