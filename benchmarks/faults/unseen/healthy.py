"""Unseen: further healthy runs that look odd and are right."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program
from benchmarks.faults.data import (
    adding_problem,
    batches,
    cancer,
    diabetes,
    digit_images,
    digits,
    moons,
    text,
    windows,
    wine,
)
from benchmarks.faults.models import CharModel, ConvNet, Recurrent, mlp, next_letter_loss
from benchmarks.faults.programs.healthy_models import LoRALinear, TrigramBag
from benchmarks.faults.programs.healthy_networks import GAN
from benchmarks.faults.training import fit, score
from torch import nn

import stethoscope


@program()
def uh01_one_cycle(seed: int) -> Outcome:
    """OneCycleLR on a language model: up by 25 times, down to nothing."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=8e-3, total_steps=160)
    session = stethoscope.watch(model, optimizer)
    feed = windows(steps=160, seed=seed)
    fit(session, model, optimizer, feed, next_letter_loss, log_loss=True, log_batches=True, scheduler=scheduler)
    return finished(session)


@program()
def uh02_dense_gradients_of_a_sparse_table(seed: int) -> Outcome:
    """The same table with dense gradients and Adam: rows without a gradient still move a little."""
    torch.manual_seed(seed)
    ids, _ = text()
    model = TrigramBag(5000, sparse=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    session = stethoscope.watch(model, optimizer)
    starts = torch.Generator(torch.get_default_device()).manual_seed(seed)
    for _ in range(200):
        rows = torch.randint(len(ids) - 24, (8,), generator=starts)
        x, y = ids[rows[:, None] + torch.arange(24)], (rows > len(ids) // 2).long()
        session.log_batch(x, y)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)


@program()
def uh03_frozen_embeddings(seed: int) -> Outcome:
    """Embeddings frozen on purpose, everything in the optimizer."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary)
    model.embed.requires_grad_(False)
    model.position.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, windows(steps=100, seed=seed), next_letter_loss, log_loss=True, log_batches=True)
    return finished(session)


@program()
def uh04_lora_on_an_mlp(seed: int) -> Outcome:
    """Low-rank corrections of a pretrained MLP for permuted labels, SGD."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    before = torch.optim.Adam(model.parameters(), lr=3e-3)
    for x, y in batches(data.x, data.y, steps=80, seed=seed):
        before.zero_grad()
        F.cross_entropy(model(x), y).backward()
        before.step()
    model = nn.Sequential(LoRALinear(model[0]), nn.ReLU(), LoRALinear(model[2]))
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x, (data.y + 1) % 10, steps=150, seed=seed), log_loss=True)
    return finished(session)


@program()
def uh05_wasserstein_gan(seed: int) -> Outcome:
    """Five critic steps for each of the generator, weights clamped, losses of both signs."""
    torch.manual_seed(seed)
    data, model = moons(), GAN()
    generator = torch.optim.RMSprop(model.generator.parameters(), lr=5e-4)
    critic = torch.optim.RMSprop(model.discriminator.parameters(), lr=5e-4)
    session = stethoscope.watch(model, [generator, critic])
    for number, (x, _) in enumerate(batches(data.x, data.y, size=128, steps=250, seed=seed)):
        fake = model.generator(torch.randn(128, 8))
        critic.zero_grad()
        loss = model.discriminator(fake.detach()).mean() - model.discriminator(x).mean()
        loss.backward()
        critic.step()
        with torch.no_grad():
            for p in model.discriminator.parameters():
                p.clamp_(-0.1, 0.1)
        if number % 5 == 4:
            generator.zero_grad()
            (-model.discriminator(fake).mean()).backward()
            generator.step()
    return finished(session)


