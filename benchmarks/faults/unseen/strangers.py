"""Unseen, a fourth draw: bugs as somebody else would make them, in networks that no other program has.

Written without a look at the rules; what the rules of that day said stands in `benchmarks/results/faults.md` beside what
they say now.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program, ready
from benchmarks.faults.data import batches, cancer, diabetes, digit_images, digits, text, windows, wine
from benchmarks.faults.models import CharModel, mlp, next_letter_loss
from benchmarks.faults.training import fit
from benchmarks.faults.unseen.strange_networks import (
    Angles,
    Departments,
    Forecast,
    HalfAttention,
    Neighbors,
    Patches,
    Reader,
    Segmenter,
    ink,
)
from torch import nn

import stethoscope


@program(step=1)
def u01y_only_the_generator_is_cleared(seed: int) -> Outcome:
    """A GAN in which `opt_d.zero_grad()` was forgotten: the critic's gradients of every step are added up."""
    torch.manual_seed(seed)
    data = digits()
    model = nn.ModuleDict({"maker": mlp(8, 48, 64), "critic": mlp(64, 48, 1, activation=nn.SiLU)})
    opt_g = torch.optim.Adam(model["maker"].parameters(), lr=1e-3)
    opt_d = torch.optim.SGD(model["critic"].parameters(), lr=1e-2)
    session = stethoscope.watch(model, [opt_g, opt_d])
    for x, _ in batches(data.x, data.y, size=48, steps=120, seed=seed):
        fake = model["maker"](torch.randn(len(x), 8))
        loss = F.softplus(-model["critic"](x)).mean() + F.softplus(model["critic"](fake.detach())).mean()
        loss.backward()
        opt_d.step()
        opt_g.zero_grad()
        F.softplus(-model["critic"](fake)).mean().backward()
        opt_g.step()
    return finished(session)


