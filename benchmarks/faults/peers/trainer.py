"""Lightning: the program's loop as the manual optimization of a `LightningModule`, under its Trainer and callbacks.

The program runs in a thread of its own, held at its first backward until the Trainer is ready; each backward is one
`training_step`. Every twenty are an epoch, after which callbacks look at the mean loss.
"""

from __future__ import annotations

import logging
import queue
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final

import lightning.pytorch as pl
import torch
from benchmarks.faults.catalogue import Program
from benchmarks.faults.peers.stage import backwards, first_line, without_us, words
from lightning.pytorch.callbacks import EarlyStopping
from torch import nn

EPOCH: Final = 20
TIMEOUT: Final = 60.0
NOISE: Final = (
    "does not have many workers",
    "Anomaly Detection has been enabled",
    "`train_dataloader` was not",
    "is smaller than the logging",
    "train_dataloader",
    "have no `validation_step`",
    "val_dataloader",
    "self.log(",
    "litlogger",
    "IterableDataset",
    "Starting from v",
    "isinstance(treespec, LeafSpec)",
    "no logger",
    "log_every_n_steps",
    "`training_step` returned `None`",
    "`LightningModule.configure_optimizers` returned `None`",
    "Early stopping conditioned on metric",
)
"""Lightning's remarks about the stage itself."""


class Held:
    """A program in its own thread."""

    def __init__(self, program: Program, seed: int) -> None:
        self.events: queue.SimpleQueue[float | None] = queue.SimpleQueue()
        self.ready, self.ended = threading.Event(), False
        self.model: nn.Module | None = None
        self.said: list[str] = []
        self.built = threading.Event()
        self.thread = threading.Thread(target=self._live, args=(program, seed), daemon=True)

    def _live(self, program: Program, seed: int) -> None:
        try:
            with without_us(self._watched), backwards(self._heard):
                self.said = words(program, seed, torch.enable_grad())
        finally:
            self.built.set()
            self.events.put(None)

    def _watched(self, model: Any, optimizer: Any) -> None:
        self.model = model if isinstance(model, nn.Module) else None
        self.built.set()
        self.ready.wait(TIMEOUT)

    def _heard(self, loss: torch.Tensor, go_on: Callable[[], None]) -> None:
        go_on()
        if self.built.is_set():
            self.events.put(float(loss.detach().float().mean()))


class Steps:
    """What is left of the program, as a data loader."""

    def __init__(self, held: Held) -> None:
        self.held = held

    def __iter__(self) -> Iterator[float]:
        # The Trainer asks for the first batch with its anomaly mode on: the program may begin.
        self.held.ready.set()
        for _ in range(EPOCH):
            loss = self.held.events.get(timeout=TIMEOUT)
            if loss is None:
                self.held.ended = True
                return
            yield loss


class Loop(pl.LightningModule):
    """The program's own model, and its loop by hand."""

    def __init__(self, held: Held) -> None:
        super().__init__()
        self.held, self.automatic_optimization = held, False
        self.model = held.model

    def configure_optimizers(self) -> None:
        """The program has its own."""

    def training_step(self, batch: float, batch_idx: int) -> None:
        """Say what the step was like."""
        self.log("loss", batch, on_step=False, on_epoch=True, batch_size=1)

    def on_train_epoch_end(self) -> None:
        """The program's end is the training's."""
        if self.held.ended:
            self.trainer.should_stop = True


def run(program: Program, seed: int, *, patience: int) -> list[str]:
    """What the Trainer and its callbacks say."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    held = Held(program, seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        held.thread.start()
        held.built.wait(TIMEOUT)
        said = _fit(held, patience)
        held.ready.set()
        held.thread.join(TIMEOUT)
    said += [first_line(w.message) for w in caught] + held.said
    return [line for line in dict.fromkeys(said) if not any(noise in line for noise in NOISE)]


def finite(program: Program, seed: int) -> list[str]:
    """`detect_anomaly=True`, and `EarlyStopping(check_finite=True)` that stops for nothing else."""
    return run(program, seed, patience=10**9)


def patient(program: Program, seed: int) -> list[str]:
    """The same with EarlyStopping's default patience: three looks without an improvement."""
    return run(program, seed, patience=3)


def _fit(held: Held, patience: int) -> list[str]:
    stopping = EarlyStopping("loss", patience=patience, check_finite=True, strict=False, check_on_train_epoch_end=True)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=10**6,
        callbacks=[stopping],
        detect_anomaly=True,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    try:
        trainer.fit(Loop(held), train_dataloaders=Steps(held))
    except Exception as error:
        return [f"raised {type(error).__name__}: {first_line(error)}"]
    message = stopping.stopping_reason_message
    return [f"EarlyStopping: {first_line(message)}"] if message else []
