"""Models, batches and losses with nothing wrong: the checkup must be silent about every one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn


class Case(NamedTuple):
    model: nn.Module
    batch: Any
    loss_fn: Callable[..., Any]
    optimizer: Any = None
    options: dict[str, Any] = {}  # noqa: RUF012 - never written to


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)


class ResidualBlock(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or width_in != width:
            self.shortcut = nn.Sequential(nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        nn.init.zeros_(self.bn2.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.shortcut(x), inplace=True)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.layer1, self.layer2, self.layer3 = (
            ResidualBlock(8, 8),
            ResidualBlock(8, 16, 2),
            ResidualBlock(16, 32, 2),
        )
        self.fc = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer3(self.layer2(self.layer1(self.stem(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def resnet() -> Case:
    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    return Case(model, (torch.randn(16, 3, 16, 16), torch.randint(10, (16,))), nn.CrossEntropyLoss(), optimizer)


class CausalBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (part.view(b, t, 4, c // 4).transpose(1, 2) for part in self.qkv(self.ln1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1 if self.training else 0.0)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary: int = 60, width: int = 32, length: int = 24) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(CausalBlock(width) for _ in range(3))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        for p in self.parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=0.02)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def transformer() -> Case:
    model = GPT()
    text = torch.randint(60, (8, 25))
    return Case(
        model,
        (text[:, :-1], text[:, 1:]),
        lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()),
        adam(model),
        {"causal": True},
    )


class LSTMTagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 32, 2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(32, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        lengths = (ids != 0).sum(1)
        out, _ = self.lstm(self.embed(ids))
        return self.head(out[torch.arange(len(ids)), lengths - 1])


def lstm() -> Case:
    model = LSTMTagger()
    ids = torch.randint(1, 50, (16, 20))
    for row in range(16):
        ids[row, 8 + row % 12 :] = 0
    return Case(model, (ids, torch.randint(4, (16,))), F.cross_entropy, adam(model), {"pad_id": 0})


class UNet(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()

        def double(a: int, b: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv2d(a, b, 3, padding=1),
                nn.BatchNorm2d(b),
                nn.ReLU(inplace=True),
                nn.Conv2d(b, b, 3, padding=1),
                nn.BatchNorm2d(b),
                nn.ReLU(inplace=True),
            )

        self.down1, self.down2, self.middle = (
            double(1, width),
            double(width, 2 * width),
            double(2 * width, 4 * width),
        )
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.dec2 = double(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.dec1 = double(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.middle(F.max_pool2d(b, 2))
        b = self.dec2(torch.cat([self.up2(c), b], 1))
        return self.out(self.dec1(torch.cat([self.up1(b), a], 1)))


def unet() -> Case:
    model = UNet()
    x = torch.randn(4, 1, 16, 16)
    return Case(model, (x, (x > 0).float()), nn.BCEWithLogitsLoss(), adam(model))


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(64, 8), nn.Linear(64, 8)
        self.decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        h = self.encoder(x)
        mean, log_variance = self.mean(h), self.log_variance(h)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(z), mean, log_variance


def evidence_bound(out: Any, x: torch.Tensor) -> torch.Tensor:
    recon, mean, log_variance = out
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1)
    return (F.binary_cross_entropy(recon, x, reduction="none").sum(1) + divergence).mean()


def vae() -> Case:
    model, x = VAE(), torch.rand(32, 64)
    return Case(model, (x, x), evidence_bound, adam(model))


def vae_summed() -> Case:
    model, x = VAE(), torch.rand(32, 64)
    return Case(model, (x, x), lambda out, y: evidence_bound(out, y) * len(y), adam(model))


def gan_generator() -> Case:
    generator = nn.Sequential(
        nn.Linear(16, 32 * 4 * 4),
        nn.Unflatten(1, (32, 4, 4)),
        nn.BatchNorm2d(32),
        nn.ReLU(True),
        nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(True),
        nn.ConvTranspose2d(16, 1, 4, 2, 1),
        nn.Tanh(),
    )
    critic = nn.Sequential(
        nn.Conv2d(1, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.BatchNorm2d(16), nn.Flatten(), nn.Linear(16 * 64, 1)
    )
    optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    return Case(
        generator,
        (torch.randn(16, 16), torch.ones(16)),
        lambda fake, real: F.binary_cross_entropy_with_logits(critic(fake).squeeze(1), real),
        optimizer,
    )


class MoE(nn.Module):
    def __init__(self, num_experts: int = 6, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Linear(20, width)
        self.router = nn.Linear(width, num_experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width)) for _ in range(num_experts)
        )
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))
        gates, chosen = self.router(x).softmax(-1).topk(2, -1)
        gates = gates / gates.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, slots = (chosen == number).nonzero(as_tuple=True)
            out = out.index_add(0, rows, expert(x[rows]) * gates[rows, slots, None])
        return self.head(x + out)


def moe() -> Case:
    model = MoE()
    return Case(model, (torch.randn(48, 20), torch.randint(5, (48,))), F.cross_entropy, adam(model))


class ViT(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, 17, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 4, 64, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        return self.head(self.norm(self.encoder(x))[:, 0])


def vit() -> Case:
    model = ViT()
    return Case(
        model,
        (torch.randn(12, 3, 16, 16), torch.randint(10, (12,))),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        adam(model),
    )


class GCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Linear(12, 32), nn.Linear(32, 3)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        def spread(h: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(h).index_add(0, edges[1], h[edges[0]]) + h

        return self.conv2(spread(F.relu(self.conv1(spread(x)))))


def gnn() -> Case:
    model = GCN()
    return Case(
        model,
        ((torch.randn(40, 12), torch.randint(40, (2, 160))), torch.randint(3, (40,))),
        F.cross_entropy,
        adam(model),
    )


class DenseGCN(nn.Module):
    def __init__(self, adjacency: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("adjacency", adjacency / adjacency.sum(1, keepdim=True))
        self.layer1, self.layer2 = nn.Linear(12, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.adjacency @ self.layer2(F.relu(self.adjacency @ self.layer1(x)))


def gnn_dense() -> Case:
    model = DenseGCN((torch.rand(30, 30) < 0.2).float() + torch.eye(30))
    return Case(model, (torch.randn(30, 12), torch.randint(3, (30,))), F.cross_entropy, adam(model))


class DiffusionMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.first, self.second, self.out = nn.Linear(2, 64), nn.Linear(96, 64), nn.Linear(64, 2)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        angles = t[:, None] * torch.exp(-torch.arange(8) * 1.2)
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        h = F.silu(self.first(x))
        return self.out(F.silu(self.second(torch.cat([h, time], -1))))


def diffusion() -> Case:
    model = DiffusionMLP()
    noise = torch.randn(64, 2)
    return Case(model, ((torch.rand(64, 2) + noise, torch.randint(1000, (64,))), noise), F.mse_loss, adam(model))


# ---- further right ones: what looks like a fault and is none ----


class LoRA(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = (
            nn.Linear(base.in_features, rank, bias=False),
            nn.Linear(rank, base.out_features, bias=False),
        )
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


def lora() -> Case:
    model = nn.Sequential(
        LoRA(nn.Linear(20, 64)),
        nn.ReLU(),
        LoRA(nn.Linear(64, 64)),
        nn.ReLU(),
        nn.Linear(64, 5).requires_grad_(False),
    )
    return Case(model, (torch.randn(32, 20), torch.randint(5, (32,))), F.cross_entropy, adam(model))


def pretrained_head() -> Case:
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
    x, y = torch.randn(64, 20), torch.randint(5, (64,))
    trainer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(120):
        trainer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        trainer.step()
    model.zero_grad()
    with torch.no_grad():
        model[2].bias.copy_(torch.tensor([3.0, -2.0, 0.0, 1.0, -4.0]))
    return Case(model, (x, y), F.cross_entropy, adam(model))


class ZeroBranches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(20, 32)
        self.branches = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)) for _ in range(5))
        self.head = nn.Linear(32, 5)
        for branch in self.branches:
            nn.init.zeros_(branch[2].weight)
            nn.init.zeros_(branch[2].bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for branch in self.branches:
            x = x + branch(x)
        return self.head(x)


def zero_branches() -> Case:
    model = ZeroBranches()
    return Case(model, (torch.randn(32, 20), torch.randint(5, (32,))), F.cross_entropy, adam(model))


def regression() -> Case:
    model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1))
    x = torch.randn(64, 10)
    y = x[:, :1] * 70 + 150
    nn.init.constant_(model[2].bias, 150.0)
    return Case(model, (x, y), F.mse_loss, adam(model))


def counts_with_softplus() -> Case:
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1), nn.Softplus(), nn.Flatten(0))
    return Case(model, (torch.randn(64, 10), torch.poisson(torch.full((64,), 3.0))), F.mse_loss, adam(model))


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        self.right = copy.deepcopy(self.left)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return F.normalize(self.left(a), dim=-1), F.normalize(self.right(b), dim=-1), self.scale.exp()


def info_nce(out: Any, _: Any) -> torch.Tensor:
    a, b, scale = out
    logits = scale * a @ b.T
    labels = torch.arange(len(a))
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


def contrastive() -> Case:
    model = TwoTowers()
    return Case(model, ((torch.randn(32, 16), torch.randn(32, 16)), torch.arange(32)), info_nce, adam(model))


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.net(x), dim=-1)


def supervised_contrastive() -> Case:
    def loss(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        same = (y[:, None] == y[None]).float() - torch.eye(len(y))
        scores = (z @ z.T / 0.2).masked_fill(torch.eye(len(y), dtype=torch.bool), float("-inf"))
        log_p = scores.log_softmax(-1).masked_fill(torch.eye(len(y), dtype=torch.bool), 0.0)
        return -((same * log_p).sum(1) / same.sum(1).clamp(min=1)).mean()

    model = Pairs()
    return Case(model, (torch.randn(32, 16), torch.randint(4, (32,))), loss, adam(model))


class Distilled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            target = self.teacher(x)
        return self.student(x + 0.1 * torch.randn_like(x)), target


def distillation() -> Case:
    model = Distilled()
    optimizer = torch.optim.Adam(model.student.parameters(), lr=1e-3)
    return Case(
        model,
        (torch.randn(32, 16), torch.randint(4, (32,))),
        lambda out, y: (
            F.cross_entropy(out[0], y)
            + 0.5 * F.kl_div(out[0].log_softmax(-1), out[1].softmax(-1), reduction="batchmean")
        ),
        optimizer,
    )


class HiddenTeacher(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Linear(16, 4)
        self.kept = [nn.Linear(16, 4)]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            target = self.kept[0](x)
        return self.student(x), target


def hidden_teacher() -> Case:
    model = HiddenTeacher()
    return Case(
        model,
        (torch.randn(32, 16), torch.randint(4, (32,))),
        lambda out, y: F.cross_entropy(out[0], y) + F.mse_loss(*out),
        adam(model),
    )


def frozen_backbone() -> Case:
    model = nn.Sequential(
        nn.Linear(16, 32),
        nn.ReLU(),
        nn.Linear(32, 32),
        nn.ReLU(),
        nn.Linear(32, 32),
        nn.ReLU(),
        nn.Linear(32, 4),
    )
    for layer in (0, 2, 4):
        model[layer].requires_grad_(False)
    return Case(model, (torch.randn(32, 16), torch.randint(4, (32,))), F.cross_entropy, adam(model))


def frozen_first_blocks() -> Case:
    model = GPT()
    model.wte.requires_grad_(True)
    for block in model.blocks[:2]:
        block.requires_grad_(False)
    text = torch.randint(60, (8, 25))
    return Case(
        model,
        (text[:, :-1], text[:, 1:]),
        lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()),
        adam(model),
    )


def warm_up() -> Case:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.01}], lr=0.1
    )
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 100))
    return Case(model, (torch.randn(32, 16), torch.randint(4, (32,))), F.cross_entropy, optimizer)


class StopGradient(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16))
        self.predictor = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 16))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        za, zb = self.encoder(a), self.encoder(b)
        return self.predictor(za), self.predictor(zb), za.detach(), zb.detach()


def stop_gradient() -> Case:
    model = StopGradient()
    return Case(
        model,
        ((torch.randn(32, 16), torch.randn(32, 16)), None),
        lambda o: -(F.cosine_similarity(o[0], o[3]).mean() + F.cosine_similarity(o[1], o[2]).mean()) / 2,
        adam(model),
    )


class MaskedEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32, padding_idx=0)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = ids != 0
        x = self.encoder(self.embed(ids), src_key_padding_mask=~mask)
        return self.head((x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def masked_encoder() -> Case:
    model = MaskedEncoder()
    ids = torch.randint(1, 50, (16, 20))
    for row in range(16):
        ids[row, 8 + row % 12 :] = 0
    return Case(model, {"ids": ids, "labels": torch.randint(3, (16,))}, F.cross_entropy, adam(model), {"pad_id": 0})


class TimeFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(30, 16), nn.GRU(16, 32), nn.Linear(32, 30)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(self.embed(ids))[0])


def time_first() -> Case:
    model = TimeFirst()
    text = torch.randint(30, (21, 8))
    return Case(model, (text[:-1], text[1:]), lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()), adam(model))


def binary() -> Case:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 1), nn.Sigmoid(), nn.Flatten(0))
    return Case(model, (torch.randn(32, 16), torch.randint(2, (32,)).float()), nn.BCELoss(), adam(model))


def quantiles() -> Case:
    levels = torch.tensor([0.1, 0.5, 0.9])

    def pinball(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        error = y[:, None] - out
        return torch.maximum(levels * error, (levels - 1) * error).mean()

    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3))
    return Case(model, (torch.randn(32, 16), torch.randn(32)), pinball, adam(model))


def raw_images_normalised_inside() -> Case:
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
    return Case(
        model,
        (torch.randint(256, (16, 3, 8, 8)).float(), torch.randint(10, (16,))),
        F.cross_entropy,
        adam(model),
    )


def batch_of_one() -> Case:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    return Case(model, (torch.randn(1, 16), torch.randint(4, (1,))), F.cross_entropy, adam(model))


def inverted_bottleneck() -> Case:
    def block(a: int, e: int, b: int) -> list[nn.Module]:
        return [
            nn.Conv2d(a, e, 1, bias=False),
            nn.BatchNorm2d(e),
            nn.ReLU6(),
            nn.Conv2d(e, e, 3, 1, 1, groups=e, bias=False),
            nn.BatchNorm2d(e),
            nn.ReLU6(),
            nn.Conv2d(e, b, 1, bias=False),
            nn.BatchNorm2d(b),
        ]

    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU6(),
        *block(32, 64, 16),
        *block(16, 96, 24),
        nn.Conv2d(24, 64, 1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU6(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(64, 10),
    )
    return Case(model, (torch.randn(8, 3, 16, 16), torch.randint(10, (8,))), F.cross_entropy, adam(model))


def separable() -> Case:
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    x = torch.randn(400, 6)
    return Case(model, (x, (x[:, 0] > 0).long()), F.cross_entropy, adam(model))


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(40, 32), nn.Embedding(40, 32)
        self.body = nn.Transformer(32, 4, 1, 1, 64, batch_first=True)
        self.head = nn.Linear(32, 40)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.head(self.body(self.source(source), self.target(target), tgt_mask=mask))


def encoder_decoder() -> Case:
    model, ids = EncoderDecoder(), torch.randint(40, (8, 13))
    return Case(
        model,
        ((torch.randint(40, (8, 12)), ids[:, :-1]), ids[:, 1:]),
        lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()),
        adam(model),
        {"causal": True},
    )


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 6))

    def forward(self, x: torch.Tensor, legal: torch.Tensor) -> torch.Tensor:
        return self.net(x).masked_fill(~legal, float("-inf"))


def masked_policy() -> Case:
    model, legal = Policy(), torch.rand(32, 6) < 0.6
    legal[:, 0] = True
    returns = torch.randn(32)

    def reinforce(logits: torch.Tensor, target: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return (F.cross_entropy(logits, target[0], reduction="none") * target[1]).mean()

    return Case(
        model,
        ((torch.randn(32, 8), legal), (torch.zeros(32, dtype=torch.long), returns)),
        reinforce,
        adam(model),
    )


class WholeGAN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.discriminator(self.generator(z))


def whole_gan() -> Case:
    model = WholeGAN()
    return Case(
        model,
        (torch.randn(64, 8), None),
        lambda o: F.softplus(-o).mean(),
        torch.optim.Adam(model.generator.parameters()),
    )


class SloppyTeacher(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        self.teacher = copy.deepcopy(self.student)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            target = self.teacher(x * 1.1)
        return self.student(x), target


def sloppy_teacher() -> Case:
    model = SloppyTeacher()
    return Case(
        model,
        (torch.randn(32, 16), torch.randint(4, (32,))),
        lambda out, y: F.cross_entropy(out[0], y) + F.mse_loss(*out),
        adam(model),
    )


class Quantised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
        self.codebook = nn.Embedding(24, 8)
        self.decoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = self.encoder(x)
        code = self.codebook(torch.cdist(z, self.codebook.weight).argmin(-1))
        extra = F.mse_loss(code, z.detach()) + 0.25 * F.mse_loss(z, code.detach())
        return self.decoder(z + (code - z).detach()), extra


def vector_quantised() -> Case:
    model, x = Quantised(), torch.randn(64, 16)
    return Case(model, (x, x), lambda out, y: F.mse_loss(out[0], y) + out[1], adam(model))


def tied_default_embedding() -> Case:
    model = GPT()
    nn.init.normal_(model.wte.weight)
    text = torch.randint(60, (8, 25))
    return Case(
        model,
        (text[:, :-1], text[:, 1:]),
        lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()),
        adam(model),
    )


class FirstToken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.token = nn.Embedding(50, 32, padding_idx=0), nn.Parameter(torch.randn(1, 1, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(32, 3)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.cat([self.token.expand(len(ids), -1, -1), self.embed(ids)], 1)
        x = self.encoder(x, src_key_padding_mask=F.pad(ids == 0, (1, 0)))
        return self.head(x[:, 0]), x


def first_token() -> Case:
    model, ids = FirstToken(), torch.randint(1, 50, (16, 20))
    for row in range(16):
        ids[row, 8 + row % 12 :] = 0
    return Case(
        model,
        (ids, torch.randint(3, (16,))),
        lambda o, y: F.cross_entropy(o[0], y),
        adam(model),
        {"pad_id": 0},
    )


class ModulatedNet(nn.Module):
    """A diffusion transformer's beginning: modulation and last layer of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.condition = nn.Linear(8, 32), nn.Linear(8, 32)
        self.norm, self.modulation = nn.LayerNorm(32, elementwise_affine=False), nn.Linear(32, 96)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.out = nn.Linear(32, 8)
        for layer in (self.modulation, self.out):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        shift, scale, gate = self.modulation(F.silu(self.condition(c))).chunk(3, -1)
        return self.out(h + gate * self.mlp(self.norm(h) * (1 + scale) + shift))


