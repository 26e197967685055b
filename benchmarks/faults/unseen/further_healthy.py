"""Unseen: healthy trainings of kinds that neither list has."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program
from benchmarks.faults.data import batches, cancer, digits, moons, text, windows
from benchmarks.faults.models import CharModel, mlp
from torch import nn

import stethoscope


class Variational(nn.Module):
    """A variational autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(64, 64, 16), mlp(8, 64, 64)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The picture again, and the divergence from the prior."""
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        z = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        return self.decoder(z), 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()


@program()
def uh34_annealed_divergence(seed: int) -> Outcome:
    """The weight of the divergence rises from 0 to 1: so does the loss, for a while."""
    torch.manual_seed(seed)
    data, model = digits(), Variational()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    session = stethoscope.watch(model, optimizer)
    for number, (x, _) in enumerate(batches(data.x, data.y, size=64, steps=250, seed=seed)):
        session.log_batch(x, x)
        optimizer.zero_grad()
        output, divergence = model(x)
        loss = F.mse_loss(output, x, reduction="none").sum(1).mean() + min(1.0, number / 120) * divergence
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)


class Contrast(nn.Module):
    """Two views into one space, with a learned temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = mlp(32, 64, 16), mlp(32, 64, 16)
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Similarities of every left half with every right half."""
        left, right = F.normalize(self.left(x[:, :32]), dim=1), F.normalize(self.right(x[:, 32:]), dim=1)
        return self.scale.exp() * left @ right.T


@program()
def uh35_contrastive_halves(seed: int) -> Outcome:
    """Which lower half belongs to which upper half: the classes are the batch, the logits as large as the temperature allows."""
    torch.manual_seed(seed)
    data, model = digits(), Contrast()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    session = stethoscope.watch(model, optimizer)
    for x, _ in batches(data.x, data.y, size=64, steps=200, seed=seed):
        session.log_batch(x, None)
        optimizer.zero_grad()
        logits = model(x)
        names = torch.arange(len(x))
        loss = 0.5 * (F.cross_entropy(logits, names) + F.cross_entropy(logits.T, names))
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)


@program()
def uh36_proximal_policy(seed: int) -> Outcome:
    """PPO on a contextual bandit: four passes over each rollout, ratios clamped, entropy falling."""
    torch.manual_seed(seed)
    data = digits()
    model = nn.ModuleDict({"policy": mlp(64, 64, 10, activation=nn.Tanh), "value": mlp(64, 64, 1, activation=nn.Tanh)})
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, size=128, steps=60, seed=seed):
        with torch.no_grad():
            old = torch.distributions.Categorical(logits=model["policy"](x))
            action = old.sample()
            before, reward = old.log_prob(action), (action == y).float()
            advantage = reward - model["value"](x).squeeze(1)
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        for _ in range(4):
            session.log_batch(x, None)
            optimizer.zero_grad()
            now = torch.distributions.Categorical(logits=model["policy"](x))
            ratio = (now.log_prob(action) - before).exp()
            surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            value = F.mse_loss(model["value"](x).squeeze(1), reward)
            loss = -surrogate + 0.5 * value - 0.01 * now.entropy().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            session.log(loss=loss, reward=reward.mean())
    return finished(session)


@program()
def uh37_denoising_diffusion(seed: int) -> Outcome:
    """The noise of a random moment is predicted: a loss that is noisy from batch to batch."""
    torch.manual_seed(seed)
    data, model = moons(), mlp(4, 64, 64, 2, activation=nn.SiLU)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.linspace(0.999, 0.01, 50).cumprod(0).clamp_min(1e-4)
    session = stethoscope.watch(model, optimizer)
    for x, _ in batches(data.x, data.y, size=64, steps=250, seed=seed):
        moment = torch.randint(50, (len(x),))
        noise, kept = torch.randn_like(x), schedule[moment].unsqueeze(1)
        noisy = kept.sqrt() * x + (1 - kept).sqrt() * noise
        angle = moment.unsqueeze(1) / 50 * math.pi
        optimizer.zero_grad()
        loss = F.mse_loss(model(torch.cat([noisy, angle.sin(), angle.cos()], 1)), noise)
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)


class Coupling(nn.Module):
    """A normalising flow of four couplings, each of which starts as the identity."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(mlp(1, 32, 2, activation=nn.Tanh) for _ in range(4))
        for net in self.nets:
            nn.init.zeros_(net[-1].weight)
            nn.init.zeros_(net[-1].bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Log-likelihood of each sample."""
        total = x.new_zeros(len(x))
        for net in self.nets:
            kept, moved = x[:, :1], x[:, 1:]
            scale, shift = net(kept).chunk(2, dim=1)
            moved = moved * scale.exp() + shift
            total = total + scale.squeeze(1)
            x = torch.cat([moved, kept], 1)
        return total - 0.5 * x.square().sum(1) - math.log(2 * math.pi)


@program()
def uh38_likelihood_below_zero(seed: int) -> Outcome:
    """A flow over narrow data: the negative log-likelihood goes through zero, last layers start at zero."""
    torch.manual_seed(seed)
    data, model = moons(noise=0.05), Coupling()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    session = stethoscope.watch(model, optimizer)
    for x, _ in batches(0.3 * data.x, data.y, size=128, steps=250, seed=seed):
        optimizer.zero_grad()
        loss = -model(x).mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)


@program()
def uh39_triplets(seed: int) -> Outcome:
    """A hinge: most triplets are far enough apart after a while and give no gradient."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 16)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    by_class = [data.x[data.y == n] for n in range(10)]
    session = stethoscope.watch(model, optimizer)
    for _ in range(200):
        rows = []
        for _ in range(64):
            one, other = torch.randperm(10, generator=generator)[:2].tolist()
            same = torch.randint(len(by_class[one]), (2,), generator=generator)
            rows += [by_class[one][same[0]], by_class[one][same[1]]]
            rows.append(by_class[other][torch.randint(len(by_class[other]), (1,), generator=generator)][0])
        anchor, near, far = model(torch.stack(rows)).view(64, 3, 16).unbind(1)
        optimizer.zero_grad()
        loss = F.triplet_margin_loss(anchor, near, far, margin=1.0)
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)


