"""Unseen: initialisation, depth, modes, attention, experts (F35-F45, F47-F53)."""

from __future__ import annotations

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
from benchmarks.faults.programs.experts import Mixture
from benchmarks.faults.training import fit, score
from torch import nn

import stethoscope


@program(site="conv2*", step=0)
def u35_ones_in_one_convolution(seed: int) -> Outcome:
    """One layer of a CNN was filled with a constant, its bias too."""
    torch.manual_seed(seed)
    data = digit_images()
    model = PlainConv()
    nn.init.constant_(model.conv2.weight, 0.02)
    nn.init.constant_(model.conv2.bias, 0.0)
    nn.init.constant_(model.head.weight, 0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    checkup = ready(model, (data.x[:64], data.y[:64]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=100, seed=seed))
    return finished(session, checkup)


class PlainConv(nn.Module):
    """Two convolutions, the mean over the image, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.head(F.relu(self.conv2(F.relu(self.conv1(x)))).mean((2, 3)))


@program(step=0)
def u36_unit_normal_in_a_tanh_net(seed: int) -> Outcome:
    """std=1 for every weight of a deep GELU network, whatever its width."""
    torch.manual_seed(seed)
    data, model = wine(), mlp(13, 128, 128, 128, 128, 3, activation=nn.GELU)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    checkup = ready(model, (data.x[:64], data.y[:64]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, size=32, steps=100, seed=seed))
    return finished(session, checkup)


@program(step=0)
def u37_thirty_small_tanh_layers(seed: int) -> Outcome:
    """Thirty tanh layers from weights half as wide as they should be."""
    torch.manual_seed(seed)
    data, model = cancer(), mlp(30, *[32] * 30, 2, activation=nn.Tanh)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.5 * layer.in_features**-0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, size=32, steps=80, seed=seed))
    return finished(session)


@program(site="rnn*", step=0)
def u38_chaotic_rnn(seed: int) -> Outcome:
    """nn.RNN on the adding problem with a recurrence three times too strong."""
    torch.manual_seed(seed)
    model = Recurrent(nn.RNN, 2, 48, 1)
    nn.init.orthogonal_(model.rnn.weight_hh_l0, gain=1.9)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-4)
    session = stethoscope.watch(model, optimizer)
    for x, y in adding_problem(steps=80, seed=seed):
        optimizer.zero_grad()
        F.mse_loss(model(x).squeeze(1), y).backward()
        optimizer.step()
    return finished(session)


@program(site="conv2*|(root)", step=0)
def u39_dead_convolution(seed: int) -> Outcome:
    """Half of a convolution's channels can never fire."""
    torch.manual_seed(seed)
    data, model = digit_images(), PlainConv()
    with torch.no_grad():
        model.conv2.bias[:12] = -30.0
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    checkup = ready(model, (data.x[:64], data.y[:64]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, steps=100, seed=seed))
    return finished(session, checkup)


@program(site="2*|3", step=0)
def u40_saturated_sigmoid_in_the_middle(seed: int) -> Outcome:
    """The second layer's bias is 40: its sigmoid is always 1."""
    torch.manual_seed(seed)
    data, model = cancer(), mlp(30, 32, 32, 2, activation=nn.Sigmoid)
    nn.init.constant_(model[2].bias, 40.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    checkup = ready(model, (data.x[:64], data.y[:64]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, size=32, steps=100, seed=seed))
    return finished(session, checkup)


class LinearConv(nn.Module):
    """The ReLUs were lost in a refactoring."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8 * 64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.head(self.conv2(self.conv1(x)).flatten(1))


@program(site="conv1*|conv2*|head*|(root)")
def u41_linear_convolutions(seed: int) -> Outcome:
    """Two convolutions and a head that are one linear map."""
    torch.manual_seed(seed)
    data, model = digit_images(), LinearConv()
    return Outcome(checkup=ready(model, (data.x[:64], data.y[:64]), F.cross_entropy))


@program(site="1*|bn*", step=0)
def u42_batchnorm_in_regression(seed: int) -> Outcome:
    """Regression with BatchNorm1d and two samples a batch."""
    torch.manual_seed(seed)
    data = diabetes()
    model = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, size=2, steps=250, seed=seed), F.mse_loss)
    return finished(session)


@program(site="blocks*|(root)", step=0)
def u43_eval_from_a_loading_function(seed: int) -> Outcome:
    """A loading function returns the model in eval; nobody turns dropout on again."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary, dropout=0.2).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, windows(steps=80, seed=seed), next_letter_loss)
    return finished(session)


@program(site="*")
def u44_no_grad_is_not_eval(seed: int) -> Outcome:
    """`torch.no_grad()` was taken for `model.eval()`: an MLP with dropout."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 64, 10, dropout=0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(data.x, data.y, steps=100, seed=seed)):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if number % 25 == 24:
            with session.evaluating(), torch.no_grad():
                session.log(accuracy=score(model, data.val_x, data.val_y)["accuracy"])
    return finished(session)


class NoisyInput(nn.Module):
    """Adds noise whatever the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(13, 32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.net(x + 0.1 * torch.randn_like(x))


@program()
def u45_noise_in_eval(seed: int) -> Outcome:
    """Augmentation inside forward, in eval too."""
    torch.manual_seed(seed)
    data, model = wine(), NoisyInput()
    return Outcome(checkup=ready(model, (data.x[:64], data.y[:64]), F.cross_entropy))


class TiedGRU(nn.Module):
    """A GRU language model with equal widths at both ends."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.encoder = nn.Embedding(vocabulary, 32)
        self.gru = nn.GRU(32, 32, batch_first=True)
        self.decoder = nn.Linear(32, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.decoder(self.gru(self.encoder(ids))[0])


@program(site="encoder*|decoder*", step=0)
def u47_tied_by_a_clone(seed: int) -> Outcome:
    """`nn.Parameter(embedding.weight.clone())` for the decoder."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = TiedGRU(vocabulary)
    model.decoder.weight = nn.Parameter(model.encoder.weight.detach().clone())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    feed = list(windows(steps=80, seed=seed))
    checkup = ready(model, feed[0], next_letter_loss, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, feed, next_letter_loss)
    return finished(session, checkup)


@program(site="blocks.1.attn*")
def u48_one_head_runs_away(seed: int) -> Outcome:
    """Only the second block's queries have a rate that is too high."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary)
    fast = list(model.blocks[1].attn.q.parameters()) + list(model.blocks[1].attn.k.parameters())
    rest = [p for p in model.parameters() if not any(p is q for q in fast)]
    optimizer = torch.optim.Adam([{"params": rest, "lr": 1e-3}, {"params": fast, "lr": 0.1}])
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, windows(steps=150, seed=seed), next_letter_loss)
    return finished(session)


class BidirectionalModel(nn.Module):
    """A language model on an LSTM that reads both ways."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 16)
        self.lstm = nn.LSTM(16, 16, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.head(self.lstm(self.embed(ids))[0])


@program(site="lstm*|(root)")
def u50_bidirectional_language_model(seed: int) -> Outcome:
    """bidirectional=True: the answer is read from the other side."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = BidirectionalModel(vocabulary)
    return Outcome(checkup=ready(model, next(iter(windows(seed=seed))), next_letter_loss, causal=True))


class MeanOverPadding(nn.Module):
    """The mean over time counts padding."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(vocabulary, 16), nn.Linear(16, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.head(self.embed(ids).max(1).values)


@program()
def u51_maximum_over_padding(seed: int) -> Outcome:
    """A maximum over time in which padding takes part."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    x = next(iter(windows(size=32, seed=seed)))[0].clone()
    y = (x == x[0, 0]).any(1).long()
    x[:, 20:] = 0
    return Outcome(checkup=ready(MeanOverPadding(vocabulary), (x, y), F.cross_entropy, pad_id=0))


@program(site="router*|experts*")
def u52_router_with_a_huge_bias(seed: int) -> Outcome:
    """No balance loss, and a router whose bias prefers one expert from the start."""
    torch.manual_seed(seed)
    data, model = wine(), Mixture(13, 32, 6, 3)
    with torch.no_grad():
        model.router.bias[4] = 6.0
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, size=64, steps=150, seed=seed))
    return finished(session)


@program(site="0*|1*|2*|3*|4*|5*")
def u53_dormant_under_moving_targets(seed: int) -> Outcome:
    """Regression to a function that is replaced every 25 steps; three ReLU layers and SGD with momentum."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 96, 96, 96, 10)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-3)
    shuffles = torch.Generator(torch.get_default_device()).manual_seed(seed + 1)
    names = torch.arange(10)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(data.x, data.y, size=128, steps=300, seed=seed)):
        if number % 25 == 0:
            names = torch.randperm(10, generator=shuffles)
        optimizer.zero_grad()
        F.cross_entropy(model(x), names[y]).backward()
        optimizer.step()
    return finished(session)


@program(site="bn*|dropout*|(root)", step=70, sudden=True)
def u43b_eval_after_the_second_validation(seed: int) -> Outcome:
    """`model.train()` stands inside `if best:` and is missed at step 70."""
    torch.manual_seed(seed)
    data, model = digit_images(), ConvNet(dropout=0.4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(data.x, data.y, size=32, steps=140, seed=seed)):
        if number in (35, 70):
            model.eval()
            with torch.no_grad():
                model(data.val_x)
            if number == 35:
                model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return finished(session)
