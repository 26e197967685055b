"""Attaching or stopping that is interrupted, by Ctrl-C or by what a signal handler raises: nothing of ours stays behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import stethoscope
from stethoscope.capture.ring import Ring
from stethoscope.capture.seams import SEAMS
from stethoscope.capture.taps import Taps
from stethoscope.session import closing
from stethoscope.session.attachment import Attachment
from stethoscope.session.companion_handle import CompanionHandle
from stethoscope.store import RunWriter, open_run

STOPPING = [
    (Attachment, "close"),
    (Attachment, "_finish_hooks"),
    (Taps, "detach"),
    (Ring, "drain"),
    (Ring, "stop"),
    (RunWriter, "close"),
    (CompanionHandle, "finish"),
    (closing, "say_last_words"),
]
STARTING = [(Taps, "attach"), (Attachment, "__init__"), (CompanionHandle, "start")]
_names = [f"{getattr(owner, '__name__', owner)}.{name}".rpartition("closing.")[-1] for owner, name in STOPPING]


def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    return model, torch.optim.SGD(model.parameters(), 0.1)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()


def hooks_on(model: torch.nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def interrupt_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """The next call of this is where Ctrl-C arrives; later calls work."""
    original = getattr(owner, name)

    def interrupted(*_args: Any, **_kwargs: Any) -> Any:
        monkeypatch.setattr(owner, name, original)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, interrupted)


@pytest.mark.parametrize(("owner", "name"), STOPPING, ids=_names)
def test_stopping_that_is_interrupted(owner: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = make()
    session = stethoscope.watch(model, optimizer, dir=str(tmp_path), companion="off", every=1)
    assert hooks_on(model)
    train(model, optimizer)
    interrupt_once(monkeypatch, owner, name)
    with pytest.raises(KeyboardInterrupt):
        session.stop()
    assert hooks_on(model) == 0
    assert SEAMS.num_open == 0
    train(model, optimizer)  # nobody listens
    session.stop()
    run = open_run(session.folder)
    assert len(run.steps) == 3
    assert run.state == "finished"


@pytest.mark.parametrize(("owner", "name"), STARTING, ids=["taps", "instruments", "companion"])
def test_attaching_that_is_interrupted(owner: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = make()
    interrupt_once(monkeypatch, owner, name)
    with pytest.raises(KeyboardInterrupt):
        stethoscope.watch(model, optimizer, dir=str(tmp_path), quiet=True, companion="off")
    assert hooks_on(model) == 0
    assert SEAMS.num_open == 0
    session = stethoscope.watch(model, optimizer, dir=str(tmp_path), quiet=True, companion="off")
    train(model, optimizer)
    session.stop()
    assert len(session.run.steps) == 3


@pytest.fixture
def alarm() -> Iterator[None]:
    """SIGALRM raises TimeoutError, as many scripts have it."""

    def raise_timeout(*_args: Any) -> None:
        raise TimeoutError("the user's own")

    before = signal.signal(signal.SIGALRM, raise_timeout)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
def test_an_alarm_at_any_moment_of_stopping(tmp_path: Path) -> None:
    for number in range(12):
        model, optimizer = make()
        session = stethoscope.watch(model, optimizer, dir=str(tmp_path), quiet=True, companion="off", every=1)
        train(model, optimizer)
        signal.setitimer(signal.ITIMER_REAL, 0.0005 * (number + 1))
        try:
            session.stop()
        except TimeoutError:
            pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        session.stop()
        assert hooks_on(model) == 0
        assert SEAMS.num_open == 0
