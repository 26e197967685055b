"""One fault each, on different architectures: (code, where it must be said to be, what is examined)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from tests.checkup.right_models import GPT, Case, CausalBlock, LSTMTagger, ResNet, UNet, ViT, adam


class Wrong(NamedTuple):
    code: str
    site: str
    make: Callable[[], Case]


WRONG: list[Wrong] = []


def wrong(code: str, site: str = "*") -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    def register(make: Callable[[], Case]) -> Callable[[], Case]:
        WRONG.append(Wrong(code, site, make))
        return make

    return register


def images(num: int = 16, classes: int = 10) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(num, 3, 16, 16), torch.randint(classes, (num,))


def table(num: int = 64, width: int = 20, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(num, width), torch.randint(classes, (num,))


def text(num: int = 8, length: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(1, 60, (num, length + 1))
    return ids[:, :-1], ids[:, 1:]


def padded(num: int = 16) -> torch.Tensor:
    ids = torch.randint(1, 50, (num, 20))
    for row in range(num):
        ids[row, 8 + row % 12 :] = 0
    return ids


def next_token(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(out.flatten(0, 1), y.flatten())


def plain(*widths: int, last: list[nn.Module] | None = None, between: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), between()]
    return nn.Sequential(*layers[:-1], *(last or []))


def case(model: nn.Module, batch: Any, loss: Any = F.cross_entropy, optimizer: Any = None, **options: Any) -> Case:
    return Case(model, batch, loss, optimizer or adam(model), options)


# ---- optimizer ----


@wrong("optimizer_params_not_in_model", "fc.*")
def old_head_of_a_resnet() -> Case:
    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.fc = nn.Linear(32, 4)
    return case(model, images(classes=4), optimizer=optimizer)


@wrong("optimizer_params_not_in_model", "0.*")
def optimizer_of_another_copy() -> Case:
    model = plain(20, 32, 5)
    return case(model, table(), optimizer=torch.optim.Adam(plain(20, 32, 5).parameters()))


@wrong("trainable_params_not_in_optimizer", "blocks.1.*")
def a_block_forgotten() -> Case:
    model = GPT()
    kept = [p for name, p in model.named_parameters() if not name.startswith("blocks.1.")]
    return case(model, text(), next_token, torch.optim.AdamW(kept))


@wrong("trainable_params_not_in_optimizer", "lstm.*")
def recurrent_layer_forgotten() -> Case:
    model = LSTMTagger()
    optimizer = torch.optim.Adam([*model.embed.parameters(), *model.head.parameters()])
    return case(model, (padded(), torch.randint(4, (16,))), optimizer=optimizer)


@wrong("trainable_params_not_in_optimizer", "scale")
def bare_parameter_forgotten() -> Case:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.scale = plain(20, 32, 5), nn.Parameter(torch.ones(5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x) * self.scale

    model = Scaled()
    return case(model, table(), optimizer=torch.optim.SGD(model.net.parameters(), lr=0.1))


@wrong("zero_lr_group", "head.*")
def head_rate_zero() -> Case:
    model = ViT()
    groups = [
        {"params": [p for n, p in model.named_parameters() if "head" not in n]},
        {"params": model.head.parameters(), "lr": 0.0},
    ]
    return case(model, images(), optimizer=torch.optim.AdamW(groups, lr=1e-3))


@wrong("zero_lr_group", "0.*")
def first_layer_rate_zero() -> Case:
    model = plain(20, 32, 5)
    return case(
        model,
        table(),
        optimizer=torch.optim.SGD(
            [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters()}], lr=0.1
        ),
    )


# ---- frozen, cut, unknown ----


@wrong("frozen_params", "blocks.1*")
def middle_blocks_frozen() -> Case:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(CausalBlock(16) for _ in range(11))
            self.head = nn.Linear(16, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x)
            return self.head(x.mean(1))

    model = Deep()
    for name, p in model.named_parameters():
        if name.startswith("blocks.1"):
            p.requires_grad_(False)
    return case(model, (torch.randn(8, 6, 16), torch.randint(5, (8,))))


@wrong("frozen_params", "fc")
def head_frozen() -> Case:
    model = ResNet()
    model.fc.requires_grad_(False)
    return case(model, images())


@wrong("frozen_params")
def all_frozen() -> Case:
    model = plain(20, 32, 5).requires_grad_(False)
    return case(model, table(), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


class CutConv(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.conv, self.fc, self.how = nn.Conv2d(3, 8, 3), nn.Linear(8 * 14 * 14, 10), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "no_grad":
            with torch.no_grad():
                x = F.relu(self.conv(x))
        else:
            x = F.relu(self.conv(x)).data
        return self.fc(x.flatten(1))


@wrong("detached_graph", "conv*")
def convolution_under_no_grad() -> Case:
    return case(CutConv("no_grad"), images())


@wrong("detached_graph", "conv*")
def convolution_data() -> Case:
    model = CutConv("data")
    return Case(model, images(), F.cross_entropy)


@wrong("detached_graph", "embed*")
def embedding_through_numpy() -> Case:
    class Numpy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(torch.tensor(self.embed(ids).mean(1).tolist()))

    return case(Numpy(), (torch.randint(50, (16, 6)), torch.randint(4, (16,))))


@wrong("detached_graph")
def loss_without_a_graph() -> Case:
    return case(plain(20, 32, 5), table(), lambda o, y: (o.argmax(1) != y).float().mean().requires_grad_())


@wrong("unregistered_module", "heads*")
def heads_in_a_dict() -> Case:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.heads = nn.Linear(20, 32), {"a": nn.Linear(32, 5), "b": nn.Linear(32, 5)}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = F.relu(self.body(x))
            return self.heads["a"](h) + self.heads["b"](h)

    return case(Heads(), table())


@wrong("unregistered_module", "scales*")
def parameters_in_a_list() -> Case:
    class Scales(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = plain(20, 32, 5)
            self.scales = [nn.Parameter(torch.ones(20)), nn.Parameter(torch.ones(5))]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x * self.scales[0]) * self.scales[1]

    return case(Scales(), table())


@wrong("unregistered_module", "convs*")
def convolutions_in_a_tuple() -> Case:
    class Convs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = (nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1))
            self.fc = nn.Linear(8, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for conv in self.convs:
                x = F.relu(conv(x))
            return self.fc(x.mean((2, 3)))

    model = Convs()
    return Case(model, images(), F.cross_entropy)


# ---- loss ----


@wrong("double_softmax", "*")
def softmax_in_a_segmenter() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.Softmax(dim=1))
    return case(model, (torch.randn(4, 3, 8, 8), torch.randint(4, (4, 8, 8))))


@wrong("double_softmax", "*")
def softmax_before_a_written_out_loss() -> Case:
    class Tagger(LSTMTagger):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return super().forward(ids).softmax(-1)

    return case(
        Tagger(),
        (padded(), torch.randint(4, (16,))),
        lambda o, y: -torch.log_softmax(o, -1)[torch.arange(len(y)), y].mean(),
    )


@wrong("double_softmax", "*")
def softmax_of_a_language_model() -> Case:
    class Wrapped(GPT):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return F.softmax(super().forward(ids), dim=-1)

    return case(Wrapped(), text(), next_token)


@wrong("double_sigmoid", "*")
def sigmoid_of_a_unet() -> Case:
    class Wrapped(UNet):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sigmoid(super().forward(x))

    x = torch.randn(4, 1, 16, 16)
    return case(Wrapped(), (x, (x > 0).float()), nn.BCEWithLogitsLoss())


@wrong("double_sigmoid", "*")
def sigmoid_before_focal_loss() -> Case:
    def focal(o: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        p = torch.sigmoid(o)
        return -(y * (1 - p) ** 2 * p.log() + (1 - y) * p**2 * (1 - p).log()).mean()

    model = plain(20, 32, 6, last=[nn.Sigmoid()])
    return case(model, (torch.randn(64, 20), torch.randint(2, (64, 6)).float()), focal)


@wrong("loss_broadcast", "(loss)")
def l1_of_a_column() -> Case:
    model = plain(20, 32, 1)
    return case(model, (torch.randn(64, 20), torch.randn(64)), nn.L1Loss())


@wrong("loss_broadcast", "(loss)")
def squares_written_out() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 1))
    return case(model, (torch.randn(16, 3, 8, 8), torch.randn(16)), lambda o, y: ((o - y) ** 2).mean())


@wrong("loss_broadcast", "(loss)")
def targets_as_a_column() -> Case:
    model = plain(20, 32, 1, last=[nn.Flatten(0)])
    return case(model, (torch.randn(64, 20), torch.randn(64, 1)), F.smooth_l1_loss)


@wrong("loss_scales_with_batch", "(loss)")
def summed_squares() -> Case:
    model = plain(20, 32, 1)
    return case(
        model,
        (torch.randn(64, 20), torch.randn(64, 1)),
        nn.MSELoss(reduction="sum"),
        torch.optim.SGD(model.parameters(), lr=1e-3),
    )


@wrong("loss_scales_with_batch", "(loss)")
def summed_tokens() -> Case:
    return case(GPT(), text(), lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten(), reduction="sum"))


@wrong("bad_initial_loss", "fc")
def wide_head_of_a_resnet() -> Case:
    model = ResNet()
    nn.init.normal_(model.fc.weight, std=5.0)
    return case(model, images())


@wrong("bad_initial_loss", "lm_head")
def wide_head_of_a_language_model() -> Case:
    model = GPT()
    model.lm_head = nn.Linear(32, 60)
    nn.init.normal_(model.lm_head.weight, std=2.0)
    return case(model, text(), next_token)


@wrong("bad_initial_loss", "2")
def wide_head_of_a_regression() -> Case:
    model = plain(20, 64, 1)
    nn.init.normal_(model[2].weight, std=20.0)
    return case(model, (torch.randn(64, 20), torch.randn(64, 1)), F.mse_loss)


@wrong("output_clipped", "*")
def sigmoid_on_large_targets() -> Case:
    model = plain(20, 32, 1, last=[nn.Sigmoid()])
    return case(model, (torch.randn(64, 20), torch.rand(64, 1) * 10), F.mse_loss)


@wrong("output_clipped", "head*")
def relu_on_a_forecast() -> Case:
    class Forecast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.head = nn.GRU(2, 16, batch_first=True), nn.Linear(16, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu(self.head(self.gru(x)[0][:, -1])).squeeze(-1)

    return case(Forecast(), (torch.randn(64, 10, 2), torch.randn(64)), nn.HuberLoss())


@wrong("output_clipped", "*")
def tanh_on_standardised_targets() -> Case:
    model = plain(20, 32, 3, last=[nn.Tanh()])
    return case(model, (torch.randn(64, 20), torch.randn(64, 3) * 2), nn.L1Loss())


# ---- samples, time, padding, chance ----


@wrong("batch_dependence", "attend*")
def attention_over_the_batch() -> Case:
    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend, self.head = nn.MultiheadAttention(20, 4), nn.Linear(20, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # (batch, time, width) into a layer that takes (time, batch, width).
            return self.head(self.attend(x, x, x, need_weights=False)[0].mean(1))

    return case(Attend(), (torch.randn(16, 7, 20), torch.randint(5, (16,))))


@wrong("batch_dependence", "lstm")
def lstm_without_batch_first() -> Case:
    class Tagger(LSTMTagger):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(16, 32)

    return case(Tagger(), (padded(), torch.randint(4, (16,))))


@wrong("batch_dependence")
def centred_over_the_batch() -> Case:
    class Centre(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(20, 32), nn.Linear(32, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = F.relu(self.a(x))
            return self.b((h - h.mean(0)) / (h.std(0) + 1e-5))

    return case(Centre(), table())


@wrong("batch_dependence")
def view_mixes_samples() -> Case:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc = nn.Conv1d(4, 8, 3, padding=1), nn.Linear(8, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, t, c = x.shape
            return self.fc(self.conv(x.reshape(t, b, c).permute(1, 2, 0)).mean(-1))

    return case(Mixed(), (torch.randn(16, 10, 4), torch.randint(5, (16,))))


@wrong("future_leak", "lstm")
def two_way_lstm() -> Case:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.lstm, self.head = (
                nn.Embedding(60, 16),
                nn.LSTM(16, 16, batch_first=True, bidirectional=True),
                nn.Linear(32, 60),
            )

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.lstm(self.embed(ids))[0])

    return case(Tagger(), text(), next_token)


@wrong("future_leak", "conv")
def convolution_padded_on_both_sides() -> Case:
    class Wave(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.out = nn.Conv1d(2, 16, 3, padding=1), nn.Linear(16, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(F.relu(self.conv(x.transpose(1, 2))).transpose(1, 2))

    x = torch.randn(8, 21, 2)
    return case(Wave(), (x[:, :-1], x[:, 1:]), F.mse_loss, causal=True)


@wrong("future_leak", "blocks.1*")
def one_block_without_a_mask() -> Case:
    class Leaky(CausalBlock):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, t, c = x.shape
            q, k, v = (part.view(b, t, 4, c // 4).transpose(1, 2) for part in self.qkv(self.ln1(x)).chunk(3, -1))
            x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, c))
            return x + self.mlp(self.ln2(x))

    model = GPT()
    model.blocks[1] = Leaky(32)
    return case(model, text(), next_token)


@wrong("padding_leak", "*")
def mean_over_padding() -> Case:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(ids).mean(1))

    return case(Bag(), (padded(), torch.randint(4, (16,))), pad_id=0)


@wrong("padding_leak", "*")
def last_state_after_padding() -> Case:
    class Last(LSTMTagger):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.lstm(self.embed(ids))[0][:, -1])

    return case(Last(), (padded(), torch.randint(4, (16,))), pad_id=0)


@wrong("nondeterministic_eval", "*")
def drop_path_always() -> Case:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.head = nn.Linear(20, 20), nn.Linear(20, 20), nn.Linear(20, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            keep = (0.7 + torch.rand(len(x), 1)).floor()
            return self.head(x + keep * F.relu(self.a(x)))

    return case(Dropping(), table())


@wrong("nondeterministic_eval", "attn*")
def attention_dropout_always() -> Case:
    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(20, 60)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(x).chunk(3, -1)
            return F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], dropout_p=0.2)[:, 0]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn, self.head = Attend(), nn.Linear(20, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.attn(x).mean(1))

    return case(Net(), (torch.randn(16, 7, 20), torch.randint(5, (16,))))


@wrong("nondeterministic_eval")
def python_chance() -> Case:
    class Skipping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.head = nn.Linear(20, 20), nn.Linear(20, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x + random.random() * F.relu(self.a(x)))

    return case(Skipping(), table())


@wrong("inputs_ignored", "*")
def input_overwritten() -> Case:
    class Blind(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = plain(20, 32, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(torch.zeros_like(x))

    return case(Blind(), table())


@wrong("inputs_ignored", "*")
def images_divided_away() -> Case:
    x, y = torch.randint(200, (16, 3, 16, 16)), torch.randint(10, (16,))
    return case(ResNet(), ((x // 255).float(), y))


@wrong("inputs_ignored", "*")
def one_sample_repeated() -> Case:
    x, y = table()
    return case(plain(20, 32, 5), (x[:1].expand(64, 20).clone(), y))


# ---- the beginning ----


@wrong("symmetric_units", "0.weight")
def zeros_everywhere() -> Case:
    model = plain(20, 32, 32, 5)
    for p in model.parameters():
        nn.init.zeros_(p)
    return case(model, table())


@wrong("symmetric_units", "conv*")
def constant_convolutions() -> Case:
    class Conv(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2, self.fc = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8, 10)
            for p in self.parameters():
                nn.init.constant_(p, 0.02)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(torch.tanh(self.conv2(torch.tanh(self.conv1(x)))).mean((2, 3)))

    return case(Conv(), images())


@wrong("symmetric_units", "rnn.*")
def constant_recurrence() -> Case:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.LSTM(4, 16, batch_first=True), nn.Linear(16, 5)
            for p in self.parameters():
                nn.init.constant_(p, 0.1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.rnn(x)[0][:, -1])

    return case(Recurrent(), (torch.randn(32, 6, 4), torch.randint(5, (32,))))


@wrong("bad_init_scale", "conv*")
def wide_convolutions() -> Case:
    class Conv(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2, self.conv3 = (
                nn.Conv2d(3, 16, 3),
                nn.Conv2d(16, 16, 3),
                nn.Conv2d(16, 16, 3),
            )
            self.fc = nn.Linear(16, 10)
            for module in self.modules():
                if isinstance(module, nn.Conv2d):
                    nn.init.normal_(module.weight, std=1.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for conv in (self.conv1, self.conv2, self.conv3):
                x = F.relu(conv(x))
            return self.fc(x.mean((2, 3)))

    return case(Conv(), images())


@wrong("bad_init_scale", "0")
def tiny_weights() -> Case:
    model = plain(20, 64, 64, 64, 5)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=1e-4)
    return case(model, table())


@wrong("bad_init_scale", "0")
def standard_normal_weights() -> Case:
    model = plain(20, 128, 128, 128, 1, between=nn.GELU)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight)
    return case(model, (torch.randn(64, 20), torch.randn(64, 1)), F.mse_loss)


@wrong("dead_units", "conv2")
def shut_convolution() -> Case:
    class Conv(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2, self.fc = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 3), nn.Linear(16, 10)
            nn.init.constant_(self.conv2.bias, -8.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(F.relu(self.conv2(F.relu(self.conv1(x)))).mean((2, 3)))

    return case(Conv(), images())


@wrong("dead_units", "blocks.0.mlp.0")
def shut_gelu() -> Case:
    model = GPT()
    nn.init.constant_(model.blocks[0].mlp[0].bias, -20.0)
    return case(model, text(), next_token)


@wrong("saturated_units", "0")
def saturated_sigmoid() -> Case:
    model = plain(20, 64, 64, 5, between=nn.Sigmoid)
    with torch.no_grad():
        model[0].weight.mul_(60)
    return case(model, table())


@wrong("saturated_units", "rnn")
def saturated_cell() -> Case:
    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.RNN(4, 32, batch_first=True), nn.Linear(32, 5)
            with torch.no_grad():
                self.rnn.weight_ih_l0.mul_(100)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.rnn(x)[0][:, -1])

    return case(Cell(), (torch.randn(32, 6, 4), torch.randint(5, (32,))))


@wrong("saturated_units", "conv")
def saturated_tanh_of_a_convolution() -> Case:
    class Conv(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(8, 10)
            with torch.no_grad():
                self.conv.weight.mul_(80)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(torch.tanh(self.conv(x)).mean((2, 3)))

    return case(Conv(), images())


@wrong("linear_collapse", "fc1")
def dropout_is_no_nonlinearity() -> Case:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.drop, self.fc2 = nn.Linear(20, 64), nn.Dropout(0.5), nn.Linear(64, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc2(self.drop(self.fc1(x)))

    return case(Net(), table())


@wrong("linear_collapse", "0")
def convolutions_in_a_row() -> Case:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16),
        nn.Conv2d(16, 16, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    return case(model, images())


@wrong("tied_weights_split", "lm_head.weight")
def head_copied_from_embedding() -> Case:
    model = GPT()
    model.lm_head = nn.Linear(32, 60, bias=False)
    model.lm_head.weight.data = model.wte.weight.data.clone()
    return case(model, text(), next_token)


@wrong("tied_weights_split", "decoder.weight")
def decoder_copied_transposed() -> Case:
    class Auto(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = nn.Linear(20, 8), nn.Linear(8, 20)
            self.decoder.weight.data = self.encoder.weight.data.T.clone()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.decoder(torch.tanh(self.encoder(x)))

    x = torch.randn(64, 20)
    return case(Auto(), (x, x), F.mse_loss)


@wrong("tied_weights_split", "out")
def bare_output_matrix() -> Case:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.rnn = nn.Embedding(60, 16), nn.GRU(16, 16, batch_first=True)
            nn.init.normal_(self.embed.weight, std=0.05)
            self.out = nn.Parameter(self.embed.weight.detach().clone())

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.rnn(self.embed(ids))[0] @ self.out.T

    return case(Bare(), text(), next_token)


# ---- data ----


@wrong("constant_feature", "*")
def column_of_nan() -> Case:
    x, y = table()
    x[:, 3] = 1.0
    return case(plain(20, 32, 5), ((x - x.mean(0)) / x.std(0), y))


@wrong("constant_feature", "*input[[]:, 7]*")
def constant_column_scaled_inside() -> Case:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = plain(20, 32, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            low, high = x.min(0).values, x.max(0).values
            return self.net((x - low) / (high - low))

    x, y = table()
    x[:, 7] = 3.0
    return case(Scaled(), (x, y))


@wrong("fully_masked_attention", "attn*")
def multihead_with_an_empty_row() -> Case:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.attn, self.head = (
                nn.Embedding(50, 16),
                nn.MultiheadAttention(16, 2, batch_first=True),
                nn.Linear(16, 4),
            )

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.embed(ids)
            return self.head(self.attn(x, x, x, key_padding_mask=ids == 0)[0].mean(1))

    ids = padded()
    ids[3] = 0
    return case(Net(), (ids, torch.randint(4, (16,))))


@wrong("fully_masked_attention", "*")
def pooling_with_an_empty_row() -> Case:
    class Pool(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.score, self.head = nn.Linear(8, 1), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            scores = self.score(x).squeeze(-1).masked_fill(~mask, -torch.inf)
            return self.head((scores.softmax(-1)[..., None] * x).sum(1))

    mask = torch.rand(16, 6) < 0.7
    mask[:, 0] = True
    mask[5] = False
    return case(Pool(), ((torch.randn(16, 6, 8), mask), torch.randint(4, (16,))))


@wrong("unscaled_inputs", "*")
def raw_pixels() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    return case(model, (torch.randint(256, (16, 3, 16, 16)).float(), torch.randint(10, (16,))))


@wrong("unscaled_inputs", "*input[[]:, 2]*")
def one_column_in_thousands() -> Case:
    x, y = table()
    x[:, 2] = x[:, 2] * 3000 + 50000
    return case(plain(20, 32, 5, between=nn.Tanh), (x, y))


@wrong("unscaled_inputs", "lstm")
def raw_series() -> Case:
    class Series(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(1, 16, batch_first=True), nn.Linear(16, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.lstm(x)[0][:, -1])

    x = torch.rand(32, 12, 1) * 400 + 1000
    return case(Series(), (x, torch.randn(32, 1)), F.mse_loss)


@wrong("inputs_too_small", "*")
def pixels_divided_twice() -> Case:
    return case(
        UNet(),
        (torch.rand(4, 1, 16, 16) / 255, torch.randint(2, (4, 1, 16, 16)).float()),
        nn.BCEWithLogitsLoss(),
    )


@wrong("inputs_too_small", "*")
def table_divided_twice() -> Case:
    x, y = table()
    return case(plain(20, 32, 5), (x / 1000, y))


@wrong("label_leak", "input[[]:, 4]")
def noisy_copy_of_the_label() -> Case:
    x, y = table(300, classes=3)
    x[:, 4] = y + 0.03 * torch.randn(300)
    return case(plain(20, 32, 3), (x, y))


@wrong("label_leak", "input[[]:, 11]")
def target_in_other_units() -> Case:
    x = torch.randn(256, 20)
    y = x[:, :3].sum(1) + torch.randn(256)
    x[:, 11] = (y - 2.0) / 1.7
    return case(plain(20, 32, 1, last=[nn.Flatten(0)]), (x, y), F.mse_loss)


@wrong("nonfinite_origin", "*")
def logarithm_of_zero() -> Case:
    class Log(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(20, 32), nn.Linear(32, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(torch.log(F.relu(self.a(x))))

    return case(Log(), table())


@wrong("nonfinite_origin", "*")
def root_at_zero() -> Case:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(20, 32), nn.Linear(32, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.a(x)
            return self.b(torch.where(h > 0, h.sqrt(), torch.zeros_like(h)))

    return case(Root(), table())


@wrong("nonfinite_batch", "(input)")
def infinite_input() -> Case:
    x, y = table()
    x[3, 4] = float("inf")
    return case(plain(20, 32, 5), (x, y))
