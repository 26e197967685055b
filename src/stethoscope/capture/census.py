"""What a model is, beyond its numbers: modes, hooks, twins, units that are copies of each other.

Taken at the start and again at powers of two and every so often: facts that change rarely and cost a walk over modules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import torch

from stethoscope.capture.deferred_reads import DeferredReads, Values, can_defer
from stethoscope.capture.sites import Names
from stethoscope.capture.taps import Inert
from stethoscope.record.events import Copies as CopiesEvent
from stethoscope.record.events import Modes, TwinPair
from stethoscope.record.events import Twins as TwinsEvent

MODE_DEPENDENT: Final = (torch.nn.modules.dropout._DropoutNd, torch.nn.modules.batchnorm._NormBase)
STACKED: Final[tuple[tuple[Any, int], ...]] = (
    ((torch.nn.LSTM, torch.nn.LSTMCell), 4),
    ((torch.nn.GRU, torch.nn.GRUCell), 3),
    (torch.nn.MultiheadAttention, 3),
)
STACKED_NAMES: Final = ("weight_ih", "weight_hh", "in_proj_weight")
INITIALIZED: Final = (
    torch.nn.Linear,
    torch.nn.modules.conv._ConvNd,
    torch.nn.Embedding,
    torch.nn.RNNBase,
    torch.nn.RNNCellBase,
)
LEAST_VALUES: Final = 256
"""Fewer values may lie so by chance."""
SURE: Final = 4.0
Mode = TypeVar("Mode", bound=Modes)
MAX_COMPARED: Final = 1 << 24
"""Elements of a tensor that is compared with another: larger ones would cost more than a step."""


def hooks_by_module(root: torch.nn.Module) -> dict[str, int]:
    """Hooks of others on the model's modules, by path, where there are any."""
    found: dict[str, int] = {}
    for path, module in root.named_modules():
        count = 0
        for hooks in (
            module._forward_hooks,
            module._forward_pre_hooks,
            module._backward_hooks,
            module._backward_pre_hooks,
        ):
            count += sum(not isinstance(hook, Inert) for hook in hooks.values())
        if count:
            found[path] = count
    return found


def modes(root: torch.nn.Module, kind: type[Mode]) -> Mode:
    """Which modules whose behaviour depends on it are in evaluation mode, and which in training mode."""
    dependent = [(path, module) for path, module in root.named_modules() if isinstance(module, MODE_DEPENDENT)]
    return kind(
        training=bool(root.training),
        evaluating=tuple(path for path, module in dependent if not module.training)[:50],
        in_training=tuple(path for path, module in dependent if module.training)[:50],
        kinds_evaluating=tuple(sorted({type(m).__name__ for _, m in dependent if not m.training})),
        kinds_in_training=tuple(sorted({type(m).__name__ for _, m in dependent if m.training})),
    )


class Twins:
    """An embedding and a head that hold equal values in different storage: meant to be tied, and not."""

    def __init__(self, names: Names) -> None:
        embeddings = [
            (p, w)
            for p, m in names.root.named_modules()
            # Not by the attribute: reading a parametrized weight computes it, and may change the parametrization.
            if isinstance(m, torch.nn.Embedding) and (w := dict(names.own(m)).get("weight")) is not None
        ]
        heads = [
            (p, w)
            for p, m in names.root.named_modules()
            if isinstance(m, torch.nn.Linear) and (w := dict(names.own(m)).get("weight")) is not None
        ]
        self.pairs = [
            (a, first, b, second)
            for a, first in embeddings
            for b, second in heads
            if first is not second and _equal(first, second) and not _is_flat(first)
        ]

    def ask(self, reads: DeferredReads) -> Callable[[], TwinsEvent | None]:
        """Compares them once more; what is returned says whether they are still equal, when that has come."""
        equal: dict[int, bool] = {}
        for number, (_, first, _, second) in enumerate(self.pairs):
            if _comparable(first, second):
                reads.ask(same(first, second), _note, equal, number)
        pairs = [(f"{a}.weight", f"{b}.weight") for a, _, b, _ in self.pairs]

        def told() -> TwinsEvent | None:
            found = [TwinPair(embedding=a, head=b, equal=equal.get(n, False)) for n, (a, b) in enumerate(pairs)]
            return TwinsEvent(pairs=tuple(found)) if found else None

        return told


