"""Healthy: parts that are frozen, sparse, zero, tied, equal or idle on purpose."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program
from benchmarks.faults.data import batches, digit_images, digits, text, windows
from benchmarks.faults.models import CharModel, Classifier, ConvNet, mlp, next_letter_loss
from benchmarks.faults.programs.experts import Mixture
from benchmarks.faults.training import fit, score
from torch import nn

import stethoscope


class TrigramBag(nn.Module):
    """Hashed triples of letters in a table of 10,000 rows, few of which occur in a batch."""

    def __init__(self, num_rows: int = 10_000, *, sparse: bool = True) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(num_rows, 16, mode="mean", sparse=sparse)
        self.head = nn.Linear(16, 2)
        self.num_rows = num_rows

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits."""
        triples = (ids[:, :-2] * 7919 + ids[:, 1:-1] * 104729 + ids[:, 2:]) % self.num_rows
        return self.head(self.table(triples))


@program()
def h02_sparse_embeddings(seed: int) -> Outcome:
    """99% of the table's rows get no gradient in a step."""
    torch.manual_seed(seed)
    ids, _ = text()
    model = TrigramBag()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.3)
    half = len(ids) // 2
    session = stethoscope.watch(model, optimizer)
    starts = torch.Generator(torch.get_default_device()).manual_seed(seed)
    for _ in range(200):
        rows = torch.randint(len(ids) - 24, (4,), generator=starts)
        x, y = ids[rows[:, None] + torch.arange(24)], (rows > half).long()
        session.log_batch(x, y)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)


@program()
def h03_backbone_frozen_on_purpose(seed: int) -> Outcome:
    """A trained backbone, no gradients for it, and a new head for even and odd."""
    torch.manual_seed(seed)
    data, model = digits(), Classifier()
    teacher = torch.optim.Adam(model.parameters(), lr=2e-3)
    for x, y in batches(data.x, data.y, steps=100, seed=seed):
        teacher.zero_grad()
        F.cross_entropy(model(x), y).backward()
        teacher.step()
    for parameter in model.parameters():
        parameter.requires_grad = False
    model.head = nn.Linear(64, 2)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    fit(
        session,
        model,
        optimizer,
        batches(data.x, data.y % 2, steps=150, seed=seed),
        log_loss=True,
        log_batches=True,
        validate=lambda: score(model, data.val_x, data.val_y % 2),
    )
    return finished(session)


class LoRALinear(nn.Module):
    """A frozen layer and a low-rank correction that begins at 0."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """base(x) + B A x."""
        return self.base(x) + x @ self.lora_a.T @ self.lora_b.T


@program()
def h04_lora(seed: int) -> Outcome:
    """B = 0 at the start, so A has no gradient in the first step; everything else is frozen."""
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
        block.attn.q, block.attn.v = LoRALinear(block.attn.q), LoRALinear(block.attn.v)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, windows(steps=150, seed=seed), next_letter_loss, log_loss=True, log_batches=True)
    return finished(session)


@program()
def h07_experts_idle_for_a_few_steps(seed: int) -> Outcome:
    """Eight experts and small batches: now and then one gets nothing."""
    torch.manual_seed(seed)
    data, model = digits(), Mixture(num_experts=8)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, size=24, steps=250, seed=seed):
        session.log_batch(x, y)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) + 0.5 * model.balance
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)


@program()
def h10_bias_before_batchnorm(seed: int) -> Outcome:
    """BatchNorm takes the mean away again: the bias before it has a gradient of about 0."""
    torch.manual_seed(seed)
    data, model = digit_images(), ConvNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    session = stethoscope.watch(model, optimizer)
    fit(
        session,
        model,
        optimizer,
        batches(data.x, data.y, steps=150, seed=seed),
        log_loss=True,
        log_batches=True,
        validate=lambda: score(model, data.val_x, data.val_y),
    )
    return finished(session)


class ZeroInitResidual(nn.Module):
    """Residual branches that end in a layer of zeros: at the start only that last layer has a gradient."""

    def __init__(self, depth: int = 6) -> None:
        super().__init__()
        self.stem = nn.Linear(64, 64)
        self.branches = nn.ModuleList(mlp(64, 64, 64) for _ in range(depth))
        self.head = nn.Linear(64, 10)
        for branch in self.branches:
            nn.init.zeros_(branch[2].weight)
            nn.init.zeros_(branch[2].bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.stem(x)
        for branch in self.branches:
            x = x + branch(x)
        return self.head(x)


@program()
def h11_zero_init_residual_branches(seed: int) -> Outcome:
    """The usual way to begin a deep residual network as the identity."""
    torch.manual_seed(seed)
    data, model = digits(), ZeroInitResidual()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    fit(
        session,
        model,
        optimizer,
        batches(data.x, data.y, steps=150, seed=seed),
        log_loss=True,
        log_batches=True,
        validate=lambda: score(model, data.val_x, data.val_y),
    )
    return finished(session)


@program()
def h17_sparse_relu(seed: int) -> Outcome:
    """Biases below 0: each unit fires for one sample in five, and every one fires for some."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 256, 256, 10)
    nn.init.constant_(model[0].bias, -0.4)
    nn.init.constant_(model[2].bias, -0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    fit(
        session,
        model,
        optimizer,
        batches(data.x, data.y, steps=150, seed=seed),
        log_loss=True,
        log_batches=True,
        validate=lambda: score(model, data.val_x, data.val_y),
    )
    return finished(session)


@program()
def h23_batchnorm_in_eval_on_purpose(seed: int) -> Outcome:
    """Fine-tuning with the running statistics of before: BatchNorm modules in eval, their weights frozen."""
    torch.manual_seed(seed)
    data, model = digit_images(), ConvNet()
    before = torch.optim.Adam(model.parameters(), lr=2e-3)
    for x, y in batches(data.x, data.y, steps=80, seed=seed + 1):
        before.zero_grad()
        F.cross_entropy(model(x), y).backward()
        before.step()
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval().requires_grad_(False)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-4)
    session = stethoscope.watch(model, optimizer)
    for x, y in batches(data.x, data.y, steps=120, seed=seed):
        session.log_batch(x, y)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    return finished(session)


@program()
def h27_weights_tied_right(seed: int) -> Outcome:
    """Embedding and head are one tensor."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = CharModel(vocabulary)
    model.head.weight = model.embed.weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, windows(steps=150, seed=seed), next_letter_loss, log_loss=True, log_batches=True)
    return finished(session)


class EncoderModel(nn.Module):
    """torch's own encoder, whose layers are deep copies of one."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 32)
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3)
        self.head = nn.Linear(32, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits for the next letter."""
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.encoder(self.embed(ids), mask=mask, is_causal=True))


@program()
def h32_cloned_encoder_layers(seed: int) -> Outcome:
    """Three layers that are equal at the start and part at once."""
    torch.manual_seed(seed)
    _, vocabulary = text()
    model = EncoderModel(vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, windows(steps=120, seed=seed), next_letter_loss, log_loss=True, log_batches=True)
    return finished(session)
