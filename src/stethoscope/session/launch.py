"""Before the first step: is this something that can be watched, where does the run go, what is written about it."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import math
import os
import platform
import stat
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stethoscope.config import DebugConfig
from stethoscope.record import WatchError, printable
from stethoscope.session import joining
from stethoscope.session.redaction import command_to_record, environment_to_record, settings_to_record

if TYPE_CHECKING:
    from stethoscope.capture.watcher import Watcher
    from stethoscope.store import RunWriter

PACKAGES = ("stethoscope", "torch", "numpy", "pyarrow", "triton")


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where this process writes, and which of how many ranks it is."""

    folder: Path
    rank: int
    world_size: int
    launch_id: str


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
        kind if kinds.count(kind) == 1 else f"{kind}_{kinds[:place].count(kind) + 1}"
        for place, kind in enumerate(kinds)
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


def place(config: DebugConfig, run: Path | None) -> Place:
    """Where the run goes; ranks after the first join the folder that rank 0 made."""
    from stethoscope.store import new_run_folder

    rank, world_size = joining.this_rank()
    launch_id = joining.launch_id()
    if run is not None:
        bare = len(run.parts) == 1 and not run.exists()
        return Place(Path(config.dir) / run if bare else run, rank, world_size, launch_id)
    base = Path(config.dir)
    if rank > 0:
        found = joining.find_folder_of_rank_0(base, rank, launch_id)
        if found is not None:
            return Place(found, rank, world_size, launch_id)
        warn(
            f"rank {rank} found no run of rank 0 in {base} within {joining.JOIN_SECONDS:.0f} s and writes a run of its own. Watch "
            "rank 0 too, and where ranks are on several machines set STETHOSCOPE_DIR to a folder that all of them share"
        )
    return Place(new_run_folder(base, config.name or _script_name()), rank, world_size, launch_id)


def write_elsewhere(
    writer: RunWriter, place: Place, info: dict[str, Any], config: DebugConfig
) -> tuple[Place, RunWriter]:
    """The folder cannot be written: the machine's folder for temporary files can, mostly; else memory must do."""
    from stethoscope.store import RunWriter, new_run_folder

    trouble = writer.trouble
    # A full disk may have room again; ranks must meet in one folder.
    base = private_temporary_folder() if place.world_size == 1 and os.strerror(errno.ENOSPC) not in trouble else None
    if base is not None:
        other = dataclasses.replace(place, folder=new_run_folder(base, config.name or _script_name()))
        found = RunWriter.create(other.folder, info, disk_bytes=config.disk)
        if found.state != "memory":
            warn(
                f"the run cannot be written ({trouble}), so it goes to {other.folder}. Set STETHOSCOPE_DIR to a folder "
                "that can be written"
            )
            writer.close(timeout=0.1)
            return other, found
    warn(
        f"the run cannot be written ({trouble}), so it is kept in memory only, and nothing can be said about it. Training "
        "goes on; set STETHOSCOPE_DIR to a folder that can be written"
    )
    return place, writer


def private_temporary_folder() -> Path | None:
    """A folder for this user alone among the machine's temporary ones, None where none can be made.

    Anybody may have planted a link or a folder under the name that we would take: then it gets a name that nobody knows before.
    """
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"stethoscope-{user}"
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        is_private = stat.S_ISDIR(found.st_mode) and found.st_uid == user and not found.st_mode & 0o077
        return folder if is_private or os.name == "nt" else Path(tempfile.mkdtemp(prefix="stethoscope-"))
    except OSError:
        return None


def _script_name() -> str:
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else "run"


def next_step(recorded: int | None, optimizers: Sequence[Any]) -> int:
    """Where a continued run goes on: at the optimizer's own count where it kept one, else after the last recorded step."""
    if recorded is None:
        return 0
    for optimizer in optimizers:
        for held in optimizer.state.values():
            count = held.get("step") if isinstance(held, dict) else None
            if count is not None and not (hasattr(count, "device") and count.device.type != "cpu"):
                return int(count)
    return recorded + 1


def describe(model: Any, optimizers: Sequence[Any], config: DebugConfig, place: Place) -> dict[str, Any]:
    """What run.json says: the model tree, the settings, the versions."""
    from stethoscope.capture.sites import unwrap

    root = unwrap(model)
    info: dict[str, Any] = {
        "name": config.name or _script_name(),
        "created": time.time(),
        "launch_id": place.launch_id,
        "world_size": place.world_size,
        "config": settings_to_record(config),
        "versions": {"python": platform.python_version()} | _versions(),
        "model": {
            "type": type(root).__name__,
            "modules": [_module(path, m) for path, m in root.named_modules()],
        },
        "optimizers": [type(optimizer).__name__ for optimizer in optimizers],
    }
    if config.record_command:
        info["command"] = command_to_record(sys.argv)
        info["environment"] = environment_to_record(os.environ)
    return info


def _module(path: str, module: Any) -> dict[str, Any]:
    from torch.nn.parameter import is_lazy

    own = [p for p in module._parameters.values() if p is not None and not is_lazy(p)]
    return {
        "path": path,
        "type": type(module).__name__,
        "detail": _detail(module),
        "num_parameters": sum(p.numel() for p in own),
        "trainable": any(p.requires_grad for p in own),
        "source": _source(type(module)),
    }


def _detail(module: Any) -> str:
    """The module's own words about itself; "" where it has none, or finds none because it is not complete yet."""
    try:
        return str(module.extra_repr())[:200]
    except BaseException as error:
        from stethoscope.capture.guard import can_be_kept

        if not can_be_kept(error):
            raise
        return ""


def _source(kind: type) -> dict[str, Any] | None:
    """The file's name and the line of a module's forward where it is the user's own; never where the file lies."""
    code = getattr(getattr(kind, "forward", None), "__code__", None)
    if code is None or kind.__module__.partition(".")[0] == "torch":
        return None
    return {"file": Path(code.co_filename).name, "line": code.co_firstlineno}


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def complain(model: Any, optimizers: Sequence[Any], watcher: Watcher) -> None:
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


def warn(message: str) -> None:
    """A warning that can never become an exception."""
    from stethoscope.capture.guard import warn as guarded_warn

    guarded_warn(message)


def note_metric(watcher: Watcher, into: dict[str, float], name: str, value: Any) -> None:
    """A metric as a number, of a tensor when it has come; what is none is said and left out, and the others are kept."""
    import torch

    from stethoscope.capture.guard import can_be_kept

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


def is_number(value: float) -> bool:
    """Whether a metric is finite."""
    return math.isfinite(value)


def note_checkup(model: Any, writer: Any, step: int) -> None:
    """A checkup of this model from before it was watched belongs to its run."""
    memory = sys.modules.get("stethoscope.checkup.memory")
    found = memory.recall(root_of(model)) if memory is not None else None
    if found is not None:
        writer.tell(step, found)


def root_of(model: Any) -> Any:
    """The model the user wrote, under its wrappers."""
    from stethoscope.capture.sites import unwrap

    return unwrap(model)
