"""A forward that was replaced on the instance: the copies of a checkup run their own weights, or nothing is said of them."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import stethoscope


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))


def _checkup(model: nn.Module, loss_fn: Any = F.cross_entropy) -> Any:
    torch.manual_seed(1)
    data = torch.randn(32, 8), torch.randint(0, 4, (32,))
    return stethoscope.checkup(model, data, loss_fn, torch.optim.Adam(model.parameters(), lr=0.01))


def by_closure(model: Any) -> None:
    old = model.forward
    model.forward = lambda x: old(x) * 1.0


def by_method(model: Any) -> None:
    model.forward = types.MethodType(lambda self, x: nn.Sequential.forward(self, x) * 1.0, model)


def by_partial(model: Any) -> None:
    """As accelerate, peft and diffusers do it, for every layer."""

    def new_forward(module: Any, *args: Any, **kwargs: Any) -> Any:
        return module._old_forward(*args, **kwargs)

    for layer in model.modules():
        layer._old_forward = layer.forward
        layer.forward = functools.update_wrapper(functools.partial(new_forward, layer), layer._old_forward)


def by_a_wrapper_of_a_wrapper(model: Any) -> None:
    by_closure(model)
    by_closure(model[0])
    by_closure(model)


def by_default_arguments(model: Any) -> None:
    layer = model[0]
    layer.forward = lambda x, w=layer.weight, *, held=layer: F.linear(x, w, held.bias)


def by_globals(model: Any) -> None:
    """As a script or a notebook does it: the old forward is a variable of the module."""
    space: dict[str, Any] = {"model": model}
    exec("old = model.forward\ndef forward(x):\n    return (lambda: old(x))()\nmodel.forward = forward", space)


def by_hooks(model: Any) -> None:
    model[0].register_forward_hook(lambda _m, _a, out: out + 0.0 * model[0].weight.sum())
    model.register_forward_pre_hook(lambda _m, args: (args[0] + 0.0 * model[2].bias.sum(),))


STYLES = [by_closure, by_method, by_partial, by_a_wrapper_of_a_wrapper, by_default_arguments, by_globals, by_hooks]


@pytest.mark.parametrize("patch", STYLES)
def test_a_healthy_model_stays_healthy(patch: Callable[[Any], None]) -> None:
    model = _net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    patch(model)
    found = _checkup(model)
    assert found.causes == ()
    assert found.looked_at.unmet_needs == ()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("patch", STYLES)
def test_a_fault_is_still_found(patch: Callable[[Any], None]) -> None:
    model = _net()
    with torch.no_grad():
        model[0].weight.copy_(model[0].weight[:1].expand(32, 8))
        model[0].bias.zero_()
        model[2].weight.copy_(model[2].weight[:, :1].expand(4, 32))
    patch(model)
    assert [cause.code for cause in _checkup(model).causes] == ["symmetric_units"]


def test_a_loss_that_closes_over_the_model() -> None:
    model = _net()

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, target) + 1e-4 * sum(p.square().sum() for p in model.parameters())

    assert _checkup(model, loss).causes == ()


class Stubborn:
    """A forward that is the same object in every copy."""

    def __init__(self, model: nn.Module, *, called: bool) -> None:
        self.model, self.called = model, called

    def __deepcopy__(self, memo: Any) -> Stubborn:
        return self

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.called:
            return nn.Sequential.forward(self.model, x)
        first, _, last = self.model
        return F.linear(F.linear(x, first.weight, first.bias).relu(), last.weight, last.bias)


@pytest.mark.parametrize("called", [True, False])
def test_what_cannot_be_copied_is_said_and_nothing_is_found(called: bool) -> None:
    model = _net()
    model.forward = Stubborn(model, called=called)
    found = _checkup(model)
    assert found.causes == ()
    (said,) = found.looked_at.unmet_needs
    assert "still computes with the original's `0" in said
    assert {experiment.outcome for experiment in found.looked_at.experiments} == {"failed"}
