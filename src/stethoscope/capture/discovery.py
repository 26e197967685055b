"""The models and optimizers of a script that does not know us.

The constructor of `torch.optim.Optimizer` is a seam: it tells which optimizers there are. When training begins, that is at
the first backward pass or optimizer step after one was made, live objects are looked through once for the modules that
own what is trained: the optimizers' parameters, and the leaves of the loss's graph (so that a model is found whose
optimizer was made for another one). Their outermost holders are the models.

All models found at once belong together: a GAN's two networks are one run. What a script trains later, with optimizers
made later, is found by another look and is a run of its own: the folds of a cross-validation, and also a model that was
trained before, where its new optimizer holds other parameters (LoRA after pretraining), is of another class (Adam, then
LBFGS), or is made at another line of the script. An optimizer that a loop makes again and again is none of these. Where
one that was thought to be over steps again (training goes on after a probe was trained, a discriminator was made
late), both belong together from there.
"""

from __future__ import annotations

import gc
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch

from stethoscope.capture import modes
from stethoscope.capture.guard import Guard
from stethoscope.capture.seams import SEAMS, Patch
from stethoscope.capture.shards import own_parameters, unsharded_now
from stethoscope.capture.sites import unwrap

MAX_NODES: Final = 200_000
"""Nodes of the loss's graph that are walked at most."""
SHARE: Final = 0.01
ALLOWANCE_SECONDS: Final = 1.0
"""Looks may take this much of the thread's own time in all, and after that this share of the time since the start."""
LOOKS_FREE: Final = 3
"""Looks that are taken whatever they cost: a process may hold millions of objects, and a second training is worth one."""

ScriptLocation = tuple[tuple[str, int], ...]
"""Files and lines of the calls that led to a line of the script, innermost first."""
Found = Callable[[dict[str, torch.nn.Module], list[torch.optim.Optimizer]], None]


