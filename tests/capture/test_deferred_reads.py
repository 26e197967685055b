"""Close looks neither wait for a device nor read more of it than they say; their numbers come later and are the same."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import stethoscope  # noqa: E402
from stethoscope.capture import attention, averages, batches, census, deferred_reads, lossgraph, routing, units  # noqa: E402
from stethoscope.capture.sites import Names  # noqa: E402


@pytest.fixture
def no_values(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A device whose values nobody can read: whatever would wait for a GPU raises there."""
    monkeypatch.setattr(deferred_reads, "DEVICES", ("cpu", "meta"))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return torch.device("meta")


def test_a_read_value_would_be_noticed(no_values: torch.device) -> None:
    ones = torch.ones(3, device=no_values)
    for read in (lambda: bool(ones.all()), ones.tolist, lambda: ones[ones > 0], lambda: torch.bincount(ones.long())):
        with pytest.raises((RuntimeError, NotImplementedError)):
            read()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_looks_at_units_never_read_a_value(no_values: torch.device, dtype: torch.dtype) -> None:
    wide = torch.empty(64, 512, 96, device=no_values, dtype=dtype)
    image = torch.empty(8, 16, 128, 128, device=no_values, dtype=dtype)
    for value, num_units in ((wide, 96), (image, 16)):
        found = units.activity(value)
        assert found is not None
        assert found.shape == (num_units,)
        squashed = units.saturation(value)
        assert squashed is not None
        assert squashed.shape == (4,)
    rows = units.rows_with_gradient(torch.empty(40, 7, 3, device=no_values, dtype=dtype))
    assert rows is not None
    assert rows.dtype == torch.float32
    assert rows.shape == (40,)
    assert units.logits(torch.empty(4096, 50_257, device=no_values, dtype=dtype)).shape == (4,)
    assert units.logits(torch.empty(64, 1, device=no_values, dtype=dtype)).shape == (1,)


@pytest.mark.parametrize("how", ["written out", "fused", "shared keys"])
def test_looks_at_attention_never_read_a_value(no_values: torch.device, how: str) -> None:
    queries = torch.empty(4, 8, 256, 16, device=no_values, requires_grad=True)
    keys = torch.empty(4, 2 if how == "shared keys" else 8, 256, 16, device=no_values, requires_grad=True)
    if how == "written out":
        loss = ((queries @ keys.transpose(-1, -2)).softmax(-1) @ keys).sum()
        found = [attention.numbers_of(node) for node in attention.find(loss).values()]
    else:
        node = type(
            "Node", (), {"name": lambda self: "ScaledDotProductFlashAttentionBackward0", "_saved_is_causal": True}
        )()
        node._saved_query, node._saved_key = queries.detach(), keys.detach()
        found = [attention.numbers_of(node)]
    assert [one.shape for one in found] == [(5 + 8,)]


SCORES: dict[str, Callable[[torch.Tensor, nn.Linear], torch.Tensor]] = {
    "products": lambda x, layer: layer(x) @ x.transpose(1, 2) / 4,
    "masked and shifted": lambda x, layer: (layer(x) @ x.transpose(1, 2) + torch.randn(6, 6)).masked_fill(
        torch.eye(6) > 0, -1e9
    ),
    "by einsum": lambda x, layer: torch.einsum("bqd,bkd->bqk", layer(x), layer(x)),
    "bounded": lambda x, layer: 20 * torch.tanh(torch.baddbmm(torch.zeros(2, 6, 6), layer(x), x.transpose(1, 2)) / 20),
    "by hand": lambda x, layer: (layer(x)[:, :, None] * layer(x)[:, None]).sum(-1),
    "of learned queries": lambda x, layer: layer(layer.weight[:3]) @ layer(x).transpose(1, 2),
}
CHOICES: dict[str, Callable[[torch.Tensor, nn.Linear], torch.Tensor]] = {
    "a layer": lambda x, layer: layer(x),
    "a product with a weight": lambda x, layer: x @ layer.weight.T,
    "a product with a frozen weight": lambda x, layer: layer(x) @ layer.weight.detach(),
    "codes": lambda x, layer: (layer(x) + torch.randn(2, 6, 16)) / 0.3,
    "a noisy router": lambda x, layer: layer(x) + torch.randn(2, 6, 16) * F.softplus(layer(x)),
}


