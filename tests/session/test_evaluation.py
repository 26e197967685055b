"""Validation marked by a `with`, or by two calls where none fits: the same is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import stethoscope
from stethoscope.store import open_run


def trained(folder: Path, way: str) -> Any:
    """Four steps, after each of them a validation, the last one inside of another."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = stethoscope.watch(model, optimizer, run=folder, quiet=True, companion="off")
    for step in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        model.eval()
        if way == "with":
            with session.evaluating(), torch.no_grad():
                session.log(loss=float(model(torch.ones(2, 4)).sum()))
        else:
            session.begin_evaluation()
            with torch.no_grad():
                session.log(loss=float(model(torch.ones(2, 4)).sum()))
            session.end_evaluation()
        model.train()
        session.log(step=float(step))
    session.stop()
    return open_run(folder)


def test_two_calls_record_what_the_with_block_does(tmp_path: Path) -> None:
    runs = [trained(tmp_path / way, way) for way in ("with", "calls")]
    validation = [run.metric("eval/loss") for run in runs]
    assert validation[0].values.tolist() == validation[1].values.tolist()
    assert len(validation[0]) == 4
    for kind in ("eval_begin", "eval_end"):
        assert [e.step for e in runs[0].events(kind)] == [e.step for e in runs[1].events(kind)]
    assert runs[1].metric("step").values.tolist() == [0, 1, 2, 3], "what comes after it is training's again"


def test_validations_nest_and_an_end_without_a_beginning_does_nothing(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    session = stethoscope.watch(model, run=tmp_path / "run", quiet=True, companion="off")
    session.end_evaluation()
    session.log(before=1.0)
    session.begin_evaluation()
    session.begin_evaluation()
    session.end_evaluation()
    session.log(inside=2.0)
    session.end_evaluation()
    session.log(after=3.0)
    session.stop()
    session.begin_evaluation()
    session.end_evaluation()
    assert {"before", "eval/inside", "after"} <= set(open_run(tmp_path / "run").metrics())


def test_an_exception_inside_ends_the_validation(tmp_path: Path) -> None:
    session = stethoscope.watch(torch.nn.Linear(2, 1), run=tmp_path / "run", quiet=True, companion="off")
    with pytest.raises(ZeroDivisionError), session.evaluating():
        raise ZeroDivisionError
    session.log(after=1.0)
    session.stop()
    assert "after" in open_run(tmp_path / "run").metrics()
