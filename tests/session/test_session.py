"""The session as a user meets it: what it prints, records, refuses; and that nothing it does reaches the training loop."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import stethoscope
from stethoscope.record import RunFormatError, RunNotFoundError, StethoscopeWarning, WatchError
from stethoscope.store.runfile import RUN_FILE

QUIET = {"quiet": True, "companion": "off"}


def _net() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def _step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(torch.randn(4, 6)), torch.randint(0, 2, (4,)))
    loss.backward()
    optimizer.step()
    return loss.detach()


def _steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
    for _ in range(count):
        _step(model, optimizer)


def test_metrics_belong_to_the_step_they_were_logged_in(tmp_path: Path) -> None:
    model, optimizer = _net()
    session = stethoscope.watch(model, optimizer, dir=str(tmp_path), **QUIET)
    losses = []
    for step in range(5):
        loss = _step(model, optimizer)
        losses.append(loss.item())
        session.log(mine=loss, plain=float(step), number=np.float32(step))
        with session.evaluating():
            model(torch.randn(3, 6))
            session.log(loss=0.5 + step)
    assert session.step == 5
    assert session.flush()
    run = session.run
    assert run.state == "live"
    np.testing.assert_array_equal(run.metric("mine").steps, np.arange(5))
    np.testing.assert_allclose(run.metric("mine").values, losses, rtol=1e-6)
    np.testing.assert_allclose(run.metric("loss").values, losses, rtol=1e-6)
    np.testing.assert_array_equal(run.metric("plain").values, np.arange(5.0))
    np.testing.assert_array_equal(run.metric("eval/loss").values, 0.5 + np.arange(5.0))
    session.stop()
    assert stethoscope.open_run(run.path).state == "finished"


def test_series_are_found_by_glob_kind_and_statistic(tmp_path: Path) -> None:
    model, optimizer = _net()
    session = stethoscope.watch(model, optimizer, dir=str(tmp_path), **QUIET)
    norms = []
    for _ in range(3):
        _step(model, optimizer)
        norms.append(model[2].weight.grad.norm().item())
    session.stop()
    found = session.run.series("2.*", "gradient", "norm")
    assert sorted(site.path for site in found) == ["2.bias", "2.weight"]
    np.testing.assert_array_equal(found["2.weight"].steps, [0, 1, 2])
    np.testing.assert_allclose(found["2.weight"].values, norms, rtol=1e-6)


def test_batches_are_fingerprinted(tmp_path: Path) -> None:
    model, optimizer = _net()
    session = stethoscope.watch(model, optimizer, dir=str(tmp_path), **QUIET)
    batch = torch.randn(4, 6)
    for _ in range(2):
        session.log_batch(batch, torch.tensor([0, 1, 1, 1]))
        _step(model, optimizer)
    session.stop()
    first, second = session.run.events("batch")
    assert first.step == 0
    assert second.step == 1
    assert first.body["class_counts"] == [1, 3]
    assert len(set(first.body["fingerprints"])) == 4
    assert first.body["fingerprints"] == second.body["fingerprints"]
    series = session.run.series("batch", "input", "mean")
    assert series["batch"].values[0] == pytest.approx(batch.mean().item(), rel=1e-5)


def test_it_says_a_line_at_the_start_and_one_at_the_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, optimizer = _net()
    session = stethoscope.watch(model, optimizer, dir=str(tmp_path), companion="off")
    for _ in range(3):
        _step(model, optimizer)
    session.stop()
    out, err = capfd.readouterr()
    assert out == ""
    first, last = err.splitlines()
    assert re.match(r"stethoscope: watching Sequential \(74 parameters\), run .*", first)
    assert re.match(r"stethoscope: cannot tell: 3 losses: too few to tell\. .*3 steps, \d+ of \d+ tensors\. .*", last)


def test_watching_again_replaces_the_session(tmp_path: Path) -> None:
    model, optimizer = _net()
    first = stethoscope.watch(model, optimizer, dir=str(tmp_path), **QUIET)
    _step(model, optimizer)
    second = stethoscope.watch(model, optimizer, dir=str(tmp_path), **QUIET)
    _step(model, optimizer)
    second.stop()
    assert stethoscope.open_run(first.run.path).state == "finished"
    assert list(first.run.steps) == [0]
    assert list(second.run.steps) == [0]


def test_off_does_nothing(tmp_path: Path) -> None:
    model, optimizer = _net()
    session = stethoscope.watch(model, optimizer, dir=str(tmp_path), mode="off")
    _step(model, optimizer)
    session.log(x=1.0)
    with session.evaluating():
        session.log_batch(torch.randn(2, 6))
    assert session.flush()
    session.stop()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [None, "model", 3, torch.nn.Linear])
def test_what_is_no_model_is_refused(wrong: Any) -> None:
    with pytest.raises(WatchError, match="as model"):
        stethoscope.watch(wrong)


def test_what_is_no_optimizer_is_refused() -> None:
    with pytest.raises(WatchError, match="as optimizer"):
        stethoscope.watch(torch.nn.Linear(1, 1), optimizer="adam")


def test_an_average_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(WatchError, match="as ema"):
        stethoscope.watch(torch.nn.Linear(1, 1), ema=1.0)


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(stethoscope.ConfigError, match="unknown setting 'colour'"):
        stethoscope.watch(torch.nn.Linear(1, 1), colour="red")


def _train_a_little(model: torch.nn.Module, optimizer: Any, inputs: torch.Tensor, **settings: Any) -> Any:
    session = stethoscope.watch(model, optimizer, **settings)
    for _ in range(3):
        loss = model(inputs).square().mean()
        if loss.requires_grad:
            loss.backward()
        if optimizer is not None:
            optimizer.step()
    session.stop()
    assert sum(session._watcher.guard.errors.values()) == 0
    return session


def test_a_model_without_parameters(tmp_path: Path) -> None:
    with pytest.warns(StethoscopeWarning, match="no parameters"):
        _train_a_little(torch.nn.ReLU(), None, torch.randn(2, 2), dir=str(tmp_path), **QUIET)


def test_an_optimizer_of_a_tensor_beside_the_model_is_welcome(tmp_path: Path) -> None:
    model, temperature = torch.nn.Linear(3, 2), torch.zeros(1, requires_grad=True)
    optimizers = [torch.optim.Adam(model.parameters()), torch.optim.Adam([temperature])]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stethoscope.watch(model, optimizers, dir=str(tmp_path), **QUIET).stop()
    assert [str(one.message) for one in caught if issubclass(one.category, StethoscopeWarning)] == []


def test_an_optimizer_of_another_model(tmp_path: Path) -> None:
    other = torch.nn.Linear(6, 2)
    with pytest.warns(StethoscopeWarning, match="trains another model"):
        _train_a_little(
            torch.nn.Linear(6, 2),
            torch.optim.SGD(other.parameters(), lr=0.1),
            torch.randn(2, 6),
            dir=str(tmp_path),
            **QUIET,
        )


def test_meta_tensors(tmp_path: Path) -> None:
    model = torch.nn.Linear(6, 2, device="meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(StethoscopeWarning, match="meta device"):
        session = _train_a_little(model, optimizer, torch.randn(2, 6, device="meta"), dir=str(tmp_path), **QUIET)
    assert {info.measured for info in session.run.sites if info.site.kind == "weight"} == {"meta"}


def test_names_with_control_characters_round_trip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from stethoscope.cli import main

    hostile = "evil\x1b[31m\u202e\x00<script>"
    model = torch.nn.Module()
    model.add_module(hostile, torch.nn.Linear(3, 3))
    model.forward = lambda x: getattr(model, hostile)(x)  # type: ignore[method-assign]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = _train_a_little(model, optimizer, torch.randn(2, 3), dir=str(tmp_path), **QUIET)
    assert hostile in {info.site.module for info in session.run.sites}
    assert main(["show", str(session.run.path)]) == 0
    shown = capsys.readouterr().out
    assert "evil" in shown
    assert not set("\x1b\x00\u202e") & set(shown)


@pytest.mark.skipif(os.name != "posix", reason="folder permissions")
@pytest.mark.parametrize("is_full", [False, True])
def test_a_folder_that_cannot_be_written(is_full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked, spare = tmp_path / "blocked", tmp_path / "spare"
    blocked.write_text("a file, so that no folder can be made here, not even by root")
    spare.write_text("nor here") if is_full else spare.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(spare))
    model, optimizer = _net()
    said = "kept in memory only" if is_full else f"goes to {spare}"
    with pytest.warns(StethoscopeWarning, match=said):
        session = stethoscope.watch(model, optimizer, dir=str(blocked), **QUIET)
    for _ in range(3):
        _step(model, optimizer)
    session.stop()
    assert session.step == 3
    assert stat.S_ISREG(blocked.stat().st_mode)
    if not is_full:
        assert list(session.run.steps) == [0, 1, 2]


def test_our_warnings_never_become_exceptions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _train_a_little(torch.nn.ReLU(), None, torch.randn(2, 2), dir=str(tmp_path), **QUIET)
    assert "no parameters" in capsys.readouterr().err


def test_an_error_of_ours_stays_with_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stethoscope.capture import optimizer_probe

    def broken(*_args: Any, **_more: Any) -> Any:
        raise RuntimeError("planted")

    model, optimizer = _net()
    session = stethoscope.watch(model, optimizer, dir=str(tmp_path), **QUIET)
    monkeypatch.setattr(optimizer_probe, "measure_async", broken)
    with pytest.warns(StethoscopeWarning, match="kept from your training.*planted"):
        _steps(model, optimizer, 20)
    session.stop()
    assert 3 <= sum(session._watcher.guard.errors.values()) <= 12


def test_a_path_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunNotFoundError, match="no run"):
        stethoscope.open_run(tmp_path)


def test_a_run_of_a_newer_format(tmp_path: Path) -> None:
    from stethoscope.store.runfile import dump, load

    model, optimizer = _net()
    session = stethoscope.watch(model, optimizer, dir=str(tmp_path), **QUIET)
    _step(model, optimizer)
    session.stop()
    file = session.run.path / RUN_FILE
    file.write_bytes(dump(load(file.parent) | {"format_version": 999}))
    with pytest.raises(RunFormatError, match="newer"):
        stethoscope.open_run(session.run.path)


SCRIPT = """
import sys, torch, stethoscope
model = torch.nn.Linear(6, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
session = stethoscope.watch(model, optimizer, dir=sys.argv[1], companion=sys.argv[2])
for step in range(int(sys.argv[3])):
    optimizer.zero_grad()
    model(torch.randn(4, 6)).square().mean().backward()
    optimizer.step()
    if step == 5:
        assert session.flush()
        print("flushed", flush=True)
{ending}
"""


def _run(tmp_path: Path, ending: str, *, steps: int = 20, companion: str = "off") -> subprocess.Popen[str]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(ending=textwrap.dedent(ending)))
    return subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "runs"), companion, str(steps)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def _only_run(tmp_path: Path) -> Any:
    (folder,) = (tmp_path / "runs").iterdir()
    return stethoscope.open_run(folder)


def test_an_exception_passes_unchanged_and_is_recorded(tmp_path: Path) -> None:
    process = _run(tmp_path, "raise KeyError('mine')")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "KeyError: 'mine'" in err
    run = _only_run(tmp_path)
    assert run.state == "crashed"
    assert "KeyError" in json.dumps(run.ended)
    assert run.last_step == 19


def test_sys_exit_keeps_its_code(tmp_path: Path) -> None:
    process = _run(tmp_path, "sys.exit(7)")
    process.communicate(timeout=120)
    assert process.returncode == 7
    assert _only_run(tmp_path).state == "finished"


def test_sigterm_ends_the_process_and_closes_the_run(tmp_path: Path) -> None:
    process = _run(tmp_path, "", steps=10_000_000)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "flushed"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGTERM
    run = _only_run(tmp_path)
    assert run.state == "crashed"
    assert "SIGTERM" in json.dumps(run.ended)


def test_kill_keeps_every_acknowledged_row(tmp_path: Path) -> None:
    process = _run(tmp_path, "", steps=10_000_000)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "flushed"
    process.kill()
    process.communicate(timeout=30)
    run = _only_run(tmp_path)
    assert run.state == "crashed"
    assert {0, 1, 2, 3, 4, 5} <= set(run.steps.tolist())


def test_the_companion_writes_findings_and_leaves(tmp_path: Path) -> None:
    ending = """
    for step in range(40):
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
    session.stop()
    """
    process = _run(tmp_path, ending, companion="process")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "gradients_not_cleared" in err or "not cleared" in err
    until = time.monotonic() + 120
    stored = list(stethoscope.diagnose(_only_run(tmp_path)).findings)
    # It may go on alone after the end: what it found half-way stands until its last look.
    while (found := _only_run(tmp_path).findings()) != stored and time.monotonic() < until:
        time.sleep(0.1)
    assert [finding.code for finding in found] == ["gradients_not_cleared"]
    assert found == stored


def test_reading_never_imports_torch(tmp_path: Path) -> None:
    model, optimizer = _net()
    session = stethoscope.watch(model, optimizer, dir=str(tmp_path), **QUIET)
    for _ in range(3):
        _step(model, optimizer)
    session.stop()
    program = f"""
import sys, io, contextlib
from stethoscope.cli import main
import stethoscope
run = {str(session.run.path)!r}
with contextlib.redirect_stdout(io.StringIO()):
    codes = [main([command, run]) for command in ("show", "diagnose", "doctor")]
stethoscope.diagnose(run); stethoscope.open_run(run).series("*", "gradient", "norm")
print(codes, "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[0, 0, 0] False"


def test_import_is_light() -> None:
    program = "import sys, stethoscope; print(sorted({m.partition('.')[0] for m in sys.modules} & {'torch', 'pyarrow', 'rich', 'numpy'}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_metric_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    """A slip in logging must not end a training."""
    session = stethoscope.watch(torch.nn.Linear(2, 1), dir=str(tmp_path), quiet=True, companion="off")
    with pytest.warns(StethoscopeWarning, match="accuracy='high'"):
        session.log(accuracy="high", loss=1.5)
    session.stop()
    assert list(session.run.metrics()) == ["loss"]