@pytest.mark.parametrize("name", [*SCORES, *CHOICES])
def test_attention_is_a_softmax_of_products(name: str) -> None:
    scores = (SCORES | CHOICES)[name](torch.randn(2, 6, 16, requires_grad=True), nn.Linear(16, 16))
    assert len(attention.find(scores.softmax(-1).square().sum())) == (name in SCORES)


LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "a cut output": lambda output, target: F.mse_loss(output.relu(), target),
    "written out": lambda output, target: (output.relu() - target).square().mean(),
    "clamped": lambda output, target: (output - target).square().mean(1).clamp(max=1.0).mean(),
    "limited": lambda output, target: torch.minimum((output - target).square(), torch.ones_like(target)).mean(),
    "classes": lambda output, target: F.cross_entropy(output, target.argmax(1)) / 2,
}


@pytest.mark.parametrize("name", LOSSES)
def test_looks_at_a_loss_never_read_a_value(no_values: torch.device, name: str) -> None:
    output = torch.empty(6, 3, device=no_values, requires_grad=True)
    loss = LOSSES[name](output, torch.empty(6, 3, device=no_values))
    body = {**lossgraph.facts(loss), "share": lossgraph.share_in_step(loss)}
    # Of a cut output its share, and the mean and square of the targets.
    assert len(lossgraph.unread(body)) == {"a cut output": 3, "limited": 2}.get(name, 1)


@pytest.mark.parametrize("name", LOSSES)
def test_what_a_loss_tells_later_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    told = []
    for number, later in enumerate((False, True)):
        monkeypatch.setattr(lossgraph, "is_here", lambda tensor, later=later: not later)
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        folder = tmp_path / str(number)
        with stethoscope.watch(model, optimizer, run=folder, companion="off", quiet=True) as session:
            for _ in range(5):
                optimizer.zero_grad()
                LOSSES[name](model(torch.randn(6, 4)), torch.randn(6, 3)).backward()
                optimizer.step()
            assert session._watcher is not None
            assert not session._watcher.guard.errors
        events = stethoscope.open_run(folder).events()
        told.append(
            sorted((e.kind, e.step, json.dumps(e.body)) for e in events if e.kind in ("loss_graph", "backward"))
        )
    assert {kind for kind, _, _ in told[0]} == {"loss_graph", "backward"}
    for here, later in zip(*told, strict=True):
        assert here[:2] == later[:2]
        one, other = (flat(json.loads(found[2])) for found in (here, later))
        # Labels on a device are not counted: that would take its numbers.
        one = {key: value for key, value in one.items() if not key.startswith("/class_counts")}
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert other[name] == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value)


def flat(body: object, name: str = "") -> dict[str, object]:
    items = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    inside = {key: value for part, value in items for key, value in flat(value, f"{name}/{part}").items()}
    return inside if isinstance(body, (dict, list)) else {name: body}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_a_batch_that_is_logged_elsewhere_is_told_later_and_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    told = []
    for number, is_away in enumerate((False, True)):
        monkeypatch.setattr(batches, "is_here", lambda tensor, is_away=is_away: not is_away)
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        folder = tmp_path / str(number)
        with stethoscope.watch(model, optimizer, run=folder, companion="off", quiet=True) as session:
            for _ in range(5):
                x, y = (9 * torch.randn(6, 4)).to(dtype), torch.randint(0, 3, (6,))
                session.log_batch(x, y)
                position, x = x, x.clone()
                position.zero_()  # as where every batch is written to the same place
                optimizer.zero_grad()
                F.cross_entropy(model(x.float()), y).backward()
                optimizer.step()
                with session.evaluating():
                    session.log_batch(x, y)
            session.flush()
            assert session._watcher is not None
            assert not session._watcher.guard.errors
        events = stethoscope.open_run(folder).events()
        told.append(sorted((e.kind, e.step, json.dumps(e.body)) for e in events if e.kind.endswith("batch")))
    assert len(told[0]) == 10
    if dtype is not torch.bfloat16:
        assert told[0] == told[1]
    else:  # its bytes are others as float32
        assert [line[:2] for line in told[0]] == [line[:2] for line in told[1]]
        drop = {"fingerprints"}
        one, other = (
            [{k: v for k, v in json.loads(line[2]).items() if k not in drop} for line in lines] for lines in told
        )
        assert one == other


