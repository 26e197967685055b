"""Unseen, healthy, a fourth draw: right trainings that look wrong to somebody who does not know what they are."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program
from benchmarks.faults.data import batches, cancer, digit_images, digits, text, windows, wine
from benchmarks.faults.models import CharModel, ConvNet, mlp, next_letter_loss
from benchmarks.faults.training import fit, score
from benchmarks.faults.unseen.strange_networks import Patches, Segmenter, ink
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.checkpoint import checkpoint

import stethoscope


@program()
def uh44_super_convergence(seed: int) -> Outcome:
    """One cycle up to a rate of 0.3 with momentum cycled against it, in a CNN: the loss humps in the middle."""
    torch.manual_seed(seed)
    data, model = digit_images(), ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.3, total_steps=200)
    session = stethoscope.watch(model, optimizer)
    fit(
        session,
        model,
        optimizer,
        batches(data.x, data.y, size=64, steps=200, seed=seed),
        log_loss=True,
        log_batches=True,
        scheduler=scheduler,
        validate=lambda: score(model, data.val_x, data.val_y),
        validate_every=25,
    )
    return finished(session)


@program()
def uh45_hinge_gan(seed: int) -> Outcome:
    """Hinge losses, spectral norm, rates four to one: the critic's loss stays near 2, the generator's wanders."""
    torch.manual_seed(seed)
    data = digits()
    critic = nn.Sequential(spectral_norm(nn.Linear(64, 64)), nn.LeakyReLU(0.2), spectral_norm(nn.Linear(64, 1)))
    model = nn.ModuleDict({"maker": mlp(16, 64, 64), "critic": critic})
    makers = torch.optim.Adam(model["maker"].parameters(), lr=5e-4, betas=(0.0, 0.9))
    critics = torch.optim.Adam(model["critic"].parameters(), lr=2e-3, betas=(0.0, 0.9))
    session = stethoscope.watch(model, [makers, critics])
    for x, _ in batches(data.x, data.y, size=64, steps=200, seed=seed):
        fake = model["maker"](torch.randn(64, 16))
        critics.zero_grad()
        loss = F.relu(1 - model["critic"](x)).mean() + F.relu(1 + model["critic"](fake.detach())).mean()
        loss.backward()
        critics.step()
        makers.zero_grad()
        gain = -model["critic"](fake).mean()
        gain.backward()
        makers.step()
        session.log(critic=loss, maker=gain)
    return finished(session)


class Adapter(nn.Module):
    """A frozen layer and a correction of rank 4 that begins at nothing."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 4, bias=False)
        self.up = nn.Linear(4, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the layer says, corrected."""
        return self.base(x) + 2.0 * self.up(self.down(x))


@program()
def uh46_adapters_and_norms(seed: int) -> Outcome:
    """A language model, trained, then frozen; adapters in queries and values, norms free, for text in reverse."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary)
    before = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for x, y in windows(steps=80, seed=seed + 1):
        before.zero_grad()
        next_letter_loss(model(x), y).backward()
        before.step()
    model.requires_grad_(False)
    for block in model.blocks:
        block.attn.q, block.attn.v = Adapter(block.attn.q), Adapter(block.attn.v)
        block.norm1.requires_grad_(True)
        block.norm2.requires_grad_(True)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
    session = stethoscope.watch(model, optimizer)
    feed = ((y.flip(1), x.flip(1)) for x, y in windows(steps=120, seed=seed))
    fit(session, model, optimizer, feed, next_letter_loss, log_loss=True, log_batches=True)
    return finished(session)


@program()
def uh47_distilled_at_four_degrees(seed: int) -> Outcome:
    """A teacher outside of what is watched, temperature 4, its divergence times 16: the loss is far from ln 10."""
    torch.manual_seed(seed)
    data, teacher, model = digits(), mlp(64, 128, 10), mlp(64, 24, 10)
    before = torch.optim.Adam(teacher.parameters(), lr=3e-3)
    for x, y in batches(data.x, data.y, steps=120, seed=seed + 1):
        before.zero_grad()
        F.cross_entropy(teacher(x), y).backward()
        before.step()
    teacher.eval().requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, steps=180, seed=seed):
        session.log_batch(x, y)
        optimizer.zero_grad()
        logits, soft = model(x), F.softmax(teacher(x) / 4, -1)
        loss = 16 * F.kl_div(F.log_softmax(logits / 4, -1), soft, reduction="batchmean") + 0.1 * F.cross_entropy(
            logits, y
        )
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)


