"""The data-flow graph from one forward pass, against graphs written by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from .lineage_models import Branches, Experts, ListInstead, ResNet, Shared, Tagger, Transformer, UNet
from .lineage_reading import chain, edges, follow


def test_resnet_with_in_place_additions_and_activations() -> None:
    got = edges(follow(ResNet(), torch.randn(2, 3, 8, 8)))
    way = "conv1 bn1 relu conv2 bn2 out"
    truth = chain("(input) stem layers.0.conv1") | chain("layers.1.out fc (output)")
    truth |= chain(" ".join(f"layers.0.{name}" for name in way.split()) + " layers.1.conv1")
    truth |= chain(" ".join(f"layers.1.{name}" for name in way.split()))
    truth |= {"stem ~ layers.0.out", "layers.0.out ~ layers.1.out"}
    assert got == truth


def test_transformer_has_a_residual_stream_and_a_tied_head() -> None:
    graph = follow(Transformer(), torch.randint(0, 11, (2, 5)))
    truth = chain("(input) embed (root):add blocks.0.ln1") | {"position > (root):add"}
    for block, before in (("blocks.0", "(root):add"), ("blocks.1", "blocks.0:add_1")):
        truth |= chain(f"{before} {block}.ln1 {block}.qkv {block}.proj {block}:add {block}.ln2 {block}.fc1")
        truth |= chain(f"{block}.fc1 {block}.fc2 {block}.drop {block}:add_1")
        truth |= {f"{before} ~ {block}:add", f"{block}:add ~ {block}:add_1"}
    truth |= chain("blocks.1:add_1 norm head (output)") | chain("blocks.1:add_1 (output)")
    assert edges(graph, direct=False) == truth
    assert graph.tied == (("embed.weight", "head.weight"),)
    assert graph.nodes["position"].role == "parameter"
    assert graph.nodes["position"].num_parameters == 40
    attention = next(e for e in graph.edges if e.target == "blocks.0.proj")
    assert "softmax" in attention.operations or "matmul" in attention.operations
    assert attention.inside == "blocks.0"
    assert "embed ~ norm" in edges(graph)
    assert "blocks.1.drop > norm" in edges(graph)


def test_lstm_with_nested_outputs() -> None:
    graph = follow(Tagger(), torch.randint(0, 9, (2, 7)))
    assert edges(graph) == chain("(input) embed lstm head (output)") | {"lstm > (output)"}


def test_unet_skips_are_residual() -> None:
    truth = chain("(input) down1 down2 pool middle up2 dec2 up1 dec1 (output)")
    assert edges(follow(UNet(), torch.randn(1, 1, 8, 8))) == truth | {"down2 ~ dec2", "down1 ~ dec1"}


def test_mixture_of_experts() -> None:
    graph = follow(Experts(), torch.randn(16, 4))
    got = edges(graph)
    assert {"(input) > inp", "inp > router", "head > (output)", "router > head"} <= got
    for expert in ("experts.0", "experts.1"):
        assert {f"inp > {expert}", f"{expert} > head"} <= got
        routing = next(e for e in graph.direct().edges if (e.source, e.target) == ("router", expert))
        assert routing.gradient == "integer"
    gate = next(e for e in graph.direct().edges if (e.source, e.target) == ("router", "head"))
    assert gate.gradient == "flows"
    assert not any("zeros" in name or name == "inp > head" for name in got)


def test_transformer_encoder_of_torch() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    graph = follow(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(2, 5, 8))
    truth = chain("layers.1.norm2 (output)")
    for name, before in (("layers.0", "(input)"), ("layers.1", "layers.0.norm2")):
        truth |= chain(f"{before} {name}.self_attn {name}.dropout1 {name}.norm1 {name}.linear1 {name}.dropout")
        truth |= chain(f"{name}.dropout {name}.linear2 {name}.dropout2 {name}.norm2")
        truth |= {f"{before} ~ {name}.norm1", f"{name}.norm1 ~ {name}.norm2"}
    assert edges(graph) == truth
    assert graph.absorbed["layers.0.self_attn.out_proj"] == "layers.0.self_attn"
    assert graph.unused == ()


def test_shared_module_is_one_node_called_twice() -> None:
    graph = follow(Shared(), torch.randn(2, 4))
    assert edges(graph) == chain("(input) first same last (output)") | {"same > same"}
    assert graph.nodes["same"].calls == 2
    assert graph.order == ("(input)", "first", "same", "last", "(output)")


def test_detach_no_grad_frozen_and_unused() -> None:
    graph = follow(Branches(), torch.randn(2, 4))
    got = edges(graph)
    assert {"trained | side", "trained | teacher", "teacher | after", "trained ~ head"} <= got
    by_pair = {(e.source, e.target): e.gradient for e in graph.edges}
    assert by_pair["(input)", "trunk"] == by_pair["trunk", "trained"] == "none"
    assert by_pair["trained", "head"] == by_pair["side", "head"] == by_pair["after", "head"] == "flows"
    assert graph.unused == ("idle",)
    assert not any("idle" in edge for edge in got)
    assert graph.nodes["idle"].order == -1
    assert graph.nodes["trunk"].num_trainable == 0


def test_layers_in_a_list_are_unregistered() -> None:
    graph = follow(ListInstead(), torch.randn(2, 4))
    found = {(one.path, one.type, one.num_trainable) for one in graph.unregistered}
    assert found == {
        ("layers[0]", "Linear", 20),
        ("layers[1]", "Sequential", 20),
        ("<Softmax>", "Softmax", 0),
    }
    assert edges(graph) == chain("(input) layers[0] layers[1].0 layers[1].1 head <Softmax> (output)")


def test_views_of_a_value_keep_their_own_producer() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.flat, self.b, self.c = (
                nn.Linear(4, 4),
                nn.Flatten(),
                nn.Linear(4, 4),
                nn.Linear(8, 4),
            )

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            h = self.a(x)
            flat = self.flat(h)
            return self.b(h), self.c(flat)

    got = edges(follow(Views(), torch.randn(2, 2, 4)))
    assert got == chain("(input) a b (output)") | chain("a flat c (output)")


def test_writing_through_a_view_is_seen_in_the_whole() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = torch.zeros(2, 2, 4)
            first, second = out.unbind(0)
            del first, second
            out[0] = self.a(x)
            out.select(0, 1).copy_(self.b(x))
            return self.c(out)

    got = edges(follow(Writes(), torch.randn(2, 4)))
    assert got == chain("(input) a c (output)") | chain("(input) b c")


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_is_not_a_detach(reentrant: bool) -> None:
    class Checked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (
                nn.Linear(4, 4),
                nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
                nn.Linear(4, 4),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.c(checkpoint(self.b, self.a(x), use_reentrant=reentrant))

    graph = follow(Checked(), torch.randn(2, 4))
    assert edges(graph) == chain("(input) a b.0 b.1 c (output)")
    assert all(edge.gradient == "flows" for edge in graph.edges if edge.source != "(input)")


def test_custom_functions_parametrizations_and_iteration() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 2

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
            self.b = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = [self.b(row) for row in Double.apply(self.a(x))]
            return torch.stack(rows)

    graph = follow(Net(), torch.randn(3, 4))
    assert edges(graph) == chain("(input) a b (output)")
    assert graph.nodes["b"].calls == 3
    assert all(edge.gradient == "flows" for edge in graph.edges if edge.source == "a")


def test_loop_over_time_stays_small() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.gate = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
            for moment in x:
                h = torch.tanh(self.cell(moment) + h) * self.gate(h)
            return h

    graph = follow(Recurrent(), torch.randn(400, 2, 4), h=torch.zeros(2, 4))
    assert len(graph.nodes) < 300
    assert graph.reaches("cell", "(output)")
    assert {"cell", "gate", "(input)"} <= set(graph.ancestors("(output)"))


def test_a_gate_is_no_residual_way() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.gate, self.b, self.head = (nn.Linear(4, 4) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.a(x)
            squeezed = h * torch.sigmoid(self.gate(h))
            return self.head((squeezed + 1) + self.b(squeezed))

    graph = follow(Gated(), torch.randn(2, 4))
    truth = chain("(input) a gate (root):mul b head (output)") | {"a > (root):mul", "(root):mul ~ head"}
    assert edges(graph, direct=False) == truth


def test_what_is_made_out_of_sight_is_known_from_autograd() -> None:
    class Unseen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.head = (nn.Linear(4, 4) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            left = torch.vmap(lambda row: row * 2)(self.a(x))
            with torch._C.DisableTorchFunction():
                right = self.b(x) * self.c(x)
            return self.head(left + right)

    graph = follow(Unseen(), torch.randn(2, 4))
    assert edges(graph) >= chain("a head (output)") | chain("b head") | chain("c head")
    assert graph.untraced == ()


def test_root_that_is_a_leaf() -> None:
    graph = follow(nn.Linear(4, 2), torch.randn(2, 4))
    assert edges(graph) == chain("(input) (root) (output)")
