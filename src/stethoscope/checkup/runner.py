"""`checkup`: every experiment in turn, each on copies, and a Diagnosis of what they found.

Promises: model, optimizer and random states are afterwards what they were, to the bit; an experiment that fails is
a note in the diagnosis, not an error; a model that does not run at all is an error that says so.
"""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch

from stethoscope.checkup import (
    batch_scaling,
    causality,
    coverage,
    determinism,
    double_activation,
    features,
    freezing,
    ignoring,
    independence,
    initial_loss,
    leaks,
    linearity,
    loss_shapes,
    modes,
    nonfinite,
    outputs,
    overfit,
    padding,
    reach,
    scale,
    symmetry,
    tying,
    units,
)
from stethoscope.checkup.examination import Examination, failed
from stethoscope.checkup.isolation import modules_of, undisturbed
from stethoscope.checkup.memory import remember
from stethoscope.checkup.structure import CheckupError, clone, split_batch
from stethoscope.checkup.subject import Subject, unwrapped
from stethoscope.explain.diagnosis import Diagnosis, Experiment, LookedAt
from stethoscope.explain.ranking import rank_causes
from stethoscope.record import ROOT_NAME, Finding

EXPERIMENTS: Final[tuple[tuple[str, str, Callable[[Examination], Iterator[Finding]]], ...]] = (
    ("values", "Are batch, weights, loss and gradients numbers?", nonfinite.examine),
    ("optimizer", "Does the optimizer hold every weight that can learn?", coverage.examine),
    ("frozen parts", "Is anything frozen that should learn?", freezing.examine),
    ("gradients reach", "Does the gradient reach every weight?", reach.examine),
    ("inputs", "Are the inputs of a size a first layer can work with?", features.examine),
    ("labels", "Does one feature give the label away?", leaks.examine),
    ("loss: shapes", "Do output and target fit in the loss?", loss_shapes.examine),
    ("loss: activations", "Is softmax or sigmoid applied twice?", double_activation.examine),
    ("loss: batch size", "Does the loss grow with the batch?", batch_scaling.examine),
    ("loss: chance", "Is the first loss worse than knowing nothing?", initial_loss.examine),
    ("outputs", "Can the output take the values of the targets?", outputs.examine),
    ("symmetry", "Are units copies of each other?", symmetry.examine),
    ("tied weights", "Are tied weights one tensor?", tying.examine),
    ("scale by depth", "Do numbers grow or fade from layer to layer?", scale.examine),
    ("dead and saturated units", "Are units off or at their limits?", units.examine),
    ("inputs used", "Does the model use its inputs?", ignoring.examine),
    ("linear layers", "Are two linear layers one?", linearity.examine),
    ("samples independent", "Does a sample see the others of its batch?", independence.examine),
    ("causality", "Can the model see future tokens?", causality.examine),
    ("padding", "Does the padding reach the output?", padding.examine),
    ("repeatable", "Is evaluation repeatable?", determinism.examine),
    ("train and eval", "Are training and evaluation mode far apart?", modes.examine),
    ("one batch", "Can it learn this one batch?", overfit.examine),
)
"""In the order in which they run; what is cheap and fatal comes first."""

MAX_SECONDS: Final = 120.0
"""Experiments that would begin later than this are left out, and said to be."""