@program()
def uh48_smoothed_pixels(seed: int) -> Outcome:
    """Label smoothing of 0.3 in a segmentation: the loss cannot fall below 0.9, and soon does not."""
    torch.manual_seed(seed)
    data, model = digit_images(), Segmenter(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    session = stethoscope.watch(model, optimizer)
    feed = ((x, ink(x)) for x, _ in batches(data.x, data.y, size=32, steps=200, seed=seed))
    fit(
        session,
        model,
        optimizer,
        feed,
        lambda output, y: F.cross_entropy(output, y, label_smoothing=0.3),
        log_loss=True,
        log_batches=True,
    )
    return finished(session)


class ActorCritic(nn.Module):
    """A body, a policy and a value."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.policy, self.value = mlp(2, 32, 32, activation=nn.Tanh), nn.Linear(32, 4), nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of four moves, and what the place is worth."""
        hidden = torch.tanh(self.body(x))
        return self.policy(hidden), self.value(hidden).squeeze(-1)


@program()
def uh49_actor_and_critic(seed: int) -> Outcome:
    """A2C on a walk to the middle of a plane: advantages around 0, an entropy bonus, a loss that says nothing."""
    torch.manual_seed(seed)
    model = ActorCritic()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3, alpha=0.99, eps=1e-5)
    session = stethoscope.watch(model, optimizer)
    moves = torch.tensor([[0.2, 0.0], [-0.2, 0.0], [0.0, 0.2], [0.0, -0.2]])
    place = torch.rand(32, 2) * 4 - 2
    for _ in range(200):
        logits, values, picks, rewards = [], [], [], []
        for _ in range(5):
            policy, value = model(place)
            pick = torch.distributions.Categorical(logits=policy).sample()
            nearer = place + moves[pick]
            rewards.append(place.norm(dim=1) - nearer.norm(dim=1))
            done = nearer.norm(dim=1) < 0.3
            place = torch.where(done[:, None], torch.rand(32, 2) * 4 - 2, nearer)
            logits.append(policy), values.append(value), picks.append(pick)
        with torch.no_grad():
            goal = model(place)[1]
        loss = torch.zeros(())
        for policy, value, pick, reward in zip(*(part[::-1] for part in (logits, values, picks, rewards)), strict=True):
            goal = reward + 0.9 * goal
            chances = F.log_softmax(policy, -1)
            gained = (goal - value.detach()) * chances.gather(1, pick[:, None]).squeeze(1)
            loss = loss + (0.5 * (goal - value).square() - gained + 0.01 * (chances.exp() * chances).sum(1)).mean() / 5
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        session.log(loss=loss, reward=torch.stack(rewards).mean())
    return finished(session)


@program()
def uh50_few_pixels_that_matter(seed: int) -> Outcome:
    """Binary segmentation, (N, 1, H, W): one pixel in twenty-five is marked, weighed by 10, and learned."""
    torch.manual_seed(seed)
    data, model = digit_images(), Segmenter(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    session = stethoscope.watch(model, optimizer)
    for x, _ in batches(data.x, data.y, size=32, steps=200, seed=seed):
        marks = (F.avg_pool2d(x, 3, 1, 1) > 1.2).float()
        session.log_batch(x, marks)
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(x), marks, pos_weight=torch.tensor(10.0))
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)


class Checkpointed(CharModel):
    """Every block is computed again in backward."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.embed(ids) + self.position.weight[: ids.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(x))


@program()
def uh51_checkpointed_blocks(seed: int) -> Outcome:
    """Gradient checkpointing with dropout: blocks run twice a step, once inside of backward."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = Checkpointed(vocabulary, dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    fit(
        session,
        model,
        optimizer,
        windows(steps=120, seed=seed),
        next_letter_loss,
        log_loss=True,
        log_batches=True,
        clip=1.0,
    )
    return finished(session)


