"""How sharp attention is, from what autograd saved of it: softmax results, and the log-sum-exp of fused attention.

The graph is walked from the loss on a schedule; a node belongs to the module whose output it is, or to the parent of
the module that consumes it. Attention is a softmax of products of two tensors, queries and keys: a softmax of what a layer
put out (discrete codes, a router, a policy's actions) is a choice, and grows sure where it learns.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from stethoscope.capture.deferred_reads import can_defer
from stethoscope.capture.nodes import kept, kind, owner, parents, shape, through
from stethoscope.record.events import AttentionNumbers

MAX_NODES: Final = 20_000
MAX_FOUND: Final = 256
MAX_ROWS: Final = 64
MAX_HEADS: Final = 64
MAX_STEPS_BACK: Final = 64
"""Nodes between a softmax and the products that it is of: scales, masks, biases, changes of shape."""
PRODUCTS: Final = ("Bmm", "Baddbmm")
LAYERS: Final = (
    "Addmm",
    "Mv",
    "Addmv",
    "Linear",
    "MkldnnLinear",
    "Convolution",
    "Embedding",
    "NativeLayerNorm",
    "NativeBatchNorm",
    "Softmax",
    "LogSoftmax",
    "AccumulateGrad",
)
"""Behind one of these lies no score any more."""


def find(loss: torch.Tensor) -> dict[str, Any]:
    """From an attention's module path to its node. Walking takes the host a while, and the device nothing."""
    found: dict[str, Any] = {}
    waiting: list[tuple[Any, str]] = [(loss.grad_fn, "")]
    seen: set[Any] = set()
    while waiting and len(seen) < MAX_NODES and len(found) < MAX_FOUND:
        node, above = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        itself = owner(node)
        above = itself if itself is not None else above
        if _is_attention(node):
            path = itself if itself is not None else above.rpartition(".")[0] or above
            found.setdefault(path, node)
        waiting.extend((parent, above) for parent in parents(node))
    return found


def facts(values: npt.NDArray[np.float32]) -> AttentionNumbers:
    """Mean entropy (of each head too), the uniform entropy, the sharpest head, and the largest score where it is known."""
    entropy, uniform, lowest, top, score, *heads = values.tolist()
    return AttentionNumbers(
        entropy=entropy,
        uniform=uniform,
        lowest_head=lowest,
        top=top,
        max_logit=score if score >= 0 else None,
        heads=tuple(heads) if 1 < len(heads) <= MAX_HEADS else (),
    )


def _is_attention(node: Any) -> bool:
    name = kind(node)
    if name == "Softmax":
        size = shape(node)
        last = len(size) >= 3 and size[-1] > 1 and int(node._saved_dim) in (len(size) - 1, 2**64 - 1, -1)
        return last and _is_of_products(node) and _saved(node, "result") is not None
    return name.startswith("ScaledDotProduct") and _saved(node, "query") is not None and _saved(node, "key") is not None


def numbers_of(node: Any) -> torch.Tensor | None:
    """What `facts` reads of an attention that was found."""
    if kind(node) != "Softmax":
        return _of_fused(node)
    weights = _saved(node, "result")
    return None if weights is None else _of_weights(weights.detach()[:2], _rows(weights))


def _is_of_products(softmax: Any) -> bool:
    """Whether its scores come from a product of two tensors, however scaled, masked and shifted."""
    ahead, num_seen = [parent for parent in parents(softmax) if parent is not None], 0
    while ahead and num_seen < MAX_STEPS_BACK:
        node = ahead.pop(0)
        num_seen += 1
        name, before = kind(node), [parent for parent in parents(node) if parent is not None]
        by_hand = name == "Sum" and len(before) == 1 and kind(before[0]) == "Mul" and None not in parents(before[0])
        if name in PRODUCTS or by_hand or (name == "Mm" and not any(_is_weight(one) for one in parents(node))):
            return True
        if name not in LAYERS and name != "Mm":
            ahead.extend(before)
    return False


def _is_weight(node: Any) -> bool:
    """Whether a product's argument is a parameter, or one that is frozen."""
    before = node if node is None else through(node)
    return before is None or kind(before) == "AccumulateGrad"


def _saved(node: Any, name: str) -> torch.Tensor | None:
    found = kept(node, f"_saved_{name}")
    return found if found is not None and can_defer(found) else None


def _rows(queries: torch.Tensor) -> torch.Tensor:
    """Which queries are looked at: all of a short sequence, else some of them, evenly spread to the last one."""
    count = queries.shape[-2]
    chosen = min(count, MAX_ROWS)
    return (torch.arange(1, chosen + 1, device=queries.device) * count) // chosen - 1


def _of_weights(weights: torch.Tensor, rows: torch.Tensor | None, score: torch.Tensor | None = None) -> torch.Tensor:
    some = (weights if rows is None else weights.index_select(-2, rows)).float()
    entropy = -(some * some.clamp(min=1e-30).log()).sum(-1)
    # A causal mask leaves the first rows few places to look at: each row against its own freedom.
    free = (some > 0).sum(-1).clamp(min=1).float().log()
    lowest = entropy.flatten(2).mean(-1).mean(0).min() if entropy.dim() >= 3 else entropy.mean()
    numbers = [
        entropy.mean(),
        free.mean(),
        lowest,
        some.amax(-1).mean(),
        free.new_full((), -1.0) if score is None else score,
    ]
    heads = entropy.mean(-1).mean(0) if entropy.dim() == 3 and entropy.shape[1] <= MAX_HEADS else free.new_empty(0)
    return torch.cat([torch.stack(numbers), heads])


def _of_fused(node: Any) -> torch.Tensor | None:
    query, key = _saved(node, "query"), _saved(node, "key")
    if query is None or key is None:
        return None
    rows = _rows(query)
    q, k = query.detach()[:2].index_select(-2, rows).float(), key.detach()[:2].float()
    if k.dim() == 4 and k.shape[1] != q.shape[1]:  # heads that share keys
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scale = getattr(node, "_saved_scale", None) or q.shape[-1] ** -0.5
    scores = q @ k.transpose(-1, -2) * float(scale)
    if getattr(node, "_saved_is_causal", False):
        hidden = torch.arange(scores.shape[-1], device=scores.device) > rows[:, None]
        scores = scores.masked_fill(hidden, float("-inf"))
    largest = torch.where(scores.isfinite(), scores.abs(), -1.0).amax()
    return _of_weights(scores.softmax(-1), None, largest)
