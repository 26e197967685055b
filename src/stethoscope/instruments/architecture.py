"""analyze_architecture(model): parameters, FLOPs, memory and where a model spends them.

FLOPs are counted by torch itself while one example batch runs forward (`torch.utils.flop_counter`); without a
batch they stay unknown. The model is left as it was: mode, buffers and random state are put back. torch is
imported only here, when asked.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from stethoscope.record import WatchError

if TYPE_CHECKING:
    import torch

HEAVY_SHARE: Final = 0.5
"""A layer with more than this share of the FLOPs or parameters is a bottleneck."""
ADAM_COPIES: Final = 2
"""Moments that an Adam-like optimizer keeps for each trainable parameter."""


@dataclass(frozen=True, slots=True)
class ModelArchitectureInfo:
    """What a model is made of; recorded by hand or by `analyze_architecture`."""

    total_parameters: int
    trainable_parameters: int
    model_size_mb: float
    layer_count: int
    layer_types: Mapping[str, int] = field(default_factory=dict)
    """How many layers there are of each type."""
    depth: int | None = None
    """Levels of nesting."""
    flops: int | None = None
    """Of one forward pass over the example batch."""


@dataclass(frozen=True, slots=True)
class Call:
    """An example batch for a model that takes both positional and keyword arguments."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LayerCost:
    """What one layer costs, by itself: children are counted apart."""

    name: str
    type: str
    parameters: int
    flops: int
    output_bytes: int

    def __str__(self) -> str:
        return f"{self.name} ({self.type})"


@dataclass(frozen=True, slots=True)
class ArchitectureAnalysis:
    """Where a model's parameters, FLOPs and memory are."""

    info: ModelArchitectureInfo
    layers: tuple[LayerCost, ...]
    """Layers that hold parameters or compute, in the model's order."""
    total_flops: int | None
    """Of one forward pass; a multiplication and an addition count as two."""
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    """What an Adam-like optimizer would add."""
    buffer_bytes: int
    activation_bytes: int | None
    """Outputs of all leaf layers for the example batch: what backward has to keep, roughly."""
    parameter_efficiency: float | None
    """FLOPs per parameter: how much each parameter is used. Low where they sit in tables and idle layers."""
    shared_parameters: tuple[tuple[str, ...], ...]
    """Names that are one and the same tensor; counted once."""
    bottlenecks: tuple[str, ...]
    recommendations: tuple[str, ...]

    @property
    def training_bytes(self) -> int:
        """Parameters, gradients, optimizer and buffers together; activations come on top."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes + self.buffer_bytes


def analyze_architecture(model: torch.nn.Module, example: Any = None) -> ArchitectureAnalysis:
    """Analyses a torch model; `example` is a batch: one input, a tuple of them, a dict of keyword
    arguments, or a `Call` of both."""
    if not callable(getattr(model, "named_modules", None)):
        raise WatchError("not a torch model", where=type(model).__name__, do="Give a torch.nn.Module")
    flops: dict[str, int] = {}
    outputs: dict[str, int] = {}
    total: int | None = None
    if example is not None:
        total, flops, outputs = _count(model, example)
    parameters = _own_parameters(model)
    layers = tuple(
        LayerCost(name, type(module).__name__, parameters.get(name, 0), flops.get(name, 0), outputs.get(name, 0))
        for name, module in model.named_modules()
        if parameters.get(name) or flops.get(name) or outputs.get(name)
    )
    info = _parameter_info(model, total)
    weight_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    gradient_bytes = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    bottlenecks = _find_bottlenecks(layers, info.total_parameters, total)
    return ArchitectureAnalysis(
        info=info,
        layers=layers,
        total_flops=total,
        parameter_bytes=weight_bytes,
        gradient_bytes=gradient_bytes,
        optimizer_bytes=ADAM_COPIES * gradient_bytes,
        buffer_bytes=sum(b.numel() * b.element_size() for b in model.buffers()),
        activation_bytes=sum(outputs.values()) if example is not None else None,
        parameter_efficiency=total / info.total_parameters if total is not None and info.total_parameters else None,
        shared_parameters=_shared_parameters(model),
        bottlenecks=tuple(bottlenecks),
        recommendations=tuple(_recommendations(info, layers, bottlenecks)),
    )


def _parameter_info(model: torch.nn.Module, flops: int | None) -> ModelArchitectureInfo:
    leaves = [module for module in model.modules() if not any(True for _ in module.children())]
    sizes = [(p.numel(), p.numel() * p.element_size(), p.requires_grad) for p in model.parameters()]
    buffers = sum(b.numel() * b.element_size() for b in model.buffers())
    return ModelArchitectureInfo(
        total_parameters=sum(count for count, _, _ in sizes),
        trainable_parameters=sum(count for count, _, trainable in sizes if trainable),
        model_size_mb=(sum(size for _, size, _ in sizes) + buffers) / 1e6,
        layer_count=len(leaves),
        layer_types=dict(Counter(type(module).__name__ for module in leaves)),
        depth=max((name.count(".") + 1 for name, _ in model.named_modules() if name), default=0),
        flops=flops,
    )


def _own_parameters(model: torch.nn.Module) -> dict[str, int]:
    """Parameters that a module holds itself; a shared one counts where it appears first."""
    seen: set[int] = set()
    out: dict[str, int] = {}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                out[name] = out.get(name, 0) + parameter.numel()
    return out


def _shared_parameters(model: torch.nn.Module) -> tuple[tuple[str, ...], ...]:
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return tuple(tuple(group) for group in names.values() if len(group) > 1)


def _count(model: torch.nn.Module, example: Any) -> tuple[int, dict[str, int], dict[str, int]]:
    """Runs the example once: total FLOPs, FLOPs and output bytes by module (its own, children taken off)."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    outputs: dict[str, int] = {}
    names = {module: name for name, module in model.named_modules() if not any(True for _ in module.children())}

    def note(module: torch.nn.Module, _inputs: Any, result: Any) -> None:
        outputs[names[module]] = outputs.get(names[module], 0) + _tensor_bytes(result)

    handles = [module.register_forward_hook(note) for module in names]
    counter = FlopCounterMode(display=False, custom_mapping=_missing_formulas())
    try:
        with _in_evaluation(model), torch.no_grad(), counter:
            _call_model(model, example)
    finally:
        for handle in handles:
            handle.remove()
    root = type(model).__name__
    by_name = {
        "" if name in (root, "Global") else name.removeprefix(root + "."): sum(ops.values())
        for name, ops in counter.get_flop_counts().items()
    }
    own = {name: by_name[name] - sum(v for k, v in by_name.items() if _is_child(k, name, by_name)) for name in by_name}
    return int(counter.get_total_flops()), {name: max(0, value) for name, value in own.items()}, outputs


