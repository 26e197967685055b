"""A model one of whose modules hands out whatever tensor it was given."""

from typing import Any

import torch
from torch import nn


class Emit(nn.Module):
    """Returns its tensor."""

    def __init__(self, tensor: Any) -> None:
        super().__init__()
        self.tensor = tensor

    def forward(self, x: torch.Tensor) -> Any:
        return self.tensor


class Odd(nn.Module):
    """Two layers that learn, and one that hands out the tensor between them."""

    def __init__(self, tensor: Any) -> None:
        super().__init__()
        self.first, self.odd, self.last = nn.Linear(6, 5), Emit(tensor), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        self.odd(x)
        return self.last(x)
