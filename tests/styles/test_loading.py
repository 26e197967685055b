"""Data that nobody logs: batches of every kind of loader are known, judged and left alone; waiting is measured."""

from __future__ import annotations

import multiprocessing
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    dataloader,
    random_split,
)

import stethoscope
from tests.detect.written import codes, find
from tests.styles.test_optimizing import one_thread  # noqa: F401 - the fixture

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


def table(num: int = 512, width: int = 10, classes: int = 3) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num, width, generator=generator)
    return TensorDataset(x, (x @ torch.randn(width, classes, generator=generator)).argmax(1))


def net(width: int = 10, out: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, out))


Take = Callable[[Any], tuple[torch.Tensor, torch.Tensor]]


def train(
    loader: Any,
    folder: Path | None,
    *,
    epochs: int = 1,
    validate: Callable[[nn.Module], Any] | None = None,
    take: Take = lambda batch: batch,
    before: Callable[[stethoscope.DebugSession | None, Any], Any] = lambda session, batch: None,
    **settings: Any,
) -> tuple[list[float], stethoscope.DebugSession | None]:
    """A plain loop, as people write it; without a folder it is not watched."""
    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    settings = {"dir": str(folder), "quiet": True, "companion": "off", "every": 1} | settings
    session = stethoscope.watch(model, optimizer, **settings) if folder is not None else None
    losses = []
    for _ in range(epochs):
        model.train()
        for batch in loader:
            before(session, batch)
            x, y = take(batch)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if validate is not None:
            model.eval()
            validate(model)
    if session is not None:
        session.stop()
        guard = session._watcher.guard
        assert sum(guard.errors.values()) == 0, guard.last_traceback
    return losses, session


def watched(loader: Any, folder: Path, **options: Any) -> stethoscope.Run:
    session = train(loader, folder, **options)[1]
    assert session is not None
    return session.run


def found(run: stethoscope.Run) -> set[str]:
    whole = find(run)
    assert repr(find(run, 9)) == repr(whole), "findings depend on how the run is cut"
    return codes(whole) & OURS


# ---- what is known of a batch ----


class AsDict(Dataset):  # type: ignore[type-arg]
    def __init__(self, inner: TensorDataset) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, place: int) -> dict[str, Any]:
        x, y = self.inner[place]
        return {"id": place, "values": x, "labels": y}


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __init__(self, inner: TensorDataset, times: int = 1) -> None:
        self.inner, self.times = inner, times

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        step = worker.num_workers if worker is not None and self.times == 1 else 1
        first = worker.id if worker is not None and self.times == 1 else 0
        for place in range(first, len(self.inner), step):
            yield self.inner[place]


LOADERS: dict[str, Callable[[], Any]] = {
    "plain": lambda: DataLoader(table(), batch_size=32),
    "shuffled": lambda: DataLoader(table(), batch_size=32, shuffle=True),
    "fork": lambda: DataLoader(table(), batch_size=32, num_workers=2, multiprocessing_context="fork"),
    "spawn": lambda: DataLoader(table(), batch_size=32, num_workers=1, multiprocessing_context="spawn"),
    "persistent": lambda: DataLoader(
        table(), batch_size=32, shuffle=True, num_workers=1, multiprocessing_context="fork", persistent_workers=True
    ),
    "iterable": lambda: DataLoader(Stream(table()), batch_size=32),
    "iterable_workers": lambda: DataLoader(
        Stream(table()), batch_size=32, num_workers=2, multiprocessing_context="fork"
    ),
    "list": lambda: DataLoader([(x, int(y)) for x, y in table()], batch_size=32),
}


