"""How the runs in this folder were made: two trainings with faults, small enough to keep, by the version that each name says.

    python make_runs.py runs-0.1.0

The folder is never made again: it shows that what an older version wrote is read as that version read it. `NAME.json` beside
each run is what `stethoscope diagnose NAME --json` of that version says of it. A change to a rule changes what is said, of old
runs as of new ones: then the JSON is made anew with `--say-only`, and the change belongs to the same commit as the rule.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import stethoscope
from stethoscope.store import seal


class Attention(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out((q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1) @ v)


class Words(torch.nn.Module):
    """Embedding and head start equal and are not tied; one layer is never called; the loss gets a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(12, 8)
        self.attention = Attention(8)
        self.wide = torch.nn.Linear(8, 16)
        self.narrow = torch.nn.Linear(16, 8)
        self.dropout = torch.nn.Dropout(0.1)
        self.spare = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 12, bias=False)
        self.head.weight.data.copy_(self.embed.weight.data)
        self.wide.weight.data.fill_(0.1)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embed(words)
        x = x + self.attention(x)
        x = x + self.dropout(self.narrow(torch.tanh(self.wide(x))))
        return self.head(x.mean(1)).softmax(-1)


def train_words(folder: Path, steps: int = 18) -> None:
    """Sorted batches, a layer without an optimizer, validation in training mode, kept graphs, tensors that pile up."""
    torch.manual_seed(0)
    data = torch.randint(0, 12, (96, 6))
    labels = (data.sum(1) % 12).sort().values
    model, loss_fn = Words(), torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW([p for n, p in model.named_parameters() if not n.startswith("narrow")], lr=0.05)
    stethoscope.checkup(model, (data[:16], labels[:16]), loss_fn, optimizer)
    average = torch.optim.swa_utils.AveragedModel(model)
    options = {"run": folder, "name": "words", "ema": average, "leaks_every": 1, "histogram_every": 64}
    session = stethoscope.watch(model, optimizer, quiet=True, companion="off", overhead="100%", **options)
    session.on(stethoscope.HookCondition.StepRange(3, 3), stethoscope.HookAction.Alert("loss is {loss}", "Critical"))
    batches = [b for _ in range(3) for b in DataLoader(TensorDataset(data, labels), batch_size=16)][:steps]
    kept, piled = [], []
    for step, (x, y) in enumerate(batches):
        if step == 6:
            loss_fn(model(x), y).backward()
            optimizer.zero_grad()
        for half in (slice(8), slice(8, 16)):
            loss = loss_fn(model(x[half]), y[half])
            loss.backward()
            kept.append(loss)
        piled.append(loss.detach() * 2)
        model.head.register_forward_hook(lambda *_: None)
        optimizer.step()
        optimizer.zero_grad()
        if step % 4 == 3:
            with session.evaluating(), torch.no_grad():
                session.log(loss=float(loss_fn(model(data[:16]), labels[:16])))
    session.stop()


def train_scaled(folder: Path, seed: int, steps: int = 8) -> None:
    """Dead units, a feature that never changes, a prediction broadcast against its target, skipped steps, a tight clip."""
    torch.manual_seed(3)
    parts = [torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)]
    model = torch.nn.Sequential(*parts)
    model[0].bias.data[:6] = -50.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    options = {"run": folder, "name": "scaled", "histogram_every": 64}
    session = stethoscope.watch(model, optimizer, quiet=True, companion="off", overhead="100%", **options)
    torch.manual_seed(seed)
    for step in range(steps):
        x, y = torch.randn(16, 6), torch.randn(16)
        x[:, 5] = 1.5
        session.log_batch(x, y)
        loss = torch.nn.functional.mse_loss(model(x), y)
        scaler.scale(loss * float("inf") if step in (6, 7) else loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    session.stop()


def say(folder: Path) -> None:
    """Writes down what `diagnose --json` says of each run."""
    for run in sorted(path for path in folder.iterdir() if path.is_dir()):
        command = [sys.executable, "-m", "stethoscope", "diagnose", run.name, "--json"]
        found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert found.returncode in (0, 1), found.stderr
        (folder / f"{run.name}.json").write_text(found.stdout)


def main() -> None:
    """Makes the runs, where they are not there yet, and writes down what is said of them."""
    folder = Path(sys.argv[1])
    if "--say-only" not in sys.argv:
        warnings.simplefilter("ignore")
        train_words(folder / "words")
        for seed in (5, 6):
            train_scaled(folder / "scaled", seed)
        seal(folder / "scaled", final=True)
    say(folder)


if __name__ == "__main__":
    main()
