"""Models that are not ours, made from their configurations, with something to train them on; `dry` asks for tiny ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Job:
    """Something that is trained."""

    model: Any
    optimizer: Any
    loss: Callable[[Any], Any]


def language_model(model: Any, vocabulary: int, batch: int, context: int, device: str) -> Job:
    import torch

    model = model.to(device).train()
    tokens = torch.randint(0, vocabulary, (batch, context), device=device)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=device == "cuda")
    return Job(model, optimizer, lambda run: run(input_ids=tokens, labels=tokens).loss)


def gpt2(device: str, dry: bool) -> Job:
    from transformers import GPT2Config, GPT2LMHeadModel

    size: dict[str, Any] = (
        {"vocab_size": 128, "n_embd": 32, "n_layer": 2, "n_head": 2} if dry else {"vocab_size": 50304}
    )
    model = GPT2LMHeadModel(GPT2Config(use_cache=False, **size))
    return language_model(model, size["vocab_size"], *((2, 32) if dry else (16, 1024)), device)


def llama(device: str, dry: bool, width: int = 1024, layers: int = 16, inner: int = 2816) -> Job:
    from transformers import LlamaConfig, LlamaForCausalLM

    width, layers, inner, vocabulary = (32, 2, 64, 128) if dry else (width, layers, inner, 32000)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=width // 64 or 2,
        num_key_value_heads=4 if not dry else 1,
        max_position_embeddings=2048,
        use_cache=False,
    )
    return language_model(LlamaForCausalLM(config), vocabulary, *((2, 32) if dry else (8, 1024)), device)


def large_llama(device: str, dry: bool) -> Job:
    return llama(device, dry, width=2048, layers=22, inner=5632)


def mixture(device: str, dry: bool) -> Job:
    from transformers import MixtralConfig, MixtralForCausalLM

    width, layers, inner, vocabulary = (32, 2, 64, 128) if dry else (768, 12, 1536, 32000)
    config = MixtralConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=width // 64 or 2,
        num_key_value_heads=4 if not dry else 1,
        num_local_experts=8 if not dry else 4,
        max_position_embeddings=2048,
        use_cache=False,
    )
    return language_model(MixtralForCausalLM(config), vocabulary, *((2, 32) if dry else (8, 1024)), device)


def vision_model(model: Any, batch: int, side: int, device: str, optimizer: Callable[[Any], Any]) -> Job:
    import torch

    model = model.to(device, memory_format=torch.channels_last).train()
    images = torch.randn(batch, 3, side, side, device=device).contiguous(memory_format=torch.channels_last)
    classes = torch.randint(0, 1000, (batch,), device=device)
    cross_entropy = torch.nn.functional.cross_entropy
    return Job(model, optimizer(model.parameters()), lambda run: cross_entropy(run(images), classes))


def resnet(device: str, dry: bool) -> Job:
    import torch
    import torchvision

    model = torchvision.models.resnet18() if dry else torchvision.models.resnet50()
    batch, side = (2, 32) if dry else (256, 224)
    return vision_model(model, batch, side, device, lambda given: torch.optim.SGD(given, 0.1, momentum=0.9))


def vit(device: str, dry: bool) -> Job:
    import torch
    import torchvision

    small = {"image_size": 32, "patch_size": 16, "num_layers": 2, "num_heads": 2, "hidden_dim": 32, "mlp_dim": 64}
    model = torchvision.models.VisionTransformer(**small) if dry else torchvision.models.vit_b_16()
    batch, side = (2, 32) if dry else (128, 224)
    fused = device == "cuda"
    return vision_model(model, batch, side, device, lambda given: torch.optim.AdamW(given, 3e-4, fused=fused))


def mlp(device: str, dry: bool) -> Job:
    """For a dry run without anybody's models."""
    import torch

    sizes = (64, 64, 10) if dry else (4096, 4096, 1000)
    model = torch.nn.Sequential(
        torch.nn.Linear(sizes[0], sizes[1]), torch.nn.ReLU(), torch.nn.Linear(sizes[1], sizes[2])
    ).to(device)
    values = torch.randn(64, sizes[0], device=device)
    classes = torch.randint(0, sizes[2], (64,), device=device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    return Job(model, optimizer, lambda run: torch.nn.functional.cross_entropy(run(values), classes))
