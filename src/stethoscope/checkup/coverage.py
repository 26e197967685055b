"""Does the optimizer hold the model's parameters, all of them, at a rate above zero?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch

from stethoscope.checkup.examination import Examination
from stethoscope.checkup.findings import CRITICAL, INFO, found, listed
from stethoscope.record import Finding, plural


def examine(exam: Examination) -> Iterator[Finding]:
    """optimizer_params_not_in_model, trainable_params_not_in_optimizer, zero_lr_group."""
    subject = exam.subject
    if not subject.optimizers:
        exam.notes.append("no optimizer was given: pass optimizer= to see whether it reaches every weight")
        return
    held = subject.optimized()
    learning = sum(p.requires_grad for p in subject.model.parameters())
    exam.saw(
        f"{plural(len(held), 'tensor')} in the optimizer, {plural(learning, 'parameter')} of the model that can learn"
    )
    gradients = exam.first.gradients
    # A parameter that no gradient reaches (a teacher, an idle part) is no business of the optimizer.
    missing = [
        name
        for name, p in subject.model.named_parameters()
        if p.requires_grad and id(p) not in held and gradients.get(name) is not None
    ]
    strangers = _foreign_params(exam, held)
    if strangers:
        yield _stale_finding(strangers, missing, len(held))
    if missing and not strangers and _is_second_network(exam, missing):
        yield found(
            "trainable_params_not_in_optimizer",
            INFO,
            f"{listed(missing)} get a gradient and are not in this optimizer: does another one train them?",
            sites=missing,
            numbers={"parameters left out": len(missing)},
            remedy="stethoscope.checkup(model, batch, loss_fn, [optimizer, other_optimizer])",
        )
    elif missing:
        share = len(missing) / max(sum(p.requires_grad for p in subject.model.parameters()), 1)
        yield found(
            "trainable_params_not_in_optimizer",
            CRITICAL,
            f"{listed(missing)} {'gets' if len(missing) == 1 else 'get'} a gradient, but no optimizer holds "
            f"{'it' if len(missing) == 1 else 'them'}: {'it' if len(missing) == 1 else 'they'} will never change.",
            sites=missing,
            numbers={"parameters left out": len(missing), "share of the trainable ones": share},
            remedy="optimizer = torch.optim.AdamW(model.parameters(), lr=...)  # or requires_grad_(False) for what is frozen",
        )
    yield from _zero_rates(exam)


def _is_second_network(exam: Examination, missing: list[str]) -> bool:
    """Whether what is left out is one whole part that has, by its name, a training of its own."""
    parts = {name.partition(".")[0] for name in missing}
    if len(parts) != 1 or not re.search("disc|critic|teacher|target|ema|advers", part := parts.pop(), re.IGNORECASE):
        return False
    held = exam.subject.optimized()
    return not any(id(p) in held for p in exam.subject.model.get_submodule(part).parameters())


def _foreign_params(exam: Examination, held: dict[int, torch.Tensor]) -> list[torch.Tensor]:
    """What an optimizer holds that is neither the model's nor used by the loss."""
    outside = [p for key, p in held.items() if key not in exam.subject.names]
    if not outside:
        return []
    first = exam.first
    twins = [first.twin.of(p) for p in outside]
    asking = [t for t in twins if t.requires_grad]
    reached: set[int] = set()
    if asking and first.loss.requires_grad:
        grads = torch.autograd.grad(first.loss, asking, allow_unused=True, retain_graph=True)
        reached = {id(t) for t, grad in zip(asking, grads, strict=True) if grad is not None}
    return [p for p, twin in zip(outside, twins, strict=True) if id(twin) not in reached]


def _stale_finding(strangers: list[torch.Tensor], missing: list[str], num_held: int) -> Finding:
    # Where the model is fully covered, the rest may belong to a second network that the same optimizer trains.
    severity = CRITICAL if missing else INFO
    shapes = [str(tuple(p.shape)) for p in strangers]
    instead = f" {listed(missing)} of the model {'is' if len(missing) == 1 else 'are'} not in it." if missing else ""
    return found(
        "optimizer_params_not_in_model",
        severity,
        f"The optimizer holds {len(strangers)} tensor{'s' * (len(strangers) != 1)} (shape {listed(shapes)}) "
        f"that the model does not have.{instead}",
        sites=missing,
        numbers={"tensors not in the model": len(strangers), "tensors in the optimizer": num_held},
        remedy="optimizer = torch.optim.AdamW(model.parameters(), lr=...)  # after the model has its last layer and device",
    )


def _zero_rates(exam: Examination) -> Iterator[Finding]:
    groups: list[dict[str, Any]] = [group for o in exam.subject.optimizers for group in o.param_groups]
    rates = [float(group.get("lr", 1.0)) for group in groups]
    # All at 0: a warm-up begins there. A scheduler notes the rate that it will come to as initial_lr.
    if not any(rates):
        return
    for group, rate in zip(groups, rates, strict=True):
        names = [exam.subject.name(p) for p in group["params"] if p.requires_grad]
        if rate == 0.0 and names and not float(group.get("initial_lr", 0.0)):
            yield found(
                "zero_lr_group",
                CRITICAL,
                f"The parameter group with {listed(names)} has a learning rate of 0: it will never change.",
                sites=names,
                numbers={"learning rate": 0.0, "highest rate of another group": max(rates)},
                remedy=f'optimizer.param_groups[{groups.index(group)}]["lr"] = {max(rates):g}',
            )
