"""What goes in: scales, outliers, constants, order, repetition, overlap, imbalance. Found where planted, else silent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stethoscope.record import Finding
from stethoscope.session import DebugSession
from tests.detect.trainings import watch
from tests.detect.written import codes, find

Pairs = Iterable[tuple[torch.Tensor, torch.Tensor]]
OURS = {
    "unscaled_inputs",
    "inputs_too_small",
    "inputs_ignored",
    "outlier_batch",
    "constant_feature",
    "unshuffled_data",
    "duplicate_batches",
    "train_val_overlap",
    "class_collapse",
    "nonfinite_batch",
}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def table(num: int = 512, width: int = 10, classes: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num, width, generator=generator)
    return x, (x @ torch.randn(width, classes, generator=generator)).argmax(1)


def shuffled(x: torch.Tensor, y: torch.Tensor, size: int = 32, steps: int = 60, seed: int = 1) -> Iterator[Any]:
    generator = torch.Generator().manual_seed(seed)
    done = 0
    while True:
        order = torch.randperm(len(x), generator=generator)
        for start in range(0, len(x) - size + 1, size):
            if done == steps:
                return
            yield x[order[start : start + size]], y[order[start : start + size]]
            done += 1


def net(width: int = 10, out: int = 3, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 32), activation(), nn.Linear(32, out))


def train(
    model: nn.Module,
    feed: Pairs,
    folder: Path,
    lose: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = F.cross_entropy,
    *,
    rate: float = 1e-3,
    validate: Callable[[DebugSession], None] | None = None,
) -> list[Finding]:
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    session = watch(model, optimizer, folder)
    for step, (x, y) in enumerate(feed):
        session.log_batch(x, y)
        optimizer.zero_grad()
        lose(model(x), y).backward()
        optimizer.step()
        if validate is not None and step % 20 == 19:
            validate(session)
    session.stop()
    assert sum(session._watcher.guard.errors.values()) == 0, session._watcher.guard.last_traceback
    whole = find(session.run)
    # As text: NaN in evidence is not equal to itself.
    assert repr(find(session.run, 9)) == repr(whole), "findings depend on how the run is cut"
    return whole


def one(findings: list[Finding], code: str) -> Finding:
    (found,) = [f for f in findings if f.code == code]
    return found


def of(finding: Finding, label: str) -> Any:
    (found,) = [e.value for e in finding.evidence if label in e.label]
    return found


# ---- scale ----


def test_unscaled_features_of_a_regression(tmp_path: Path) -> None:
    x, y = table(classes=3)
    x[:, 4] = 5000 + 900 * x[:, 4]
    target = y.float().unsqueeze(1)
    found = one(train(net(out=1), shuffled(x, target), tmp_path, F.mse_loss), "unscaled_inputs")
    assert found.first_step == 0
    assert of(found, "size of feature 4") == pytest.approx(5000, rel=0.1)


def test_unscaled_inputs_that_saturate_the_first_layer(tmp_path: Path) -> None:
    x, y = table()
    found = one(train(net(activation=nn.Tanh), shuffled(400 * x, y), tmp_path), "unscaled_inputs")
    assert "saturated" in found.message


def test_large_inputs_that_a_norm_takes_in(tmp_path: Path) -> None:
    x, y = table()
    model = nn.Sequential(nn.BatchNorm1d(10), net())
    assert not codes(train(model, shuffled(300 + 200 * x, y), tmp_path)) & OURS


def test_standardised_inputs_with_long_tails(tmp_path: Path) -> None:
    _, y = table(2048)
    tails = torch.distributions.StudentT(3.0).sample((2048, 10)).clamp(-15, 15)
    assert not codes(train(net(), shuffled(tails, y, steps=120), tmp_path)) & OURS


@pytest.mark.parametrize("scale", [2e-3, 1e-4])
def test_inputs_that_are_too_small(tmp_path: Path, scale: float) -> None:
    x, y = table()
    found = one(train(net(), shuffled(5.0 * (scale < 1e-3) + scale * x, y), tmp_path), "inputs_too_small")
    assert found.first_step == 0
    assert of(found, "standard deviation") == pytest.approx(scale, rel=0.1)


def test_small_inputs_that_even_a_norm_cannot_lift(tmp_path: Path) -> None:
    x, y = table()
    model = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    assert "inputs_too_small" in codes(train(model, shuffled(1e-3 * x, y), tmp_path))


class Louder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x * 500)


def test_small_inputs_that_the_model_scales_itself(tmp_path: Path) -> None:
    x, y = table()
    assert not codes(train(Louder(), shuffled(x / 500, y), tmp_path)) & OURS


def test_inputs_of_ordinary_smallness_and_sparse_ones(tmp_path: Path) -> None:
    x, y = table()
    assert not codes(train(net(), shuffled(0.05 * x, y), tmp_path / "a")) & OURS
    words = F.one_hot(torch.randint(400, (512,)), 400).float() * 0.3
    assert not codes(train(net(400), shuffled(words, y), tmp_path / "b")) & OURS


# ---- nothing at all ----


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_inputs_without_any_difference(tmp_path: Path, value: float) -> None:
    x, y = table()
    found = one(train(net(), shuffled(torch.full_like(x, value), y), tmp_path), "inputs_ignored")
    assert found.first_step == 0


def test_inputs_zeroed_halfway(tmp_path: Path) -> None:
    x, y = table()
    feed = [(a if n < 30 else torch.zeros_like(a), b) for n, (a, b) in enumerate(shuffled(x, y))]
    assert one(train(net(), feed, tmp_path), "inputs_ignored").first_step == 30


def test_one_sample_for_every_label(tmp_path: Path) -> None:
    x, y = table()
    assert "inputs_ignored" in codes(train(net(), shuffled(x[:1].repeat(512, 1), y), tmp_path))


def test_single_numbers_and_single_samples_are_not_constant_inputs(tmp_path: Path) -> None:
    x, y = table(width=1)
    assert not codes(train(net(1), shuffled(x, y, size=1, steps=80), tmp_path)) & OURS


# ---- outliers and broken values ----


@pytest.mark.parametrize("step", [30, 55])
def test_an_outlier_and_its_spike(tmp_path: Path, step: int) -> None:
    x, y = table()
    feed = [(a.clone(), b.float().unsqueeze(1)) for a, b in shuffled(x, y)]
    feed[step][0][11, 2] = 2e4
    found = one(train(net(out=1), feed, tmp_path, F.mse_loss), "outlier_batch")
    assert found.severity == "Warning"
    assert found.first_step == step
    assert of(found, "index in the batch") == 11
    assert "went from" in found.message


def test_an_outlier_among_images(tmp_path: Path) -> None:
    images, labels = torch.rand(256, 1, 6, 6), torch.randint(4, (256,))
    feed = [(a.clone(), b) for a, b in shuffled(images, labels, size=16)]
    feed[40][0][3] *= 5000
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4))
    found = one(train(model, feed, tmp_path), "outlier_batch")
    assert (found.first_step, of(found, "index")) == (40, 3)


def test_the_sample_that_is_not_finite(tmp_path: Path) -> None:
    x, y = table()
    feed = [(a.clone(), b) for a, b in shuffled(x, y, steps=30)]
    feed[12][0][7, 1] = float("nan")
    found = one(train(net(), feed, tmp_path), "nonfinite_batch")
    assert found.first_step == 12
    assert of(found, "index in the batch") == 7
    assert "sample 7" in found.message


class Standard(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner((x - x.mean(0)) / x.std(0))


class Scale(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - x.amin(0)) / (x.amax(0) - x.amin(0))


@pytest.mark.parametrize("where", ["function", "module", "pipeline"])
def test_a_constant_feature_divided_by_its_spread(tmp_path: Path, where: str) -> None:
    x, y = table()
    x[:, 6] = 2.5
    model: nn.Module = {
        "function": Standard(net()),
        "module": nn.Sequential(Scale(), net()),
        "pipeline": net(),
    }[where]
    if where == "pipeline":
        x = (x - x.mean(0)) / (x - x.mean(0)).square().mean(0).sqrt().where(torch.arange(10) != 6, torch.tensor(0.0))
        x[:, 6] = float("nan")
    found = one(train(model, shuffled(x, y, steps=20), tmp_path), "constant_feature")
    assert found.first_step == 0
    assert "batch[6]" in found.sites


def test_constant_features_alone_are_harmless(tmp_path: Path) -> None:
    x, y = table()
    x[:, 3], x[:, 8] = 0.0, 1.0
    assert not codes(train(net(), shuffled(x, y), tmp_path)) & OURS


# ---- order, repetition, overlap ----


@pytest.mark.parametrize("classes", [2, 5])
def test_sorted_data(tmp_path: Path, classes: int) -> None:
    x, y = table(classes=classes)
    order = y.argsort()
    feed = [(x[order][n : n + 24], y[order][n : n + 24]) for _ in range(3) for n in range(0, 480, 24)]
    found = one(train(net(out=classes), feed, tmp_path), "unshuffled_data")
    assert found.first_step == 0
    assert of(found, "share their class") > 0.8


def test_a_curriculum_and_a_rare_class_are_not_sorted(tmp_path: Path) -> None:
    x, y = table(classes=5)
    easy = y < 3
    feed = [*shuffled(x[easy], y[easy], steps=30), *shuffled(x, y, steps=40)]
    assert not codes(train(net(out=5), feed, tmp_path / "a")) & OURS
    rare = (x[:, 0] > 2.0).long()
    assert not codes(train(net(out=2), shuffled(x, rare, steps=40), tmp_path / "b")) & OURS


@pytest.mark.parametrize("times", [2, 4])
def test_batches_drawn_again(tmp_path: Path, times: int) -> None:
    x, y = table(4096)
    feed = [(a + 0.0, b) for a, b in shuffled(x, y, steps=80 // times) for _ in range(times)]
    found = one(train(net(), feed, tmp_path), "duplicate_batches")
    assert found.first_step == 1


def _reused(x: torch.Tensor, y: torch.Tensor) -> Pairs:
    return [(a, b) for a, b in shuffled(x, y, steps=20) for _ in range(4)]


def _whole(x: torch.Tensor, y: torch.Tensor) -> Pairs:
    return [(x.clone(), y) for _ in range(60)]


def _same_order(x: torch.Tensor, y: torch.Tensor) -> Pairs:
    return [(x[n : n + 32].clone(), y[n : n + 32]) for _ in range(5) for n in range(0, 512, 32)]


def _with_replacement(x: torch.Tensor, y: torch.Tensor) -> Pairs:
    draws = torch.randint(64, (60, 32))
    return [(x[rows], y[rows]) for rows in draws]


@pytest.mark.parametrize("draw", [_reused, _whole, _same_order, _with_replacement])
def test_samples_that_rightly_come_again(tmp_path: Path, draw: Callable[..., Pairs]) -> None:
    x, y = table()
    assert not codes(train(net(), draw(x, y), tmp_path)) & OURS


@pytest.mark.parametrize("share", [0.2, 1.0])
def test_validation_on_training_samples(tmp_path: Path, share: float) -> None:
    x, y = table(640)
    start = 512 - int(100 * share)

    def validate(session: DebugSession) -> None:
        with session.evaluating(), torch.no_grad():
            session.log_batch(x[start : start + 100], y[start : start + 100])

    found = one(train(net(), shuffled(x[:512], y[:512]), tmp_path, validate=validate), "train_val_overlap")
    assert of(found, "share of validation") == pytest.approx(share, abs=0.03)


def test_a_clean_split_and_data_of_few_values(tmp_path: Path) -> None:
    x, y = table(640)

    def validate(session: DebugSession) -> None:
        with session.evaluating(), torch.no_grad():
            session.log_batch(x[512:], y[512:])

    assert not codes(train(net(), shuffled(x[:512], y[:512]), tmp_path / "a", validate=validate)) & OURS
    x = (x > 0).float()[:, :10] * torch.tensor([1.0] * 4 + [0.0] * 6)
    assert not codes(train(net(), shuffled(x[:512], y[:512]), tmp_path / "b", validate=validate)) & OURS


def test_validation_batches_are_no_training_rows(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = watch(model, optimizer, tmp_path)
    for x, y in shuffled(*table(), steps=3):
        session.log_batch(x, y)
        with session.evaluating(), torch.no_grad():
            session.log_batch(torch.full((8, 10), 1e6), torch.zeros(8))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    session.stop()
    assert session.run.series("batch", "input", "abs_max")["batch"].values.max() < 100


# ---- classes ----


@pytest.mark.parametrize("classes", [2, 4])
def test_collapse_to_the_majority(tmp_path: Path, classes: int) -> None:
    x, _ = table(2048)
    rare = torch.rand(2048) < 0.12
    y = torch.where(rare, torch.randint(1, classes, (2048,)), 0)
    found = one(train(net(out=classes), shuffled(x, y, size=64, steps=160), tmp_path), "class_collapse")
    assert found.first_step <= 40
    assert "class 0" in found.message


def test_a_rare_class_that_is_learned(tmp_path: Path) -> None:
    x, _ = table(2048)
    y = (x[:, 0] + x[:, 1] > 1.8).long()
    assert not codes(train(net(out=2), shuffled(x, y, size=64, steps=160), tmp_path, rate=3e-3)) & OURS