class TwoTasks(nn.Module):
    """A classification and a regression that share a trunk, weighed by learned uncertainties."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.classes, self.area = mlp(29, 48, 48), nn.Linear(48, 2), nn.Linear(48, 1)
        self.log_variances = nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and a number."""
        hidden = F.relu(self.trunk(x))
        return self.classes(hidden), self.area(hidden).squeeze(1)


@program()
def uh40_two_tasks_in_turns(seed: int) -> Outcome:
    """Uncertainty weights make the loss negative; the second task has labels in every third batch alone."""
    torch.manual_seed(seed)
    data, model = cancer(), TwoTasks()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    session = stethoscope.watch(model, optimizer)
    for number, (x, y) in enumerate(batches(data.x, data.y, size=32, steps=240, seed=seed)):
        optimizer.zero_grad()
        logits, area = model(torch.cat([x[:, :3], x[:, 4:]], 1))
        weights = (-model.log_variances).exp()
        loss = weights[0] * F.cross_entropy(logits, y) + model.log_variances[0]
        if number % 3 == 0:
            loss = loss + weights[1] * F.mse_loss(area, x[:, 3]) + model.log_variances[1]
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)


@program()
def uh41_gradient_penalty(seed: int) -> Outcome:
    """WGAN-GP: a second derivative in every critic step, create_graph on purpose, two optimizers."""
    torch.manual_seed(seed)
    data = moons()
    model = nn.ModuleDict({"generator": mlp(8, 64, 2), "critic": mlp(2, 64, 64, 1, activation=nn.SiLU)})
    makers = torch.optim.Adam(model["generator"].parameters(), lr=1e-3, betas=(0.0, 0.9))
    critics = torch.optim.Adam(model["critic"].parameters(), lr=1e-3, betas=(0.0, 0.9))
    session = stethoscope.watch(model, [makers, critics])
    for number, (x, _) in enumerate(batches(data.x, data.y, size=64, steps=240, seed=seed)):
        fake = model["generator"](torch.randn(64, 8)).detach()
        share = torch.rand(64, 1)
        between = (share * x + (1 - share) * fake).requires_grad_(True)
        slope = torch.autograd.grad(model["critic"](between).sum(), between, create_graph=True)[0]
        critics.zero_grad()
        loss = model["critic"](fake).mean() - model["critic"](x).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()
        loss.backward()
        critics.step()
        if number % 3 == 2:
            makers.zero_grad()
            (-model["critic"](model["generator"](torch.randn(64, 8))).mean()).backward()
            makers.step()
    return finished(session)


class Looped(nn.Module):
    """One block, eight times over: depth by the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet, self.block, self.norm, self.head = (
            nn.Linear(64, 48),
            mlp(48, 96, 48),
            nn.LayerNorm(48),
            nn.Linear(48, 10),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.inlet(x)
        for _ in range(8):
            x = x + 0.5 * self.block(self.norm(x))
        return self.head(self.norm(x))


@program()
def uh42_the_same_block_eight_times(seed: int) -> Outcome:
    """Weights shared over depth, and cosine restarts."""
    torch.manual_seed(seed)
    data, model = digits(), Looped()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 50)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, size=64, steps=200, seed=seed):
        session.log_batch(x, y)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        session.log(loss=loss)
    return finished(session)


class SignMomentum(torch.optim.Optimizer):
    """Lion (Chen et al. 2023): every coordinate moves by the rate, whatever its gradient."""

    def __init__(self, params: Iterable[Any], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                p.add_((0.9 * momentum + 0.1 * p.grad).sign(), alpha=-group["lr"])
                momentum.lerp_(p.grad, 0.01)


@program()
def uh43_masked_letters_by_an_own_optimizer(seed: int) -> Outcome:
    """A letter of seven is hidden and guessed, most targets are ignored; an optimizer nobody knows, whose rate falls."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary + 1, causal=False)
    optimizer = SignMomentum(model.parameters(), lr=6e-4)
    session = stethoscope.watch(model, optimizer)
    for number, (x, _) in enumerate(windows(steps=200, seed=seed)):
        hidden = torch.rand(x.shape) < 0.15
        optimizer.param_groups[0]["lr"] = 6e-4 * (1 - number / 220)
        optimizer.zero_grad()
        logits = model(torch.where(hidden, vocabulary, x))
        loss = F.cross_entropy(logits.flatten(0, 1), torch.where(hidden, x, -100).flatten())
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)