def test_a_batch_on_a_device_is_never_read(no_values: torch.device) -> None:
    x, y = torch.empty(6, 4, device=no_values), torch.empty(6, device=no_values, dtype=torch.long)
    with mock.patch.object(batches, "Fetched") as fetched:
        letter = batches.BatchFacts().look(x, y, 0, lambda facts: None)
    assert letter is not None
    assert [tensor.shape for tensor in fetched.call_args.args[0]] == [(6, 4), (6,)]
    large = torch.empty(1 << 21, 2, device=no_values)
    said: list[dict[str, object]] = []
    assert batches.BatchFacts().look(large, None, 0, said.append) is None
    assert said == [{}]


def test_looks_at_the_model_never_read_a_value(no_values: torch.device) -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 6))
    names = Names(model)
    twins, copies, kept = census.Twins(names), census.Copies(names), averages.Averages(names)
    twins.pairs = [("0", torch.empty(9, 3, device=no_values), "1", torch.empty(9, 3, device=no_values))]
    weight = nn.Parameter(torch.empty(8, 3, device=no_values))
    copies._suspects, copies._before = [weight], [weight.detach().clone()]
    names.parameters[id(weight)] = ("0", "weight")
    other = nn.Linear(3, 3).to(no_values)
    kept._known = {1: (other, averages.sample(other))}
    under_way = deferred_reads.DeferredReads()
    for one in (twins, copies):
        one.ask(under_way)
    kept.ask(under_way, search=False)
    best = torch.empty(64, 4, device=no_values, dtype=torch.long)
    candidate = routing.Candidate(("a", "b", "c", "d", "e"), None, 64, best)
    under_way.ask(candidate.count(), lambda values: None)
    assert sum(len(asked) for asked in under_way._asked.values()) == 5
    joined = deferred_reads._joined([numbers for numbers, _, _ in under_way._asked[no_values]])
    assert joined.shape == (1 + 1 + 1 + 2 + 4 * 5,)


def test_a_count_on_a_device_is_asked_for_when_it_is_new(no_values: torch.device) -> None:
    from stethoscope.capture.clock import Clock
    from stethoscope.capture.notes import CENSUS_EVERY, Notes
    from stethoscope.capture.schedule import Schedule
    from stethoscope.capture.sites import SiteTable
    from stethoscope.config import DebugConfig

    model, clock = nn.Linear(2, 2), Clock(1)
    sink = mock.Mock()
    notes = Notes(Names(model), SiteTable(sink), sink, clock, Schedule(DebugConfig()))
    count = torch.ones((), device=no_values)
    optimizer = mock.Mock(state={0: {"step": count}})

    def asked() -> int:
        notes._note_count({}, optimizer)
        return sum(len(found) for found in notes.reads._asked.values())

    assert asked() == 1
    clock.step = 2
    assert asked() == 1
    optimizer.state[0]["step"] = torch.ones((), device=no_values)
    assert asked() == 2
    clock.step = CENSUS_EVERY
    assert asked() == 3
    given = notes.reads._asked[no_values][0]
    given[1](*given[2], np.array([7.0], dtype=np.float32))
    assert notes._observed.metrics == {"optimizer_step": 7.0}


def test_the_cosine_of_updates_on_a_device_is_that_on_the_cpu() -> None:
    from stethoscope.capture.optimizer_probe import OptimizerProbe
    from stethoscope.capture.sites import SiteTable
    from stethoscope.config import DebugConfig
    from stethoscope.kernels import Snapshot

    random = np.random.default_rng(0)
    values = [random.standard_normal(50) for _ in range(5)]
    here, there = (
        OptimizerProbe(None, [], Names(nn.Linear(1, 1)), SiteTable(mock.Mock()), DebugConfig()) for _ in range(2)
    )
    for number, step in enumerate((0, 1, 2, 5)):  # two steps lie between the last ones: they are not compared
        pair = values[number : number + 2]
        here._compare_direction(*(Snapshot(value, {}) for value in pair), step)
        there._compare_direction(*(Snapshot(np.zeros(0), {}, (), torch.from_numpy(value)) for value in pair), step)
        truth, found = here.take_cosine(), there.take_cosine()
        if step in (0, 5):
            assert truth is None
            assert found is None
        else:
            assert float(found) == pytest.approx(truth, rel=1e-12)


def test_sharded_tensors_and_sparse_ones_are_left_alone() -> None:
    class Sharded(torch.Tensor):
        pass

    assert deferred_reads.can_defer(torch.ones(3))
    assert deferred_reads.can_defer(nn.Parameter(torch.ones(3)))
    assert not deferred_reads.can_defer(torch.ones(3).as_subclass(Sharded))
    assert not deferred_reads.can_defer(torch.eye(3).to_sparse())
    assert not deferred_reads.can_defer(torch.empty(3, device="meta"))


