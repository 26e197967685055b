"""analyze_architecture: FLOPs against closed forms, and the model left as it was."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from stethoscope.instruments.architecture import analyze_architecture
from stethoscope.record import StethoscopeError


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, time, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, vocabulary=50, width=32, depth=3, heads=4, tied=True):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def test_flops_and_parameters_of_a_transformer_are_the_closed_forms():
    vocabulary, width, depth, batch, time = 50, 32, 3, 2, 16
    model = Transformer(vocabulary, width, depth)
    analysis = analyze_architecture(model, torch.randint(vocabulary, (batch, time)))
    tokens = batch * time
    per_block = 24 * tokens * width**2 + 4 * batch * time**2 * width
    assert analysis.total_flops == depth * per_block + 2 * tokens * width * vocabulary
    block_parameters = 12 * width**2 + 13 * width
    assert analysis.info.total_parameters == depth * block_parameters + vocabulary * width
    assert analysis.shared_parameters == (("embed.weight", "head.weight"),)
    own = {layer.name: layer.flops for layer in analysis.layers}
    assert own["blocks.0.qkv"] == 6 * tokens * width**2
    assert own["blocks.0"] == 4 * batch * time**2 * width
    assert sum(own.values()) == analysis.total_flops


def test_flops_of_a_convolutional_net_are_the_closed_forms():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.Flatten(),
        nn.Linear(16 * 8 * 8, 10),
    )
    analysis = analyze_architecture(model, torch.randn(4, 3, 16, 16))
    expected = 2 * 4 * (8 * 3 * 9 * 16 * 16 + 16 * 8 * 9 * 8 * 8 + 16 * 8 * 8 * 10)
    assert analysis.total_flops == expected
    assert analysis.info.total_parameters == (3 * 9 * 8 + 8) + (8 * 9 * 16 + 16) + (1024 * 10 + 10)
    assert analysis.parameter_efficiency == pytest.approx(expected / analysis.info.total_parameters)
    assert any("4 (Linear) holds" in text for text in analysis.bottlenecks)
    assert any("0 (Conv2d)" in text or "2 (Conv2d)" in text for text in analysis.bottlenecks) == (
        max(8 * 3 * 9 * 256, 16 * 8 * 9 * 64) * 8 > expected / 2
    )


def test_torchs_own_encoder_layer_and_lstm_are_counted():
    layer = nn.TransformerEncoderLayer(32, 4, 128, batch_first=True)
    assert analyze_architecture(layer, torch.randn(2, 16, 32)).total_flops == 24 * 32 * 32**2 + 4 * 2 * 16**2 * 32
    assert torch.backends.mha.get_fastpath_enabled()
    lstm = nn.LSTM(8, 16, num_layers=2, batch_first=True)
    expected = 2 * 2 * 5 * 4 * 16 * ((8 + 16) + (16 + 16))
    assert analyze_architecture(lstm, torch.randn(2, 5, 8)).total_flops == expected


def test_memory_is_what_the_tensors_take():
    model = nn.Sequential(nn.Linear(10, 20), nn.BatchNorm1d(20), nn.Linear(20, 5).requires_grad_(False))
    analysis = analyze_architecture(model, torch.randn(7, 10))
    trained, frozen = 10 * 20 + 20 + 40, 20 * 5 + 5
    assert analysis.parameter_bytes == 4 * (trained + frozen)
    assert analysis.gradient_bytes == 4 * trained
    assert analysis.optimizer_bytes == 8 * trained
    assert analysis.buffer_bytes == 4 * 40 + 8
    assert analysis.activation_bytes == 4 * 7 * (20 + 20 + 5)
    assert analysis.training_bytes == 4 * (trained + frozen) + 12 * trained + 168
    assert analysis.info.trainable_parameters == trained
    assert analysis.info.layer_types == {"Linear": 2, "BatchNorm1d": 1}


def test_the_model_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    model[1].eval()
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    analyze_architecture(model, torch.randn(8, 4, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.rand(2), expected)
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(not module._forward_hooks for module in model.modules())


def test_without_an_example_flops_stay_unknown():
    analysis = analyze_architecture(nn.Linear(3, 4))
    assert (analysis.total_flops, analysis.activation_bytes, analysis.parameter_efficiency) == (
        None,
        None,
        None,
    )
    assert analysis.info.total_parameters == 16


def test_examples_may_be_tuples_or_keywords():
    bilinear = nn.Bilinear(3, 4, 5)
    inputs = {"input1": torch.randn(2, 3), "input2": torch.randn(2, 4)}
    by_name = analyze_architecture(bilinear, inputs)
    by_place = analyze_architecture(bilinear, tuple(inputs.values()))
    assert by_name.activation_bytes == by_place.activation_bytes == 4 * 2 * 5


def test_embeddings_that_hold_most_parameters_are_named():
    model = Transformer(vocabulary=5000, width=16, depth=1)
    analysis = analyze_architecture(model, torch.randint(5000, (1, 4)))
    assert any("embed (Embedding) holds" in text for text in analysis.bottlenecks)
    assert any("embeddings" in text for text in analysis.recommendations)


def test_what_is_no_model_is_refused():
    with pytest.raises(StethoscopeError, match="list"):
        analyze_architecture([1, 2])
