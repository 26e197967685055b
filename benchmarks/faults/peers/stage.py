"""A stage without us: programs run as they are, their session is nobody, and every backward can be heard."""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from benchmarks.faults.catalogue import Program

import stethoscope

Watched = Callable[[Any, Any], None]
Logged = Callable[[Mapping[str, Any], bool], None]


class Nobody:
    """Takes what a session takes and does nothing with it, except to pass on what was logged."""

    path = None

    def __init__(self, logged: Logged | None = None) -> None:
        self.logged, self.validating = logged, False

    def log(self, **values: Any) -> None:
        """Hand on."""
        if self.logged is not None:
            self.logged(values, self.validating)

    def log_batch(self, *_: Any, **__: Any) -> None:
        """Nothing."""

    def step(self, *_: Any, **__: Any) -> None:
        """Nothing."""

    def stop(self) -> Nobody:
        """Nothing to end."""
        return self

    @contextlib.contextmanager
    def evaluating(self, *_: Any, **__: Any) -> Iterator[None]:
        """Only remembers that it lasts."""
        self.validating = True
        try:
            yield
        finally:
            self.validating = False


@contextlib.contextmanager
def without_us(watched: Watched | None = None, logged: Logged | None = None) -> Iterator[None]:
    """While it lasts, `stethoscope.watch` tells `watched` the model and the optimizer and gives nobody."""
    ours = stethoscope.watch

    def watch(model: Any, optimizer: Any = None, **_: Any) -> Nobody:
        if watched is not None:
            watched(model, optimizer)
        return Nobody(logged)

    stethoscope.watch = watch  # type: ignore[assignment]
    try:
        yield
    finally:
        stethoscope.watch = ours


@contextlib.contextmanager
def backwards(heard: Callable[[torch.Tensor, Callable[[], None]], None]) -> Iterator[None]:
    """While it lasts, `heard(loss, go_on)` stands in for every `loss.backward()`; `go_on()` is the real one."""
    plain, inside = torch.Tensor.backward, False

    def backward(loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        nonlocal inside
        if inside:  # torch calls it once more by its name where a mode looks at its functions
            plain(loss, *args, **kwargs)
            return
        inside = True
        try:
            heard(loss, lambda **more: plain(loss, *args, **{**kwargs, **more}))
        finally:
            inside = False

    torch.Tensor.backward = backward  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.Tensor.backward = plain  # type: ignore[method-assign]


def words(program: Program, seed: int, around: contextlib.AbstractContextManager[Any]) -> list[str]:
    """Every different warning of a run, and what ended it, if anything did."""
    said: list[str] = []
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        os.environ["STETHOSCOPE_DIR"] = folder
        os.chdir(folder)
        try:
            with around:
                program.run(seed)
        except Exception as error:
            said.append(f"raised {type(error).__name__}: {first_line(error)}")
        finally:
            os.chdir(before)
            gc.collect()
    return list(dict.fromkeys([*(first_line(w.message) for w in caught), *said]))


def first_line(what: object) -> str:
    """A message without what follows its first line."""
    return (str(what).strip().splitlines() or [""])[0][:160]
