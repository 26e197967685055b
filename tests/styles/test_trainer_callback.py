"""A trainer that owns the loop and calls callbacks, as Lightning's does: the whole integration is one callback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import stethoscope

STEPS, EPOCHS = 20, 2


class StethoscopeCallback:
    """What a user of such a trainer writes once."""

    def __init__(self, **settings: Any) -> None:
        self._settings = settings

    def on_fit_start(self, trainer: Trainer) -> None:
        self.session = stethoscope.watch(trainer.model, trainer.optimizer, **self._settings)

    def on_validation_start(self, trainer: Trainer) -> None:
        self.session.begin_evaluation()

    def on_validation_end(self, trainer: Trainer) -> None:
        self.session.log(**trainer.metrics)
        self.session.end_evaluation()

    def on_fit_end(self, trainer: Trainer) -> None:
        self.session.stop()


class Trainer:
    """Owns model, optimizer and loop, and tells its callbacks where it is."""

    def __init__(self, callback: StethoscopeCallback | None = None) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.metrics: dict[str, float] = {}
        self._callback = callback

    def fit(self) -> None:
        self._tell("on_fit_start")
        for epoch in range(EPOCHS):
            for step in range(STEPS):
                self.optimizer.zero_grad()
                self._loss(STEPS * epoch + step).backward()
                self.optimizer.step()
            self._tell("on_validation_start")
            self.model.eval()
            with torch.no_grad():
                self.metrics = {"loss": float(self._loss(10_000))}
            self.model.train()
            self._tell("on_validation_end")
        self._tell("on_fit_end")

    def _loss(self, seed: int) -> torch.Tensor:
        x = torch.randn(32, 4, generator=torch.Generator().manual_seed(seed))
        return torch.nn.functional.mse_loss(self.model(x), x.sum(1, keepdim=True))

    def _tell(self, event: str) -> None:
        if self._callback is not None:
            getattr(self._callback, event)(self)


def test_one_callback_is_the_integration(tmp_path: Path) -> None:
    plain = Trainer()
    plain.fit()
    callback = StethoscopeCallback(dir=str(tmp_path), quiet=True, companion="off")
    watched = Trainer(callback)
    watched.fit()
    for ours, theirs in zip(watched.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    run = callback.session.run
    assert run.steps.tolist() == list(range(EPOCHS * STEPS))
    assert len(run.metric("eval/loss")) == EPOCHS
    assert callback.session.diagnosis.causes == ()