@program(site="edge*", step=0)
def u05y_edges_are_not_trained(seed: int) -> Outcome:
    """A graph network; the optimizer was given the layers that were there before edges had features."""
    torch.manual_seed(seed)
    model = Neighbors()
    layers = nn.ModuleList([model.lift, model.mix, model.read])
    optimizer = torch.optim.NAdam(layers.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    for _ in range(100):
        nodes, edges = torch.randn(32, 6, 5, generator=generator), torch.rand(32, 6, 6, 2, generator=generator)
        y = torch.bucketize((edges[..., 0].mean(2) * nodes[..., 0]).mean(1), torch.tensor([-0.1, 0.1]))
        optimizer.zero_grad()
        F.cross_entropy(model(nodes, edges), y).backward()
        optimizer.step()
    return finished(session)


@program(site="gru*|embed*|judge*", step=0)
def u08y_through_an_array_and_back(seed: int) -> Outcome:
    """`.detach().cpu().numpy()` in forward: embedding and GRU are in the optimizer and learn nothing."""
    torch.manual_seed(seed)
    ids, vocabulary = text()
    model = Reader(vocabulary)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    for _ in range(80):
        rows = torch.randint(len(ids) - 20, (24,), generator=generator)
        x, y = ids[rows[:, None] + torch.arange(20)], (rows > len(ids) // 2).long()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return finished(session)


@program(step=0)
def u10y_segmentation_at_a_half(seed: int) -> Outcome:
    """A small U-Net and Adam at 0.5; three levels of ink are the classes."""
    torch.manual_seed(seed)
    data, model = digit_images(), Segmenter(3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    session = stethoscope.watch(model, optimizer)
    feed = batches(data.x, data.y, size=32, steps=120, seed=seed)
    fit(session, model, optimizer, ((x, ink(x)) for x, _ in feed))
    return finished(session)


@program()
def u12y_polynomial_in_epochs(seed: int) -> Outcome:
    """PolynomialLR over 40 epochs, stepped after every batch: nothing is learned after batch 40 of 240."""
    torch.manual_seed(seed)
    data, model = wine(), mlp(13, 32, 32, 3, activation=nn.Mish)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.8)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=40, power=1.5)
    session = stethoscope.watch(model, optimizer)
    feed = batches(data.x, data.y, size=24, steps=240, seed=seed)
    fit(session, model, optimizer, feed, log_loss=True, scheduler=scheduler)
    return finished(session)


@program(step=0)
def u16y_lstm_under_decay(seed: int) -> Outcome:
    """An LSTM and SGD with weight_decay=0.5 at 0.1, nesterov: every weight is on its way to 0."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = nn.ModuleDict(
        {
            "embed": nn.Embedding(vocabulary, 24),
            "lstm": nn.LSTM(24, 32, batch_first=True),
            "head": nn.Linear(32, vocabulary),
        }
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.5)
    session = stethoscope.watch(model, optimizer)
    for x, y in windows(length=24, size=16, steps=120, seed=seed):
        optimizer.zero_grad()
        logits = model["head"](model["lstm"](model["embed"](x))[0])
        next_letter_loss(logits, y).backward()
        optimizer.step()
    return finished(session)


class MatricesInPlace(torch.optim.Optimizer):
    """A home-made momentum whose branch for vectors makes a new tensor and forgets it."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                speed = self.state[p].setdefault("speed", torch.zeros_like(p))
                speed.mul_(0.9).add_(p.grad)
                if p.dim() > 1:
                    p.add_(speed, alpha=-group["lr"])
                else:
                    p = p - group["lr"] * speed


@program(site="*bias", step=0)
def u23y_biases_are_left_where_they_are(seed: int) -> Outcome:
    """`p = p - ...` for vectors: no bias ever moves."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 40, 40, 10, activation=nn.GELU)
    optimizer = MatricesInPlace(model.parameters(), lr=0.02)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, size=48, steps=100, seed=seed))
    return finished(session)


@program(step=0)
def u24y_softmax_over_channels(seed: int) -> Outcome:
    """A segmentation that returns probabilities, (N, C, H, W), and cross entropy with smoothing on top."""
    torch.manual_seed(seed)
    data, model = digit_images(), nn.Sequential(Segmenter(3), nn.Softmax(dim=1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, y, label_smoothing=0.05)

    look = ready(model, (data.x[:32], ink(data.x[:32])), loss, optimizer)
    session = stethoscope.watch(model, optimizer)
    feed = batches(data.x, data.y, size=32, steps=80, seed=seed)
    fit(session, model, optimizer, ((x, ink(x)) for x, _ in feed), loss)
    return finished(session, look)


@program(step=0)
def u27y_hand_written_square(seed: int) -> Outcome:
    """`((prediction - target) ** 2).mean()` with (B, 1) and (B): a vision transformer that counts ink."""
    torch.manual_seed(seed)
    data, model = digit_images(), Patches(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((output - y) ** 2).mean()

    look = ready(model, (data.x[:24], data.x[:24].mean((1, 2, 3))), loss, optimizer)
    session = stethoscope.watch(model, optimizer)
    for x, _ in batches(data.x, data.y, size=24, steps=100, seed=seed):
        optimizer.zero_grad()
        loss(model(x), x.mean((1, 2, 3))).backward()
        optimizer.step()
    return finished(session, look)


@program(step=0)
def u28y_forecast_clamped_at_zero(seed: int) -> Outcome:
    """Sales are never negative, standardised sales are: `clamp(min=0)` on the output of a GRU."""
    torch.manual_seed(seed)
    model = Forecast()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)

    def draw() -> tuple[torch.Tensor, torch.Tensor]:
        phase, speed = torch.rand(2, 32, 1, generator=generator)
        waves = torch.sin(6.3 * phase + (0.2 + speed) * torch.arange(17))
        return waves[:, :16, None], waves[:, 16]

    look = ready(model, draw(), F.mse_loss, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, (draw() for _ in range(150)), F.mse_loss, log_batches=True)
    return finished(session, look)


@program(site="(root)|directions|body*|*cos*", step=45, sudden=True)
def u30y_arc_cosine_at_one(seed: int) -> Outcome:
    """At step 45 a direction is set to a sample's own feature: the cosine is 1, acos has no slope there, 0 / 0 follows."""
    torch.manual_seed(seed)
    data, model = digits(), Angles()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(data.x, data.y, size=32, steps=90, seed=seed)):
        if number == 45:
            with torch.no_grad():
                # A power of two on one axis: its cosine with itself is exactly 1.
                model.body[2].weight.zero_()
                model.body[2].bias.zero_()
                model.body[2].bias[0] = model.directions[3, 0] = 2.0
                model.directions[3, 1:] = 0.0
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return finished(session)


