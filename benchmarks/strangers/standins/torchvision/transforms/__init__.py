"""Transformations of PIL pictures and tensors under torchvision's names."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from torchvision.transforms import functional

Transform = Callable[[Any], Any]


class InterpolationMode:
    BILINEAR = Image.Resampling.BILINEAR
    BICUBIC = Image.Resampling.BICUBIC
    NEAREST = Image.Resampling.NEAREST


def _pair(size: int | Sequence[int]) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    height, width = (size[0], size[0]) if len(size) == 1 else size
    return int(height), int(width)


class Compose:
    def __init__(self, transforms: Sequence[Transform]) -> None:
        self.transforms = list(transforms)

    def __call__(self, picture: Any) -> Any:
        for transform in self.transforms:
            picture = transform(picture)
        return picture


class Lambda:
    def __init__(self, lambd: Transform) -> None:
        self.lambd = lambd

    def __call__(self, picture: Any) -> Any:
        return self.lambd(picture)


class ToTensor:
    def __call__(self, picture: Any) -> torch.Tensor:
        return functional.to_tensor(picture)


class ToPILImage:
    def __call__(self, picture: Any) -> Image.Image:
        array = np.asarray(picture)
        if isinstance(picture, torch.Tensor):
            array = (picture.clamp(0, 1) * 255).byte().permute(1, 2, 0).numpy()
        return Image.fromarray(array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array)


class Normalize:
    def __init__(self, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> None:
        self.mean, self.std = mean, std

    def __call__(self, picture: torch.Tensor) -> torch.Tensor:
        return functional.normalize(picture, self.mean, self.std)


class Resize:
    def __init__(self, size: int | Sequence[int], interpolation: Any = Image.Resampling.BILINEAR, **_: Any) -> None:
        self.size, self.interpolation = size, interpolation

    def __call__(self, picture: Any) -> Any:
        if isinstance(picture, torch.Tensor):
            return torch.nn.functional.interpolate(picture[None], _pair(self.size), mode="bilinear")[0]
        if isinstance(self.size, int):
            width, height = picture.size
            scale = self.size / min(width, height)
            return picture.resize((round(width * scale), round(height * scale)), self.interpolation)
        height, width = _pair(self.size)
        return picture.resize((width, height), self.interpolation)


Scale = Resize


class CenterCrop:
    def __init__(self, size: int | Sequence[int]) -> None:
        self.size = _pair(size)

    def __call__(self, picture: Image.Image) -> Image.Image:
        height, width = self.size
        left, top = (picture.size[0] - width) // 2, (picture.size[1] - height) // 2
        return picture.crop((left, top, left + width, top + height))


class Pad:
    def __init__(self, padding: int, **_: Any) -> None:
        self.padding = padding

    def __call__(self, picture: Image.Image) -> Image.Image:
        return ImageOps.expand(picture, self.padding)


class RandomCrop:
    def __init__(self, size: int | Sequence[int], padding: int = 0, **_: Any) -> None:
        self.size, self.padding = _pair(size), padding

    def __call__(self, picture: Image.Image) -> Image.Image:
        picture = ImageOps.expand(picture, self.padding) if self.padding else picture
        height, width = self.size
        left, top = random.randint(0, picture.size[0] - width), random.randint(0, picture.size[1] - height)
        return picture.crop((left, top, left + width, top + height))


class RandomResizedCrop:
    def __init__(self, size: int | Sequence[int], scale: Sequence[float] = (0.08, 1.0), **_: Any) -> None:
        self.size, self.scale = _pair(size), scale

    def __call__(self, picture: Image.Image) -> Image.Image:
        share = random.uniform(*self.scale) ** 0.5
        width, height = (max(int(side * share), 1) for side in picture.size)
        left, top = random.randint(0, picture.size[0] - width), random.randint(0, picture.size[1] - height)
        return picture.crop((left, top, left + width, top + height)).resize(self.size[::-1])


class RandomHorizontalFlip:
    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def __call__(self, picture: Any) -> Any:
        if random.random() >= self.p:
            return picture
        return picture.flip(-1) if isinstance(picture, torch.Tensor) else ImageOps.mirror(picture)


class RandomVerticalFlip(RandomHorizontalFlip):
    def __call__(self, picture: Image.Image) -> Image.Image:
        return ImageOps.flip(picture) if random.random() < self.p else picture


class RandomRotation:
    def __init__(self, degrees: float, **_: Any) -> None:
        self.degrees = degrees

    def __call__(self, picture: Image.Image) -> Image.Image:
        return picture.rotate(random.uniform(-self.degrees, self.degrees))


class ColorJitter:
    def __init__(self, brightness: float = 0, contrast: float = 0, saturation: float = 0, hue: float = 0) -> None:
        self.amounts = (
            (ImageEnhance.Brightness, brightness),
            (ImageEnhance.Contrast, contrast),
            (ImageEnhance.Color, saturation),
        )

    def __call__(self, picture: Image.Image) -> Image.Image:
        for enhance, amount in self.amounts:
            picture = enhance(picture).enhance(random.uniform(max(0.0, 1 - amount), 1 + amount))
        return picture


class RandomApply:
    def __init__(self, transforms: Sequence[Transform], p: float = 0.5) -> None:
        self.transforms, self.p = transforms, p

    def __call__(self, picture: Any) -> Any:
        return Compose(self.transforms)(picture) if random.random() < self.p else picture


class Grayscale:
    def __init__(self, num_output_channels: int = 1) -> None:
        self.num_output_channels = num_output_channels

    def __call__(self, picture: Image.Image) -> Image.Image:
        gray = picture.convert("L")
        return gray if self.num_output_channels == 1 else gray.convert("RGB")


class RandomGrayscale:
    def __init__(self, p: float = 0.1) -> None:
        self.p = p

    def __call__(self, picture: Image.Image) -> Image.Image:
        return picture.convert("L").convert(picture.mode) if random.random() < self.p else picture


class GaussianBlur:
    def __init__(self, kernel_size: int, sigma: Any = 1.0) -> None:
        self.radius = kernel_size / 4

    def __call__(self, picture: Image.Image) -> Image.Image:
        return picture.filter(ImageFilter.GaussianBlur(self.radius))