@program()
def uh52_mixed_up(seed: int) -> Outcome:
    """Mixup: targets are shares, the training loss stays far above the validation loss."""
    torch.manual_seed(seed)
    data, model = digit_images(), Patches(10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    session = stethoscope.watch(model, optimizer)
    mixing = torch.distributions.Beta(1.0, 1.0)

    def mixed() -> Any:
        for x, y in batches(data.x, data.y, size=64, steps=200, seed=seed):
            share, order = float(mixing.sample()), torch.randperm(len(x))
            hot = F.one_hot(y, 10).float()
            yield share * x + (1 - share) * x[order], share * hot + (1 - share) * hot[order]

    fit(
        session,
        model,
        optimizer,
        mixed(),
        log_loss=True,
        log_batches=True,
        validate=lambda: score(model, data.val_x, data.val_y),
    )
    return finished(session)


@program()
def uh53_statistics_kept_weights_free(seed: int) -> Outcome:
    """Fine-tuning with BatchNorm in eval while its scale and shift go on learning, at a tenth of the rate."""
    torch.manual_seed(seed)
    data, model = digit_images(), ConvNet()
    before = torch.optim.Adam(model.parameters(), lr=3e-3)
    for x, y in batches(data.x, data.y, steps=100, seed=seed + 1):
        before.zero_grad()
        F.cross_entropy(model(x), y // 2 * 2).backward()
        before.step()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, size=32, steps=150, seed=seed):
        model.train()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        session.log_batch(x, y)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)


class Trusting(torch.optim.Optimizer):
    """Adam's direction, as long as a share of each tensor's own length: the idea of LAMB."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step."""
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                first = state.setdefault("first", torch.zeros_like(p)).mul_(0.9).add_(p.grad, alpha=0.1)
                second = state.setdefault("second", torch.zeros_like(p)).mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
                way = first / (second.sqrt() + 1e-6) + 0.01 * p
                trust = float(p.norm() / way.norm()) if p.dim() > 1 and way.norm() > 0 else 1.0
                p.add_(way, alpha=-group["lr"] * trust)


@program()
def uh54_large_batches_by_trust(seed: int) -> Outcome:
    """Batches of 512, steps of a fixed share of each weight, a linear warm-up and decay."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 96, 96, 10, activation=nn.GELU)
    optimizer = Trusting(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min((n + 1) / 20, (151 - n) / 130))
    session = stethoscope.watch(model, optimizer)
    feed = batches(data.x, data.y, size=512, steps=150, seed=seed)
    fit(session, model, optimizer, feed, log_loss=True, log_batches=True, scheduler=scheduler)
    return finished(session)


@program()
def uh55_harder_and_harder(seed: int) -> Outcome:
    """A curriculum of noise: none at first, half as much again as signal at the end, so that the loss stops falling early."""
    torch.manual_seed(seed)
    data, model = cancer(), mlp(30, 48, 48, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    session = stethoscope.watch(model, optimizer)
    feed = batches(data.x, data.y, size=48, steps=240, seed=seed)
    harder = ((x + 1.5 * number / 240 * torch.randn_like(x), y) for number, (x, y) in enumerate(feed))
    fit(session, model, optimizer, harder, log_loss=True, log_batches=True)
    return finished(session)


class Gated(nn.Module):
    """A gated linear unit: what passes is decided unit by unit, nothing is routed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.value, self.head = nn.Linear(13, 8), nn.Linear(13, 8), nn.Linear(8, 3)
        nn.init.constant_(self.gate.bias, 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.head(torch.sigmoid(self.gate(x)) * torch.tanh(self.value(x)))


@program()
def uh56_gates_that_stand_open(seed: int) -> Outcome:
    """A gated linear unit whose gates begin open, as in highway networks; one of them is the widest throughout."""
    torch.manual_seed(seed)
    data, model = wine(), Gated()
    with torch.no_grad():
        model.gate.bias[5] = 8.0
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    session = stethoscope.watch(model, optimizer)
    fit(
        session,
        model,
        optimizer,
        batches(data.x, data.y, size=32, steps=200, seed=seed),
        log_loss=True,
        log_batches=True,
    )
    return finished(session)


@program()
def uh57_sharpness_aware(seed: int) -> Outcome:
    """SAM: uphill first, a second backward there, then the step of both from where it stood."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 48, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, size=64, steps=150, seed=seed):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            length = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            uphill = [0.05 * p.grad / length for p in model.parameters()]
            for p, move in zip(model.parameters(), uphill, strict=True):
                p.add_(move)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p, move in zip(model.parameters(), uphill, strict=True):
                p.sub_(move)
        optimizer.step()
        session.log(loss=loss)
    return finished(session)