def _missing_formulas() -> dict[Any, Any]:
    """Operators of the CPU and of cuDNN that torch's own table leaves out; shapes in, FLOPs out."""
    import torch

    def attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        batch, heads, rows, width = query
        return int(2 * batch * heads * rows * key[2] * (width + value[-1]))

    def recurrent_layer(inputs: Any, *weights: Any, **_: Any) -> int:
        time, batch = inputs[0], inputs[1]
        return int(2 * time * batch * (math.prod(weights[0]) + math.prod(weights[1])))

    def recurrent_stack(inputs: Any, weights: Any, *_: Any, **__: Any) -> int:
        return int(2 * inputs[0] * inputs[1] * sum(math.prod(shape) for shape in weights if len(shape) == 2))

    table = {
        "_scaled_dot_product_flash_attention_for_cpu": attention,
        "mkldnn_rnn_layer": recurrent_layer,
        "_cudnn_rnn": recurrent_stack,
    }
    aten = torch.ops.aten
    return {getattr(aten, name): formula for name, formula in table.items() if hasattr(aten, name)}


def _is_child(name: str, parent: str, known: Mapping[str, int]) -> bool:
    """Whether `name` is inside `parent` with no other known module between them."""
    if name == parent or not (parent == "" or name.startswith(parent + ".")):
        return False
    between = name.rpartition(".")[0]
    while between and between != parent:
        if between in known:
            return False
        between = between.rpartition(".")[0]
    return True


def _call_model(model: torch.nn.Module, example: Any) -> Any:
    if isinstance(example, Call):
        return model(*example.args, **example.kwargs)
    if isinstance(example, Mapping):
        return model(**example)
    return model(*example) if isinstance(example, tuple | list) else model(example)


@contextmanager
def _in_evaluation(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode inside; mode of each module, buffers and random state as before outside."""
    import torch

    modes = {module: module.training for module in model.modules()}
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    devices = sorted(
        {p.device.index for p in model.parameters() if p.device.type == "cuda" and p.device.index is not None}
    )
    fast = torch.backends.mha.get_fastpath_enabled()
    with torch.random.fork_rng(devices=devices):
        torch.backends.mha.set_fastpath_enabled(False)  # its one fused operator hides what is computed
        model.eval()
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
            for module, training in modes.items():
                module.training = training
            with torch.no_grad():
                for module, name, buffer, kept in buffers:
                    buffer.copy_(kept)
                    module._buffers[name] = buffer


def _tensor_bytes(value: Any) -> int:
    if isinstance(value, Mapping):
        return sum(_tensor_bytes(item) for item in value.values())
    if isinstance(value, tuple | list):
        return sum(_tensor_bytes(item) for item in value)
    return value.numel() * value.element_size() if hasattr(value, "element_size") else 0


def _find_bottlenecks(layers: tuple[LayerCost, ...], parameters: int, flops: int | None) -> list[str]:
    found = []
    if len(layers) > 2:
        heaviest = max(layers, key=lambda layer: layer.parameters)
        if parameters and heaviest.parameters > HEAVY_SHARE * parameters:
            share = 100 * heaviest.parameters / parameters
            found.append(f"{heaviest} holds {share:.0f}% of the parameters")
        slowest = max(layers, key=lambda layer: layer.flops)
        if flops and slowest.flops > HEAVY_SHARE * flops:
            found.append(f"{slowest} does {100 * slowest.flops / flops:.0f}% of the FLOPs")
    return found


def _recommendations(info: ModelArchitectureInfo, layers: tuple[LayerCost, ...], bottlenecks: list[str]) -> list[str]:
    advice = []
    tables = sum(layer.parameters for layer in layers if layer.type.startswith("Embedding"))
    if info.total_parameters and tables > HEAVY_SHARE * info.total_parameters:
        advice.append("Most parameters are in embeddings: tie them with the output layer or lower their width")
    elif any("parameters" in text for text in bottlenecks):
        advice.append("One layer holds most parameters: factorise it, or pool before it")
    if info.total_parameters and not info.trainable_parameters:
        advice.append("No parameter is trainable: check requires_grad")
    if any("FLOPs" in text for text in bottlenecks):
        advice.append("One layer does most of the work: begin there when you optimise")
    return advice