def checkup(
    model: torch.nn.Module,
    batch: Any,
    loss_fn: Callable[..., Any],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    *,
    causal: bool | None = None,
    pad_id: int | None = None,
    val_batch: Any = None,
) -> Diagnosis:
    """Experiments on one batch, before training: what is wrong with model, data, loss and optimizer.

    `batch` is (inputs, targets); a dict or dataclass with a field named targets, labels or y; or a DataLoader, of which
    the first batch is taken. Several inputs are passed to the model one by one. `causal` says that outputs may not
    depend on later inputs (None: only asked where the targets are the inputs one position later), `pad_id` which id is
    padding, `val_batch` a batch of the validation set. Nothing of what is passed is changed.
    """
    if not isinstance(model, torch.nn.Module):
        raise CheckupError("checkup takes a torch.nn.Module", where=type(model).__name__)
    if not callable(loss_fn):
        raise CheckupError("The loss must be callable as loss_fn(output, target)", where=type(loss_fn).__name__)
    root = unwrapped(model)
    if isinstance(root, torch.jit.ScriptModule):
        raise CheckupError("A scripted model cannot be examined", do="Pass the module before torch.jit.script")
    for name, parameter in root.named_parameters():
        if torch.nn.parameter.is_lazy(parameter) or parameter.is_meta:
            raise CheckupError("A parameter has no numbers yet", where=name, do="Run the model on one batch first")
    began = time.monotonic()
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer or ())
    kept = [root, *modules_of(loss_fn)]
    with undisturbed(kept), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inputs, targets = split_batch(batch)
        subject = Subject(root, clone(inputs), clone(targets), loss_fn, optimizers)
        validation = None if val_batch is None else split_batch(val_batch)
        exam = Examination(subject, causal=causal, pad_id=pad_id, val_batch=validation)
        try:
            exam.first  # noqa: B018 - the first pass says whether it runs at all
        except CheckupError:
            raise
        except Exception as error:
            raise failed(error) from error
        done = (
            _run_experiments(exam) if exam.first.original_used is None else _run_nothing(exam, exam.first.original_used)
        )
    findings = exam.findings
    causes, followed = ranked(findings)
    num_parameters = len(subject.names)
    looked = LookedAt(
        num_sites=num_parameters,
        num_sites_expected=num_parameters,
        num_steps=0,
        num_detectors=len(EXPERIMENTS),
        unmet_needs=tuple(dict.fromkeys(exam.notes)),
        experiments=done,
    )
    found = Diagnosis(causes=causes, findings=tuple(findings), followed=followed, looked_at=looked)
    remember(root, found, time.monotonic() - began)
    return found


def _run_nothing(exam: Examination, used: str) -> tuple[Experiment, ...]:
    """No experiment: what runs is not the copy, so whatever it showed would not be so."""
    reason = (
        f"a copy of the model still computes with the original's `{used or ROOT_NAME}`, so no experiment on copies can be "
        "trusted. A forward or hook refers to the model in a way that copy.deepcopy does not follow: let it use its first "
        "argument, or give the model __deepcopy__"
    )
    exam.notes.append(reason)
    return tuple(Experiment(name, question, "failed", reason) for name, question, _ in EXPERIMENTS)


def _run_experiments(exam: Examination) -> tuple[Experiment, ...]:
    """Every experiment's findings, and what came of each; one that fails leaves a note."""
    began = time.monotonic()
    done: list[Experiment] = []
    with _progress_bar() as advance:
        for number, (name, question, examine) in enumerate(EXPERIMENTS):
            advance(name, number)
            if time.monotonic() - began > MAX_SECONDS:
                exam.notes.append(f"not examined for want of time: {name}")
                done.append(Experiment(name, question, "failed", "there was no time left for it"))
                continue
            exam.seen = ""
            try:
                told = list(examine(exam))
            except Exception as error:
                exam.notes.append(f"{name} could not be examined: {type(error).__name__}: {error}"[:300])
                done.append(Experiment(name, question, "failed", f"{type(error).__name__}: {error}"[:200]))
                continue
            exam.findings += told
            outcome = "found" if told else "clear" if exam.seen else "does not apply"
            codes = tuple(dict.fromkeys(finding.code for finding in told))
            done.append(Experiment(name, question, outcome, exam.seen, codes))
    return tuple(done)


def ranked(findings: list[Finding]) -> tuple[tuple[Finding, ...], dict[str, tuple[Finding, ...]]]:
    """Causes in order and what follows from each; wide weights and saturated units are told apart by neither time nor layer."""
    codes = {f.code for f in findings}
    beside = "bad_init_scale" in codes and "unscaled_inputs" not in codes
    apart = [f for f in findings if beside and f.code == "saturated_units"]
    causes, followed = rank_causes([f for f in findings if f not in apart])
    order = sorted([*causes, *apart], key=lambda f: (-f.severity.rank, -f.confidence, f.code))
    return tuple(order), followed


def _say_nothing(name: str, number: int) -> None:  # noqa: ARG001 - where nobody looks on
    return


@contextlib.contextmanager
def _progress_bar() -> Iterator[Callable[[str, int], None]]:
    """A bar on stderr while a person looks on; nothing otherwise."""
    if not sys.stderr.isatty():
        yield _say_nothing
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("checkup"), BarColumn(bar_width=24), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(EXPERIMENTS))
        yield lambda name, number: progress.update(task, description=name, completed=number)
