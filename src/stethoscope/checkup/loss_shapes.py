"""Do output and target meet in the loss with shapes that fit, or does one spread over the other?

(B, 1) minus (B) is (B, B). Flagged is an operation in the loss between something of the output and something of
the target, of different numbers of dimensions, whose result is larger than both: that is not written on purpose without
an unsqueeze, which makes the numbers of dimensions equal.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from stethoscope.checkup.examination import Examination
from stethoscope.checkup.findings import CRITICAL, found, listed
from stethoscope.checkup.structure import clone, tensors
from stethoscope.record import Finding

FUSED: Final = frozenset(
    {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "gaussian_nll_loss", "poisson_nll_loss"}
)


class Meetings(TorchFunctionMode):
    """Follows output and target through the loss and notes where they meet."""

    def __init__(self, output: Any, targets: Any) -> None:
        super().__init__()
        self.kinds: dict[int, frozenset[str]] = {}
        self.alive: list[Any] = []
        self.spread: tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None = None
        for word, value in (("output", output), ("target", targets)):
            for tensor in tensors(value):
                self._tag_tensor(tensor, frozenset({word}))

    def _tag_tensor(self, tensor: torch.Tensor, kinds: frozenset[str]) -> None:
        self.kinds[id(tensor)] = kinds
        self.alive.append(tensor)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run it; then see who met whom."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        used = [t for t in tensors((args, kwargs)) if id(t) in self.kinds]
        made = tensors(out)
        if used and made:
            kinds: frozenset[str] = frozenset().union(*(self.kinds[id(t)] for t in used))
            for tensor in made:
                self._tag_tensor(tensor, kinds)
            self._compare_shapes(getattr(func, "__name__", ""), used, made[0])
        return out

    def _compare_shapes(self, name: str, used: list[torch.Tensor], made: torch.Tensor) -> None:
        if (
            self.spread is not None
            or len(used) != 2
            or {self.kinds[id(t)] for t in used} != {frozenset({"output"}), frozenset({"target"})}
        ):
            return
        a, b = used
        if a.ndim == b.ndim or not a.ndim or not b.ndim:
            return
        if name not in FUSED and name not in ELEMENTWISE:
            return
        try:
            shape = torch.broadcast_shapes(a.shape, b.shape)
        except RuntimeError:
            return
        if name not in FUSED and tuple(made.shape) != tuple(shape):
            return
        if torch.Size(shape).numel() > max(a.numel(), b.numel()):
            self.spread = name, tuple(a.shape), tuple(b.shape), tuple(shape)


ELEMENTWISE: Final = frozenset(
    {
        "sub",
        "__sub__",
        "__rsub__",
        "rsub",
        "add",
        "__add__",
        "__radd__",
        "mul",
        "__mul__",
        "__rmul__",
        "div",
        "eq",
        "__eq__",
        "__truediv__",
        "__rtruediv__",
        "true_divide",
        "ne",
        "lt",
        "gt",
        "le",
        "ge",
        "maximum",
        "minimum",
        "where",
        "pow",
        "__pow__",
        "__rpow__",
        "sub_",
        "mul_",
        "subtract",
        "multiply",
    }
)


def _shapes_text(value: Any) -> str:
    return listed(["×".join(map(str, t.shape)) or "one number" for t in tensors(value)])


def examine(exam: Examination) -> Iterator[Finding]:
    """loss_broadcast."""
    targets = clone(exam.subject.targets)
    if targets is None or exam.subject.num_samples < 2:
        return
    output = clone(exam.first.output)
    mode = Meetings(output, targets)
    twin = exam.first.twin
    with warnings.catch_warnings(), mode:
        warnings.simplefilter("ignore")
        exam.subject.call_loss(twin.loss_fn, twin.model, output, targets, clone(exam.subject.inputs))
    exam.saw(f"output {_shapes_text(output)} against target {_shapes_text(targets)}")
    if mode.spread is not None:
        name, a, b, shape = mode.spread
        yield found(
            "loss_broadcast",
            CRITICAL,
            f"In the loss, {name.strip('_')} of shapes {a} and {b} makes {shape}: every output is compared with every target.",
            sites=["(loss)"],
            numbers={"numbers compared": torch.Size(shape).numel(), "numbers in the output": torch.Size(a).numel()},
            remedy="loss = loss_fn(output.squeeze(-1), target)",
        )
