"""How sharp attention is, from what autograd saved of it: softmax results, and the log-sum-exp of fused attention.

The graph is walked from the loss on a schedule; a node belongs to the module whose output it is, or to the parent of
the module that consumes it.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from stethoscope.capture.lossgraph import kind, parents, shape

MAX_NODES: Final = 20_000
MAX_FOUND: Final = 256
_OWNER: Final = "stethoscope_owner"


def own(node: Any, path: str) -> None:
    """This node is a module's output. Noted on the node itself: a table of nodes would keep their graphs alive."""
    node.metadata.setdefault(_OWNER, path)


def look(loss: torch.Tensor) -> dict[str, dict[str, float]]:
    """From an attention's module path to its mean entropy, the uniform entropy, and its largest log-sum-exp."""
    found: dict[str, dict[str, float]] = {}
    waiting: list[tuple[Any, str]] = [(loss.grad_fn, "")]
    seen: set[Any] = set()
    while waiting and len(seen) < MAX_NODES and len(found) < MAX_FOUND:
        node, owner = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        itself = node.metadata.get(_OWNER)
        owner = itself if itself is not None else owner
        numbers = _numbers(node)
        if numbers:
            path = itself if itself is not None else owner.rpartition(".")[0] or owner
            found.setdefault(path, numbers)
        waiting.extend((parent, owner) for parent in parents(node))
    return found


def _numbers(node: Any) -> dict[str, float]:
    name = kind(node)
    if name == "Softmax":
        size = shape(node)
        if len(size) >= 3 and size[-1] > 1 and int(node._saved_dim) in (len(size) - 1, 2**64 - 1, -1):
            return _of_weights(node._saved_result)
    elif name.startswith("ScaledDotProduct"):
        return _of_fused(node)
    return {}


def _of_weights(weights: torch.Tensor) -> dict[str, float]:
    if weights.device.type != "cpu":
        return {}
    some = weights.detach()[:2].float()
    entropy = -(some * some.clamp(min=1e-30).log()).sum(-1)
    # A causal mask leaves the first rows few places to look at: each row against its own freedom.
    free = (some > 0).sum(-1).clamp(min=1).float().log()
    return {
        "entropy": float(entropy.mean()),
        "uniform": float(free.mean()),
        "lowest_head": float(entropy.flatten(2).mean(-1).mean(0).min())
        if entropy.dim() >= 3
        else float(entropy.mean()),
        "top": float(some.max(-1).values.mean()),
    }


def _of_fused(node: Any) -> dict[str, float]:
    query, key = getattr(node, "_saved_query", None), getattr(node, "_saved_key", None)
    if not isinstance(query, torch.Tensor) or not isinstance(key, torch.Tensor) or query.device.type != "cpu":
        return {}
    q, k = query.detach()[:2].float(), key.detach()[:2].float()
    scale = getattr(node, "_saved_scale", None) or q.shape[-1] ** -0.5
    scores = q @ k.transpose(-1, -2) * float(scale)
    if getattr(node, "_saved_is_causal", False):
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    numbers = _of_weights(scores.softmax(-1))
    finite = scores[scores.isfinite()]
    return numbers | {"max_logit": float(finite.abs().max())} if finite.numel() else numbers
