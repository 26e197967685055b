"""What happens to a watched model besides training: copied, saved, scripted, exported, compiled, resumed, watched again."""

from __future__ import annotations

import copy
import io
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stethoscope
from stethoscope.record import Kind
from tests.styles.bench import AT_STEPS, Bench, judge
from tests.styles.test_modelling import Blocks
from tests.styles.test_optimizing import STEPS, batch, net, one_thread, plain_loop  # noqa: F401 - the fixture


def watch(model: Any, optimizer: Any, folder: Path, **settings: Any) -> stethoscope.DebugSession:
    settings = {"quiet": True, "companion": "off", "every": 1} | settings
    return stethoscope.watch(model, optimizer, dir=str(folder), **settings)


def steps(model: nn.Module, optimizer: Any, count: int, first: int = 0) -> None:
    for step in range(first, first + count):
        x, y = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def clean(session: stethoscope.DebugSession) -> None:
    guard = session._watcher.guard
    assert sum(guard.errors.values()) == 0, guard.last_traceback


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("what", ["deepcopy", "save", "script", "script_of_a_copy", "trace", "export", "export_strict"])
def test_tools_work_on_a_watched_model(what: str, tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = watch(model, optimizer, tmp_path)
    steps(model, optimizer, 2)
    x = batch(0)[0]
    expected = model(x)
    if what == "deepcopy":
        other: Any = copy.deepcopy(model)
    elif what == "save":
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        other = torch.load(buffer, weights_only=False)
    elif what.startswith("script"):
        other = torch.jit.script(copy.deepcopy(model) if what == "script_of_a_copy" else model)
    elif what == "trace":
        other = torch.jit.trace(model, x)
        assert "prim::PythonOp" not in str(other.inlined_graph)
    else:
        other = torch.export.export(model, (x,), strict=what == "export_strict").module()
    assert torch.equal(other(x), expected)
    steps(model, optimizer, 3)
    assert session.step == 5
    session.stop()
    clean(session)
    assert list(session.run.series("0", "activation")["0"].steps) == list(range(5))


def test_paused_takes_every_hook_off(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.register_forward_hook(lambda *_: None)
    session = watch(model, optimizer, tmp_path)
    steps(model, optimizer, 2)
    with session.paused():
        assert sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()) == 1
        model(batch(0)[0])
    steps(model, optimizer, 2)
    session.stop()
    clean(session)
    assert list(session.run.series("0", "activation", "count")["0"].values) == [256.0] * 4
    assert sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()) == 1


@pytest.mark.filterwarnings("ignore::UserWarning:torch.*")  # dynamo looks at .grad of what it traces
@pytest.mark.parametrize("how", ["before", "after", "fullgraph", "in_place", "regional", "function"])
def test_torch_compile(how: str, tmp_path: Path) -> None:
    """Compiled with aot_eager, so that no compiler is needed: bits, rows at steps, and no graph break of ours."""

    def style(bench: Bench) -> None:
        torch._dynamo.reset()
        model = Blocks()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        options: dict[str, Any] = {
            "backend": "aot_eager",
            "fullgraph": how in ("fullgraph", "before", "after"),
        }
        runner: Any = model
        if how in ("before", "fullgraph"):
            runner = torch.compile(model, **options)
            bench.watch(model, optimizer, hooks=False)
        elif how == "in_place":
            model.compile(**options)
            bench.watch(model, optimizer, hooks=False)
        else:
            bench.watch(model, optimizer, hooks=False)
            if how == "after":
                runner = torch.compile(model, **options)
            elif how == "regional":
                for block in model.blocks:
                    block.compile(**options)
            else:
                runner = torch.compile(lambda x: model(x) * 1.0, **options)
        plain_loop(bench, runner, optimizer)
        torch._dynamo.reset()

    judge(style, tmp_path, kinds=AT_STEPS)


@pytest.mark.filterwarnings("ignore::UserWarning:torch.*")
def test_a_compiled_training_step(tmp_path: Path) -> None:
    """Forward and loss compiled as a function of the user's, clipping inside a compiled one too."""

    def style(bench: Bench) -> None:
        torch._dynamo.reset()
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        bench.watch(model, optimizer, hooks=False)

        @torch.compile(backend="aot_eager", fullgraph=True)
        def lose(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(model(x), y)

        for step in range(STEPS):
            x, y = batch(step)
            optimizer.zero_grad()
            loss = lose(x, y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            bench.tick(loss)
        torch._dynamo.reset()

    watched = judge(style, tmp_path, kinds=AT_STEPS)
    assert watched.session.run.metric("loss").values == pytest.approx(watched.losses, rel=1e-6)


def test_resume_from_a_checkpoint(tmp_path: Path) -> None:
    """The same run, two starts: steps go on where the checkpoint was, and what was trained twice is there twice."""
    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    first = watch(model, optimizer, tmp_path)
    steps(model, optimizer, 8)
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    steps(model, optimizer, 4, 8)
    first.stop()
    folder = first.run.path

    again = net()
    second_optimizer = torch.optim.AdamW(again.parameters(), lr=0.01)
    again.load_state_dict(kept[0])
    second_optimizer.load_state_dict(kept[1])
    second = watch(again, second_optimizer, tmp_path, run=folder)
    assert second.step == 8
    steps(again, second_optimizer, 10, 8)
    second.stop()
    clean(second)
    run = stethoscope.open_run(folder)
    assert len(run.starts) == 2
    assert [(s.first_step, s.last_step) for s in run.starts] == [(0, 11), (8, 17)]
    assert list(run.steps) == list(range(18))
    assert stethoscope.diagnose(run).causes == ()


def test_a_cell_that_runs_twice(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = watch(model, optimizer, tmp_path)
    steps(model, optimizer, 3)
    second = watch(model, optimizer, tmp_path)
    steps(model, optimizer, 4)
    assert (first.step, second.step) == (3, 4)
    second.stop()
    clean(first)
    clean(second)
    assert len(first.run.steps) == 3
    assert len(second.run.steps) == 4
    assert set(second.run.block(0, 4).calls[second.run.block(0, 4).present]) == {1}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loaders_with_workers(method: str, tmp_path: Path) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")

    def style(bench: Bench) -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        bench.watch(model, optimizer)
        x, y = batch(0, 16 * STEPS)
        loader = DataLoader(TensorDataset(x, y), batch_size=16, num_workers=1, multiprocessing_context=method)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            bench.tick(loss)

    watched = judge(style, tmp_path)
    assert len(watched.session.run.starts) == 1


def test_evaluation_between_steps_is_no_training(tmp_path: Path) -> None:
    def style(bench: Bench) -> None:
        model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        bench.watch(model, optimizer)
        for step in range(STEPS):
            x, y = batch(step)
            model.train()
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            bench.tick(loss)
            model.eval()
            with torch.inference_mode():
                model(x)

    judge(style, tmp_path, kinds=(*AT_STEPS, Kind.ACTIVATION, Kind.OUTPUT))