class Discovery:
    """Hears of optimizers and of the beginning of training, and says what is trained."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._waiting: list[tuple[weakref.ref[Any], ScriptLocation]] = []
        self._patch: Patch | None = None
        self._guard = Guard(modes)
        self._began = time.perf_counter()
        self.spent_s = 0.0
        """How long the looks took."""
        self.num_looks = 0
        self.was_put_off = False
        """Whether the last look that was due was left out, because looks took too long already."""
        self.num_optimizers = 0
        """Optimizers that were made."""
        self._own_watchers: list[Any] = []
        """Those who watch what was found."""
        self._current: list[tuple[weakref.ref[Any], ScriptLocation]] = []
        self._former: list[tuple[weakref.ref[Any], ScriptLocation]] = []
        """Optimizers of what was found last, and of what was found before."""
        self._are_together = False
        """Whether what waits belongs together with what is watched now."""
        self._known: set[int] = set()
        """The identities of the optimizers that were found."""

    def start(self) -> None:
        """Open the seam on the optimizers' constructor."""
        self._patch = Patch(torch.optim.Optimizer, "__init__", self._around_init)

    def stop(self) -> None:
        """Put everything back."""
        SEAMS.leave(self)
        if self._patch is not None:
            self._patch.restore()
        self._patch = None
        self._waiting.clear()

    def _around_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def init(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(optimizer, *args, **kwargs)
            self._guard(self._made, optimizer)
            return result

        return init

    def _made(self, optimizer: torch.optim.Optimizer) -> None:
        self.num_optimizers += 1
        self._waiting.append((weakref.ref(optimizer), _location_in_script()))
        if self not in SEAMS.listeners:
            SEAMS.join(self)

    # ---- what the seams tell ----

    def backward_begins(self, loss: Any, *, retain: bool, create: bool) -> None:  # noqa: ARG002 - a Listener's
        """Training begins, or goes on."""
        if self._waiting:
            self._guard(self._look, loss)

    def step_begins(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        """With a closure the step comes before the backward pass."""
        again = [entry for entry in self._former if entry[0]() is optimizer]
        if again:
            self._former = [entry for entry in self._former if entry not in again]
            self._waiting += again + self._current
            self._are_together = True
        if any(ref() is optimizer for ref, _ in self._waiting):
            self._guard(self._look, None)

    def backward_ends(self) -> None:
        """Nothing to do."""

    def gradient_asked(self) -> None:
        """Nothing to do."""

    def step_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """Nothing to do."""

    def clipped_norm(self, gradients: Any, max_norm: Any, total_norm: torch.Tensor) -> None:
        """Nothing to do."""

    def clipped_value(self, gradients: Any, clip_value: float) -> None:
        """Nothing to do."""

    def loss_scaled(self, scaler: Any, scaled: Any) -> None:
        """Nothing to do."""

    def scaler_stepped(self, scaler: Any, optimizer: torch.optim.Optimizer, ran: bool) -> None:
        """Nothing to do."""

    def scheduler_stepped(self, scheduler: Any) -> None:
        """Nothing to do."""

    def average_made(self, average: Any) -> None:
        """Nothing yet: `watch` looks for those that are there."""

    def batch_arrived(self, dataset: Any, batch: Any, seconds: float) -> None:
        """Nothing to do."""

    # ---- the look ----

    def _look(self, loss: Any) -> None:
        # The thread's own time: what is watched must not depend on how busy the machine is.
        began = time.thread_time()
        allowed = ALLOWANCE_SECONDS + SHARE * (time.perf_counter() - self._began)
        self.was_put_off = self.num_looks >= LOOKS_FREE and self.spent_s > allowed
        if self.was_put_off:
            return
        made = [(found, position) for ref, position in self._waiting if (found := ref()) is not None]
        optimizers = [optimizer for optimizer, _ in made]
        self._waiting.clear()
        if not optimizers:
            return
        held = [p for o in optimizers for group in o.param_groups for p in group["params"]]
        trained = {id(p) for p in held} | {id(p) for p in leaves(loss)}
        found = roots(trained)
        watchers = [listener for listener in SEAMS.listeners if hasattr(listener, "names")]
        models = [model for model in found if not is_watched(model, watchers)]
        are_together, self._are_together = self._are_together, False
        if (self._are_new(made, found) and not models) or (are_together and models):
            # The script's own sessions go on whatever it makes.
            others = [watcher for watcher in watchers if watcher not in self._own_watchers]
            models = [model for model in found if not is_watched(model, others)]
        self.num_looks += 1
        self.spent_s += time.thread_time() - began
        if models:
            self._found(dict(zip(names(models), models, strict=True)), optimizers)
            self._former += self._current
            self._current = [(weakref.ref(optimizer), position) for optimizer, position in made]
            current = {id(optimizer) for optimizer in optimizers}
            self._former = [entry for entry in self._former if entry[0]() is not None and id(entry[0]()) not in current]
            self._own_watchers = [
                listener for listener in SEAMS.listeners if listener is not self and listener not in watchers
            ]

    def _are_new(self, made: list[tuple[torch.optim.Optimizer, ScriptLocation]], models: list[torch.nn.Module]) -> bool:
        """Whether one of these optimizers trains another part of the models, in another way, or was made elsewhere than any before."""
        parameters = set().union(*map(_parameters_of, models))
        identities = set()
        for optimizer, position in made:
            held = frozenset(id(p) for group in optimizer.param_groups for p in group["params"])
            # One for a tensor beside the model (an adversarial perturbation) trains no model.
            if not held.isdisjoint(parameters):
                identities.add(hash((type(optimizer), held, position)))
        are_new = not identities <= self._known
        self._known |= identities
        return are_new


def is_watched(model: torch.nn.Module, watchers: list[Any]) -> bool:
    """Whether one of these watches this model, or a part of it, already."""
    held = _parameters_of(model) if watchers else set()
    return any(not held.isdisjoint(watcher.names.parameters) for watcher in watchers)


def _parameters_of(model: torch.nn.Module) -> set[int]:
    """The ids of a model's parameters as its optimizer holds them."""
    shards = unsharded_now(model.modules())
    return {id(p) for module in model.modules() for _, p in own_parameters(module, shards)}


def leaves(loss: Any) -> Iterator[torch.Tensor]:
    """The tensors that a backward pass from this loss would give a gradient."""
    tensors = [loss] if isinstance(loss, torch.Tensor) else list(loss or ())
    waiting = [t.grad_fn for t in tensors if isinstance(t, torch.Tensor) and t.grad_fn is not None]
    seen: set[Any] = set(waiting)
    while waiting and len(seen) < MAX_NODES:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            yield leaf
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)


def roots(trained: set[int]) -> list[torch.nn.Module]:
    """The outermost live modules that hold one of these parameters, in the order they were made.

    One that shares all of these that it holds with another that holds more is not what is trained: a wrapper of LoRA that
    a variable still names after its layer was put back, the classifier around an encoder that trains elsewhere.
    """
    found = _outermost(trained)
    if len(found) < 2:
        return found
    held = [_parameters_of(module) & trained for module in found]
    return [module for module, own in zip(found, held, strict=True) if not any(own < other for other in held)]


def _outermost(trained: set[int]) -> list[torch.nn.Module]:
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, torch.nn.Module)}
    modules = [m for m in objects if type(m) in kinds and "_modules" in m.__dict__]
    del objects
    holders: dict[int, list[torch.nn.Module]] = {}
    for module in modules:
        for child in module._modules.values():
            if child is not None:
                holders.setdefault(id(child), []).append(module)
    shards = unsharded_now(modules)
    waiting = [m for m in modules if any(id(p) in trained for _, p in own_parameters(m, shards))]
    seen = {id(m) for m in waiting}
    outermost: dict[int, torch.nn.Module] = {}
    while waiting:
        module = waiting.pop()
        above = [holder for holder in holders.get(id(module), ()) if holder is not module]
        if not above:
            outermost[id(module)] = module
        for holder in above:
            if id(holder) not in seen:
                seen.add(id(holder))
                waiting.append(holder)
    return [module for module in modules if id(module) in outermost]


def names(models: Iterable[torch.nn.Module]) -> list[str]:
    """What the script calls them: a variable of a running function or of the main module, else the class."""
    spaces = list(_spaces())
    found: list[str] = []
    for model in models:
        inner = unwrap(model)
        name = next((n for space in spaces for n, v in space.items() if v is model or v is inner), "")
        name = name if name.isidentifier() else type(inner).__name__
        taken = sum(other == name or other.startswith(f"{name}_") for other in found)
        found.append(f"{name}_{taken + 1}" if taken else name)
    return found


def _spaces() -> Iterator[dict[str, Any]]:
    """The local variables of running functions, innermost first, then the main module's."""
    for frame in _user_frames():
        yield dict(frame.f_locals)
    yield dict(vars(sys.modules["__main__"]))


def _location_in_script() -> ScriptLocation:
    return tuple((frame.f_code.co_filename, frame.f_lineno) for frame in _user_frames())


def _user_frames() -> Iterator[types.FrameType]:
    """Running functions that are neither torch's nor ours, innermost first."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith(("torch.", "stethoscope.")):
            yield frame
        frame = frame.f_back