@program(site="gru*", step=0)
def u35y_recurrence_of_one_constant(seed: int) -> Outcome:
    """All weights of a GRU begin at 0.05: thirty-two copies of one unit."""
    torch.manual_seed(seed)
    model = nn.ModuleDict({"gru": nn.GRU(3, 32, batch_first=True), "head": nn.Linear(32, 2)})
    for parameter in model["gru"].parameters():
        nn.init.constant_(parameter, 0.05)
    nn.init.constant_(model["head"].weight, 0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    for _ in range(100):
        x = torch.randn(32, 15, 3, generator=generator)
        y = (x[:, 10:, 0].sum(1) > x[:, 10:, 1].sum(1)).long()
        optimizer.zero_grad()
        F.cross_entropy(model["head"](model["gru"](x)[0][:, -1]), y).backward()
        optimizer.step()
    return finished(session)


@program(site="2*|1*|3*", step=0)
def u39y_shift_of_a_norm(seed: int) -> Outcome:
    """A LayerNorm whose shift was filled with -6 stands before a ReLU: no unit behind it ever fires."""
    torch.manual_seed(seed)
    data = cancer()
    model = nn.Sequential(
        nn.Linear(30, 48), nn.LayerNorm(48), nn.ReLU(), nn.Linear(48, 24), nn.Tanh(), nn.Linear(24, 2)
    )
    nn.init.constant_(model[1].bias, -8.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    look = ready(model, (data.x[:64], data.y[:64]), F.cross_entropy, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, size=32, steps=120, seed=seed), log_batches=True)
    return finished(session, look)


@program(site="embed*|head*", step=0)
def u47y_copied_into_the_head(seed: int) -> Outcome:
    """`head.weight.data.copy_(embed.weight.data)` under a comment that says "tied"."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary, depth=1)
    model.head.weight.data.copy_(model.embed.weight.data)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=2e-2)
    look = ready(model, next(windows(seed=seed)), next_letter_loss, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, windows(steps=100, seed=seed), next_letter_loss)
    return finished(session, look)


@program(site="attention*")
def u48y_rate_of_the_projections(seed: int) -> Outcome:
    """A vision transformer; a regex gives the attention's input projection a hundred times the rate."""
    torch.manual_seed(seed)
    data, model = digit_images(), Patches(10)
    fast = [p for name, p in model.named_parameters() if "in_proj" in name]
    rest = [p for name, p in model.named_parameters() if "in_proj" not in name]
    optimizer = torch.optim.AdamW([{"params": rest}, {"params": fast, "lr": 0.1}], lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, data.y, size=48, steps=150, seed=seed))
    return finished(session)


@program(site="desk*|departments*")
def u52y_one_department_does_it_all(seed: int) -> Outcome:
    """Top 1 without a balance loss, and a desk with a penalty that was meant to make it sure: all samples go to one."""
    torch.manual_seed(seed)
    data, model = digits(), Departments()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, size=64, steps=200, seed=seed):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) - 0.5 * model.desk(x).softmax(-1).mean(0).square().sum()
        loss.backward()
        optimizer.step()
    return finished(session)


@program()
def u59y_no_pixel_is_ever_foreground(seed: int) -> Outcome:
    """Binary segmentation, (N, 1, H, W): two pixels in a hundred are marked, at random; none is ever predicted."""
    torch.manual_seed(seed)
    data, model = digit_images(), Segmenter(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    for x, _ in batches(data.x, data.y, size=32, steps=200, seed=seed):
        marks = (torch.rand(x.shape, generator=generator) < 0.02).float()
        session.log_batch(x, marks)
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(x), marks)
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)


@program(site="0*", step=30, sudden=True)
def u65y_scores_before_they_are_divided(seed: int) -> Outcome:
    """From step 30 on inputs come in other units; q k^T passes 65,504 before it is divided."""
    torch.manual_seed(seed)
    data = digits()
    model = nn.Sequential(HalfAttention(8), nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(data.x, data.y, size=32, steps=80, seed=seed)):
        rows = x.view(-1, 8, 8) * (1000.0 if number >= 30 else 1.0)
        optimizer.zero_grad()
        F.cross_entropy(model(rows), y).backward()
        optimizer.step()
    return finished(session)


@program(site="0*", step=0)
def u79y_layer_wise_rates_of_integers(seed: int) -> Outcome:
    """Rates that halve by depth, with whole-number division: `1e-3 * (1 // 2 ** depth)` is 0 for the first layers."""
    torch.manual_seed(seed)
    data, model = diabetes(), mlp(10, 24, 24, 1, activation=nn.SiLU)
    layers = [model[0], model[2], model[4]]
    groups = [
        {"params": layer.parameters(), "lr": 1e-3 * (1 // 2 ** (2 - depth))} for depth, layer in enumerate(layers)
    ]
    optimizer = torch.optim.Adam(groups)
    look = ready(model, (data.x[:32], data.y[:32, None]), F.mse_loss, optimizer)
    session = stethoscope.watch(model, optimizer)
    fit(
        session,
        model,
        optimizer,
        ((x, y[:, None]) for x, y in batches(data.x, data.y, size=32, steps=100, seed=seed)),
        F.mse_loss,
    )
    return finished(session, look)
