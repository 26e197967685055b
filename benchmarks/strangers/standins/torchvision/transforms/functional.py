"""The functions under some of the transformations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch


def to_tensor(picture: Any) -> torch.Tensor:
    """Channels first, from 0 to 1."""
    array = np.array(picture)
    array = array[:, :, None] if array.ndim == 2 else array
    tensor = torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1)))
    return tensor.float() / 255.0 if tensor.dtype == torch.uint8 else tensor


def normalize(picture: torch.Tensor, mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """Less the mean, by the deviation, of each channel."""
    shape = (-1, 1, 1)
    return (picture - torch.tensor(mean).view(shape)) / torch.tensor(std).view(shape)
