"""One pass of model and loss, seen from the inside: every operation, every module call, as small facts.

Promises: numbers are read where they are made (what is overwritten later was seen before), nothing is kept but
facts; the model's results are what they would have been.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from stethoscope.capture.nested_tensors import tensors_in
from stethoscope.capture.squashing import squashed_by
from stethoscope.record import ROOT_NAME

LOSS_PLACE: Final = "(loss)"
ZERO_BELOW: Final = frozenset(
    {"relu", "relu_", "hardtanh", "hardtanh_", "threshold", "threshold_", "gelu", "gelu_", "silu", "silu_"}
)
LIMITS: Final = {"tanh": (-1.0, 1.0), "tanh_": (-1.0, 1.0), "sigmoid": (0.0, 1.0), "sigmoid_": (0.0, 1.0)}
RANDOM_MASKS: Final = frozenset({"bernoulli", "bernoulli_", "native_dropout", "_fused_dropout", "rrelu_with_noise"})
RANDOM_UNIFORM: Final = frozenset({"rand", "rand_like", "uniform", "uniform_"})
RANDOM_OTHER: Final = frozenset(
    {
        "randn",
        "randn_like",
        "normal",
        "normal_",
        "multinomial",
        "randperm",
        "randint",
        "randint_like",
        "exponential_",
        "poisson",
        "geometric_",
        "cauchy_",
        "log_normal_",
    }
)
CARRYING: Final = frozenset(
    {
        "detach",
        "clone",
        "view",
        "expand",
        "unsqueeze",
        "_to_copy",
        "add",
        "add_",
        "sub",
        "rsub",
        "mul",
        "mul_",
    }
)
COMPARISONS: Final = frozenset({"lt", "gt", "le", "ge", "floor", "floor_"})


@dataclasses.dataclass(slots=True)
class Activation:
    """A nonlinearity as it was applied once."""

    name: str
    path: str
    producer: str
    """The module whose output went in, "" where that is unknown."""
    index: int
    """Address of what came out, to tell the model's own output apart."""
    num_rows: int
    num_units: int
    share_dead: float
    """Of units that are off for every row."""
    share_saturated: float
    """Of numbers at the limits."""


@dataclasses.dataclass(slots=True)
class Softmax:
    """What went into a softmax, a log-softmax or a loss that applies a sigmoid."""

    name: str
    path: str
    producer: str
    is_distribution: bool
    """Rows are not negative and add up to one."""
    is_probability: bool
    """Every number lies between 0 and 1, and not all at the ends."""
    history: tuple[str, ...]
    """The autograd nodes that made it, the last first."""
    masked_rows: tuple[tuple[int, ...], ...]
    """Rows in which everything is -inf."""
    made_by: str | None = None
    """The softmax or sigmoid that it comes from by its graph, also where that was written out by hand."""


@dataclasses.dataclass(slots=True)
class Layer:
    """A module as it was called first: sizes of what went in and came out."""

    path: str
    module: torch.nn.Module
    order: int
    rms_in: float
    rms_out: float
    """Without the bias."""
    in_shape: tuple[int, ...]
    max_abs_in: float = 0.0
    column_rms: torch.Tensor | None = None


@dataclasses.dataclass(slots=True)
class Draw:
    """A random number drawn inside the model."""

    path: str
    is_mask: bool


