"""`stethoscope demo`: train a small transformer with a hidden fault, find it, show it. Under a minute on two cores."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from typing import TYPE_CHECKING

from stethoscope.record import MissingExtraError

if TYPE_CHECKING:
    from stethoscope.explain import Diagnosis
    from stethoscope.session import DebugSession
    from stethoscope.store import Run

STEPS = 400
BATCH = 16
Z_WEIGHT = 1.5e-4
STEPS_AFTER = 8
"""Steps that training goes on after the loss is lost, as an unattended run would."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the run goes, and how long."""
    parser.add_argument("--dir", default=None, help="where run folders go; default: .stethoscope here")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"at most this many steps; default: {STEPS}")
    parser.add_argument("--seed", type=int, default=0, help="of the text, the weights and the batches")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    """Train, then say what was wrong."""
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("torch", "torch", "The demo trains a model, which")
    session = train(args.steps, args.seed, args.dir, progress=not args.quiet and sys.stderr.isatty())
    with session.run as found:
        show(found, session.diagnosis)
    return 0


def train(steps: int, seed: int, folder: str | None, *, progress: bool) -> DebugSession:
    """Two lines of ours in an ordinary training script."""
    import torch
    from torch.nn import functional as F  # noqa: N812 - what everybody calls it

    import stethoscope
    from stethoscope.cli.demo_model import CONTEXT, TinyGPT, text

    torch.manual_seed(seed)
    torch.set_num_threads(min(2, torch.get_num_threads()))
    generator = torch.Generator().manual_seed(seed)
    letters = text(2_000, generator)
    alphabet = sorted(set(letters))
    tokens = torch.tensor([alphabet.index(letter) for letter in letters])
    model = TinyGPT(len(alphabet))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    session = stethoscope.watch(model, optimizer, name="demo", dir=folder, every=1)
    lost = 0
    with _Bar(steps, on=progress) as bar:
        for _ in range(steps):
            starts = torch.randint(0, len(tokens) - CONTEXT - 1, (BATCH,), generator=generator)
            window = tokens[starts[:, None] + torch.arange(CONTEXT + 1)]
            loss = F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
            loss = loss - Z_WEIGHT * model.z_loss()  # the mistake: this should be a plus
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            bar.advance(loss.item())
            lost += not torch.isfinite(loss)
            if lost > STEPS_AFTER:
                break
    session.stop()
    return session


def show(found: Run, diagnosis: Diagnosis) -> None:
    """The verdict, the picture, and where to look next."""
    from stethoscope.cli.diagnose import diagnose_lines
    from stethoscope.cli.options import emit, screen_of

    screen = screen_of(argparse.Namespace(ascii=False, color="auto", width=None))
    sys.stdout.write("\n")
    emit(screen, diagnose_lines(found, diagnosis, screen, full=True, heatmap=True))
    sys.stdout.write(
        "\nThe training script had two lines of ours: session = stethoscope.watch(model, optimizer), and session.stop().\n"
        f"\n  stethoscope show {found.id}       every layer and metric of this run"
        f"\n  stethoscope doctor {found.id}     what was recorded, and what that cost"
        f'\n  stethoscope get {found.id} "blocks.2.*" activation abs_max     the numbers\n'
    )


class _Bar:
    """A progress bar with the loss, on a terminal only."""

    def __init__(self, total: int, *, on: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not on,
        )
        self._task = self._progress.add_task("training", total=total, loss="")

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def advance(self, loss: float) -> None:
        """One more step."""
        self._progress.update(self._task, advance=1, loss=f"{loss:.3f}")
