"""The vocabulary in which detectors declare what must have been recorded for their rules to speak."""

from __future__ import annotations

import dataclasses
from typing import Final

from stethoscope.record import Kind, events, metrics


@dataclasses.dataclass(frozen=True, slots=True)
class Need:
    """One thing that a rule reads."""

    what: str
    source: str
    """"rows", "metric", "event", "validation" or "ranks"."""
    names: tuple[str, ...] = ()
    """Kinds of rows, metrics or events; one of them is enough."""
    hint: str = ""
    """What would bring it where it is missing."""
    may_be_absent: bool = False
    """Whether its absence is an answer: nothing of the sort happened."""
    is_optional: bool = False
    """Whether the rule works without it, and says less."""


UNITS_HINT: Final = "module outputs and units are measured by default in eager mode"
BATCH_HINT: Final = "a DataLoader, or session.log_batch(inputs, targets) before they go to the GPU"
EVAL_HINT: Final = "with session.evaluating(): session.log(loss=...)"
OUTPUT_HINT: Final = (
    "module outputs are off under torch.compile unless activations=True, and sampled less often when they cost too much"
)


def optional(need: Need) -> Need:
    """The same need of a rule that works without it, and says less."""
    return dataclasses.replace(need, is_optional=True)


def _rows(kind: Kind, hint: str = "") -> Need:
    return Need(f"{kind.replace('_', ' ')} rows", "rows", (str(kind),), hint)


GRADIENTS, WEIGHTS, UPDATES = _rows(Kind.GRADIENT), _rows(Kind.WEIGHT), _rows(Kind.UPDATE)
STATE = _rows(Kind.OPTIMIZER_STATE, "recorded for Adam and its kin, and SGD with momentum")
OUTPUTS, FLOW = _rows(Kind.ACTIVATION, OUTPUT_HINT), _rows(Kind.ACTIVATION_GRADIENT, OUTPUT_HINT)
INPUTS, BUFFERS = _rows(Kind.INPUT, BATCH_HINT), _rows(Kind.BUFFER, "the model has no buffers")
LEDGER = Need(
    "the ledger of gradients", "metric", (metrics.LEDGER_ARRIVED,), "watch(model, optimizer) while the optimizer steps"
)
LOSS = Need("the training loss", "metric", (metrics.LOSS,), "loss.backward(), or session.log(loss=loss)")
RATE = Need("the learning rate", "metric", (metrics.LEARNING_RATE,), "watch(model, optimizer)")
OWNERS = Need("lists of who holds which parameter", "event", (events.Ownership.KIND,), "watch(model, optimizer)")
GRAPH = Need("readings of the loss's graph", "event", (events.LossGraph.KIND,), "loss.backward() in eager mode")
FLOW_GRAPH = Need("the model's data-flow graph", "event", (events.DataFlow.KIND,), "one forward pass in eager mode")
UNITS = Need("looks at units", "event", (events.Units.KIND,), UNITS_HINT)
LOGITS = Need("looks at the output's logits", "metric", (metrics.LOG_Z,), UNITS_HINT)
PREDICTIONS = Need("looks at predictions", "metric", (metrics.TOP_SHARE,), UNITS_HINT)
BATCHES = Need("batches, sample by sample", "event", (events.Batch.KIND,), BATCH_HINT)
VALIDATION = Need("validation metrics", "validation", (), EVAL_HINT)
TOTALS = Need(
    "the totals that end a run",
    "event",
    (events.Totals.KIND,),
    "told when the run has ended by session.stop() or the script's end",
)
RANKS = Need("several ranks", "ranks", (), "watch on every rank")
SCALER = Need("a gradient scaler", "metric", (metrics.LOSS_SCALE,), "none was seen", may_be_absent=True)
CLIPS = Need("clip_grad_norm_", "metric", (metrics.CLIP_NORM,), "it was not called", may_be_absent=True)
