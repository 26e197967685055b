"""The autograd graph, node by node: what operation it is, what fed it, what it kept. Nothing is computed here."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from typing import Any, Final

import torch

MAX_NODES: Final = 48
PASSING: Final = frozenset(
    (
        "View",
        "UnsafeView",
        "ReshapeAlias",
        "Squeeze",
        "Unsqueeze",
        "Transpose",
        "T",
        "Permute",
        "Slice",
        "Select",
        "Clone",
        "ToCopy",
        "Alias",
        "AsStrided",
        "Flatten",
        "Index",
        "Contiguous",
    )
)
"""Operations that move values without changing them."""
_OWNER: Final = "stethoscope_owner"


def kind(node: Any) -> str:
    """A node's operation without decoration: "MseLoss" for MseLossBackward0."""
    return undecorated(node.name())


@functools.cache
def undecorated(name: str) -> str:
    """A node's name without decoration."""
    return name.rpartition("::")[2].partition("Backward")[0]


def shape(node: Any) -> tuple[int, ...]:
    """The shape of what the node produced."""
    metadata = node._input_metadata
    try:
        return tuple(int(n) for n in metadata[0].shape) if metadata else ()
    except Exception:  # a nested tensor has no one shape
        return ()


def parents(node: Any) -> list[Any]:
    """The nodes that fed it, in the order of its arguments; None where an argument needs no gradient."""
    return [parent for parent, _ in node.next_functions]


def only_parent(node: Any) -> Any:
    """The one node that fed it, None where there are several or none."""
    known = [parent for parent in parents(node) if parent is not None]
    return known[0] if len(known) == 1 else None


def through(node: Any, passing: Collection[str] = PASSING) -> Any:
    """The first node at or before this one that changes values."""
    for _ in range(16):
        if node is None or kind(node) not in passing:
            break
        found = [parent for parent in parents(node) if parent is not None]
        node = found[0] if found else None
    return node


def nearest(root: Any) -> Iterator[Any]:
    """Nodes from the loss down, breadth first, the nearest ones only."""
    waiting: list[Any] = [root]
    seen: set[Any] = set()
    while waiting and len(seen) < MAX_NODES:
        node = waiting.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        waiting.extend(parents(node))


def own(node: Any, path: str) -> None:
    """This node is a module's output. Noted on the node itself: a table of nodes would keep their graphs alive."""
    node.metadata.setdefault(_OWNER, path)


def owner(node: Any) -> str | None:
    """The module whose output this is; None where it is none's, or nobody looked."""
    path: str | None = node.metadata.get(_OWNER)
    return path


def maker(node: Any) -> str:
    """The module that made what stands at this node, as far back as there is one way; "" where it cannot be told."""
    for _ in range(16):
        if node is None or (path := owner(node)):
            break
        known = [parent for parent in parents(node) if parent is not None]
        # A softmax or sigmoid that was written out has the same values above and below its line.
        node = known[0] if len(known) == 1 or (known and kind(node) == "Div") else None
    return "" if node is None else path or ""


def saved(node: Any, name: str) -> torch.Tensor | None:
    """A tensor that a node kept, where it can be read without waiting: on the CPU, and not written to since."""
    value = kept(node, name)
    return value if value is not None and value.device.type == "cpu" and value.numel() else None


def kept(node: Any, name: str) -> torch.Tensor | None:
    """What autograd saved; None where a hook would have to make it again (checkpointing) or fetch it from elsewhere."""
    if getattr(getattr(node, name.replace("_saved", "_raw_saved", 1), None), "unpack_hook", None) is not None:
        return None
    try:
        value = getattr(node, name, None)
    except RuntimeError:  # changed in place: backward will say so itself
        return None
    return value if isinstance(value, torch.Tensor) else None


def dimension(number: int, num_dims: int) -> int:
    """A dimension as a node keeps it, unsigned, counted from the front."""
    number = number if number < 2**31 else number - 2**64
    return number + num_dims if number < 0 else number
