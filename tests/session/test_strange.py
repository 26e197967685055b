"""Values, tensors and modules that raise where they are looked at: training goes on, and each costs its own site only."""

from __future__ import annotations

import functools
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stethoscope
from stethoscope.capture.guard import Guard
from stethoscope.capture.taps import OutputTap
from stethoscope.kernels import stat
from stethoscope.record import Kind, WatchError
from stethoscope.store.writer import _close_at_exit

QUIET = {"quiet": True, "companion": "off", "every": 1}
STEPS = 4


class NotEvenError(BaseException):
    """An exception that `except Exception` does not catch."""


def _refuse(kind: type[BaseException]) -> Callable[..., Any]:
    def refuse(*_args: Any, **_more: Any) -> Any:
        raise kind("strange")

    return refuse


ASKED = (
    "__float__",
    "__int__",
    "__index__",
    "__bool__",
    "__len__",
    "__iter__",
    "__eq__",
    "__ne__",
    "__lt__",
    "__hash__",
    "__repr__",
    "__str__",
    "__format__",
    "__getattr__",
    "__getitem__",
    "__contains__",
    "__call__",
    "__array__",
    "__fspath__",
)


def _hostile(kind: type[BaseException], base: type = object, *, also: tuple[str, ...] = ()) -> Any:
    """An object that raises whatever it is asked."""
    return type("Hostile", (base,), dict.fromkeys((*ASKED, *also), _refuse(kind)))()


class RaisingFunction(torch.Tensor):
    """A subclass whose operations all raise."""

    __torch_function__ = classmethod(_refuse(RuntimeError))


