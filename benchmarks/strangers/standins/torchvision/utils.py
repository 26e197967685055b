"""Pictures of batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image


def make_grid(tensor: Any, nrow: int = 8, normalize: bool = False, **_: Any) -> torch.Tensor:
    """A batch of pictures beside and under one another."""
    batch = torch.stack(list(tensor)) if isinstance(tensor, (list, tuple)) else tensor
    batch = batch.detach().cpu().float()
    if batch.dim() == 3:
        batch = batch[None]
    if normalize:
        low, high = float(batch.min()), float(batch.max())
        batch = (batch - low) / max(high - low, 1e-5)
    if batch.shape[1] == 1:
        batch = batch.expand(-1, 3, -1, -1)
    rows = [torch.cat(list(batch[at : at + nrow]), dim=2) for at in range(0, len(batch), nrow)]
    width = max(row.shape[2] for row in rows)
    rows = [torch.nn.functional.pad(row, (0, width - row.shape[2])) for row in rows]
    return torch.cat(rows, dim=1)


def save_image(tensor: Any, fp: str | Path, nrow: int = 8, **kwargs: Any) -> None:
    """The same, as a file."""
    grid = make_grid(tensor, nrow, **{key: kwargs[key] for key in kwargs if key == "normalize"})
    picture = (grid.nan_to_num().clamp(0, 1) * 255).byte().permute(1, 2, 0).numpy()
    Image.fromarray(np.ascontiguousarray(picture)).save(fp)
