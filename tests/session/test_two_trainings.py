"""Several trainings in one script: which of them are runs of their own, and that each has its own verdict."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import stethoscope
from stethoscope.capture.discovery import Discovery
from stethoscope.cli.attendant import Attendant
from stethoscope.config import DebugConfig
from stethoscope.store import find_runs, open_run


class LoRA(torch.nn.Module):
    """A frozen layer with a trainable one of low rank beside it."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = torch.nn.Parameter(torch.randn(2, base.in_features) * 0.05)
        self.up = torch.nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, x):
        return self.base(x) + x @ self.down.t() @ self.up.t()


class Wrapped(torch.nn.Module):
    """Another model around the layers of one that was trained before."""

    def __init__(self, model):
        super().__init__()
        self.layers = torch.nn.ModuleList([LoRA(m) if isinstance(m, torch.nn.Linear) else m for m in model])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))


def train(model, optimizer, steps=6, scale=1.0):
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(scale * model(torch.randn(16, 8)), torch.randint(0, 3, (16,))).backward()
        optimizer.step()


def adam(model, lr=1e-3):
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr)


def another_class():
    model = net()
    train(model, adam(model))
    train(model, torch.optim.SGD(model.parameters(), 1e-2))


def lora_in_place():
    model = net()
    train(model, adam(model))
    model[0], model[2] = LoRA(model[0]), LoRA(model[2])
    train(model, adam(model))


def lora_around():
    model = net()
    train(model, adam(model))
    wrapped = Wrapped(model)
    train(wrapped, adam(wrapped))


def head_alone():
    model = net()
    train(model, adam(model))
    train(model, adam(model[2].requires_grad_(True)))


def fine_tuned_elsewhere_in_the_script():
    model = net()
    train(model, adam(model))
    train(model, adam(model, lr=1e-5))


def folds():
    for _ in range(2):
        model = net()
        train(model, adam(model))


def made_again_in_a_loop():
    model = net()
    for _ in range(4):
        train(model, adam(model), steps=3)


def with_a_perturbation_beside_it():
    model = net()
    optimizer = adam(model)
    for _ in range(4):
        train(model, optimizer, steps=1)
        delta = torch.zeros(16, 8, requires_grad=True)
        attack = torch.optim.SGD([delta], 0.1)
        model(torch.randn(16, 8) + delta).sum().backward()
        attack.step()


@pytest.fixture
def attended(tmp_path):
    """As under `stethoscope run`, in this process; returns the runs' numbers of steps when the script is over."""
    attendant = Attendant(DebugConfig.load(dir=str(tmp_path), quiet=True, companion="off"))
    discovery = Discovery(attendant._found)

    def run(script):
        discovery.start()
        try:
            script()
        finally:
            discovery.stop()
            for session in attendant._sessions:
                session.stop()
        return [
            open_run(folder) for folder in sorted(find_runs(tmp_path), key=lambda path: open_run(path).info["created"])
        ]

    return run


@pytest.mark.parametrize(
    "script", [another_class, lora_in_place, lora_around, head_alone, fine_tuned_elsewhere_in_the_script, folds]
)
def test_two_trainings_are_two_runs(attended, script):
    assert [len(run.metric("loss")) for run in attended(script)] == [6, 6]


def test_a_second_training_is_found_however_long_a_look_takes(attended, monkeypatch):
    monkeypatch.setattr("stethoscope.capture.discovery.ALLOWANCE_SECONDS", 0.0)
    monkeypatch.setattr("stethoscope.capture.discovery.SHARE", 0.0)
    assert [len(run.metric("loss")) for run in attended(another_class)] == [6, 6]


def test_what_was_trained_before_is_free_to_go(attended, monkeypatch):
    """A search over settings trains hundreds of models in one process, each as large as the memory allows."""
    monkeypatch.setattr("stethoscope.capture.discovery.ALLOWANCE_SECONDS", 1e9)
    gone = []

    def script():
        for number in range(3):
            model = net()
            optimizer = torch.optim.SGD(model.parameters(), 10.0**-number)
            train(model, optimizer, steps=3)
            gone.extend(weakref.ref(each) for each in (model, optimizer, model[0].weight) if number < 2)
        del model, optimizer
        gc.collect()
        assert [ref() for ref in gone] == [None] * 6

    assert len(attended(script)) == 3


def test_a_training_that_nobody_looked_for_is_told(tmp_path, monkeypatch, capsys):
    attendant = Attendant(DebugConfig.load(dir=str(tmp_path), companion="off"))
    attendant._discovery = discovery = Discovery(attendant._found)
    discovery.start()
    try:
        model = net()
        train(model, adam(model), steps=2)
        monkeypatch.setattr("stethoscope.capture.discovery.LOOKS_FREE", 0)
        monkeypatch.setattr("stethoscope.capture.discovery.ALLOWANCE_SECONDS", -1e9)
        other = net()
        train(other, adam(other), steps=2)
        assert "not watched" not in capsys.readouterr().err
        attendant._at_exit()
    finally:
        discovery.stop()
        for session in attendant._sessions:
            session.stop()
    assert "what was trained last was not watched" in capsys.readouterr().err


def test_an_optimizer_made_again_in_a_loop_goes_on_with_its_run(attended):
    assert [len(run.metric("loss")) for run in attended(made_again_in_a_loop)] == [12]


