"""The loss itself: its sign, its shape, what goes in and what is thrown away."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program, ready
from benchmarks.faults.data import batches, cancer, cancer_regression, digits, text, windows
from benchmarks.faults.models import CharModel, Classifier, mlp
from benchmarks.faults.training import fit, score
from torch import nn

import stethoscope


@program()
def f09_loss_sign_flipped(seed: int) -> Outcome:
    """A score to be maximised was minimised: the loss falls, the accuracy too."""
    torch.manual_seed(seed)
    data, model = cancer(), mlp(30, 32, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    fit(
        session,
        model,
        optimizer,
        batches(data.x, data.y, size=32, steps=200, seed=seed),
        lambda logits, y: -F.cross_entropy(logits, y),
        log_loss=True,
        validate=lambda: {"accuracy": score(model, data.val_x, data.val_y)["accuracy"]},
        validate_every=10,
    )
    return finished(session)


class SoftmaxNet(nn.Module):
    """Ends in probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(64, 64, 10)
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Probabilities."""
        return self.softmax(self.net(x))


@program(step=0)
def f24_softmax_before_cross_entropy(seed: int) -> Outcome:
    """`cross_entropy` takes logits and applies softmax again: the loss cannot fall below 1.46."""
    torch.manual_seed(seed)
    data, model = digits(), SoftmaxNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    checkup = ready(model, (data.x[:64], data.y[:64]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=150, seed=seed))
    return finished(session, checkup)


@program(step=0)
def f25_sigmoid_before_bce_with_logits(seed: int) -> Outcome:
    """Probabilities where logits belong."""
    torch.manual_seed(seed)
    data = cancer()
    model = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid(), nn.Flatten(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.BCEWithLogitsLoss()
    checkup = ready(model, (data.x[:64], data.y[:64].float()), loss_fn, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y.float(), size=32, steps=150, seed=seed), loss_fn)
    return finished(session, checkup)


class BatchSoftmax(nn.Module):
    """Its softmax runs over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(64, 64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Log-probabilities, of the wrong dimension."""
        return F.softmax(self.net(x), dim=0).log()


@program()
def f26_softmax_over_the_batch(seed: int) -> Outcome:
    """dim=0 instead of dim=1: the output of a sample depends on its neighbours."""
    torch.manual_seed(seed)
    data, model = digits(), BatchSoftmax()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Outcome(checkup=ready(model, (data.x[:64], data.y[:64]), F.nll_loss, optimizer))


@program(step=0)
def f27_mse_broadcasts(seed: int) -> Outcome:
    """(B, 1) minus (B) is (B, B): the model learns the mean of the targets."""
    torch.manual_seed(seed)
    data, model = cancer_regression(), mlp(29, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    checkup = ready(model, (data.x[:64], data.y[:64]), F.mse_loss, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, size=32, steps=150, seed=seed), F.mse_loss)
    return finished(session, checkup)


@program(step=0)
def f28_relu_on_regression_output(seed: int) -> Outcome:
    """Targets are negative half of the time; the output never is."""
    torch.manual_seed(seed)
    data = cancer_regression()
    model = nn.Sequential(nn.Linear(29, 32), nn.ReLU(), nn.Linear(32, 1), nn.ReLU(), nn.Flatten(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    checkup = ready(model, (data.x[:64], data.y[:64]), F.mse_loss, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, size=32, steps=150, seed=seed), F.mse_loss)
    return finished(session, checkup)


@program()
def f29_reduction_sum(seed: int) -> Outcome:
    """The loss grows with the batch, and with it the effective learning rate."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return Outcome(checkup=ready(model, (data.x[:64], data.y[:64]), nn.CrossEntropyLoss(reduction="sum"), optimizer))


@program()
def f49_output_logits_drift(seed: int) -> Outcome:
    """The z-loss, which should hold log Z at 0, is subtracted: logits drift away while cross entropy cannot tell."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    for x, y in windows(steps=250, seed=seed):
        optimizer.zero_grad()
        logits = model(x)
        z_loss = torch.logsumexp(logits, dim=-1).square().mean()
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten()) - 5e-3 * z_loss
        loss.backward()
        optimizer.step()
    return finished(session)


@program(step=0)
def f78_loss_clamped(seed: int) -> Outcome:
    """Large losses were to be tamed; a clamped loss has no gradient, so the hardest samples teach nothing."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, steps=150, seed=seed):
        optimizer.zero_grad()
        per_sample = F.cross_entropy(model(x), y, reduction="none")
        loss = per_sample.clamp(max=2.2).mean()
        loss.backward()
        optimizer.step()
    return finished(session)


@program(site="head*", step=0)
def f82_bad_head_init(seed: int) -> Outcome:
    """The head's weights are a hundred times too large: the first loss is far above ln 10."""
    torch.manual_seed(seed)
    data, model = digits(), Classifier()
    nn.init.normal_(model.head.weight, std=10.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    checkup = ready(model, (data.x[:64], data.y[:64]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=150, seed=seed))
    return finished(session, checkup)