def modulated() -> Case:
    model = ModulatedNet()
    return Case(model, ((torch.randn(32, 8), torch.randn(32, 8)), torch.randn(32, 8)), F.mse_loss, adam(model))


def deep_plain_relu() -> Case:
    layers: list[nn.Module] = []
    for _ in range(8):
        layers += [nn.Linear(32, 32), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(32, 4))
    return Case(model, (torch.randn(64, 32), torch.randint(4, (64,))), F.cross_entropy, adam(model))


class Probe(nn.Module):
    def __init__(self, *, frozen: bool) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32)).requires_grad_(not frozen)
        self.head = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            features = self.encoder(x)
        return self.head(features)


def probe_of_frozen_features() -> Case:
    model = Probe(frozen=True)
    return Case(model, (torch.randn(64, 16), torch.randint(4, (64,))), F.cross_entropy, adam(model))


def probe_of_features_without_gradient() -> Case:
    model = Probe(frozen=False)
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-3)
    return Case(model, (torch.randn(64, 16), torch.randint(4, (64,))), F.cross_entropy, optimizer)


def half_precision() -> Case:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(torch.bfloat16)
    return Case(
        model,
        (torch.randn(32, 16, dtype=torch.bfloat16), torch.randint(4, (32,))),
        F.cross_entropy,
        adam(model),
    )