class Copies:
    """Matrices whose rows are all the same: units that can only ever learn the same thing."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._parts = _stacked(names)
        # Asked of all before the first answer is read: a device is waited for once.
        found = [(p, _rows_equal(p, self._parts.get(id(p), 1))) for p in names.tensors]
        self._suspects = [p for p, alike in found if alike is not None and bool(alike)]
        self._before = [p.detach().clone() for p in self._suspects]

    def ask(self, reads: DeferredReads) -> Callable[[], CopiesEvent | None]:
        """Looks at them again; what is returned says which moved and still have equal rows, when that has come.

        It says None where nothing was suspicious from the start.
        """
        alike: dict[str, bool] = {}
        still: dict[str, bool] = {}
        for parameter, old in zip(self._suspects, self._before, strict=True):
            rows = _rows_equal(parameter, self._parts.get(id(parameter), 1))
            if rows is None or id(parameter) not in self._names.parameters or not _comparable(parameter, old):
                continue
            site = ".".join(filter(None, self._names.parameters[id(parameter)]))
            reads.ask(rows, _note, alike, site)
            reads.ask(same(parameter, old), _note, still, site)
        suspected = bool(self._suspects)
        return lambda: (
            CopiesEvent(sites=tuple(site for site, yes in alike.items() if yes and not still[site]))
            if suspected
            else None
        )


def untrained(names: Names) -> tuple[str, ...]:
    """Frozen matrices with nothing in them but PyTorch's default initialization."""
    found = []
    for path, module in names.root.named_modules():
        for name, weight in names.own(module):
            is_asked = name.startswith("weight") and isinstance(module, INITIALIZED) and can_defer(weight)
            # Only now: a parameter of a lazy layer or a shard answers nothing about its shape.
            if not is_asked or weight.requires_grad or weight.dim() < 2 or not weight.is_floating_point():
                continue
            if LEAST_VALUES <= weight.numel() <= MAX_COMPARED and _is_as_initialized(module, weight.detach()):
                found.append(f"{path}.{name}" if path else name)
    return tuple(found)


def _is_as_initialized(module: torch.nn.Module, weight: torch.Tensor) -> bool:
    """Waits for the device, as all that is looked at before the first step."""
    if isinstance(module, torch.nn.Embedding):
        rows = [n for n in range(len(weight)) if n != module.padding_idx]
        return _is_normal(weight if len(rows) == len(weight) else weight[rows])
    # The gates of a recurrence have the hidden size for a bound, other layers what one of their outputs takes in.
    is_recurrent = isinstance(module, (torch.nn.RNNBase, torch.nn.RNNCellBase))
    size = module.hidden_size if is_recurrent else weight[0].numel()
    return isinstance(size, int) and _is_uniform(weight, size**-0.5)


def _is_uniform(weight: torch.Tensor, bound: float) -> bool:
    largest, square = weight.abs().max().item(), weight.double().square().mean().item()
    # Of a uniform variable's square the standard deviation is 0.894 of its mean.
    unsure = SURE * 0.894 * weight.numel() ** -0.5
    return bool(0.97 * bound < largest <= 1.001 * bound and abs(3 * square / bound**2 - 1) < unsure)


def _is_normal(weight: torch.Tensor) -> bool:
    """By its moments, each of which must lie as near to a standard normal's as chance allows."""
    values, unsure = weight.double(), SURE * weight.numel() ** -0.5
    near = (
        (values.mean(), 0.0, 1.0),
        (values.abs().mean(), 0.798, 0.603),
        (values.square().mean(), 1.0, 1.414),
        (values.pow(4).mean(), 3.0, 9.8),
    )
    return all(abs(moment.item() - expected) < unsure * spread for moment, expected, spread in near)


def same(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Whether all values are equal, as a number on their device."""
    return (first.detach() == second.detach()).all().float()


def _note(into: dict[Any, bool], key: Any, values: Values) -> None:
    into[key] = bool(values[0])


def _comparable(first: torch.Tensor, second: torch.Tensor) -> bool:
    if not can_defer(first) or not can_defer(second):
        return False
    return first.shape == second.shape and first.device == second.device and 0 < first.numel() <= MAX_COMPARED


def _equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    """As `same`, and waits for it: before training begins."""
    return _comparable(first, second) and bool(same(first, second))


def _is_flat(tensor: torch.Tensor) -> bool:
    flat = tensor.detach().flatten()
    return bool((flat == flat[0]).all())


def _stacked(names: Names) -> dict[int, int]:
    """From a weight to how many matrices stand in it one above the other: the gates of a recurrence, queries, keys and values.

    Each gets gradients of its own, and units that are copies are equal within each, not across them.
    """
    found: dict[int, int] = {}
    for module in names.root.modules():
        parts = next((number for kinds, number in STACKED if isinstance(module, kinds)), 1)
        if parts > 1:
            found |= {id(p): parts for name, p in names.own(module) if name.startswith(STACKED_NAMES)}
    return found


def _rows_equal(parameter: torch.Tensor, parts: int = 1) -> torch.Tensor | None:
    """Whether all rows are the same within each part, as a number on the device; None where that cannot be looked at."""
    if not can_defer(parameter) or parameter.dim() < 2 or not 0 < parameter.numel() <= MAX_COMPARED:
        return None
    if parameter.shape[0] < 2 * parts or parameter.shape[0] % parts:
        return None
    values: torch.Tensor = parameter.detach().unflatten(0, (parts, -1))
    return (values == values[:, :1]).all().float()
