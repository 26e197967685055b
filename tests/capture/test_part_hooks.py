"""Hooks that rest between looks: off their modules, back in their place, and nothing is missed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import nn

from stethoscope.capture.part_hooks import PartHooks
from stethoscope.capture.pausing import without_hooks
from stethoscope.capture.taps import OutputTap
from stethoscope.capture.watcher import Watcher
from tests.capture.test_plain_steps import NUM_STEPS, told


def named(name: str, heard: list[str]) -> Any:
    def hook(module: Any, args: Any, output: Any) -> None:
        heard.append(name)

    return hook


def test_hooks_come_back_where_they_were() -> None:
    module, parts = nn.Identity(), PartHooks()
    heard: list[str] = []
    module.register_forward_hook(named("first", heard))
    gone = module.register_forward_hook(named("gone", heard))
    parts.add(module, named("ours", heard))
    module.register_forward_hook(named("last", heard))
    parts.rest()
    module(0)
    assert heard == ["first", "gone", "last"]
    gone.remove()
    module.register_forward_hook(named("new", heard))
    module.register_forward_hook(named("foremost", heard), prepend=True)
    parts.wake()
    heard.clear()
    module(0)
    # One that was put first while ours rested cannot be told from one that was put last, and stays behind.
    assert [name for name in heard if name != "foremost"] == ["first", "ours", "last", "new"]
    parts.remove()
    heard.clear()
    module(0)
    assert "ours" not in heard


def test_a_hook_added_while_they_rest_rests_too() -> None:
    module, parts, heard = nn.Identity(), PartHooks(), []
    parts.rest()
    parts.add(module, named("ours", heard))
    module(0)
    assert heard == []
    parts.wake()
    module(0)
    assert heard == ["ours"]


@pytest.fixture
def losses_elsewhere(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Losses as on a device, whose numbers come later; how many hooks were on the modules in each forward pass."""
    note, begins = Watcher._note_loss, Watcher._forward_begins
    numbers: list[int] = []

    def note_elsewhere(self: Watcher, loss: Any) -> None:
        note(self, loss)
        self.is_loss_here = False

    def count(self: Watcher, *args: Any) -> None:
        begins(self, *args)
        hooks = [hook for module in self.names.root.modules() for hook in module._forward_hooks.values()]
        numbers.append(sum(isinstance(hook, OutputTap) for hook in hooks))

    monkeypatch.setattr(Watcher, "_note_loss", note_elsewhere)
    monkeypatch.setattr(Watcher, "_forward_begins", count)
    return numbers


def test_what_is_looked_at_is_the_same_where_hooks_rest(
    losses_elsewhere: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    resting, _, _ = told({}, plainly=False, trusts=False)
    numbers = losses_elsewhere.copy()
    assert min(numbers[1:]) < max(numbers)
    assert sum(number == max(numbers) for number in numbers) < NUM_STEPS // 4
    monkeypatch.setattr(PartHooks, "rest", lambda _: None)
    staying, _, _ = told({}, plainly=False, trusts=False)
    assert [step for step, *_ in resting.tables] == [step for step, *_ in staying.tables]
    for mine, theirs in zip(resting.tables, staying.tables, strict=True):
        assert np.array_equal(mine[1], theirs[1])
        assert np.array_equal(mine[2], theirs[2], equal_nan=True)


def test_hooks_do_not_wake_while_the_model_is_to_bear_none() -> None:
    from stethoscope.config import DebugConfig
    from tests.capture.test_plain_steps import Told

    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    watcher = Watcher(model, [], DebugConfig(graph=False), Told())
    watcher.start()
    parts = watcher.taps.parts
    parts.rest()
    with without_hooks(model):
        parts.wake()
        assert not any(module._forward_hooks for module in model.modules())
    parts.wake()
    assert all(module._forward_hooks for module in model.modules())
    watcher.stop()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