def test_numbers_of_units_by_another_way() -> None:
    torch.manual_seed(0)
    gradient = torch.randn(7, 5, 3)
    gradient[2] = 0
    assert np.array_equal(units.rows_with_gradient(gradient), gradient.abs().amax((1, 2)))
    bias = torch.tensor([0.0, 2.0, 3.0, 0.0, 0.0, 0.0, 0.0])
    with_bias = torch.maximum(gradient.abs().amax((1, 2)), bias)
    assert np.array_equal(units.rows_with_gradient(gradient, bias), with_bias)
    for value in (torch.tanh(3 * torch.randn(40, 9)), torch.sigmoid(6 * torch.randn(40, 9)), 2 * torch.randn(40, 9)):
        ends = value.abs() > 0.99
        if float(value.min()) >= 0:
            ends |= value < 0.01
        expected = float(ends.double().mean()) if float(value.abs().max()) <= 1 else None
        assert units.saturated_share(*units.saturation(value).tolist()) == pytest.approx(expected)


@pytest.mark.parametrize("shape", [(64, 32, 12), (4096, 12), (8, 12, 32, 32), (64, 12)])
def test_rows_that_are_read_are_spread_over_the_whole(shape: tuple[int, ...]) -> None:
    value = torch.zeros(shape)
    value[-len(value) // 8 :] = 1.0
    some = units.spread(value, 256)
    assert some.numel() // 12 <= 300
    assert some.max() == 1.0
    assert some.min() == 0.0
    assert some.data_ptr() == value.data_ptr()


def test_checkpointing_is_not_made_to_compute_again() -> None:
    from torch.utils.checkpoint import checkpoint

    calls = []

    def attend(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return (x @ x.transpose(-1, -2)).softmax(-1) @ x

    x = torch.randn(2, 3, 8, 4, requires_grad=True)
    loss = checkpoint(attend, x, use_reentrant=False).sum()
    assert attention.find(loss) == {}
    assert len(calls) == 1
    assert len(attention.find(attend(x).sum())) == 1


class Slow(deferred_reads.Fetched):
    """Numbers that take a while, as a device's do."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._from = time.monotonic() + 0.02

    def ready(self) -> bool:
        return time.monotonic() >= self._from


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.act, self.outer = nn.Linear(8, 24), nn.Tanh(), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.inner(x).view(4, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mixed = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        return self.outer(self.act(mixed.transpose(1, 2).reshape(4, 6, 8)))


def test_a_layer_that_gets_only_zeros_is_not_the_dead_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 5))
    nn.init.constant_(model[0].bias, -50.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with stethoscope.watch(model, optimizer, run=tmp_path / "run", companion="off", quiet=True, every=1):
        for _ in range(20):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 6)), torch.zeros(8, dtype=torch.long)).backward()
            optimizer.step()
    silent = [event.body["silent"] for event in stethoscope.open_run(tmp_path / "run").events("units")]
    assert [sorted(layers) for layers in silent] == [["0.weight"]] * 3


def told(folder: Path) -> tuple[list[object], dict[str, list[float]]]:
    torch.manual_seed(0)
    model = Attending()
    optimizer = torch.optim.AdamW(model.parameters())
    with stethoscope.watch(model, optimizer, run=folder, companion="off", quiet=True, every=1) as session:
        for _ in range(24):
            loss = F.cross_entropy(model(torch.randn(4, 6, 8)).flatten(0, 1), torch.zeros(24, dtype=torch.long))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        session.flush()
        assert not session._watcher.guard.errors
    run = stethoscope.open_run(folder)
    kinds = ("units", "attention")
    events = [(event.step, event.kind, event.body) for event in run.events() if event.kind in kinds]
    numbers = {name: run.metric(name).values.tolist() for name in run.metrics() if name.startswith("output/")}
    return events, numbers


def test_what_comes_later_is_told_of_the_step_it_is_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = told(tmp_path / "a")
    monkeypatch.setattr(deferred_reads, "Fetched", Slow)
    later = told(tmp_path / "b")
    assert at_once == later
    assert [step for step, kind, _ in at_once[0] if kind == "attention"] == [0, 8, 16]
    assert len(at_once[1]["output/log_z"]) == 3
