"""Datasets with torchvision's names, shapes and classes, made from scikit-learn's 1,797 handwritten digits."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

_TEST = 297
_SAMPLES = int(os.environ.get("STRANGERS_SAMPLES", "1500"))


def _loaded() -> tuple[np.ndarray, np.ndarray]:
    packed = os.environ.get("STRANGERS_DIGITS", "")
    if packed:
        with np.load(packed) as arrays:
            return arrays["images"], arrays["target"]
    from sklearn.datasets import load_digits

    loaded = load_digits()
    return loaded.images, loaded.target


def _digits(train: bool, size: int) -> tuple[np.ndarray, np.ndarray]:
    images, target = _loaded()
    order = np.random.RandomState(0).permutation(len(target))
    order = order[_TEST:][:_SAMPLES] if train else order[:_TEST][:_SAMPLES]
    pictures = []
    for picture in images[order]:
        small = Image.fromarray((picture * (255.0 / 16.0)).astype(np.uint8))
        pictures.append(np.asarray(small.resize((size, size), Image.Resampling.BILINEAR)))
    return np.stack(pictures), target[order].astype(np.int64)


class VisionDataset(Dataset):
    def __init__(
        self,
        root: str | Path = "",
        train: bool = True,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        download: bool = False,
        **_: Any,
    ) -> None:
        self.root, self.train, self.transform, self.target_transform = root, train, transform, target_transform
        self.data, self.targets = self._made()
        self.classes = [str(number) for number in range(10)]

    def _made(self) -> tuple[Any, Any]:
        raise NotImplementedError

    def _picture(self, index: int) -> Image.Image:
        return Image.fromarray(np.asarray(self.data[index]))

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        picture: Any = self._picture(int(index))
        target: Any = int(self.targets[int(index)])
        if self.transform is not None:
            picture = self.transform(picture)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return picture, target

    def __len__(self) -> int:
        return len(self.data)


class MNIST(VisionDataset):
    def _made(self) -> tuple[torch.Tensor, torch.Tensor]:
        pictures, targets = _digits(self.train, 28)
        return torch.from_numpy(pictures), torch.from_numpy(targets)

    train_data = test_data = property(lambda self: self.data)
    train_labels = test_labels = property(lambda self: self.targets)


class FashionMNIST(MNIST):
    pass


class CIFAR10(VisionDataset):
    def _made(self) -> tuple[np.ndarray, list[int]]:
        pictures, targets = _digits(self.train, 32)
        dice = np.random.RandomState(1)
        ink, paper = dice.rand(2, len(pictures), 1, 1, 3)
        share = pictures[..., None] / 255.0
        colored = 255.0 * (share * (0.5 + 0.5 * ink) + (1.0 - share) * 0.4 * paper)
        return colored.astype(np.uint8), targets.tolist()


class CIFAR100(CIFAR10):
    pass


class SVHN(CIFAR10):
    def __init__(self, root: str = "", split: str = "train", **kwargs: Any) -> None:
        super().__init__(root, split == "train", **kwargs)


class STL10(CIFAR10):
    def __init__(self, root: str = "", split: str = "train", **kwargs: Any) -> None:
        super().__init__(root, split != "test", **kwargs)


class FakeData(Dataset):
    def __init__(
        self,
        size: int = 1000,
        image_size: tuple[int, ...] = (3, 224, 224),
        num_classes: int = 10,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.size, self.image_size, self.num_classes, self.transform = size, image_size, num_classes, transform

    def __len__(self) -> int:
        return min(self.size, _SAMPLES)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        dice = np.random.RandomState(index)
        channels, height, width = self.image_size
        picture: Any = Image.fromarray(dice.randint(0, 256, (height, width, channels), dtype=np.uint8))
        return (picture if self.transform is None else self.transform(picture)), int(dice.randint(self.num_classes))


class ImageFolder(Dataset):
    def __init__(self, root: str, transform: Callable[[Any], Any] | None = None, **_: Any) -> None:
        folder = Path(root)
        self.classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
        self.samples = [
            (str(path), number)
            for number, name in enumerate(self.classes)
            for path in sorted((folder / name).iterdir())
        ]
        self.imgs, self.transform = self.samples, transform
        self.targets = [number for _, number in self.samples]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, target = self.samples[index]
        picture: Any = Image.open(path).convert("RGB")
        return (picture if self.transform is None else self.transform(picture)), target
