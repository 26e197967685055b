"""What is examined: copies of the model, how it is called, how its loss is called.

Promises: every experiment gets a fresh copy (so that a model that keeps state from call to call, or can run only
once, can be examined), with the same random numbers, on its own copy of the batch.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from stethoscope.capture.nested_tensors import tensors_in
from stethoscope.checkup.isolation import seed_all
from stethoscope.checkup.rebinding import Rebinder
from stethoscope.checkup.structure import TARGET_KEYS, CheckupError, batch_size, clone, tensors

SEED: Final = 20011
WRAPPERS: Final = ("DistributedDataParallel", "DataParallel")
INPUT_NAMES: Final = ("inputs", "input", "x", "batch", "data")
MODEL_NAMES: Final = ("model", "net", "module")


class Twin:
    """A copy of model, loss and optimizers that may be used up."""

    def __init__(self, subject: Subject, *, train: bool, seed: int) -> None:
        self.subject = subject
        self._memo = _memo_for(subject.model)
        try:
            self.model, loss_fn = copy.deepcopy((subject.model, _copied_loss(subject.loss_fn)), self._memo)
        except Exception as error:
            raise CheckupError(
                "The model cannot be copied, and checkup works on copies alone",
                where=repr(error),
                do="Keep what cannot be copied (locks, files, generators) out of the model, or give it __deepcopy__",
            ) from error
        rebinder = Rebinder(self._memo)
        rebinder.rebind_model(self.model)
        self.loss_fn = rebinder.rebound(subject.loss_fn) if loss_fn is None else loss_fn
        for module in self.model.modules():
            module._compiled_call_impl = None
        self.model.train(train)
        self.seed = seed

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """By name, each once."""
        return dict(self.model.named_parameters())

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The copy of a tensor of the original, or itself where it was not copied."""
        twin = self._memo.get(id(tensor))
        return twin if isinstance(twin, torch.Tensor) else tensor

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Copies that hold the copy's parameters."""
        return list(copy.deepcopy(self.subject.optimizers, self._memo))

    def forward(self, inputs: Any = None, *, seed: int | None = None) -> Any:
        """The model's output, for the batch or for other inputs."""
        given = clone(self.subject.inputs if inputs is None else inputs)
        seed_all(self.seed if seed is None else seed)
        return self.subject.call(self.model, given)

    def loss(self, output: Any, targets: Any = None, inputs: Any = None) -> torch.Tensor:
        """The loss of an output, one number."""
        wanted = clone(self.subject.targets if targets is None else targets)
        given = clone(self.subject.inputs if inputs is None else inputs)
        return self.subject.call_loss(self.loss_fn, self.model, output, wanted, given)


