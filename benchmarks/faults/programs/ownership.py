"""Who trains what: optimizers that hold the wrong tensors, modules that nobody sees, gradients cut off."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program, ready
from benchmarks.faults.data import batches, digits
from benchmarks.faults.models import Classifier
from benchmarks.faults.training import fit
from torch import nn

import stethoscope


@program(site="head.*", step=0)
def f04_optimizer_holds_old_head(seed: int) -> Outcome:
    """The head is replaced after the optimizer was made."""
    torch.manual_seed(seed)
    data, model = digits(), Classifier(num_classes=100)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.head = nn.Linear(64, 10)
    checkup = ready(model, (data.x[:64], data.y[:64]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=100, seed=seed))
    return finished(session, checkup)


@program(site="middle.*", step=0)
def f05_submodule_missing_from_optimizer(seed: int) -> Outcome:
    """Two of three layers are handed to the optimizer."""
    torch.manual_seed(seed)
    data, model = digits(), Classifier()
    optimizer = torch.optim.Adam([*model.encoder.parameters(), *model.head.parameters()], lr=1e-3)
    checkup = ready(model, (data.x[:64], data.y[:64]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=100, seed=seed))
    return finished(session, checkup)


class ListNet(nn.Module):
    """Its blocks are in a plain list: torch does not know them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(64, 32)
        self.blocks = [nn.Linear(32, 32) for _ in range(3)]
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = F.relu(self.stem(x))
        for block in self.blocks:
            x = x + F.relu(block(x))
        return self.head(x)


@program(site="blocks*", step=0)
def f06_list_instead_of_module_list(seed: int) -> Outcome:
    """`parameters()` does not reach a plain list."""
    torch.manual_seed(seed)
    data, model = digits(), ListNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    checkup = ready(model, (data.x[:64], data.y[:64]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=100, seed=seed))
    return finished(session, checkup)


class Tower(nn.Module):
    """Twelve equal residual layers."""

    def __init__(self, depth: int = 12) -> None:
        super().__init__()
        self.stem = nn.Linear(64, 32)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(depth))
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.stem(x)
        for layer in self.layers:
            x = x + 0.3 * F.relu(layer(x))
        return self.head(x)


@program(site="layers.1|layers.10|layers.11", step=0)
def f07_frozen_by_a_slip_of_the_name(seed: int) -> Outcome:
    """Layer 1 was to be frozen; "layers.1" is also the beginning of layers.10 and layers.11."""
    torch.manual_seed(seed)
    data, model = digits(), Tower()
    for name, parameter in model.named_parameters():
        if name.startswith("layers.1"):
            parameter.requires_grad = False
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    checkup = ready(model, (data.x[:64], data.y[:64]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=100, seed=seed))
    return finished(session, checkup)


class CutNet(Classifier):
    """A debugging `detach` was left in."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        features = F.relu(self.middle(F.relu(self.encoder(x))))
        return self.head(features.detach())


@program(site="middle*|encoder*", step=0)
def f08_detach_in_the_middle(seed: int) -> Outcome:
    """Encoder and middle are in the optimizer, and no loss reaches them."""
    torch.manual_seed(seed)
    data, model = digits(), CutNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    checkup = ready(model, (data.x[:64], data.y[:64]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=100, seed=seed))
    return finished(session, checkup)


@program(site="head.*", step=0)
def f79_group_with_rate_zero(seed: int) -> Outcome:
    """The head's rate was multiplied by a factor that is 0."""
    torch.manual_seed(seed)
    head_factor = 0
    data, model = digits(), Classifier()
    body = [*model.encoder.parameters(), *model.middle.parameters()]
    optimizer = torch.optim.AdamW(
        [{"params": body}, {"params": model.head.parameters(), "lr": 1e-3 * head_factor}], lr=1e-3
    )
    checkup = ready(model, (data.x[:64], data.y[:64]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=100, seed=seed))
    return finished(session, checkup)
