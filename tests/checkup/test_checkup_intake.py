"""What users hand over: dicts, tuples, dataclasses, models that keep state, losses that want more, generators."""

from __future__ import annotations

import dataclasses
import random
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stethoscope
from stethoscope.checkup import CheckupError
from stethoscope.checkup.structure import batch_size, select, split_batch
from tests.checkup.wrong_models import table

X, Y = torch.randn(32, 20), torch.randint(5, (32,))


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 5))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = small()

    def forward(self, x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return self.net(x + shift)


class OneObject(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = small()

    def forward(self, batch: Any) -> torch.Tensor:
        return self.net(batch.x if hasattr(batch, "x") else batch["x"])


@dataclasses.dataclass(frozen=True)
class Sample:
    x: torch.Tensor
    name: str = "a"


@dataclasses.dataclass
class Labelled:
    x: torch.Tensor
    labels: torch.Tensor


class Pair(NamedTuple):
    x: torch.Tensor
    target: torch.Tensor


@pytest.mark.parametrize(
    ("model", "batch"),
    [
        (small(), (X, Y)),
        (small(), [X, Y]),
        (TwoInputs(), ((X, X), Y)),
        (TwoInputs(), (X, X, Y)),
        (TwoInputs(), {"x": X, "shift": X, "labels": Y}),
        (TwoInputs(), ({"x": X, "shift": X}, Y)),
        (OneObject(), (Sample(X), Y)),
        (OneObject(), ({"x": X}, Y)),
        (small(), Labelled(X, Y)),
        (small(), Pair(X, Y)),
        (small(), DataLoader(TensorDataset(X, Y), batch_size=16)),
    ],
)
def test_forms_of_batches(model: nn.Module, batch: Any) -> None:
    diagnosis = stethoscope.checkup(model, batch, F.cross_entropy)
    assert diagnosis.causes == ()
    assert not [note for note in diagnosis.looked_at.unmet_needs if "could not" in note]


def test_a_fault_behind_a_dataclass_is_found() -> None:
    class Softmaxed(OneObject):
        def forward(self, batch: Any) -> torch.Tensor:
            return super().forward(batch).softmax(0)

    diagnosis = stethoscope.checkup(Softmaxed(), (Sample(X), Y), F.cross_entropy)
    assert [f.code for f in diagnosis.causes] == ["batch_dependence"]


def test_a_generator_is_refused_and_not_used_up() -> None:
    batches = ((X, Y) for _ in range(3))
    with pytest.raises(CheckupError, match="next"):
        stethoscope.checkup(small(), batches, F.cross_entropy)
    assert len(list(batches)) == 3


def test_a_model_that_can_run_once() -> None:
    class Once(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.used = small(), False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.used:
                raise RuntimeError("already used")
            self.used = True
            return self.net(x)

    model = Once()
    diagnosis = stethoscope.checkup(model, (X, Y), F.cross_entropy)
    assert diagnosis.causes == ()
    assert not model.used


def test_a_model_that_keeps_a_graph_between_calls() -> None:
    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head, self.state = nn.GRUCell(20, 16), nn.Linear(16, 5), None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.state = self.cell(x, self.state)
            return self.head(self.state)

    model = Stateful()
    model(X)
    kept = model.state
    assert stethoscope.checkup(model, (X, Y), F.cross_entropy).causes == ()
    assert model.state is kept


def test_losses_that_take_model_and_inputs() -> None:
    def with_penalty(model: nn.Module, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, target) + 1e-4 * sum(p.square().sum() for p in model.parameters())

    def with_inputs(output: torch.Tensor, inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        assert inputs.shape == X.shape
        assert target.shape == Y.shape
        return F.cross_entropy(output, target)

    for loss in (with_penalty, with_inputs):
        assert stethoscope.checkup(small(), (X, Y), loss).causes == ()


def test_a_loss_of_many_parts_says_how() -> None:
    def loss(recon: Any, x: Any, mean: Any, variance: Any) -> None: ...

    with pytest.raises(CheckupError, match="lambda output, target"):
        stethoscope.checkup(small(), (X, Y), loss)


def test_a_loss_that_is_no_number_says_so() -> None:
    with pytest.raises(CheckupError, match="one number"):
        stethoscope.checkup(small(), (X, Y), nn.CrossEntropyLoss(reduction="none"))


def test_a_model_that_does_not_fit_the_batch_says_what_failed() -> None:
    with pytest.raises(CheckupError, match="mat1 and mat2"):
        stethoscope.checkup(small(), (X[:, :7], Y), F.cross_entropy)


def test_what_is_no_model_or_loss() -> None:
    with pytest.raises(CheckupError, match="Module"):
        stethoscope.checkup(lambda x: x, (X, Y), F.cross_entropy)  # type: ignore[arg-type]
    with pytest.raises(CheckupError, match="callable"):
        stethoscope.checkup(small(), (X, Y), 3.0)  # type: ignore[arg-type]


def test_a_model_that_cannot_be_copied_says_so() -> None:
    model = small()
    model.handle = (n for n in range(3))
    with pytest.raises(CheckupError, match="copied"):
        stethoscope.checkup(model, (X, Y), F.cross_entropy)


def test_a_loss_that_calls_the_original_changes_nothing() -> None:
    critic = nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
    model = nn.Sequential(nn.Linear(20, 20), nn.BatchNorm1d(20))
    both = nn.ModuleList([model, critic])
    before = {name: value.clone() for name, value in both.state_dict().items()}

    def loss(output: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return critic(output).mean() + 0.0 * model(X).mean()

    stethoscope.checkup(model, (X, Y), loss)
    assert all(torch.equal(value, before[name]) for name, value in both.state_dict().items())


def test_gradients_and_modes_stay() -> None:
    model = small()
    model.eval()
    F.cross_entropy(model(X), Y).backward()
    grads = [(p.grad, p.grad.clone()) for p in model.parameters() if p.grad is not None]
    stethoscope.checkup(model, (X, Y), F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1))
    assert not model.training
    assert all(
        p.grad is grad and torch.equal(grad, value) for p, (grad, value) in zip(model.parameters(), grads, strict=True)
    )


def test_random_states_stay_after_an_error() -> None:
    model = small()
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    with pytest.raises(CheckupError):
        stethoscope.checkup(model, (X[:, :7], Y), F.cross_entropy)
    assert random.getstate() == states[0]
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert torch.equal(torch.get_rng_state(), states[2])


def test_split_and_select() -> None:
    assert split_batch({"a": 1, "b": 2, "y": 3}) == ({"a": 1, "b": 2}, 3)
    assert split_batch((1, 2, 3)) == ((1, 2), 3)
    assert batch_size(torch.zeros(7, 4, 2), torch.zeros(4)) == 4
    picked = select({"x": torch.arange(12).view(4, 3)}, 4, torch.tensor([3, 0]))
    assert picked["x"].tolist() == [[9, 10, 11], [0, 1, 2]]
    with pytest.raises(ValueError, match="no axis"):
        select(torch.zeros(5, 5), 4, torch.tensor([0]))


def test_called_from_the_package_too() -> None:
    import stethoscope.checkup as package

    assert package(small(), (X, Y), F.cross_entropy).healthy  # type: ignore[operator]


def test_validation_batch_shows_overlap() -> None:
    x, y = table()
    diagnosis = stethoscope.checkup(small(), (x, y), F.cross_entropy, val_batch=(x[:20], y[:20]))
    assert [f.code for f in diagnosis.causes] == ["train_val_overlap"]
    other = stethoscope.checkup(small(), (x, y), F.cross_entropy, val_batch=table())
    assert other.causes == ()


def test_several_faults_at_once_are_all_causes() -> None:
    model = nn.Sequential(nn.Linear(20, 64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5), nn.Softmax(-1))
    optimizer = torch.optim.SGD([*model[0].parameters(), *model[3].parameters()], lr=0.1)
    diagnosis = stethoscope.checkup(model, (X, Y), nn.CrossEntropyLoss(reduction="sum"), optimizer)
    assert {f.code for f in diagnosis.causes} == {
        "linear_collapse",
        "double_softmax",
        "trainable_params_not_in_optimizer",
        "loss_scales_with_batch",
    }
