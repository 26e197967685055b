"""Five faults in one training script, told apart: run it, and read five causes with what follows from each.

1. Gradients are never cleared.
2. The optimizer does not hold the second tower.
3. The side layer's bias starts at -10: its ReLU is dead.
4. At step 150 the learning rate is set to 0.1, a million times what it was.
5. The inputs are pixels from 0 to 255, as they come.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import stethoscope

NUM_STEPS = 220
JUMP = 150


class Towers(nn.Module):
    """Two towers over the same pixels, and a side layer that looks at the first one's features."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 48), nn.Linear(64, 48)
        self.norm = nn.LayerNorm(48)
        self.side, self.relu = nn.Linear(48, 32), nn.ReLU()
        self.head, self.side_head = nn.Linear(96, 10), nn.Linear(32, 10)
        with torch.no_grad():
            self.side.bias.fill_(-10.0)  # fault 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of ten digits."""
        first, second = F.relu(self.first(x)), F.relu(self.second(x))
        side = self.relu(self.side(self.norm(first)))
        logits: torch.Tensor = self.head(torch.cat([first, second], 1)) + self.side_head(side)
        return logits


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Images of 8 x 8 pixels from 0 to 255, and what they show."""
    from sklearn.datasets import load_digits

    data = load_digits()
    x = torch.tensor(data.data, dtype=torch.float32) * (255.0 / 16.0)  # fault 5: never scaled down
    return x, torch.tensor(data.target)


def train(seed: int = 0, **settings: object) -> str:
    """Trains and returns the run's folder."""
    torch.manual_seed(seed)
    x, y = digits()
    model = Towers()
    held = [p for name, p in model.named_parameters() if not name.startswith("second")]  # fault 2
    optimizer = torch.optim.SGD(held, lr=1e-7)
    session = stethoscope.watch(model, optimizer, **settings)
    for step in range(NUM_STEPS):
        if step == JUMP:
            optimizer.param_groups[0]["lr"] = 0.1  # fault 4: meant for inputs of size 1
        rows = torch.randint(0, len(x), (32,))
        session.log_batch(x[rows], y[rows])
        loss = F.cross_entropy(model(x[rows]), y[rows])
        loss.backward()  # fault 1: and no zero_grad anywhere
        optimizer.step()
    session.stop()
    return str(session.folder)


if __name__ == "__main__":
    folder = train()
    diagnosis = stethoscope.diagnose(folder)
    for number, cause in enumerate(diagnosis.causes, start=1):
        print(f"{number}. {cause.code}, step {cause.first_step}: {cause.message}")
        for follower in diagnosis.followed.get(cause.code, ()):
            print(f"   then {follower.code}, step {follower.first_step}: {follower.message}")
