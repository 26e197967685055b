"""Where the first NaN or Inf came from: the batch, a module's forward, its backward, the optimizer, or a buffer.

A non-finite value spreads to everything within a step or two, so only the first bad step is asked, and there the order
in which things happen: inputs, module outputs in the order they ran, targets, the loss, gradients from the loss backwards,
then weights. What holds Inf or NaN while loss and gradients stay finite does so on purpose and is not blamed: a mask, a
feature or a target that is missing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar, Final, cast

import numpy as np
import numpy.typing as npt

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector, Reading, Rule
from stethoscope.detect.effects import BLOW_UP, LEARNING_TROUBLE, UNIT_TROUBLE
from stethoscope.detect.needs import BUFFERS, GRADIENTS, INPUTS, LOSS, OUTPUTS, optional
from stethoscope.kernels.columns import INDEX
from stethoscope.record import ROOT_NAME, Evidence, Finding, Kind, Severity, metrics
from stethoscope.record.events import Batch

SYMPTOMS: Final = (Kind.GRADIENT, Kind.WEIGHT, Kind.UPDATE, Kind.OPTIMIZER_STATE, Kind.ACTIVATION_GRADIENT)
EXP_LIMIT: Final = 88.7
"""The logarithm of the largest float32 number."""
FORWARD: Final = (Kind.ACTIVATION, Kind.OUTPUT)
GIVEN: Final = (Kind.INPUT, Kind.TARGET)


class Nonfinite(Detector):
    """Finds the first bad step and who began it."""

    codes: ClassVar[tuple[Code, ...]] = (
        Code(
            "nonfinite_origin",
            needs=(optional(LOSS), optional(GRADIENTS), optional(OUTPUTS)),
            leads_to=(
                *LEARNING_TROUBLE,
                *UNIT_TROUBLE,
                "silent_no_update",
                "update_too_small",
                "adam_eps_dominates",
                "class_collapse",
                "output_logit_drift",
            ),  # a second moment that is Inf makes every update zero
        ),
        Code(
            "nonfinite_batch",
            needs=(INPUTS,),
            leads_to=(*BLOW_UP, *UNIT_TROUBLE, "update_too_large", "exploding_gradients"),
        ),
        Code("nonfinite_buffer", needs=(BUFFERS,)),
        Code("precision_overflow", needs=(OUTPUTS,)),
    )

    def __init__(self) -> None:
        self._habitual: set[tuple[Kind, str]] = set()
        """Sites that held NaN or Inf while all was well: masks, and data whose gaps are marked by NaN."""
        self._origin: Finding | None = None
        self._buffer: Finding | None = None
        self._buffer_sites: list[str] = []
        self._last_bad = 0
        self._previous_loss: float | None = None
        self._first_size: dict[str, float] = {}
        self._last_size: dict[str, float] = {}

    def observe(self, span: Span) -> None:
        """Go through the steps until the first bad one; after it only note how long it lasts."""
        bad = span.stat("num_nonfinite") > 0
        loss, has_loss = span.metric(metrics.LOSS), span.recorded(metrics.LOSS)
        for name in [name for name in span.metrics if name.startswith("loss.")]:
            # Other optimizers' losses: of interest here only where they are not finite.
            lost = span.recorded(name) & ~np.isfinite(span.metric(name))
            loss, has_loss = np.where(lost, span.metric(name), loss), has_loss | lost
        skipped = np.nan_to_num(span.metric(metrics.FOUND_INF)) > 0
        symptoms = np.isin([str(s.site.kind) for s in span.sites], [str(k) for k in SYMPTOMS])
        forward = np.isin([str(s.site.kind) for s in span.sites], [str(k) for k in FORWARD])
        passive = forward | np.isin([str(s.site.kind) for s in span.sites], [str(k) for k in GIVEN])
        buffers = span.site_indices(Kind.BUFFER)
        for index, step in enumerate(span.steps):
            if skipped[index]:
                continue
            loss_bad = bool(has_loss[index] and not np.isfinite(loss[index]))
            if loss_bad or bad[index, symptoms].any():
                self._last_bad = int(step)
                if self._origin is None:
                    self._note_sizes(span, index)
                    self._origin = self._find_origin(span, index, bad[index], loss[index] if has_loss[index] else None)
            elif self._origin is None:
                self._habitual.update(_site_key(span, int(n)) for n in np.flatnonzero(bad[index] & passive))
                self._look_at_buffers(span, index, buffers[bad[index, buffers]] if len(buffers) else buffers)
                if has_loss[index]:
                    self._previous_loss = float(loss[index])
        if self._origin is None:
            self._note_sizes(span, len(span.steps))

    def _note_sizes(self, span: Span, num_steps: int) -> None:
        """How large each module's output was at its first and at its last sample, of so many of the span's steps."""
        indices = [n for kind in FORWARD for n in span.site_indices(kind)]
        if not num_steps or not indices:
            return
        sizes = span.stat("abs_max")[:num_steps, indices]
        seen = np.isfinite(sizes)
        first, last = seen.argmax(0), len(sizes) - 1 - seen[::-1].argmax(0)
        for column in np.flatnonzero(seen.any(0)):
            path = span.sites[indices[column]].site.path
            self._first_size.setdefault(path, float(sizes[first[column], column]))
            self._last_size[path] = float(sizes[last[column], column])

    def rules(self) -> Iterator[Rule]:
        """At most one origin, and the buffers that were bad before it. Each is a count, so one is enough."""
        code = self._origin.code if self._origin is not None else ""
        step = Reading("first bad step", self._origin.first_step if self._origin is not None else np.nan)
        for name, label in (
            ("nonfinite_origin", "first steps with NaN or Inf in loss, gradients or weights from finite inputs"),
            ("nonfinite_batch", "first steps with NaN or Inf that the batch already held"),
            ("precision_overflow", "first steps with Inf in a float16 output"),
        ):
            yield Rule(name, (Reading(label, code == name, ">", 0), step), self._extended_origin)
        buffers = Reading("buffers with NaN or Inf while the loss was finite", len(self._buffer_sites), ">", 0)
        yield Rule("nonfinite_buffer", (buffers,), lambda: cast(Finding, self._buffer))

    def _extended_origin(self) -> Finding:
        assert self._origin is not None
        return dataclasses.replace(self._origin, last_step=max(self._last_bad, self._origin.last_step))

    def _find_origin(self, span: Span, index: int, bad: npt.NDArray[np.bool_], loss: float | None) -> Finding:
        step = int(span.steps[index])
        of_kind = {kind: [n for n in span.site_indices(kind) if bad[n]] for kind in Kind}
        evidence = [Evidence("loss", loss, self._previous_loss)] if loss is not None else []
        inputs, targets, *outputs = (self._without_habitual(span, of_kind[kind]) for kind in (*GIVEN, *FORWARD))
        if inputs:
            return self._in_batch(span, index, inputs, evidence)
        if any(outputs):
            return self._in_forward(span, index, min(n for found in outputs for n in found), evidence)
        if targets:
            return self._in_batch(span, index, targets, evidence)
        if loss is not None and not np.isfinite(loss):
            return self._in_loss(span, index, loss, evidence)
        if of_kind[Kind.ACTIVATION_GRADIENT] or of_kind[Kind.GRADIENT]:
            return self._in_backward(span, index, of_kind, evidence)
        sites = of_kind[Kind.UPDATE] or of_kind[Kind.WEIGHT] or of_kind[Kind.OPTIMIZER_STATE]
        first = span.sites[sites[0]].site.path
        return _origin(
            f"The optimizer wrote {_kind_of(span, index, sites[0])} into {first} at step {step:,} from finite gradients.",
            step,
            (first,),
            [*evidence, *_nonfinite_counts(span, index, sites[:1])],
            "torch.optim.AdamW(..., eps=1e-8)  # and a smaller learning rate",
        )

    def _in_loss(self, span: Span, index: int, loss: float, evidence: list[Evidence]) -> Finding:
        step = int(span.steps[index])
        if span.present[index, span.site_indices(Kind.OUTPUT)].any():
            return _origin(
                f"The loss became {_value_name(loss)} at step {step:,} although every module's output is finite: it begins in the loss "
                "itself.",
                step,
                ("(loss)",),
                evidence,
                "loss = loss_fn(output.clamp(min=1e-8), target)  # keep log and division away from 0",
            )
        # Not on a GPU: reading the loss would wait for the device.
        grown = max(self._last_size, key=self._growth, default="")
        known = self._growth(grown) > 1.0 if grown else False
        told = f"; when last measured, {grown} had grown most" if known else ""
        return _origin(
            f"The loss became {_value_name(loss)} at step {step:,}. Module outputs were not measured in this step, so which of them began "
            f"it is not known{told}.",
            step,
            (grown,) if known else (),
            [*evidence, *([self._size_of(grown, self._last_size[grown])] if known else [])],
            "stethoscope.watch(model, optimizer, every=1)  # looks at every step, and names the module",
        )

    def _growth(self, path: str) -> float:
        """How many times its first largest value a module's latest is."""
        first = self._first_size.get(path, 0.0)
        return self._last_size[path] / first if first > 0 else 0.0

    def _size_of(self, path: str, size: float) -> Evidence:
        before = self._first_size.get(path)
        return Evidence(f"largest value in {path}", size, before, site=path, kind="activation", stat="abs_max")

    def _without_habitual(self, span: Span, indices: list[int]) -> list[int]:
        return [n for n in indices if _site_key(span, n) not in self._habitual]

    def _in_batch(self, span: Span, index: int, sites: list[int], evidence: list[Evidence]) -> Finding:
        step = int(span.steps[index])
        name = span.sites[sites[0]].site.path
        of_targets = span.sites[sites[0]].site.kind is Kind.TARGET
        what = "targets" if of_targets else "inputs"
        samples = [
            sample
            for event, batch in span.events_of(Batch)
            if event.step == step
            for sample in (batch.nonfinite_targets if of_targets else batch.nonfinite_samples)
        ]
        where = "" if name.startswith("batch") else f" {name}"
        where += f", sample {samples[0]} of the batch" if samples else ""
        indexed = [Evidence("index in the batch", float(samples[0]))] if samples else []
        return Finding(
            code="nonfinite_batch",
            severity=Severity.CRITICAL,
            message=f"The batch of step {step:,} holds {_kind_of(span, index, sites[0])} in its {what}{where}, "
            "before the model touched it.",
            first_step=step,
            last_step=step,
            sites=(name,),
            evidence=(*indexed, *evidence, *_nonfinite_counts(span, index, sites)),
            remedy=f"assert torch.isfinite({what}).all()  # in the data pipeline, and drop or mend the sample",
        )

    def _in_forward(self, span: Span, index: int, first: int, evidence: list[Evidence]) -> Finding:
        step = int(span.steps[index])
        name = span.sites[first].site.path
        row = span.rows[index, first]
        overflowed = row[INDEX["num_posinf"]] + row[INDEX["num_neginf"]] > 0
        if span.sites[first].dtype == "float16" and overflowed:
            return self._overflow_finding(span, index, first, evidence)
        return _origin(
            f"{name} was the first to produce {_kind_of(span, index, first)}, in the forward pass of step {step:,}.",
            step,
            (name,),
            [*self._what_went_in(span, index, first), *evidence, *_nonfinite_counts(span, index, [first])],
            _remedy(self._what_went_in(span, index, first)),
        )

    def _overflow_finding(self, span: Span, index: int, first: int, evidence: list[Evidence]) -> Finding:
        step, name = int(span.steps[index]), span.sites[first].site.path
        return Finding(
            code="precision_overflow",
            severity=Severity.CRITICAL,
            message=f"{name} passed 65,504, the largest float16 number, at step {step:,}.",
            first_step=step,
            last_step=step,
            sites=(name,),
            evidence=(*self._what_went_in(span, index, first), *evidence, *_nonfinite_counts(span, index, [first])),
            remedy="torch.autocast(device, dtype=torch.bfloat16)  # or compute this module in float32",
        )

    def _what_went_in(self, span: Span, index: int, first: int) -> list[Evidence]:
        """The largest value of the module that ran just before: what the guilty one could not take."""
        ran = [n for n in span.site_indices(Kind.ACTIVATION) if n < first and span.present[index, n]]
        if not ran:
            return []
        name = span.sites[ran[-1]].site.path
        return [self._size_of(name, float(span.stat("abs_max")[index, ran[-1]]))]

    def _in_backward(self, span: Span, index: int, of_kind: dict[Kind, list[int]], evidence: list[Evidence]) -> Finding:
        step = int(span.steps[index])
        flows = [n for n in span.site_indices(Kind.ACTIVATION_GRADIENT) if span.present[index, n]]
        bad = set(of_kind[Kind.ACTIVATION_GRADIENT])
        if bad:
            # Sites are numbered in the order of the forward pass, and backward runs it the other way round: the last bad
            # one is the first that backward reached, and the one after it, still finite, is whose backward made it.
            worst = max(bad)
            later = [n for n in flows if n > worst and n not in bad]
            names = (
                (span.sites[later[0]].site.path, span.sites[worst].site.path)
                if later
                else (span.sites[worst].site.path,)
            )
            where = f"between {names[0]}, still finite, and {names[-1]}" if later else f"at {names[-1]}"
            sites: tuple[str, ...] = tuple(dict.fromkeys(names))
        else:
            last = max(of_kind[Kind.GRADIENT])
            sites, where = (span.sites[last].site.path,), f"at the gradient of {span.sites[last].site.path}"
        chosen = [max(bad)] if bad else of_kind[Kind.GRADIENT][-1:]
        return _origin(
            f"Backward made {_kind_of(span, index, chosen[0])} {where} at step {step:,}; the forward pass was finite.",
            step,
            sites,
            [*evidence, *_nonfinite_counts(span, index, chosen)],
            "x.clamp(min=1e-12).sqrt()  # the derivative of sqrt, norm or division is infinite at 0",
        )

    def _look_at_buffers(self, span: Span, index: int, bad: npt.NDArray[np.int64]) -> None:
        for number in bad:
            name = span.sites[number].site.path
            if name not in self._buffer_sites:
                self._buffer_sites.append(name)
        if not len(bad):
            return
        step = int(span.steps[index])
        first = self._buffer.first_step if self._buffer is not None else step
        named = ", ".join(self._buffer_sites[:3])
        self._buffer = Finding(
            code="nonfinite_buffer",
            severity=Severity.CRITICAL,
            message=f"{named} holds {_kind_of(span, index, int(bad[0]))} since step {first:,}. Training looks fine; "
            "evaluation will not.",
            first_step=first,
            last_step=step,
            sites=tuple(self._buffer_sites),
            evidence=tuple(_nonfinite_counts(span, index, [int(bad[0])])),
            remedy="module.reset_running_stats()  # and keep non-finite batches away from it",
        )


