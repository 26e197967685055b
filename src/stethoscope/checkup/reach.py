"""Does the gradient of the loss reach every parameter that should learn, and are they all known to the model?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch

from stethoscope.checkup.examination import Examination, differ
from stethoscope.checkup.findings import CRITICAL, INFO, found, listed
from stethoscope.checkup.structure import tensors
from stethoscope.checkup.subject import output_tensors
from stethoscope.record import Finding, plural

MAX_SINGLE: Final = 4
"""Up to this many parameters are varied one by one, more of them together."""


def examine(exam: Examination) -> Iterator[Finding]:
    """detached_graph, unregistered_module."""
    first = exam.first
    asking = [name for name, p in first.parameters.items() if p.requires_grad]
    reached = sum(first.gradients[name] is not None for name in asking)
    exam.saw(f"{reached:,} of {plural(len(asking), 'parameter')} that can learn got a gradient")
    if asking and not any(first.gradients[name] is not None for name in asking):
        cut = any(t.requires_grad for t in output_tensors(first.output))
        yield _no_loss_reaches("(loss)" if cut else _last_before_cut(exam) or "(output)", asking, whole=True)
    else:
        yield from _cut_off(exam, asking)
    yield from _unregistered_leaves(exam)


def _cut_off(exam: Examination, asking: list[str]) -> Iterator[Finding]:
    """Parameters that the loss depends on, and no gradient comes back to."""
    first, subject = exam.first, exam.subject
    held = subject.optimized()
    originals = dict(subject.model.named_parameters())
    silent = [n for n in asking if first.gradients[n] is None and (not held or id(originals[n]) in held)]
    silent = _without_teachers(exam, silent)
    if not silent:
        return
    # Without an optimizer a teacher looks like a cut: only where every way from the input is cut is it one.
    if not held and not _fully_cut(exam):
        return
    if len(silent) <= MAX_SINGLE:
        matter = [name for name in silent if _changes_loss(exam, [name])]
    else:
        matter = silent if _changes_loss(exam, silent) else []
    if matter:
        boundary = _last_before_cut(exam)
        yield _no_loss_reaches(boundary or matter[-1].rpartition(".")[0], matter, whole=False)


def _without_teachers(exam: Examination, silent: list[str]) -> list[str]:
    """Without parts that no gradient reaches beside an equal part that one does: a teacher and its student."""
    first = exam.first
    parts: dict[str, list[str]] = {}
    for name in first.parameters:
        parts.setdefault(name.partition(".")[0], []).append(name)
    shapes = {part: [tuple(first.parameters[name].shape) for name in names] for part, names in parts.items()}
    reached = {part for part, names in parts.items() if any(first.gradients[name] is not None for name in names)}
    teachers = {
        part for part in parts if part not in reached and any(shapes[part] == shapes[other] for other in reached)
    }
    return [name for name in silent if name.partition(".")[0] not in teachers]


def _changes_loss(exam: Examination, names: list[str]) -> bool:
    """Whether the loss changes with these parameters."""
    twin = exam.subject.twin(train=exam.first.trains)
    with torch.no_grad():
        for name, parameter in twin.parameters().items():
            if name in names:
                parameter.add_(torch.randn_like(parameter) * (parameter.abs().mean() + 0.1))
    with torch.no_grad():
        other = twin.loss(twin.forward())
    return differ(first_loss(exam), other.detach()) > 1


def first_loss(exam: Examination) -> torch.Tensor:
    """The loss of the observed pass, as a number."""
    return exam.first.loss.detach()


def _fully_cut(exam: Examination) -> bool:
    """Whether no way from the input to the output carries a gradient past some point."""
    edges = exam.graph.get("edges", [])
    ahead, seen = ["(output)"], {"(output)"}
    while ahead:
        target = ahead.pop()
        for edge in edges:
            if edge["target"] == target and edge["gradient"] != "detached" and edge["source"] not in seen:
                if edge["source"] == "(input)":
                    return False
                seen.add(edge["source"])
                ahead.append(edge["source"])
    return bool(edges)


def _last_before_cut(exam: Examination) -> str | None:
    """The last module before the place where the gradient is cut."""
    nodes = {n["path"]: n for n in exam.graph.get("nodes", [])}
    cuts = [e for e in exam.graph.get("edges", []) if e["gradient"] in ("detached", "integer")]
    cuts = [e for e in cuts if nodes.get(e["source"], {}).get("role") == "module"]
    if not cuts:
        return None
    return str(max(cuts, key=lambda e: (e["gradient"] == "detached", nodes[e["source"]]["order"]))["source"])


def _no_loss_reaches(site: str, names: list[str], *, whole: bool) -> Finding:
    what = (
        "No parameter gets a gradient"
        if whole
        else f"No gradient reaches {listed(names)}, though the loss depends on it"
    )
    return found(
        "detached_graph",
        CRITICAL,
        f"{what}: the graph is cut after {site}.",
        sites=[site, *names] if not site.startswith("(") else [*names, site],
        numbers={"parameters without a gradient": len(names)},
        remedy="# take out .detach(), .data, .item(), .numpy() or torch.no_grad() between this layer and the loss",
    )


def _unregistered_leaves(exam: Examination) -> Iterator[Finding]:
    """Leaves of the output's graph that learn and that the model does not know."""
    known = {id(p) for p in exam.first.parameters.values()} | {id(b) for b in exam.first.twin.model.buffers()}
    known |= {id(t) for t in tensors(exam.subject.inputs)}
    outputs = [t.grad_fn for t in output_tensors(exam.first.output) if t.grad_fn is not None]
    strangers = [leaf for leaf in _graph_leaves(outputs) if id(leaf) not in known and leaf.numel() > 0]
    if not strangers:
        return
    homes = _tensor_homes(exam.first.twin.model)
    named = {id(leaf): homes[id(leaf)] for leaf in strangers if id(leaf) in homes}
    modules = [m for m in exam.graph.get("unregistered", []) if m["num_trainable"]]
    held = {id(exam.first.twin.of(p)) for p in exam.subject.optimized().values()}
    sites = list(dict.fromkeys([*(m["path"] for m in modules), *named.values()]))
    made_inside = any("<" in site for site in sites)
    if not sites or not (exam.subject.optimizers or named or made_inside):
        return
    in_hand = all(id(leaf) in held for leaf in strangers)
    if modules and not named:
        sites = [m["path"] for m in modules]
    sites = _outermost(sites)
    yield found(
        "unregistered_module",
        INFO if in_hand else CRITICAL,
        f"{listed(sites)} {'is' if len(sites) == 1 else 'are'} used by the model but not registered: "
        f"model.parameters() does not know {'it' if len(sites) == 1 else 'them'}.",
        sites=sites,
        numbers={"tensors that will not learn": len(strangers)},
        remedy="self.layers = nn.ModuleList([...])  # or nn.ParameterList, nn.ModuleDict: not a plain list or dict",
    )