class Subject:
    """Model, batch, loss and optimizers, as the user gave them."""

    def __init__(
        self,
        model: torch.nn.Module,
        inputs: Any,
        targets: Any,
        loss_fn: Callable[..., Any],
        optimizers: Sequence[torch.optim.Optimizer],
    ) -> None:
        self.model = unwrapped(model)
        self.inputs, self.targets, self.loss_fn, self.optimizers = inputs, targets, loss_fn, list(optimizers)
        self.num_samples = batch_size(inputs, targets)
        self.names = {id(p): name for name, p in self.model.named_parameters()}
        self.call = self._calling_style()
        self._loss_roles = _loss_roles(loss_fn)

    def twin(self, *, train: bool = False, seed: int = SEED) -> Twin:
        """A fresh copy in training or evaluation mode."""
        return Twin(self, train=train, seed=seed)

    def name(self, parameter: torch.Tensor) -> str:
        """A parameter's path in the model, or what can be said of one that is not in it."""
        return self.names.get(id(parameter), f"(a tensor of shape {tuple(parameter.shape)})")

    def optimized(self) -> dict[int, torch.Tensor]:
        """Every tensor that an optimizer holds, by id."""
        return {id(p): p for o in self.optimizers for group in o.param_groups for p in group["params"]}

    def _calling_style(self) -> Callable[[torch.nn.Module, Any], Any]:
        """Whether a tuple or a mapping is one argument of this model or several."""
        inputs = self.inputs
        words, many, named = _parameter_names(self.model.forward)
        if isinstance(inputs, Mapping):
            keys = [str(key) for key in inputs]
            if named or (keys and all(key in words for key in keys)):
                return lambda model, given: model(**given)
        elif isinstance(inputs, (tuple, list)) and not hasattr(inputs, "_fields"):
            needed = [w for w, needs in words.items() if needs]
            if many or len(needed) > 1 or (len(words) >= len(inputs) > 1):
                return lambda model, given: model(*given)
        return lambda model, given: model(given)

    def call_loss(
        self, loss_fn: Callable[..., Any], model: torch.nn.Module, output: Any, targets: Any, inputs: Any
    ) -> torch.Tensor:
        """The loss as one number; what it takes is read from its signature."""
        given = {
            "output": output,
            "targets": inputs if targets is None else targets,
            "inputs": inputs,
            "model": model,
        }
        args = [given[role] for role in self._loss_roles]
        loss = loss_fn(*args)
        if not isinstance(loss, torch.Tensor):
            loss = getattr(loss, "loss", loss)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            what = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise CheckupError(
                "The loss must be one number",
                where=f"loss_fn returned {what}",
                do="Pass a function that returns it, for example lambda output, target: loss_fn(output, target).mean()",
            )
        return loss.reshape(())


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The user's own module inside of torch's wrappers."""
    for _ in range(8):
        if type(model).__name__ == "OptimizedModule":
            model = model._orig_mod  # type: ignore[assignment]
        elif type(model).__name__ in WRAPPERS:
            model = model.module  # type: ignore[assignment]
        else:
            break
    return model


def _memo_for(model: torch.nn.Module) -> dict[int, Any]:
    """Tensors with a history, which deepcopy refuses: the copy gets their numbers."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        for tensor in tensors_in(vars(module)):
            if not tensor.is_leaf:
                memo[id(tensor)] = tensor.detach().clone()
    return memo


def _copied_loss(loss_fn: Callable[..., Any]) -> Any:
    """A loss with state of its own is copied; a plain function is used as it is."""
    return loss_fn if isinstance(loss_fn, torch.nn.Module) else None


def _parameter_names(function: Callable[..., Any]) -> tuple[dict[str, bool], bool, bool]:
    """Names of positional parameters (and whether they are needed), *args, **kwargs."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}, True, True
    kinds = inspect.Parameter
    words = {
        p.name: p.default is kinds.empty
        for p in parameters
        if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    }
    many = any(p.kind is kinds.VAR_POSITIONAL for p in parameters)
    return words, many, any(p.kind is kinds.VAR_KEYWORD for p in parameters)


def _loss_roles(loss_fn: Callable[..., Any]) -> list[str]:
    """What the loss takes, in order: "output", "targets", "inputs", "model"."""
    called = loss_fn.forward if isinstance(loss_fn, torch.nn.Module) else loss_fn
    words, many, _ = _parameter_names(called)
    needed = [word for word, needs in words.items() if needs]
    if many:
        return ["output", "targets"]
    if len(needed) == 1 and len(words) > 1 and list(words)[1] in TARGET_KEYS:
        needed = list(words)[:2]
    roles = ["model" if word in MODEL_NAMES else "" for word in needed]
    free = [index for index, role in enumerate(roles) if not role]
    if not free or len(free) > 3:
        raise CheckupError(
            "The loss needs more than an output and targets",
            where=f"its parameters are {', '.join(words) or 'none'}",
            do="Wrap it: lambda output, target: loss_fn(output[0], target, output[1], output[2]); "
            "parameters called model and inputs are filled in",
        )
    kinds = ["output", "targets", "inputs"]
    if len(free) == 3 and needed[free[1]] in INPUT_NAMES:
        kinds = ["output", "inputs", "targets"]
    for index, kind in zip(free, kinds, strict=False):
        roles[index] = kind
    return roles


def output_tensors(output: Any) -> list[torch.Tensor]:
    """The floating tensors of an output, in order."""
    return [t for t in tensors(output) if t.is_floating_point()]
