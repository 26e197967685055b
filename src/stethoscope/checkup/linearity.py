"""Are two layers with nothing nonlinear between them one linear map, written in two?

Flagged: two dense layers of one kind in a row, the second the only reader of the first, as wide or wider between
them than at one end. A narrow middle (LoRA, factorised embeddings, linear bottlenecks) is a factorisation on purpose, and a
layer that does not learn (a probe behind a frozen encoder) was not written to add to the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch

from stethoscope.capture.operations import QUIET
from stethoscope.checkup.examination import Examination
from stethoscope.checkup.findings import WARNING, found, listed
from stethoscope.record import Finding, plural

TRANSPARENT: Final = (
    "Identity",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "Flatten",
    "Unflatten",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "SyncBatchNorm",
)
LINEAR_WORDS: Final = QUIET | {"dropout", "reshape_as"}


def examine(exam: Examination) -> Iterator[Finding]:
    """linear_collapse."""
    modules = dict(exam.subject.model.named_modules())
    learning = _learning_modules(exam)
    pairs = [
        (a, b)
        for a in modules
        if (b := _only_reader(exam.graph, a, modules)) and {a, b} <= learning and _is_one_map(modules[a], modules[b])
    ]
    if exam.graph.get("edges"):
        exam.saw(f"what stands between {plural(sum(not list(m.children()) for m in modules.values()), 'module')}")
    for run in _chains_of(pairs):
        yield found(
            "linear_collapse",
            WARNING,
            f"{listed(run, 4)} follow each other without a nonlinearity: together they are one linear map.",
            sites=run,
            numbers={"layers that are one": len(run)},
            remedy=f"x = F.relu(self.{run[0]}(x))  # before {run[1]}",
        )


def _learning_modules(exam: Examination) -> set[str]:
    """The modules with a parameter that is meant to learn: a gradient reaches it, whether or not an optimizer holds it."""
    reached = {name for name, gradient in exam.first.gradients.items() if gradient is not None}
    return {
        name.rpartition(".")[0]
        for name, p in exam.subject.model.named_parameters()
        if p.requires_grad and (not reached or name in reached)
    }


def _only_reader(graph: dict[str, Any], path: str, modules: dict[str, torch.nn.Module]) -> str | None:
    """The one layer that reads this one's output, with only linear things on the way."""
    if not isinstance(modules.get(path), (torch.nn.Linear, torch.nn.modules.conv._ConvNd)):
        return None
    types = {n["path"]: n for n in graph.get("nodes", [])}
    if path not in types or types[path].get("calls", 1) != 1:
        return None
    for _ in range(6):
        out = [e for e in graph["edges"] if e["source"] == path]
        if (
            len(out) != 1
            or any(word not in LINEAR_WORDS for word in out[0].get("operations", ()))
            or out[0].get("uses", 1) > 1
        ):
            return None
        path = out[0]["target"]
        into = [e for e in graph["edges"] if e["target"] == path]
        if len(into) != 1 or types.get(path, {}).get("role") != "module":
            return None
        if types[path]["type"] not in TRANSPARENT:
            return path if path in modules and types[path].get("calls", 1) == 1 else None
    return None


def _is_one_map(first: torch.nn.Module, second: torch.nn.Module) -> bool:
    if type(first) is torch.nn.Linear and type(second) is torch.nn.Linear:
        return first.out_features >= min(first.in_features, second.out_features)
    plain = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)
    if type(first) is type(second) and isinstance(first, plain) and isinstance(second, plain):
        if first.groups != 1 or second.groups != 1:
            return False
        kernels = (first.kernel_size, second.kernel_size)
        # One by n after n by one is a factorised kernel.
        if any(len(set(kernel)) > 1 for kernel in kernels):
            return False
        fan_in = first.weight[0].numel()
        return first.out_channels >= min(fan_in, second.out_channels)
    return False


def _chains_of(pairs: list[tuple[str, str]]) -> list[list[str]]:
    following = dict(pairs)
    starts = [a for a in following if a not in following.values()]
    runs = []
    for start in starts:
        run = [start]
        while run[-1] in following:
            run.append(following[run[-1]])
        runs.append(run)
    return runs