def _outermost(sites: list[str]) -> list[str]:
    return [s for s in sites if not any(s != o and s.startswith((f"{o}.", f"{o}[")) for o in sites)]


def _graph_leaves(nodes: list[Any]) -> list[torch.Tensor]:
    """The tensors at which the graph behind these nodes ends."""
    seen: set[Any] = set()
    leaves: list[torch.Tensor] = []
    ahead = list(nodes)
    while ahead:
        node = ahead.pop()
        if node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor):
            leaves.append(variable)
        ahead += [parent for parent, _ in node.next_functions if parent is not None]
    return leaves


def _tensor_homes(model: torch.nn.Module) -> dict[int, str]:
    """Where tensors that are no parameters lie: attributes, lists and dicts of the modules, modules in them."""
    homes: dict[int, str] = {}

    def note(value: Any, path: str, depth: int) -> None:
        if isinstance(value, torch.nn.Module):
            for parameter in value.parameters():
                homes.setdefault(id(parameter), path)
        elif isinstance(value, torch.Tensor):
            homes.setdefault(id(value), path)
        elif depth < 3 and isinstance(value, (list, tuple)):
            for number, item in enumerate(value):
                note(item, f"{path}[{number}]", depth + 1)
        elif depth < 3 and isinstance(value, dict):
            for key, item in value.items():
                note(item, f"{path}[{key!r}]", depth + 1)

    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in ("_parameters", "_buffers", "_modules"):
                note(value, f"{path}.{name}" if path else name, 0)
    return homes