def unit_rows() -> Case:
    model = nn.Sequential(nn.Linear(2000, 32), nn.ReLU(), nn.Linear(32, 4))
    x = F.normalize(torch.rand(32, 2000) * (torch.rand(32, 2000) < 0.05), dim=1)
    return Case(model, (x, torch.randint(4, (32,))), F.cross_entropy, adam(model))


RIGHT = [
    resnet,
    transformer,
    lstm,
    unet,
    vae,
    gan_generator,
    moe,
    vit,
    gnn,
    diffusion,
    vae_summed,
    gnn_dense,
    lora,
    pretrained_head,
    zero_branches,
    regression,
    counts_with_softplus,
    contrastive,
    supervised_contrastive,
    distillation,
    hidden_teacher,
    frozen_backbone,
    frozen_first_blocks,
    warm_up,
    stop_gradient,
    masked_encoder,
    time_first,
    binary,
    quantiles,
    raw_images_normalised_inside,
    batch_of_one,
    inverted_bottleneck,
    separable,
    encoder_decoder,
    masked_policy,
    whole_gan,
    sloppy_teacher,
    vector_quantised,
    tied_default_embedding,
    first_token,
    modulated,
    deep_plain_relu,
    probe_of_frozen_features,
    probe_of_features_without_gradient,
    half_precision,
    unit_rows,
]
