"""Of the old torchtext: pairs of sentences, a vocabulary, and batches padded to one length, positions first."""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch


class Dataset:
    def __init__(self, examples: Sequence[Any], fields: dict[str, Any], **_: Any) -> None:
        self.examples, self.fields = list(examples), fields


class BucketIterator:
    """An epoch of batches; of each, `batch.src` and `batch.trg`."""

    def __init__(self, dataset: Dataset, batch_size: int, device: Any = None, train: bool = False, **_: Any) -> None:
        self.dataset, self.batch_size, self.device, self.train = dataset, batch_size, device, train

    def __len__(self) -> int:
        return -(-len(self.dataset.examples) // self.batch_size)

    def __iter__(self) -> Iterator[types.SimpleNamespace]:
        examples = list(self.dataset.examples)
        if self.train:
            random.shuffle(examples)
        for at in range(0, len(examples), self.batch_size):
            chosen = examples[at : at + self.batch_size]
            yield types.SimpleNamespace(
                **{name: self._padded([getattr(one, name) for one in chosen], name) for name in self.dataset.fields}
            )

    def _padded(self, sentences: list[list[str]], name: str) -> torch.Tensor:
        numbers = self.dataset.fields[name].vocab.stoi
        longest = max(map(len, sentences))
        rows = [["<s>", *words, "</s>", *["<blank>"] * (longest - len(words))] for words in sentences]
        return torch.tensor([[numbers[word] for word in row] for row in rows], device=self.device).t().contiguous()


def _modules() -> None:
    data, datasets = types.ModuleType("torchtext.data"), types.ModuleType("torchtext.datasets")
    data.Dataset, data.BucketIterator, data.Field = Dataset, BucketIterator, object
    datasets.TranslationDataset = Dataset
    sys.modules |= {"torchtext.data": data, "torchtext.datasets": datasets}


__path__: list[str] = []
_modules()