@program()
def uh12_half_dropped(seed: int) -> Outcome:
    """Dropout of 0.5 in a CNN: training loss above validation loss throughout."""
    torch.manual_seed(seed)
    data, model = digit_images(), ConvNet(dropout=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    session = stethoscope.watch(model, optimizer)
    fit(
        session,
        model,
        optimizer,
        batches(data.x, data.y, steps=200, seed=seed),
        log_loss=True,
        log_batches=True,
        validate=lambda: score(model, data.val_x, data.val_y),
        validate_every=10,
    )
    return finished(session)


@program()
def uh14_longer_sequences(seed: int) -> Outcome:
    """A curriculum over length: 8 letters, then 32."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    for length in (8, 32):
        feed = windows(length=length, steps=80, seed=seed)
        fit(session, model, optimizer, feed, next_letter_loss, log_loss=True, log_batches=True)
    return finished(session)


@program()
def uh16_lbfgs(seed: int) -> Outcome:
    """LBFGS: several backward passes in one step, by a closure."""
    torch.manual_seed(seed)
    data, model = cancer(), mlp(30, 8, 2, activation=nn.Tanh)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=4)
    session = stethoscope.watch(model, optimizer)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data.x), data.y) + 1e-3 * sum(p.square().sum() for p in model.parameters())
        loss.backward()
        return loss

    for _ in range(60):
        optimizer.step(closure)
    return finished(session)


@program()
def uh20_bias_from_class_priors(seed: int) -> Outcome:
    """Two per cent positives and a head whose bias says so: the first loss is 0.1, not ln 2."""
    torch.manual_seed(seed)
    data = digits()
    y = ((data.y == 3) & (torch.arange(len(data.y)) % 3 == 0)).float()
    model = nn.Sequential(mlp(64, 64, 1), nn.Flatten(0))
    nn.init.constant_(model[0][2].bias, -3.4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    feed = batches(data.x, y, size=128, steps=200, seed=seed)
    fit(session, model, optimizer, feed, F.binary_cross_entropy_with_logits, log_loss=True, log_batches=True)
    return finished(session)


@program()
def uh21_distillation_from_a_wider_teacher(seed: int) -> Outcome:
    """A frozen teacher inside the module, in eval, in no optimizer."""
    torch.manual_seed(seed)
    data = digits()
    model = nn.ModuleDict({"student": mlp(64, 32, 10), "teacher": mlp(64, 128, 10)})
    before = torch.optim.Adam(model["teacher"].parameters(), lr=3e-3)
    for x, y in batches(data.x, data.y, steps=100, seed=seed):
        before.zero_grad()
        F.cross_entropy(model["teacher"](x), y).backward()
        before.step()
    model["teacher"].requires_grad_(False).eval()
    optimizer = torch.optim.AdamW(model["student"].parameters(), lr=2e-3)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, steps=150, seed=seed):
        session.log_batch(x, y)
        optimizer.zero_grad()
        goal = model["teacher"](x).softmax(-1)
        loss = F.kl_div(model["student"](x).log_softmax(-1), goal, reduction="batchmean")
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)


class VectorQuantised(nn.Module):
    """An autoencoder whose middle is rounded to a code book, gradients straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(64, 64, 8), mlp(8, 64, 64)
        self.codes = nn.Embedding(32, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The picture again, and the two commitment terms."""
        z = self.encoder(x)
        near = self.codes(torch.cdist(z, self.codes.weight).argmin(1))
        commitment = F.mse_loss(near, z.detach()) + 0.25 * F.mse_loss(z, near.detach())
        return self.decoder(z + (near - z).detach()), commitment


@program()
def uh22_straight_through(seed: int) -> Outcome:
    """VQ-VAE: three detaches, and codes that are rarely or never used."""
    torch.manual_seed(seed)
    data, model = digits(), VectorQuantised()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    for x, _ in batches(data.x, data.y, steps=200, seed=seed):
        optimizer.zero_grad()
        output, commitment = model(x)
        loss = F.mse_loss(output, x) + commitment
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)


@program()
def uh26_clipped_lstm(seed: int) -> Outcome:
    """An LSTM with T=100, clipped at 0.5."""
    torch.manual_seed(seed)
    model = Recurrent(nn.LSTM, 2, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    for x, y in adding_problem(steps=80, seed=seed):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x).squeeze(1), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        session.log(loss=loss)
    return finished(session)


@program()
def uh29_batch_of_one_regression(seed: int) -> Outcome:
    """One row at a time, LayerNorm."""
    torch.manual_seed(seed)
    data = diabetes()
    model = nn.Sequential(nn.Linear(10, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    feed = batches(data.x, data.y.unsqueeze(1), size=1, steps=300, seed=seed)
    fit(session, model, optimizer, feed, F.mse_loss, log_loss=True, log_batches=True)
    return finished(session)


@program()
def uh30_resume_with_momentum(seed: int) -> Outcome:
    """SGD with momentum and a scheduler, all of it loaded again at step 70."""
    torch.manual_seed(seed)
    data, model = wine(), mlp(13, 32, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    feed = list(batches(data.x, data.y, size=32, steps=140, seed=seed))
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, feed[:70], log_loss=True)
    folder = Path(session.stop().path or "")
    state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    model = mlp(13, 32, 3)
    model.load_state_dict(state[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer.load_state_dict(state[1])
    session = stethoscope.watch(model, optimizer, run=folder)
    fit(session, model, optimizer, feed[70:], log_loss=True)
    return finished(session)


class ActorCritic(nn.Module):
    """Four networks, two of which follow the others softly."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = mlp(2, 32, 2, activation=nn.Tanh), mlp(4, 32, 1)
        self.actor_target, self.critic_target = copy.deepcopy(self.actor), copy.deepcopy(self.critic)


@program()
def uh31_soft_targets(seed: int) -> Outcome:
    """DDPG on a walk to the origin: targets that start equal and follow by a hundredth."""
    torch.manual_seed(seed)
    model = ActorCritic()
    actor = torch.optim.Adam(model.actor.parameters(), lr=1e-3)
    critic = torch.optim.Adam(model.critic.parameters(), lr=2e-3)
    session = stethoscope.watch(model, [actor, critic])
    for _ in range(200):
        here = torch.rand(64, 2) * 2 - 1
        action = torch.rand(64, 2) * 2 - 1
        there = here + 0.1 * action
        reward = -there.norm(dim=1, keepdim=True)
        with torch.no_grad():
            goal = reward + 0.9 * model.critic_target(torch.cat([there, torch.tanh(model.actor_target(there))], 1))
        critic.zero_grad()
        loss = F.mse_loss(model.critic(torch.cat([here, action], 1)), goal)
        loss.backward()
        critic.step()
        actor.zero_grad()
        (-model.critic(torch.cat([here, torch.tanh(model.actor(here))], 1)).mean()).backward()
        actor.step()
        with torch.no_grad():
            for slow, fast in ((model.actor_target, model.actor), (model.critic_target, model.critic)):
                for a, b in zip(slow.parameters(), fast.parameters(), strict=True):
                    a.lerp_(b, 0.01)
    return finished(session)
