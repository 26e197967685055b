"""What several experiments share: one observed training pass, one evaluation pass, the data-flow graph.

Each is made when first asked for, and once.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from stethoscope.capture.lineage_build import build
from stethoscope.capture.lineage_trace import Trace
from stethoscope.checkup.observation import Observer
from stethoscope.checkup.rebinding import calls_of
from stethoscope.checkup.structure import CheckupError, clone
from stethoscope.checkup.subject import Subject, Twin, output_tensors
from stethoscope.record import Finding, Severity


class Pass:
    """Model and loss run once in training mode, with gradients."""

    def __init__(self, subject: Subject) -> None:
        self.trains = True
        self.original_used: str | None = None
        """A module or parameter of the original that took part in the copy's forward: then nothing is known of the copy."""
        try:
            self._run_pass(subject, train=True)
        except CheckupError:
            raise
        except Exception as first:
            # BatchNorm refuses a batch of one in training mode; the rest can still be seen in evaluation mode.
            try:
                self.trains = False
                self._run_pass(subject, train=False)
            except Exception:
                raise failed(first) from first

    def _run_pass(self, subject: Subject, *, train: bool) -> None:
        self.twin = subject.twin(train=train)
        self.observer = Observer(self.twin.model)
        with calls_of(subject.model) as called, self.observer:
            self.output = self.twin.forward()
            self.original_used = called[0] if called else None
            self.observer.in_loss()
            self.loss = self.twin.loss(self.output)
        self.parameters = self.twin.parameters()
        self.gradients: dict[str, torch.Tensor | None] = dict.fromkeys(self.parameters)
        asking = {name: p for name, p in self.parameters.items() if p.requires_grad}
        if self.loss.requires_grad and asking:
            found = torch.autograd.grad(self.loss, list(asking.values()), allow_unused=True, retain_graph=True)
            self.gradients.update(zip(asking, found, strict=True))
        self.original_used = self.original_used or self._original_in_graph(subject)

    def _original_in_graph(self, subject: Subject) -> str | None:
        """A parameter of the original that the copy's output was computed from."""
        asking = {name: p for name, p in subject.model.named_parameters() if p.requires_grad}
        outputs = [t for t in output_tensors(self.output) if t.requires_grad]
        if not asking or not outputs:
            return None
        ones = [torch.ones_like(t) for t in outputs]
        found = torch.autograd.grad(outputs, list(asking.values()), ones, allow_unused=True, retain_graph=True)
        return next((name for name, gradient in zip(asking, found, strict=True) if gradient is not None), None)


class Examination:
    """The subject and what was seen of it."""

    def __init__(
        self, subject: Subject, *, causal: bool | None, pad_id: int | None, val_batch: tuple[Any, Any] | None
    ) -> None:
        self.subject, self.causal, self.pad_id, self.val_batch = subject, causal, pad_id, val_batch
        self.notes: list[str] = []
        """What could not be examined, and why."""
        self.findings: list[Finding] = []
        """What the experiments before this one found."""
        self.seen = ""
        """What the experiment that runs now has examined; "" where it does not apply."""

    def saw(self, words: str) -> None:
        """Note what the experiment examined, so that "clear" is told from "does not apply"."""
        self.seen = words

    @functools.cached_property
    def first(self) -> Pass:
        """The observed training pass."""
        return Pass(self.subject)

    @functools.cached_property
    def evaluated(self) -> list[torch.Tensor]:
        """The output in evaluation mode, as tensors."""
        return self.run()

    @functools.cached_property
    def finite(self) -> bool:
        """Whether the loss is finite and no output is NaN; -inf in an output may be a mask."""
        outputs = [*output_tensors(self.first.output), *self.evaluated]
        return bool(torch.isfinite(self.first.loss)) and not any(bool(t.isnan().any()) for t in outputs)

    @functools.cached_property
    def graph(self) -> dict[str, Any]:
        """The data-flow graph of a training pass; empty where the model cannot be followed."""
        twin = self.subject.twin(train=self.first.trains)
        trace = Trace(twin.model)
        given = clone(self.subject.inputs)
        try:
            trace.begin((given,), {})
            output = self.subject.call(twin.model, given)
            trace.close(output)
        finally:
            trace.end()
        if trace.error is not None:
            self.notes.append(f"the model's data flow cannot be followed: {trace.error!r}")
            return {}
        return build(trace)

    def has(self, *codes: str) -> bool:
        """Whether an earlier experiment found one of these, at least as a warning."""
        return any(f.code in codes and f.severity is not Severity.INFO for f in self.findings)

    def tail(self) -> list[str]:
        """The last layer with weights and what stands between it and the output; empty where several feed the output."""
        edges = self.graph.get("edges", [])
        modules = {n["path"]: n for n in self.graph.get("nodes", []) if n["role"] == "module"}
        chain: list[str] = []
        site = "(output)"
        for _ in range(8):
            feeding = [e["source"] for e in edges if e["target"] == site]
            if len(feeding) != 1 or feeding[0] not in modules:
                return []
            site = feeding[0]
            chain.insert(0, site)
            if modules[site]["num_parameters"]:
                return chain
        return []

    def run(self, inputs: Any = None, *, seed: int | None = None, twin: Twin | None = None) -> list[torch.Tensor]:
        """The output in evaluation mode for the batch or other inputs."""
        one = twin or self.subject.twin()
        with torch.no_grad():
            return [t.detach().clone() for t in output_tensors(one.forward(inputs, seed=seed))]


def failed(error: BaseException) -> CheckupError:
    """The user's own model or loss does not run: said in their words."""
    return CheckupError(
        "The model or its loss fails on this batch",
        where=f"{type(error).__name__}: {error}",
        do="Make loss_fn(model(inputs), targets) run first; checkup calls exactly that",
    )


def differ(a: torch.Tensor, b: torch.Tensor, *, times: float = 1.0) -> float:
    """How far two results are apart, in units of what rounding explains: above 1 they differ. NaN equals NaN."""
    if a.shape != b.shape:
        return float("inf")
    if not a.numel():
        return 0.0
    tolerance = {torch.float64: 1e-8, torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 5e-2}
    x, y = a.double(), b.double()
    x, y = torch.nan_to_num(x, 0.0, 1e300, -1e300), torch.nan_to_num(y, 0.0, 1e300, -1e300)
    scale = max(float(x.abs().max()), float(y.abs().max()), 1e-30)
    return float((x - y).abs().max()) / (scale * tolerance.get(a.dtype, 2e-5) * times)