@pytest.mark.parametrize("is_collected", [False, True])
def test_a_new_optimizer_in_one_session_takes_the_place_of_the_old_one(tmp_path, is_collected):
    model = net()
    optimizer = adam(model)
    session = stethoscope.watch(model, optimizer, dir=str(tmp_path), quiet=True, companion="off")
    train(model, optimizer, steps=40)
    if is_collected:
        del optimizer
        gc.collect()
    train(model, adam(model, lr=1e-4), steps=40)
    train(model, torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9), steps=40)
    train(model, torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9), steps=40)
    session.stop()
    run = open_run(session.folder)
    assert len(run.metric("loss")) == 160, "the curve goes on under its name"
    assert list(run.metric("lr").values[[0, 39, 40, 79, 80]]) == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4, 1e-2])
    assert not session.diagnosis.causes, "labels that say nothing are no fault of the optimizers"


def test_two_optimizers_that_take_turns_on_the_same_parameters_are_both_kept(tmp_path):
    model = net()
    first, second = adam(model), torch.optim.SGD(model.parameters(), 1e-2)
    session = stethoscope.watch(model, first, dir=str(tmp_path), quiet=True, companion="off")
    for _ in range(5):
        train(model, first, steps=1)
        train(model, second, steps=1)
    session.stop()
    told = [event for event in open_run(session.folder).events() if event.kind == "ownership"]
    assert sum(event.body["replaces"] for event in told) == 1
    assert len(told) < 10


def test_a_training_that_goes_on_after_a_probe_was_trained_is_watched_again(attended):
    def script():
        model = net()
        optimizer = adam(model)
        train(model, optimizer)
        probe = torch.nn.Linear(8, 3)
        train(probe, adam(probe))
        train(model, optimizer)

    assert [run.last_step for run in attended(script)] == [5, 5, 5]


def test_two_trainings_that_take_turns_are_one_from_there(attended):
    def script():
        first, second = net(), torch.nn.Linear(8, 3)
        one = adam(first)
        train(first, one)
        other = adam(second)
        for _ in range(6):
            train(second, other, steps=1)
            train(first, one, steps=1)

    *_, together = runs = attended(script)
    assert len(runs) == 3, "the first alone, the other alone for its first step, then both"
    assert "loss.1" in together.metrics()


def test_an_optimizer_for_a_tensor_beside_the_model_is_no_training_of_it(attended):
    assert len(attended(with_a_perturbation_beside_it)) == 1


def test_a_bad_second_training_does_not_spoil_the_verdict_of_the_first(attended):
    def script():
        model = net()
        train(model, adam(model), steps=40)
        train(model, torch.optim.SGD(model.parameters(), 1e3), steps=40, scale=float("inf"))

    first, second = (stethoscope.diagnose(run) for run in attended(script))
    assert first.healthy
    assert not second.healthy


def test_a_wrapper_that_a_variable_still_names_is_no_second_model(attended):
    def script():
        model = net()
        train(model, adam(model))
        wrapper = model[0] = LoRA(model[0])
        train(model, adam(model), steps=20)
        model[0] = wrapper.base.requires_grad_(True)  # merged: the wrapper is not part of anything any more
        train(model, torch.optim.SGD(model.parameters(), 1e-2), steps=20)

    runs = attended(script)
    assert [len(run.metric("loss")) for run in runs] == [6, 20, 20]
    assert {info.site.module for info in runs[-1].sites} <= {"", "0", "1", "2"}
    assert not stethoscope.diagnose(runs[-1]).causes


@pytest.mark.parametrize("gets_gradients", [False, True])
def test_gradients_left_from_an_earlier_training_are_no_gradients_of_this_one(tmp_path, gets_gradients):
    model = net()
    train(model, adam(model))
    head = adam(model[2])
    session = stethoscope.watch(model, head, dir=str(tmp_path), quiet=True, companion="off")
    for _ in range(24):
        head.zero_grad()
        with torch.set_grad_enabled(gets_gradients):
            features = model[1](model[0](torch.randn(16, 8)))
        torch.nn.functional.cross_entropy(model[2](features), torch.randint(0, 3, (16,))).backward()
        head.step()
    session.stop()
    found = {finding.code for finding in session.diagnosis.findings}
    assert ("trainable_params_not_in_optimizer" in found) == gets_gradients
    assert model[0].weight.grad is not None


def test_a_script_that_watches_itself_keeps_its_session(attended, tmp_path):
    def script():
        model = net()
        optimizer = adam(model)
        session = stethoscope.watch(model, optimizer, dir=str(tmp_path), quiet=True, companion="off")
        train(model, optimizer)
        train(model, torch.optim.SGD(model.parameters(), 1e-2))
        session.stop()

    assert [len(run.metric("loss")) for run in attended(script)] == [12]


def test_watching_a_model_again_ends_its_first_run_with_its_own_verdict(tmp_path):
    model = net()
    sessions = []
    for make in (adam, lambda model: torch.optim.SGD(model.parameters(), 1e-2)):
        optimizer = make(model)
        sessions.append(stethoscope.watch(model, optimizer, dir=str(tmp_path), quiet=True, companion="off"))
        train(model, optimizer, steps=40)
    sessions[1].stop()
    assert [len(open_run(session.folder).metric("loss")) for session in sessions] == [40, 40]
    assert all(session.diagnosis.healthy for session in sessions)
