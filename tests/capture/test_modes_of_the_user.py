"""What a user's own modes see of a training is the same with and without us: each operation, and the FLOPs of a counter."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.flop_counter import FlopCounterMode

import stethoscope
from stethoscope.capture import modes
from tests.models import MODELS, make_batch

STEPS = 20
"""Enough for a look at everything there is: the graph at first, outputs every sixteenth step."""


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(resolve_name(func) or getattr(func, "__name__", repr(func)))
        return func(*args, **(kwargs or {}))


class Flops:
    def __init__(self) -> None:
        self.counter = FlopCounterMode(display=False)
        self.seen: list[Any] = []

    def __enter__(self) -> None:
        self.counter.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.counter.__exit__(*error)
        self.seen.append((self.counter.get_total_flops(), self.counter.get_flop_counts()))


KINDS: dict[str, Callable[[], Any]] = {"operations": Operations, "functions": Functions, "flops": Flops}


@contextlib.contextmanager
def watched(where: Path | None, model: Any, optimizer: Any, **settings: Any) -> Iterator[Any]:
    if where is None:
        yield None
        return
    with stethoscope.watch(model, optimizer, run=where, companion="off", quiet=True, **settings) as session:
        yield session


def train(kind: str, place: str, name: str, where: Path | None, **settings: Any) -> list[Any]:
    """What the mode saw: around everything, around the training alone, or around each step."""
    torch.manual_seed(3)
    model = MODELS[name][0]()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    generator = torch.Generator().manual_seed(1)
    batches = [make_batch(name, generator) for _ in range(STEPS)]
    mode = KINDS[kind]()
    nothing = contextlib.nullcontext
    with (
        mode if place == "all" else nothing(),
        watched(where, model, optimizer, **settings) as session,
        mode if place == "loop" else nothing(),
    ):
        for x, y in batches:
            with mode if place == "step" else nothing():
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(x), y)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                if session is not None:
                    session.log(accuracy=loss)
                    session.log_batch(x, y)
    if session is not None:
        assert not session._recording.guard.errors, session._recording.guard.last_traceback
        with stethoscope.open_run(where) as run:
            assert len(run.steps) == STEPS
            assert {str(info.site.kind) for info in run.sites} >= {"gradient", "weight", "activation", "update"}
            assert run.events("graph")[0].body["status"] != "unknown"
    return mode.seen


@pytest.mark.parametrize("name", ["mlp", "transformer"])
@pytest.mark.parametrize("place", ["all", "loop", "step"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_mode_sees_what_it_sees_without_us(kind: str, place: str, name: str, tmp_path: Path) -> None:
    plain = train(kind, place, name, None)
    assert plain
    assert train(kind, place, name, tmp_path / "run", every=1) == plain
    assert _get_current_dispatch_mode_stack() == []


@pytest.mark.parametrize("place", ["loop", "forward", "backward", "optimizer", "third"])
def test_a_mode_that_comes_and_goes_sees_no_plain_step_of_ours(place: str, tmp_path: Path) -> None:
    """Nearly every step takes a way of its own."""
    plain = go(place, None)
    assert plain
    assert go(place, tmp_path / "run") == plain


def go(place: str, where: Path | None) -> list[Any]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    data = torch.randn(120, 8, 4)
    seen: list[Any] = []

    @contextlib.contextmanager
    def heard(here: str, step: int) -> Iterator[None]:
        if here != place and not (place == "third" and step % 3 == 0):
            yield
            return
        operations, functions = Operations(), Functions()
        with operations, functions:
            yield
        seen.append((operations.seen, functions.seen))

    with watched(where, model, optimizer) as session:
        if session is not None:  # as the governor leaves it after a while
            schedule = session._watcher.schedule
            schedule._num_seen = 1 << 20
            schedule.shift.update(dict.fromkeys(schedule.shift, 6))
        for step, x in enumerate(data):
            with heard("loop", step):
                optimizer.zero_grad()
                with heard("forward", step):
                    loss = model(x).square().mean()
                with heard("backward", step):
                    loss.backward()
                with heard("optimizer", step):
                    optimizer.step()
    return seen


def test_watching_numbers_are_the_same_under_a_mode(tmp_path: Path) -> None:
    """Taking the mode off for a moment changes nothing of what is measured."""
    found = []
    for place in ("none", "all"):
        train("operations", place, "mlp", tmp_path / place, every=1)
        with stethoscope.open_run(tmp_path / place) as run:
            found.append(run.matrix("gradient", "norm").values.tolist())
    assert found[0] == found[1]


def test_a_pass_of_our_own_is_not_seen_and_has_its_own_modes() -> None:
    """As a compiled model's copy is followed."""
    operations, functions, ours = Operations(), Functions(), Functions()
    x = torch.ones(2)
    with operations, functions:
        with torch._C.DisableTorchFunction(), modes.alone(), ours:
            x.add(1)
        assert (operations.seen, functions.seen) == ([], [])
        assert len(ours.seen) == 1
        x.add(1)
    assert (operations.seen, functions.seen) == (["aten.add.Tensor"], ["torch.Tensor.add"])


class Leaves(Exception):
    pass


def test_what_we_do_unseen_may_fail_and_may_enter_modes(tmp_path: Path) -> None:
    outer, entered = Operations(), Operations()

    def fail() -> None:
        entered.__enter__()
        raise Leaves

    with outer:
        with pytest.raises(Leaves):
            modes.unseen(fail)
        assert _get_current_dispatch_mode_stack() == [outer, entered]
        entered.__exit__(None, None, None)
        modes.unseen(lambda: torch.ones(2).add(1))
        assert outer.seen == []
    assert _get_current_dispatch_mode_stack() == []


def test_a_default_device_is_left_alone() -> None:
    """It is a mode as well, on for good: it costs nothing and stays."""
    seen: list[torch.device] = []
    with torch.device("meta"):
        modes.unseen(lambda: seen.append(torch.ones(2).device))
    assert seen == [torch.device("meta")]