class Observer(TorchDispatchMode):
    """Sees every operation after it ran. Use as a context around forward and loss."""

    def __init__(self, model: torch.nn.Module, *, find_nonfinite: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.activations: list[Activation] = []
        self.softmaxes: list[Softmax] = []
        self.layers: dict[str, Layer] = {}
        self.draws: list[Draw] = []
        self.first_bad: tuple[str, str] | None = None
        """Module and operation that first made a NaN or Inf out of finite numbers."""
        self._find_nonfinite = find_nonfinite
        self._paths = {id(m): path or ROOT_NAME for path, m in model.named_modules()}
        self._stack: list[str] = [ROOT_NAME]
        self._made: dict[tuple[int, tuple[int, ...]], tuple[str, Any]] = {}
        self._uniform: dict[int, Draw] = {}
        self._handles: list[Any] = []

    def __enter__(self) -> Observer:
        self._handles = [
            register_module_forward_pre_hook(self._before),
            register_module_forward_hook(self._after_module),
        ]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)  # type: ignore[no-untyped-call]
        for handle in self._handles:
            handle.remove()
        self._made.clear()

    def in_loss(self) -> None:
        """From here on it is the loss that runs."""
        self._stack = [LOSS_PLACE]

    def _before(self, module: torch.nn.Module, args: Any) -> None:
        # What is computed here is ours and not the model's.
        with _disable_current_modes():
            self._enter_module(module, args)

    def _after_module(self, module: torch.nn.Module, args: Any, output: Any) -> None:  # noqa: ARG002 - torch's signature
        with _disable_current_modes():
            self._leave_module(module, output)

    def _enter_module(self, module: torch.nn.Module, args: Any) -> None:
        self._stack.append(self._paths.get(id(module), f"{self._stack[-1]}.<{type(module).__name__}>"))
        path = self._stack[-1]
        given = next(iter(tensors_in(args)), None)
        if path not in self.layers and given is not None and _is_dense(given) and given.numel():
            numbers = given.detach()
            layer = Layer(path, module, len(self.layers), rms(numbers), 0.0, tuple(given.shape))
            layer.max_abs_in = float(numbers.abs().max())
            if given.ndim == 2:
                layer.column_rms = numbers.float().square().mean(0).sqrt()
            self.layers[path] = layer

    def _leave_module(self, module: torch.nn.Module, output: Any) -> None:
        path = self._stack.pop() if len(self._stack) > 1 else self._stack[-1]
        made = [t for t in tensors_in(output) if _is_dense(t)]
        layer = self.layers.get(path)
        if layer is not None and made and not layer.rms_out and made[0].numel():
            layer.rms_out = rms(_without_bias(module, made[0].detach()))
        if not any(True for _ in module.children()):
            for tensor in made:
                self._made[_memory(tensor)] = path, tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run it; then note what is worth noting."""
        name = func._schema.name.partition("::")[2]
        before = self._made.get(_memory(args[0])) if args and isinstance(args[0], torch.Tensor) else None
        softmax = self._softmax_facts(name, args, before) if name in SOFTMAX_AXES and _is_dense(args[0]) else None
        seeking = self._find_nonfinite and self.first_bad is None and name not in NEUTRAL
        bad_before = _has_nan_inf((args, kwargs)) if seeking else (False, False)
        out = func(*args, **(kwargs or {}))
        if softmax is not None:
            self.softmaxes.append(softmax)
        if isinstance(out, torch.Tensor) and _is_dense(out):
            if name in ZERO_BELOW or name in LIMITS:
                self._note_activation(name, out, before[0] if before else "")
            self._note_random(name, args, out)
        if seeking:
            # NaN without NaN before it, Inf without Inf: a mask of -inf that is passed on is no fault.
            now = _has_nan_inf(out)
            if (now[0] and not bad_before[0]) or (now[1] and not bad_before[0] and not bad_before[1]):
                self.first_bad = self._stack[-1], name
        return out

    def _note_activation(self, name: str, out: torch.Tensor, producer: str) -> None:
        if out.ndim < 2 or not out.numel():
            return
        axes = [1] if out.ndim >= 4 else [out.ndim - 1] if out.ndim == 2 else [1, 2]
        shares = []
        for axis in axes:
            flat = out.detach().movedim(axis, 0).reshape(out.shape[axis], -1)
            off = flat.abs() <= (1e-5 if name.startswith(("gelu", "silu")) else 0.0)
            shares.append((float(off.all(1).float().mean()), out.shape[axis], flat.shape[1]))
        share, num_units, num_rows = min(shares)
        saturated = 0.0
        if name in LIMITS:
            low, high = LIMITS[name]
            margin = 0.005 * (high - low)
            saturated = float(((out <= low + margin) | (out >= high - margin)).float().mean())
        self.activations.append(
            Activation(name, self._stack[-1], producer, out.data_ptr(), num_rows, num_units, share, saturated)
        )

    def _softmax_facts(self, name: str, args: Any, before: Any) -> Softmax:
        given: torch.Tensor = args[0]
        numbers = given.detach().float()
        axis = args[1] if SOFTMAX_AXES[name] and len(args) > 1 and isinstance(args[1], int) else -1
        rows = numbers.movedim(axis, -1) if numbers.ndim else numbers.reshape(1)
        distribution = False
        masked: list[tuple[int, ...]] = []
        if rows.numel() and rows.shape[-1] > 1 and SOFTMAX_AXES[name]:
            distribution = bool((rows >= 0).all() and ((rows.sum(-1) - 1).abs() < 1e-3).all())
            empty = (rows == float("-inf")).all(-1)
            masked = [tuple(int(i) for i in row) for row in empty.nonzero()[:8].tolist()] if empty.any() else []
        probability = bool(numbers.numel() and (numbers >= 0).all() and (numbers <= 1).all())
        probability = probability and bool(((numbers > 0) & (numbers < 1)).any())
        path, producer = self._stack[-1], before[0] if before else ""
        made_by = squashed_by(given.grad_fn) if probability else None
        return Softmax(name, path, producer, distribution, probability, history_of(given), tuple(masked), made_by)

    def _note_random(self, name: str, args: Any, out: torch.Tensor) -> None:
        if name in RANDOM_MASKS:
            self.draws.append(Draw(self._stack[-1], True))
        elif name in RANDOM_UNIFORM or name in RANDOM_OTHER:
            draw = Draw(self._stack[-1], False)
            self.draws.append(draw)
            if name in RANDOM_UNIFORM:
                self._uniform[id(out)] = draw
                self._made[-id(out), ()] = "", out
        elif self._uniform:
            parents = [self._uniform[id(a)] for a in args if isinstance(a, torch.Tensor) and id(a) in self._uniform]
            for draw in parents:
                if name in COMPARISONS:
                    draw.is_mask = True
                elif name in CARRYING:
                    # Drop path adds the keep rate before it rounds down.
                    self._uniform[id(out)] = draw
                    self._made[-id(out), ()] = "", out


SOFTMAX_AXES: Final = {
    "_softmax": True,
    "_log_softmax": True,
    "_safe_softmax": True,
    "logsumexp": False,
    "binary_cross_entropy_with_logits": False,
    "log_sigmoid_forward": False,
    "sigmoid": False,
}
"""Operations whose input is measured, and whether they work on rows along an axis."""

NEUTRAL: Final = frozenset(
    {
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "full",
        "full_like",
        "new_full",
        "fill_",
        "masked_fill",
        "masked_fill_",
        "where",
        "scalar_tensor",
        "triu",
        "tril",
        "lift_fresh",
        "zeros",
    }
)
"""Operations that make Inf on purpose, or leave memory as it was."""

PASSING: Final = (
    "View",
    "Reshape",
    "UnsafeView",
    "Transpose",
    "Permute",
    "Squeeze",
    "Unsqueeze",
    "Clone",
    "ToCopy",
    "Alias",
    "T0",
    "Expand",
    "Slice",
    "Select",
    "Index",
    "Flatten",
    "Contiguous",
    "Movedim",
    "SqueezeBackward",
    "Split",
    "Unbind",
)

HISTORY_KEPT: Final = 12


def history_of(tensor: torch.Tensor) -> tuple[str, ...]:
    """The nodes that made a tensor, reshaping left out, as far as there is one way back."""
    names: list[str] = []
    node = tensor.grad_fn
    for _ in range(40):
        if node is None or len(names) >= HISTORY_KEPT:
            break
        name = node.name()
        if not name.startswith(PASSING):
            names.append(name)
        parents = [parent for parent, _ in node.next_functions if parent is not None]
        if len(parents) != 1:
            break
        node = parents[0]
    return tuple(names)


def rms(numbers: torch.Tensor) -> float:
    """Root mean square."""
    return float(numbers.float().square().mean().sqrt()) if numbers.numel() else 0.0


def _without_bias(module: torch.nn.Module, out: torch.Tensor) -> torch.Tensor:
    bias = getattr(module, "bias", None)
    if not isinstance(bias, torch.Tensor) or bias.ndim != 1:
        return out
    if isinstance(module, torch.nn.Linear):
        return out - bias.detach()
    if isinstance(module, torch.nn.modules.conv._ConvNd):
        spatial = out.ndim - 2 if out.ndim > len(module.kernel_size) + 1 else out.ndim - 1
        return out - bias.detach().view(-1, *[1] * spatial)
    return out


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether these are numbers that can be read one by one: floating, and neither nested nor sparse."""
    return tensor.is_floating_point() and not tensor.is_nested and tensor.layout is torch.strided


def _memory(tensor: torch.Tensor) -> tuple[int, tuple[int, ...]]:
    try:
        return tensor.data_ptr(), tuple(tensor.shape)
    except (RuntimeError, NotImplementedError):
        return id(tensor), ()


def _has_nan_inf(value: Any) -> tuple[bool, bool]:
    """Whether there is a NaN, and whether there is an Inf."""
    nan = inf = False
    for tensor in tensors_in(value):
        if _is_dense(tensor) and tensor.numel() and not bool(torch.isfinite(tensor).all()):
            nan = nan or bool(tensor.isnan().any())
            inf = inf or bool(tensor.isinf().any())
    return nan, inf


def nonfinite_names(named: Sequence[tuple[str, torch.Tensor]]) -> list[str]:
    """The names of tensors that hold NaN or Inf."""
    return [name for name, t in named if t.is_floating_point() and not bool(torch.isfinite(t.detach()).all())]