class RaisingDispatch(torch.Tensor):
    """A wrapper around numbers that cannot be reached."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    __torch_dispatch__ = classmethod(_refuse(RuntimeError))

    @staticmethod
    def __new__(cls, like: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, like.shape, dtype=like.dtype)


def _values() -> Iterator[Any]:
    for kind in (RuntimeError, AttributeError, NotEvenError):
        yield _hostile(kind)
        yield _hostile(kind, dict, also=("items", "keys", "values"))
        yield _hostile(kind, list)
    yield type("NoClass", (), {"__class__": property(_refuse(RuntimeError))})()
    yield torch.randn(3).as_subclass(RaisingFunction)
    yield RaisingDispatch(torch.randn(3))
    yield torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged)
    yield torch.randn(3, 3).to_sparse()
    yield torch.empty(3, device="meta")
    yield torch.randn(3).to(torch.float8_e4m3fn)
    yield torch.randn(3, dtype=torch.complex64)
    yield nn.LazyLinear(3).weight
    yield from (None, "text", object(), 10**400, [1, [2]], {1: 2}, float("nan"))


def _net() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def _train(model: nn.Module, optimizer: Any, inputs: Any, steps: int = STEPS) -> None:
    for _ in range(steps):
        model(inputs).float().pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.filterwarnings("ignore::stethoscope.record.StethoscopeWarning")
def test_nothing_that_is_handed_in_raises(tmp_path: Path) -> None:
    """Every method that a loop calls, with every strange value; afterwards the session records as before."""
    model, optimizer = _net()
    session = stethoscope.watch(model, optimizer, dir=str(tmp_path), **QUIET)
    _train(model, optimizer, torch.randn(5, 4), 2)
    for value in _values():
        session.log(metric=value, sound=1.5)
        session.log_batch(value)
        session.log_batch(value, value)
        session.log_batch([value, torch.randn(3, 4)], {"a": value})
        session.watch_leaks(value)
        session.flush(value)
        with session.evaluating():
            session.log(metric=value)
            session.log_batch(value)
        with session.paused():
            session.log(metric=value)
        assert repr(session)
        assert session.step == 2
    _train(model, optimizer, torch.randn(5, 4), 2)
    session.log(last=3.0)
    session.stop()
    run = session.run
    assert run.state == "finished"
    assert session.step == 4
    block = run.block(0, 4)
    gradients = [n for n, info in enumerate(block.sites) if info.site.kind is Kind.GRADIENT]
    assert block.present[:, gradients].all()
    assert list(run.metric("sound").values) == [1.5]
    assert list(run.metric("last").values) == [3.0]


@pytest.mark.filterwarnings("ignore::stethoscope.record.StethoscopeWarning")
def test_a_session_is_closed_whatever_it_is_told(tmp_path: Path) -> None:
    for number, value in enumerate(_values()):
        model, optimizer = _net()
        session = stethoscope.watch(model, optimizer, dir=str(tmp_path / str(number)), **QUIET)
        _train(model, optimizer, torch.randn(5, 4), 1)
        session.stop(value, value)
        assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.filterwarnings("ignore::stethoscope.record.StethoscopeWarning")
def test_arguments_of_watch_are_refused_in_words() -> None:
    for value in _values():
        if value is not None:
            for given in ((value,), (nn.Linear(2, 2), value)):
                with pytest.raises(WatchError):
                    stethoscope.watch(*given, mode="off")


class Part(nn.Module):
    """A module that does something strange between two layers."""

    def __init__(self, strange: Callable[[nn.Module, torch.Tensor], Any]) -> None:
        super().__init__()
        self.first, self.odd, self.second = nn.Linear(4, 4), nn.Identity(), nn.Linear(4, 2)
        self.strange = strange

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        self.strange(self.odd, x)
        return self.second(x)


class Unprintable(nn.Linear):
    """A layer that cannot say what it is."""

    extra_repr = __repr__ = __str__ = _refuse(NotEvenError)


class Incomparable(nn.Sequential):
    """A model that cannot be compared, counted or asked."""

    __eq__ = __bool__ = _refuse(RuntimeError)
    __hash__ = nn.Module.__hash__
    weight = device = shape = inplace = property(_refuse(RuntimeError))


def _around(odd: Callable[[torch.Tensor], Any]) -> Callable[[], tuple[nn.Module, Any]]:
    return lambda: (Part(lambda layer, x: layer(odd(x.detach()))), torch.randn(5, 4))


STRANGE: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "no words": lambda: (nn.Sequential(Unprintable(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(5, 4)),
    "no equality": lambda: (Incomparable(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(5, 4)),
    "raising __torch_function__": _around(lambda x: x.as_subclass(RaisingFunction)),
    "raising __torch_dispatch__": _around(RaisingDispatch),
    "raising container": _around(
        lambda x: (_hostile(NotEvenError), _hostile(RuntimeError, dict, also=("items", "values")), x)
    ),
    "no class": _around(lambda x: (type("N", (), {"__class__": property(_refuse(RuntimeError))})(), x)),
    "sparse": _around(lambda x: x.relu().to_sparse()),
    "meta": _around(lambda x: x.to("meta")),
    "fp8": _around(lambda x: x.to(torch.float8_e5m2)),
    "complex": _around(lambda x: x.to(torch.complex64)),
    "jagged": _around(lambda x: torch.nested.nested_tensor([x[:2], x[2:]], layout=torch.jagged)),
}


@pytest.mark.parametrize("name", list(STRANGE))
def test_a_strange_part_costs_its_own_site(name: str, tmp_path: Path) -> None:
    """No error, no warning, and every other site has its row at every step."""
    model, inputs = STRANGE[name]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = stethoscope.watch(model, optimizer, dir=str(tmp_path), **QUIET)
    _train(model, optimizer, inputs)
    session.stop()
    guard = session._watcher.guard
    assert not guard.errors, guard.last_traceback
    block = session.run.block(0, STEPS)
    for kind, least in (
        (Kind.GRADIENT, 4),
        (Kind.WEIGHT, 4),
        (Kind.ACTIVATION, 2),
        (Kind.ACTIVATION_GRADIENT, 2),
        (Kind.OUTPUT, 1),
    ):
        places = [n for n, info in enumerate(block.sites) if info.site.kind is kind and info.site.module != "odd"]
        assert len(places) >= least, kind
        assert block.present[:, places].all(), kind
    assert session.run.events("graph")[0].body["status"] != "unknown"
    odd = [info.measured for info in block.sites if info.site.module == "odd"]
    expected = {"raising __torch_dispatch__": "unsupported", "meta": "meta"}
    assert all(how == expected.get(name, "all") for how in odd)


def test_nested_tensors_all_the_way(tmp_path: Path) -> None:
    """The values of jagged tensors are measured as those of their rows, one after the other, would be."""

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.second(self.first(x).relu()).to_padded_tensor(0.0))

    model = Padded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    rows = [torch.randn(3, 4), torch.randn(5, 4)]
    expected = model.first(torch.cat(rows)).square().sum().sqrt().item()
    session = stethoscope.watch(model, optimizer, dir=str(tmp_path), **QUIET)
    _train(model, optimizer, torch.nested.nested_tensor(rows, layout=torch.jagged))
    session.stop()
    assert not session._watcher.guard.errors, session._watcher.guard.last_traceback
    block = session.run.block(0, STEPS)
    assert block.present.all()
    place = next(n for n, i in enumerate(block.sites) if i.site.kind is Kind.ACTIVATION and i.site.module == "first")
    assert block.sites[place].num_elements == 64
    assert stat(block.rows[:, place], "norm") == pytest.approx([expected] * STEPS)


@pytest.mark.parametrize("given", [True, False])
def test_lazy_layers_are_watched_from_their_first_step(given: bool, tmp_path: Path) -> None:
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = stethoscope.watch(model, optimizer if given else None, dir=str(tmp_path), **QUIET)
    _train(model, optimizer, torch.randn(6, 3, 8, 8))
    session.stop()
    assert not session._watcher.guard.errors, session._watcher.guard.last_traceback
    block = session.run.block(0, STEPS)
    for kind in (Kind.WEIGHT, Kind.GRADIENT, Kind.UPDATE):
        places = [n for n, info in enumerate(block.sites) if info.site.kind is kind]
        assert len(places) == 6
        assert block.present[:, places].all()
        assert all(block.sites[place].num_elements for place in places)
    assert session.diagnosis.causes == ()


def test_one_tap_that_fails_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of our own at one module is counted and switched off there, and nowhere else."""

    sound = OutputTap._look

    def failing(self: Any, output: Any) -> None:
        if self.path == "0":
            raise NotEvenError("planted")
        sound(self, output)

    monkeypatch.setattr(OutputTap, "_look", failing)
    model, optimizer = _net()
    session = stethoscope.watch(model, optimizer, dir=str(tmp_path), **QUIET)
    with pytest.warns(stethoscope.record.StethoscopeWarning, match="planted.*at 0"):
        _train(model, optimizer, torch.randn(5, 4), 6)
    session.stop()
    assert sum(session._watcher.guard.errors.values()) == 3
    block = session.run.block(0, 6)
    places = [n for n, info in enumerate(block.sites) if info.site.kind is Kind.ACTIVATION]
    assert [block.sites[place].site.module for place in places] == ["1", "2"]
    assert block.present[:, places].all()


