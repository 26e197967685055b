"""How a network begins: symmetry, scale, saturation, dead units, depth without a way back for the gradient."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program, ready
from benchmarks.faults.data import adding_problem, batches, digits, moons
from benchmarks.faults.models import mlp
from benchmarks.faults.training import fit
from torch import nn

import stethoscope


@program(site="0*|2*", step=0)
def f35_constant_init(seed: int) -> Outcome:
    """Every weight of a layer begins at 0.05: its units stay copies of each other."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 32, 32, 10)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.constant_(layer.weight, 0.05)
            nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    checkup = ready(model, (data.x[:64], data.y[:64]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=120, seed=seed))
    return finished(session, checkup)


@program(step=0)
def f36_init_ten_times_too_wide(seed: int) -> Outcome:
    """A standard deviation ten times He's: activations grow tenfold from layer to layer."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 64, 64, 64, 10)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=10 * (2 / layer.in_features) ** 0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    checkup = ready(model, (data.x[:64], data.y[:64]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=120, seed=seed))
    return finished(session, checkup)


@program(step=0)
def f37_twenty_sigmoid_layers(seed: int) -> Outcome:
    """Each sigmoid passes on at most a quarter of the gradient."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, *[32] * 20, 10, activation=nn.Sigmoid)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=100, seed=seed))
    return finished(session)


class UnrolledRNN(nn.Module):
    """One cell, a hundred times."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.cell = nn.RNNCell(2, width)
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From (batch, time, features)."""
        state = x.new_zeros(len(x), self.cell.hidden_size)
        for moment in x.unbind(1):
            state = self.cell(moment, state)
        return self.head(state).squeeze(1)


@program(site="cell*", step=0)
def f38_rnn_without_clipping(seed: int) -> Outcome:
    """A recurrence of gain 2: a hundred steps back in time the gradient is a million, and nothing clips it."""
    torch.manual_seed(seed)
    model = UnrolledRNN()
    nn.init.orthogonal_(model.cell.weight_hh, gain=2.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, adding_problem(steps=100, seed=seed), F.mse_loss)
    return finished(session)


@program(site="2*|3*", step=0)
def f39_relu_bias_minus_ten(seed: int) -> Outcome:
    """A bias of -10 keeps the second layer's ReLU shut for every sample."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 64, 10)
    nn.init.constant_(model[2].bias, -10.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    checkup = ready(model, (data.x[:64], data.y[:64]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=120, seed=seed))
    return finished(session, checkup)


@program(site="0*|1*", step=0)
def f40_saturated_tanh(seed: int) -> Outcome:
    """The first layer's weights are fifty times too large: its tanh is always +1 or -1."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 64, 10, activation=nn.Tanh)
    with torch.no_grad():
        model[0].weight.mul_(50)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    checkup = ready(model, (data.x[:64], data.y[:64]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=120, seed=seed))
    return finished(session, checkup)


@program(site="0*|1*|2*")
def f41_no_nonlinearity(seed: int) -> Outcome:
    """Three layers that are one linear map."""
    torch.manual_seed(seed)
    data = moons()
    model = nn.Sequential(nn.Linear(2, 32), nn.Linear(32, 32), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Outcome(checkup=ready(model, (data.x[:128], data.y[:128]), F.cross_entropy, optimizer))


@program(site="0*|1*|2*|3*")
def f53_dormant_units(seed: int) -> Outcome:
    """The targets change every thirty steps at a high rate: ReLU units die one after another and never come back."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    shuffles = torch.Generator(torch.get_default_device()).manual_seed(seed)
    names = torch.arange(10)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(data.x, data.y, steps=300, seed=seed)):
        if number % 30 == 0:
            names = torch.randperm(10, generator=shuffles)
        optimizer.zero_grad()
        F.cross_entropy(model(x), names[y]).backward()
        optimizer.step()
    return finished(session)
