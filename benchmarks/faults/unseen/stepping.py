"""Unseen: clearing, stepping, owning, resuming (F01-F08, F19-F23, F71, F72, F79, F81)."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program, ready
from benchmarks.faults.data import (
    adding_problem,
    batches,
    cancer,
    diabetes,
    digit_images,
    digits,
    text,
    windows,
    wine,
)
from benchmarks.faults.models import CharModel, ConvNet, Recurrent, mlp, next_letter_loss
from benchmarks.faults.training import fit
from torch import nn

import stethoscope


@program(step=50, sudden=True)
def u01_no_zero_grad_after_refactoring(seed: int) -> Outcome:
    """A CNN with AdamW; zero_grad stands in the wrong branch and is not called after the first phase."""
    torch.manual_seed(seed)
    data, model = digit_images(), ConvNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(data.x, data.y, size=32, steps=120, seed=seed)):
        if number < 50:
            optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return finished(session)


@program(step=0)
def u02_model_zero_grad_before_step(seed: int) -> Outcome:
    """A language model; `model.zero_grad(set_to_none=False)` leaves zeros for SGD with momentum."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    session = stethoscope.watch(model, optimizer)
    for x, y in windows(steps=60, seed=seed):
        next_letter_loss(model(x), y).backward()
        model.zero_grad(set_to_none=False)
        optimizer.step()
    return finished(session)


@program()
def u03_step_in_a_branch_never_taken(seed: int) -> Outcome:
    """`if number % 1000 == 999: optimizer.step()` in a run of 120 batches; gradients are cleared each time."""
    torch.manual_seed(seed)
    data, model = cancer(), mlp(30, 16, 2, activation=nn.Tanh)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(data.x, data.y, size=16, steps=120, seed=seed)):
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if number % 1000 == 999:
            optimizer.step()
    return finished(session)