def _site_key(span: Span, index: int) -> tuple[Kind, str]:
    return span.sites[index].site.kind, span.sites[index].site.path


def _origin(message: str, step: int, sites: tuple[str, ...], evidence: list[Evidence], remedy: str) -> Finding:
    return Finding(
        code="nonfinite_origin",
        severity=Severity.CRITICAL,
        message=message,
        first_step=step,
        last_step=step,
        sites=sites,
        evidence=tuple(evidence),
        remedy=remedy,
    )


def _value_name(value: float) -> str:
    return "NaN" if np.isnan(value) else "Inf" if value > 0 else "-Inf"


def _kind_of(span: Span, index: int, site: int) -> str:
    row = span.rows[index, site]
    found = [
        label
        for label, column in (("NaN", "num_nan"), ("Inf", "num_posinf"), ("-Inf", "num_neginf"))
        if row[INDEX[column]] > 0
    ]
    return " and ".join(found) or "a non-finite value"


def _nonfinite_counts(span: Span, index: int, sites: list[int]) -> list[Evidence]:
    return [
        Evidence(
            f"non-finite values in {span.sites[n].site.path or ROOT_NAME}",
            float(span.stat("num_nonfinite")[index, n]),
            0.0,
            site=span.sites[n].site.path,
            kind=str(span.sites[n].site.kind),
            stat="num_nonfinite",
        )
        for n in sites[:3]
    ]


def _remedy(went_in: list[Evidence]) -> str:
    """A line to try: where what went in is beyond exp's reach, that is what happened."""
    size = went_in[0].value if went_in else None
    if size is not None and EXP_LIMIT < size < 1e5:
        return (
            "torch.softmax(x, dim=-1)  # exp of more than 88.7 is Inf in float32; softmax subtracts the largest first"
        )
    return "torch.autograd.set_detect_anomaly(True)  # one step, to see the line"
