"""Validation against training: sign, dropout, mode, labels, overfitting, plateau. Curves of many kinds, and real trainings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stethoscope.record import Finding
from tests.detect.trainings import Net, batches, watch
from tests.detect.written import codes, find, write_run

STEPS = 300
CLASSES = [(0, "loss_graph", {"num_classes": 10, "operations": [["NllLoss", []], ["LogSoftmax", [64, 10]]]})]
TWO = [(0, "loss_graph", {"num_classes": 2, "operations": [["NllLoss", []], ["LogSoftmax", [64, 2]]]})]
OURS = {
    "loss_metric_disagree",
    "over_regularised",
    "labels_uninformative",
    "overfitting",
    "train_mode_in_eval",
    "plateau",
}


def noisy(values: Any, size: float, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.asarray(values) * (1 + size * np.random.default_rng(seed).standard_normal(len(values)))


def curve(values: Any) -> dict[int, float]:
    return {step: float(value) for step, value in enumerate(values)}


def every(values: Any, steps: int = 10) -> dict[int, float]:
    return {steps * (number + 1) - 1: float(value) for number, value in enumerate(values)}


def falling(start: float, end: float, rate: float = 0.02, num: int = STEPS) -> np.ndarray[Any, Any]:
    return end + (start - end) * np.exp(-rate * np.arange(num))


def looks(start: float, end: float, rate: float = 0.2, num: int = 30) -> np.ndarray[Any, Any]:
    return falling(start, end, rate, num)


def one(findings: list[Finding], code: str) -> Finding:
    (found,) = [f for f in findings if f.code == code]
    return found


# ---- the sign of the loss ----


def test_a_score_that_was_minimised(tmp_path: Path) -> None:
    curves = {
        "loss": curve(-falling(40, 0.7, 0.01)[::-1]),
        "eval/accuracy": every(noisy(looks(0.3, 0.06), 0.02)),
    }
    found = one(find(write_run(tmp_path, curves, TWO)), "loss_metric_disagree")
    assert found.severity == "Critical"
    assert "guessing gives 0.5" in found.message


def test_validation_loss_mirrors_a_loss_below_zero(tmp_path: Path) -> None:
    rising = np.exp(np.linspace(0.9, 9, 30))
    curves = {"loss": curve(-np.exp(np.linspace(0.8, 9, STEPS))), "eval/val_loss": every(rising)}
    curves["eval/error"] = every(np.full(30, 0.9))
    assert codes(find(write_run(tmp_path, curves, CLASSES))) == {"loss_metric_disagree"}


def test_an_accuracy_that_only_falls(tmp_path: Path) -> None:
    curves = {"loss": curve(falling(0.9, 0.05)), "val/f1": every(noisy(np.linspace(0.6, 0.1, 20), 0.05))}
    assert codes(find(write_run(tmp_path, curves))) == {"loss_metric_disagree"}


@pytest.mark.parametrize("loss", ["positive", "negative"])
def test_losses_below_zero_that_are_right(tmp_path: Path, loss: str) -> None:
    values = noisy(falling(2.0, 0.1), 0.05) if loss == "positive" else falling(1.0, -3.0)
    curves = {
        "loss": curve(values),
        "eval/loss": every(looks(1.0, -2.8) if loss == "negative" else looks(2.0, 0.2)),
        "eval/accuracy": every(1 - looks(0.7, 0.1)),
    }
    assert not codes(find(write_run(tmp_path, curves, CLASSES))) & OURS


# ---- dropout ----


def _dropout(share: float) -> list[dict[str, Any]]:
    return [{"path": "drop", "type": "Dropout", "detail": f"p={share}, inplace=False"}]


@pytest.mark.parametrize("share", [0.95, 0.8])
def test_dropout_that_stifles(tmp_path: Path, share: float) -> None:
    curves = {"loss": curve(noisy(falling(3.0, 1.9), 0.03)), "eval/loss": every(looks(2.3, 1.4, 0.1))}
    found = one(find(write_run(tmp_path, curves, CLASSES, modules=_dropout(share))), "over_regularised")
    assert found.sites == ("drop",)


def test_dropout_as_usual_and_dropout_that_fits(tmp_path: Path) -> None:
    usual = {"loss": curve(noisy(falling(2.3, 0.3), 0.1)), "eval/loss": every(looks(2.1, 0.1))}
    assert not codes(find(write_run(tmp_path / "a", usual, CLASSES, modules=_dropout(0.5)))) & OURS
    assert not codes(find(write_run(tmp_path / "b", usual, CLASSES, modules=_dropout(0.9)))) & OURS


# ---- the finished run ----


def test_labels_that_say_nothing(tmp_path: Path) -> None:
    curves = {"loss": curve(falling(2.3, 0.01)), "eval/loss": every(np.linspace(2.4, 8, 30))}
    curves["eval/accuracy"] = every(noisy(np.full(30, 0.1), 0.2))
    found = find(write_run(tmp_path / "a", curves, CLASSES))
    assert codes(found) == {"labels_uninformative"}
    assert not codes(find(write_run(tmp_path / "b", curves, CLASSES, finished=False))) & OURS


def test_labels_of_another_table(tmp_path: Path) -> None:
    curves = {"loss": curve(falling(0.7, 0.02)), "eval/loss": every(noisy(np.linspace(0.72, 2.5, 20), 0.03))}
    assert codes(find(write_run(tmp_path, curves, TWO))) == {"labels_uninformative"}


@pytest.mark.parametrize(("best", "end"), [(0.36, 0.65), (0.5, 0.9)])
def test_overfitting_and_its_onset(tmp_path: Path, best: float, end: float) -> None:
    validation = np.concatenate([np.linspace(0.66, best, 6), np.linspace(best, end, 25)[1:]])
    curves = {
        "loss": curve(noisy(falling(0.7, 0.05, 0.01), 0.05)),
        "eval/loss": every(noisy(validation, 0.01)),
    }
    curves["eval/accuracy"] = every(noisy(np.full(30, 0.8), 0.01))
    found = one(find(write_run(tmp_path, curves, TWO)), "overfitting")
    assert abs(found.first_step - 59) <= 20
    assert found.severity == "Warning"


def test_a_surer_model_is_not_an_overfitted_one(tmp_path: Path) -> None:
    validation = np.concatenate([np.linspace(0.66, 0.4, 6), np.linspace(0.4, 0.7, 24)])
    curves = {"loss": curve(falling(0.7, 0.01)), "eval/loss": every(validation)}
    curves["eval/accuracy"] = every(np.linspace(0.6, 0.9, 30))
    assert not codes(find(write_run(tmp_path, curves, TWO))) & OURS


@pytest.mark.parametrize("seed", range(12))
def test_ordinary_curves_are_silent(tmp_path: Path, seed: int) -> None:
    """Validation settles anywhere between perfect and mediocre, with noise, a bump, and a little overfitting late."""
    dice = np.random.default_rng(seed)
    floor, size = dice.uniform(0.02, 0.8), dice.uniform(0.0, 0.15)
    validation = looks(2.2, floor, dice.uniform(0.1, 0.5)) * (1 + np.linspace(0, dice.uniform(0, 0.08), 30))
    training = falling(2.3, floor * dice.uniform(0.3, 1.1), dice.uniform(0.01, 0.05))
    curves = {"loss": curve(noisy(training, 0.1, seed)), "eval/loss": every(noisy(validation, size, seed))}
    curves["eval/accuracy"] = every(np.clip(noisy(1 - looks(0.8, 0.3 * floor), 0.02, seed), 0, 1))
    assert not codes(find(write_run(tmp_path, curves, CLASSES))) & OURS


# ---- plateau ----


def test_a_plateau_is_advice_and_closes_when_the_loss_falls(tmp_path: Path) -> None:
    flat = noisy(falling(2.0, 0.9, 0.1), 0.01)
    found = one(find(write_run(tmp_path / "a", {"loss": curve(flat)})), "plateau")
    assert found.severity == "Info"
    assert 20 <= found.first_step <= 120
    dropped = np.concatenate([flat, noisy(falling(0.9, 0.2, 0.02, 150), 0.01)])
    assert "plateau" not in {f.code for f in find(write_run(tmp_path / "b", {"loss": curve(dropped)}))}


def test_a_falling_loss_is_no_plateau(tmp_path: Path) -> None:
    curves = {"loss": curve(noisy(np.linspace(2.0, 1.0, STEPS), 0.05))}
    assert "plateau" not in {f.code for f in find(write_run(tmp_path, curves))}


# ---- real trainings ----


def _validate(session: Any, model: nn.Module, *, eval_mode: bool) -> None:
    x, y = next(batches(1, seed=9))
    if eval_mode:
        model.eval()
    with session.evaluating(), torch.no_grad():
        session.log(loss=F.cross_entropy(model(x), y))
    model.train()


@pytest.mark.parametrize("layer", [nn.Dropout(0.2), nn.BatchNorm1d(32)], ids=["dropout", "batchnorm"])
@pytest.mark.parametrize("eval_mode", [True, False])
def test_validation_in_training_mode(tmp_path: Path, layer: nn.Module, eval_mode: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 32), layer, nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = watch(model, optimizer, tmp_path)
    for step, (x, y) in enumerate(batches(40)):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step % 10 == 9:
            _validate(session, model, eval_mode=eval_mode)
    session.stop()
    found = find(session.run)
    if eval_mode:
        assert not codes(found) & OURS
    else:
        assert one(found, "train_mode_in_eval").sites == ("1",)
        assert abs(one(found, "train_mode_in_eval").first_step - 9) <= 1


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_minus_sign_in_a_real_training(tmp_path: Path, sign: float) -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = watch(model, optimizer, tmp_path)
    held, labels = next(batches(1))
    for step, (x, y) in enumerate(batches(120)):
        optimizer.zero_grad()
        (sign * F.cross_entropy(model(x), y)).backward()
        optimizer.step()
        if step % 10 == 9:
            model.eval()
            with session.evaluating(), torch.no_grad():
                session.log(
                    accuracy=(model(held).argmax(1) == labels).float().mean(),
                    loss=F.cross_entropy(model(held), labels),
                )
            model.train()
    session.stop()
    found = codes(find(session.run)) & OURS
    assert found == (set() if sign > 0 else {"loss_metric_disagree"})


@pytest.mark.parametrize("size", [1, 13])
def test_findings_do_not_depend_on_how_the_run_is_cut(tmp_path: Path, size: int) -> None:
    curves = {
        "loss": curve(noisy(falling(0.7, 0.05, 0.01), 0.05)),
        "eval/loss": every(np.linspace(0.72, 2.5, 30)),
    }
    run = write_run(tmp_path, curves, [*TWO, (20, "eval_forward", {"training": True, "in_training": ["drop"]})])
    whole = find(run)
    assert codes(whole) >= {"labels_uninformative", "train_mode_in_eval"}
    assert find(run, size) == whole