@program()
def u04_optimizer_of_the_model_before_the_copy(seed: int) -> Outcome:
    """The model was deep-copied after the optimizer was made: all of its parameters are somebody else's."""
    torch.manual_seed(seed)
    data, model = wine(), mlp(13, 32, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model = copy.deepcopy(model)
    checkup = ready(model, (data.x[:64], data.y[:64]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, size=32, steps=80, seed=seed))
    return finished(session, checkup)


@program(site="embed*|position*", step=0)
def u05_embeddings_missing_from_the_optimizer(seed: int) -> Outcome:
    """Groups with and without weight decay were made from module types; embeddings are in neither."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary)
    linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
    norms = [m for m in model.modules() if isinstance(m, nn.LayerNorm)]
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for m in linear for p in m.parameters()], "weight_decay": 0.1},
            {"params": [p for m in norms for p in m.parameters()], "weight_decay": 0.0},
        ],
        lr=3e-3,
    )
    feed = list(windows(steps=60, seed=seed))
    checkup = ready(model, feed[0], next_letter_loss, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, feed, next_letter_loss)
    return finished(session, checkup)


class DictNet(nn.Module):
    """Its branches are in a plain dict."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = {"wide": nn.Conv2d(1, 8, 5, padding=2), "narrow": nn.Conv2d(1, 8, 3, padding=1)}
        self.head = nn.Linear(16 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = torch.cat([branch(x) for branch in self.branches.values()], dim=1)
        return self.head(F.max_pool2d(F.relu(x), 2).flatten(1))


@program(site="branches*", step=0)
def u06_dict_instead_of_module_dict(seed: int) -> Outcome:
    """Convolutions that are called and never trained."""
    torch.manual_seed(seed)
    data, model = digit_images(), DictNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    checkup = ready(model, (data.x[:64], data.y[:64]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=80, seed=seed))
    return finished(session, checkup)


class Classified(nn.Module):
    """Convolutions and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3)
        self.classifier = nn.Linear(16 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.classifier(F.relu(self.conv2(F.relu(self.conv1(x)))).flatten(1))


@program(site="classifier*", step=0)
def u07_head_frozen_by_its_first_letter(seed: int) -> Outcome:
    """`startswith("c")` was to freeze conv1 and conv2; the classifier begins with c too, only a bias is left to learn."""
    torch.manual_seed(seed)
    data, model = digit_images(), Classified()
    for name, parameter in model.named_parameters():
        if name.startswith("c") and name != "conv1.bias":
            parameter.requires_grad = False
    optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-3)
    checkup = ready(model, (data.x[:64], data.y[:64]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=80, seed=seed))
    return finished(session, checkup)


@program(site="encoder*", step=0)
def u07z_a_frozen_encoder_that_was_never_trained(seed: int) -> Outcome:
    """The checkpoint was not loaded, and the encoder is frozen all the same: a head learns on random features."""
    torch.manual_seed(seed)
    data = digits()
    model = nn.Sequential()
    model.add_module("encoder", nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU()))
    model.add_module("head", nn.Linear(16, 10))
    model.encoder.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=80, seed=seed))
    return finished(session)


class DataCut(nn.Module):
    """`.data` to save memory."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 32)
        self.gru = nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.head(self.gru(self.embed(ids))[0].data)


@program(site="gru*|embed*", step=0)
def u08_data_cuts_the_graph(seed: int) -> Outcome:
    """`.data` after a GRU: only the head learns."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = DataCut(vocabulary)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    feed = list(windows(steps=80, seed=seed))
    checkup = ready(model, feed[0], next_letter_loss, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, feed, next_letter_loss)
    return finished(session, checkup)


@program(step=0)
def u19_eight_micro_batches_not_divided(seed: int) -> Outcome:
    """Accumulation of eight, with a language model and SGD."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary, depth=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(windows(size=4, steps=400, seed=seed)):
        next_letter_loss(model(x), y).backward()
        if number % 8 == 7:
            optimizer.step()
            optimizer.zero_grad()
    return finished(session)


@program(step=0)
def u20_last_micro_batch_is_small(seed: int) -> Outcome:
    """An epoch's rest of 5 samples counts as much as a batch of 64."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(data.x, data.y, size=64, steps=160, seed=seed)):
        if number % 2:
            x, y = x[:5], y[:5]
        session.log_batch(x, y)
        (F.cross_entropy(model(x), y) / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    return finished(session)


@program()
def u21_ema_of_another_copy(seed: int) -> Outcome:
    """A home-made average is updated from itself: it never moves."""
    torch.manual_seed(seed)
    data, model = digit_images(), ConvNet()
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    session = stethoscope.watch(model, optimizer, ema=average)
    for x, y in batches(data.x, data.y, steps=100, seed=seed):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), average.parameters(), strict=True):
                slow.lerp_(fast, 0.01)
    return finished(session)


@program(step=90, sudden=True)
def u22_momentum_lost_at_resume(seed: int) -> Outcome:
    """SGD's momentum begins again at step 90 of a convolutional run."""
    torch.manual_seed(seed)
    data, model = digit_images(), ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    feed = list(batches(data.x, data.y, size=32, steps=150, seed=seed))
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, feed[:90])
    folder = Path(session.stop().path or "")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    session = stethoscope.watch(model, optimizer, run=folder)
    fit(session, model, optimizer, feed[90:])
    return finished(session)


class ByShape(torch.optim.Optimizer):
    """Collects updates by shape; of two tensors of one shape only the last gets its own."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step."""
        for group in self.param_groups:
            chosen = {p.shape: p for p in group["params"] if p.grad is not None}
            for p in chosen.values():
                p.sub_(group["lr"] * p.grad)


@program(site="2.weight|2.bias|0.bias", step=0)
def u23_one_tensor_of_two_equal_shapes(seed: int) -> Outcome:
    """Layers 2 and 4 have the same shape: layer 2 never changes."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 32, 32, 32, 10)
    optimizer = ByShape(model.parameters(), lr=0.1)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=120, seed=seed))
    return finished(session)


@program()
def u71_history_of_outputs(seed: int) -> Outcome:
    """Predictions are kept for a plot without detach: each holds its graph."""
    torch.manual_seed(seed)
    model = Recurrent(nn.GRU, 2, 16, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    history = []
    for x, y in adding_problem(length=30, steps=120, seed=seed):
        output = model(x).squeeze(1)
        history.append(output)
        optimizer.zero_grad()
        F.mse_loss(output, y).backward()
        optimizer.step()
    return finished(session)


@program(site="conv2*")
def u72_backward_hooks_pile_up(seed: int) -> Outcome:
    """A gradient logger is attached before every batch."""
    torch.manual_seed(seed)
    data, model = digit_images(), ConvNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    seen: list[int] = []
    for x, y in batches(data.x, data.y, size=32, steps=80, seed=seed):
        model.conv2.register_full_backward_hook(lambda module, into, out: seen.append(1))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return finished(session)


@program(site="blocks.0*", step=0)
def u79_layerwise_decay_reaches_zero(seed: int) -> Outcome:
    """Layer-wise rates by whole-number division: 3 // 4 = 0 for the first block."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary, depth=2)
    inside = {id(p) for block in model.blocks for p in block.parameters()}
    groups: list[dict[str, Any]] = [{"params": [p for p in model.parameters() if id(p) not in inside]}]
    groups += [{"params": list(b.parameters()), "lr": 3e-3 * ((n + 3) // 4)} for n, b in enumerate(model.blocks)]
    optimizer = torch.optim.AdamW(groups, lr=3e-3)
    feed = list(windows(steps=80, seed=seed))
    checkup = ready(model, feed[0], next_letter_loss, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, feed, next_letter_loss)
    return finished(session, checkup)


@program(step=0)
def u81_create_graph_left_on(seed: int) -> Outcome:
    """From an experiment with a gradient penalty: the gradients themselves require gradients."""
    torch.manual_seed(seed)
    data, model = diabetes(), mlp(10, 32, 1, activation=nn.Tanh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, size=32, steps=80, seed=seed):
        optimizer.zero_grad()
        F.mse_loss(model(x).squeeze(1), y).backward(create_graph=True)
        optimizer.step()
    return finished(session)