class Handlers:
    """One handler of a signal in four shapes."""

    @staticmethod
    def function(*_args: Any) -> None:
        raise TimeoutError("the user's own")

    def method(self, *_args: Any) -> None:
        raise TimeoutError("the user's own")

    def __call__(self, *_args: Any) -> None:
        raise TimeoutError("the user's own")


@pytest.mark.parametrize(
    "handler", [Handlers.function, Handlers().method, Handlers(), functools.partial(functools.partial(Handlers()), 1)]
)
def test_what_a_signal_handler_raises_is_the_users(handler: Any) -> None:
    """Whatever code of ours runs when a signal comes, the exception that its handler raises reaches the loop."""
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(TimeoutError):
            Guard()(lambda: signal.raise_signal(signal.SIGUSR1))
    finally:
        signal.signal(signal.SIGUSR1, before)


class Broken:
    """What a script may put in the place of stderr."""

    def write(self, text: str) -> int:
        raise RuntimeError("not here")


@pytest.mark.parametrize("kind", ["closed", "none", "broken", "bare", "hook", "filter"])
def test_an_error_of_ours_is_kept_whatever_stderr_is(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, optimizer = _net()
    closed = (tmp_path / "closed").open("w")
    closed.close()
    streams: dict[str, Any] = {"closed": closed, "none": None, "broken": Broken(), "bare": object()}

    def failing(*_args: Any, **_kwargs: Any) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(OutputTap, "_look", failing)
    with warnings.catch_warnings():
        # As Python's own does; what pytest puts in its place keeps warnings from stderr.
        print_it = failing if kind == "hook" else lambda message, *_more: sys.stderr.write(str(message))
        monkeypatch.setattr(warnings, "showwarning", print_it)
        warnings.simplefilter("error" if kind == "filter" else "always")
        monkeypatch.setattr(sys, "stderr", streams.get(kind, sys.stderr))
        session = stethoscope.watch(model, optimizer, dir=str(tmp_path), companion="off", every=1)
        _train(model, optimizer, torch.randn(5, 4), 6)
        session.stop()
    monkeypatch.undo()
    assert sum(session._watcher.guard.errors.values()) > 0, "the error was planted"
    assert len(session.run.steps) == 6
    assert capsys.readouterr().out == "", "nothing of ours goes to stdout"


def test_a_process_that_may_start_no_thread_trains_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = _net()

    def refuse(_thread: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.warns(stethoscope.record.StethoscopeWarning, match="can't start new thread"):
            session = stethoscope.watch(model, optimizer, dir=str(tmp_path), **QUIET)
    assert not session.is_watching
    _train(model, optimizer, torch.randn(5, 4), 2)
    _close_at_exit()  # raises where it waits for a thread that never began