@pytest.mark.parametrize("kind", list(LOADERS))
def test_batches_of_a_loader_are_known(kind: str, tmp_path: Path) -> None:
    method = kind if kind in ("fork", "spawn") else "fork"
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    plain, _ = train(LOADERS[kind](), None, epochs=2)
    losses, session = train(LOADERS[kind](), tmp_path, epochs=2)
    assert losses == plain
    run = session.run
    events = run.events("batch")
    assert [event.step for event in events] == list(range(len(losses)))
    assert [event.body["number"] for event in events] == list(range(1, len(losses) + 1))
    assert all(sum(event.body["class_counts"]) == event.body["num_samples"] == 32 for event in events)
    first = {name for event in events[: len(events) // 2] for name in event.body["fingerprints"]}
    second = {name for event in events[len(events) // 2 :] for name in event.body["fingerprints"]}
    assert first == second
    assert len(first) == 512
    assert len(run.series("*", "target", "count")) == 1
    assert next(iter(run.series("*", "input", "count").values())).steps.tolist() == list(range(len(losses)))
    assert len(run.metric("data_ms").steps) == len(losses)
    assert found(run) == set()


@pytest.mark.parametrize("kind", ["dict", "moved", "scaled", "flat", "kwargs"])
def test_batches_on_their_way_to_the_model(kind: str, tmp_path: Path) -> None:
    """Named parts, copies (as to a device), arithmetic and other shapes before the model sees them."""
    takes: dict[str, Take] = {
        "dict": lambda b: (b["values"], b["labels"]),
        "moved": lambda b: (b[0].clone(), b[1].clone()),
        "scaled": lambda b: ((b[0] - 0.1) * 2.0, b[1]),
        "flat": lambda b: (b[0].view(16, 2, 5).flatten(1), b[1]),
        "kwargs": lambda b: (b[0].double().float(), b[1]),
    }
    data: Any = AsDict(table()) if kind == "dict" else table()
    run = watched(DataLoader(data, batch_size=16, shuffle=True), tmp_path, take=takes[kind])
    events = run.events("batch")
    assert len(events) == 32
    assert all(sum(event.body["class_counts"]) == 16 for event in events)
    assert len({name for event in events for name in event.body["fingerprints"]}) == 512
    assert found(run) == set()


def test_logged_batches_go_before(tmp_path: Path) -> None:
    loader = DataLoader(table(), batch_size=32)
    run = watched(loader, tmp_path, before=lambda session, batch: session.log_batch(*batch))
    assert len(run.events("batch")) == 16
    assert not any("source" in event.body for event in run.events("batch"))
    assert [site.path for site in run.series("*", "target", "count")] == ["batch"]


def test_calls_show_what_no_loader_does(tmp_path: Path) -> None:
    x, y = table().tensors
    feed = [(x[n : n + 32], y[n : n + 32]) for n in range(0, 512, 32)] * 2
    run = watched(feed, tmp_path)
    events = run.events("batch")
    assert len(events) == 32
    assert {event.body["seen"] for event in events} == {"call"}
    assert events[0].body["fingerprints"] == events[16].body["fingerprints"]
    assert found(run) == set()


def test_large_samples_are_known_by_some_of_their_values(tmp_path: Path) -> None:
    from stethoscope.capture.fingerprints import quick_fingerprints

    images = torch.rand(8, 3, 64, 64)
    assert len(set(quick_fingerprints(images))) == 8
    assert quick_fingerprints(images) == quick_fingerprints(images.to(memory_format=torch.channels_last))
    assert quick_fingerprints(images)[3] == quick_fingerprints(images[3:4])[0]
    words = torch.zeros(8, 50_000)
    words[range(8), range(0, 40_000, 5_000)] = 1.0
    assert len(set(quick_fingerprints(words))) == 8, "nearly empty samples differ where nobody looks"


# ---- nothing of the loader changes ----


def test_seeds_and_pickles_are_as_without_us(tmp_path: Path) -> None:
    def draw() -> tuple[int, torch.Tensor]:
        torch.manual_seed(7)
        loader = DataLoader(table(), batch_size=64, shuffle=True)
        iterator = iter(loader)
        next(iterator)
        return iterator._base_seed, torch.rand(3)

    original = dataloader._BaseDataLoaderIter.__dict__["__next__"]
    plain = draw()
    model = net()
    session = stethoscope.watch(model, dir=str(tmp_path), quiet=True, companion="off")
    seed, numbers = draw()
    assert seed == plain[0]
    assert torch.equal(numbers, plain[1])
    loader = DataLoader(table(), batch_size=64)
    again = pickle.loads(pickle.dumps(loader))
    assert torch.equal(next(iter(again))[0], next(iter(loader))[0])
    session.stop()
    assert dataloader._BaseDataLoaderIter.__dict__["__next__"] is original


def test_a_dataset_that_raises_raises_as_it_did(tmp_path: Path) -> None:
    class Broken(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 64

        def __getitem__(self, place: int) -> Any:
            if place > 40:
                raise KeyError(place)
            return torch.zeros(10), 0

    sessions: list[stethoscope.DebugSession | None] = []
    with pytest.raises(KeyError, match="41"):
        train(DataLoader(Broken(), batch_size=8), tmp_path, before=lambda session, _: sessions.append(session))
    assert sessions[0] is not None
    sessions[0].stop()  # as the end of a script does


class Slow(Dataset):  # type: ignore[type-arg]
    def __init__(self, inner: TensorDataset, seconds: float) -> None:
        self.inner, self.seconds = inner, seconds

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, place: int) -> Any:
        time.sleep(self.seconds)
        return self.inner[place]


def test_waiting_is_the_time_inside_next(tmp_path: Path) -> None:
    """A slow loader is told by its own time; slow work of the loop's own before the call is not the data's."""
    slow = DataLoader(Slow(table(96), 0.002), batch_size=4)
    run = watched(slow, tmp_path / "a")
    assert (run.metric("data_ms").values >= 8.0).all()
    busy = DataLoader(table(96), batch_size=4)
    run = watched(busy, tmp_path / "b", before=lambda session, batch: time.sleep(0.01))
    assert (run.metric("data_ms").values < run.metric("step_ms").values - 9.0).all()


# ---- faults, and what is none ----


def test_sorted_data_in_a_loader(tmp_path: Path) -> None:
    x, y = table().tensors
    order = y.argsort()
    run = watched(DataLoader(TensorDataset(x[order], y[order]), batch_size=16), tmp_path)
    assert found(run) == {"unshuffled_data"}


def test_workers_that_yield_the_same(tmp_path: Path) -> None:
    twice = DataLoader(Stream(table(1024), times=2), batch_size=32, num_workers=2, multiprocessing_context="fork")
    assert found(watched(twice, tmp_path)) == {"duplicate_batches"}


def test_a_sample_that_is_not_finite(tmp_path: Path) -> None:
    data = table()
    data.tensors[0][200, 3] = float("nan")
    (finding,) = [f for f in find(watched(DataLoader(data, batch_size=32), tmp_path)) if f.code == "nonfinite_batch"]
    assert finding.first_step == 200 // 32
    assert "sample 8" in finding.message


def test_a_sample_that_is_not_finite_between_two_looks(tmp_path: Path) -> None:
    """How often batches are looked at is the governor's to say; a loss that is lost is asked for its batch all the same."""
    data = table(3200)
    data.tensors[0][32 * 70 + 8, 3] = float("nan")
    run = watched(DataLoader(data, batch_size=32), tmp_path, every=64)
    assert [s for s in run.series("0", "activation", "norm")["0"].steps if s < 70] == [0, 64]
    (finding,) = [f for f in find(run) if f.code.startswith("nonfinite")]
    assert (finding.code, finding.first_step) == ("nonfinite_batch", 70)
    assert "sample 8" in finding.message


def regression(data: TensorDataset, folder: Path, lose: Callable[..., torch.Tensor], **settings: Any) -> Any:
    """A plain loop with numbers as targets."""
    torch.manual_seed(0)
    model = net(out=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    settings = {"dir": str(folder), "quiet": True, "companion": "off"} | settings
    session = stethoscope.watch(model, optimizer, **settings)
    for step, (x, y) in enumerate(DataLoader(data, batch_size=32)):
        optimizer.zero_grad()
        lose(model(torch.nan_to_num(x)).squeeze(1), y, step).backward()
        optimizer.step()
    session.stop()
    return session.run


@pytest.mark.parametrize("every", [1, 64])
def test_a_target_that_is_not_finite(tmp_path: Path, every: int) -> None:
    x = table(3200).tensors[0]
    y = x.sum(1)
    y[32 * 70 + 5] = float("nan")
    run = regression(TensorDataset(x, y), tmp_path, lambda out, y, _: F.mse_loss(out, y), every=every)
    (finding,) = [f for f in find(run) if f.code.startswith("nonfinite")]
    assert (finding.code, finding.first_step) == ("nonfinite_batch", 70)
    assert "target" in finding.message
    assert "sample 5" in finding.message


def test_gaps_in_the_data_that_are_marked_by_nan(tmp_path: Path) -> None:
    """Features and targets that are missing on purpose did not cause what happens in the loss later."""
    x = table(1024).tensors[0]
    y = x.sum(1)
    x, y = x.masked_fill(torch.rand_like(x) < 0.05, float("nan")), y.masked_fill(torch.rand_like(y) < 0.1, float("nan"))

    def lose(out: torch.Tensor, y: torch.Tensor, step: int) -> torch.Tensor:
        known = ~y.isnan()
        return F.mse_loss(out[known], y[known]) / (0.0 if step >= 20 else 1.0)

    (finding,) = [
        f for f in find(regression(TensorDataset(x, y), tmp_path, lose, every=1)) if f.code.startswith("nonfinite")
    ]
    assert (finding.code, finding.sites, finding.first_step) == ("nonfinite_origin", ("(loss)",), 20)


def test_unscaled_data_and_data_scaled_in_the_loop(tmp_path: Path) -> None:
    x, y = table().tensors
    loader = DataLoader(TensorDataset(400 * x, y), batch_size=32, shuffle=True)
    assert found(watched(loader, tmp_path / "a", epochs=2)) == {"unscaled_inputs"}
    assert found(watched(loader, tmp_path / "b", epochs=2, take=lambda b: (b[0] / 400, b[1]))) == set()


def evaluate(*loaders: Any, grad: bool = False) -> Callable[[nn.Module], None]:
    def run(model: nn.Module) -> None:
        with torch.set_grad_enabled(grad):
            for loader in loaders:
                for x, _ in loader:
                    model(x)

    return run


@pytest.mark.parametrize("grad", [False, True])
def test_validation_that_was_trained_on(grad: bool, tmp_path: Path) -> None:
    data = table(640)
    train_set, val_set = Subset(data, range(512)), Subset(data, range(448, 640))
    validate = evaluate(DataLoader(val_set, batch_size=64), grad=grad)
    run = watched(DataLoader(train_set, batch_size=32, shuffle=True), tmp_path, epochs=3, validate=validate)
    assert found(run) == {"train_val_overlap"}
    assert len(run.events("batch")) == 48
    # Without no_grad it is known to be validation when the next training begins.
    assert len(run.events("eval_batch")) >= 6


def test_validation_and_training_accuracy_are_no_fault(tmp_path: Path) -> None:
    data = table(640)
    train_set, val_set = random_split(data, [512, 128], generator=torch.Generator().manual_seed(0))
    loader = DataLoader(train_set, batch_size=32, shuffle=True)
    val_order = sorted(range(128), key=lambda n: int(val_set[n][1]))
    val_loader = DataLoader(Subset(val_set, val_order), batch_size=32)
    for name, validate in {
        "validation": evaluate(val_loader),
        "training": evaluate(loader),
        "same_data": evaluate(DataLoader(train_set, batch_size=100)),
        "both": evaluate(val_loader, DataLoader(Subset(data, train_set.indices[:100]), batch_size=50)),
    }.items():
        run = watched(loader, tmp_path / name, epochs=2, validate=validate)
        assert found(run) == set(), name
        assert len(run.events("batch")) == 32
        assert len(run.metric("data_ms").steps) == 32


@pytest.mark.parametrize("kind", ["one_batch", "one_batch_held", "few_batches", "small", "two_loaders"])
def test_repetition_on_purpose(kind: str, tmp_path: Path) -> None:
    """Overfitting one batch, a loader of few samples, full batches, a small labelled set beside a large one."""
    if kind == "one_batch":
        loader: Any = DataLoader(table(32), batch_size=32)
        run = watched(loader, tmp_path, epochs=60)
    elif kind == "one_batch_held":
        held = next(iter(DataLoader(table(), batch_size=32)))
        run = watched([held] * 60, tmp_path)
    elif kind == "few_batches":
        run = watched(DataLoader(table(), batch_size=32), tmp_path, epochs=6)
    elif kind == "small":
        words = TensorDataset(torch.eye(10)[torch.arange(512) % 5], torch.arange(512) % 3)
        run = watched(DataLoader(words, batch_size=8, shuffle=True), tmp_path, epochs=2)
    else:
        few, many = DataLoader(table(384), batch_size=32), DataLoader(table(2048), batch_size=32)
        cycle = (pair for _ in range(6) for pair in few)

        def both() -> Iterator[Any]:
            for (x, y), (u, v) in zip(cycle, many, strict=False):
                yield torch.cat([x, u]), torch.cat([y, v])

        run = watched(both(), tmp_path)
        assert {event.body["source"] for event in run.events("batch")} == {0, 1}
    assert found(run) == set()


def test_batches_are_looked_at_in_windows() -> None:
    from stethoscope.capture.schedule import Schedule
    from stethoscope.config import DebugConfig

    schedule = Schedule(DebugConfig())
    assert all(schedule.due("batches", step) for step in range(1 << 13))
    assert sum(schedule.due("batches", step) for step in range(1 << 20, (1 << 20) + (1 << 16))) < 1 << 10
    schedule.shift["batches"] = 2
    assert [step for step in range(512) if schedule.due("batches", step)] == [*range(64), *range(256, 320)]
    schedule.shift["batches"] = 5
    assert [step for step in range(4096) if schedule.due("batches", step)] == [*range(16), *range(2048, 2064)]
