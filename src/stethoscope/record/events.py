"""Every kind of event that a run holds, each as one typed record: what capture and session write, detectors and faces read.

An event is what is recorded beside rows: its step, rank and time belong to the store, what it says is one of these records.
`to_body` and `from_body` are what stands in the files; see `record.wire` for what a reader can rely on. A field is never
renamed or given another meaning, because runs that hold it stay readable. docs/events.md is made from this file.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

from stethoscope.record.dataflow import DataFlow as DataFlow
from stethoscope.record.wire import EventBody, WireRecord, always, declared, formerly

_is_hash: Final = re.compile(r"[0-9a-f]{1,16}").fullmatch


def _is_count(value: int) -> bool:
    return value >= 0


Count = Annotated[int, _is_count]
Hash = Annotated[str, _is_hash]
"""64 bits of a sample's hash in hexadecimal digits."""


# ---- who trains what ----


@declared
class ParameterGroup(WireRecord):
    """One group of an optimizer."""

    optimizer: str
    """The optimizer's class."""
    sites: tuple[str, ...]
    """Parameters of the model that the group holds."""
    settings: Mapping[str, Any]
    """The group's settings that are plain values."""


@declared
class OrphanParameter(WireRecord):
    """A parameter of the model that no optimizer holds."""

    site: str
    trainable: bool
    has_gradient: bool


@declared
class ForeignParameter(WireRecord):
    """A parameter that an optimizer holds and the model does not have."""

    shape: tuple[int, ...]
    has_gradient: bool


@declared
class Ownership(EventBody):
    """Which optimizer holds which parameter; told when training begins and whenever that may have changed."""

    KIND: ClassVar[str] = "ownership"
    replaces: bool
    """Whether a new optimizer took the place of an older one."""
    optimizers: tuple[str, ...]
    """Their classes, in the order in which they were met."""
    groups: tuple[ParameterGroup, ...]
    """All groups of all optimizers; their position is the number in the metric `lr.N`."""
    not_in_optimizer: tuple[OrphanParameter, ...]
    not_in_model: tuple[ForeignParameter, ...]


@declared
class Replicas(EventBody):
    """What each rank begins with, where there are several."""

    KIND: ClassVar[str] = "replicas"
    wrapper: str
    """The class of the model that the user handed over."""
    hashes: Mapping[str, str]
    """From a parameter to a hash of its values before the first step."""


@declared
class Start(EventBody):
    """One more process writes to a run that was there before it."""

    KIND: ClassVar[str] = "start"
    ordinal: int
    """How many processes of this rank came before, and this one."""
    info: Mapping[str, Any]
    """What this process says of the run, as `run.json` holds it of the first."""


@declared
class Continuation(EventBody):
    """How a process goes on with what a run folder held before it."""

    KIND: ClassVar[str] = "continuation"
    how: str
    """"resumed", "fresh" (another training) or "beside" (another process is still writing)."""
    other: str = ""
    """Of "beside": the other process."""
    after: int | None = None
    """The last step that this rank had recorded."""


# ---- batches ----


@declared
class LargestSample(WireRecord):
    """The sample with the largest value of a batch."""

    sample: int
    value: float
    next: float | None = None
    """The largest value of any other sample."""


@declared
class FeatureSizes(WireRecord):
    """How the sizes of single features differ."""

    largest: tuple[tuple[int, float], ...]
    """The three largest features, each with its root mean square, largest first."""
    median: float


@declared
class Batch(EventBody):
    """A batch that the model is trained on: its samples, their classes, what stands out in them."""

    KIND: ClassVar[str] = "batch"
    num_samples: Count = 0
    fingerprints: tuple[Hash, ...] = ()
    """A hash of each sample, or of those whose hash has no bit of `mask`."""
    mask: Count = 0
    seen: str = ""
    """"call" where no loader showed the batch and it was seen as the model's argument."""
    source: int | None = None
    """The number of the data that it was drawn from, where a loader showed it."""
    number: int | None = None
    """How many batches of these data came before."""
    again: bool = False
    """Whether the very tensor of the batch before was handed in once more."""
    class_counts: tuple[Count, ...] = ()
    """How often each class is among the targets."""
    nonfinite_samples: tuple[int, ...] = ()
    """The first samples with a value that is not finite."""
    nonfinite_targets: tuple[int, ...] = ()
    largest: LargestSample | None = None
    num_features: Count = 0
    num_constant: Count = 0
    """Features that have one value in the whole batch."""
    constant: tuple[tuple[int, float], ...] | None = None
    """The first of them with their values; None where features were not measured."""
    feature_rms: FeatureSizes | None = None
    nonfinite_features: tuple[int, ...] = ()
    """Features without any finite value."""


@declared
class EvalBatch(Batch):
    """A batch that the model is evaluated on."""

    KIND: ClassVar[str] = "eval_batch"


# ---- the loss and its backward ----


@declared
class LossBroadcast(WireRecord):
    """Shapes of a prediction and of what broadcasting it made."""

    prediction: tuple[int, ...]
    result: tuple[int, int]


@declared
class OutputCut(WireRecord):
    """An operation that cuts the prediction off at zero."""

    by: str
    negative_targets: float | None = None
    """The share of targets below zero, where targets could be read."""


@declared
class LossClamp(WireRecord):
    """A limit on the terms of the loss."""

    share: float
    """Of the terms that lie beyond the limit."""
    min: float | None = None
    max: float | None = None


@declared
class Coefficients(WireRecord):
    """Constants that log-probabilities are multiplied by on their way to the loss, as advantages are in a policy gradient."""

    low: float
    high: float
    mask_share: float
    """The share of them that are zero or of the largest size; 1 for a mask, or for one and the same number."""


@declared
class LossGraph(EventBody):
    """What autograd's graph shows between the model's output and the loss."""

    KIND: ClassVar[str] = "loss_graph"
    operations: tuple[tuple[str, tuple[int, ...]], ...]
    """The operations nearest to the loss and the shapes of their results."""
    num_classes: Count = 0
    class_counts: tuple[Count, ...] = ()
    """How often each class is among the targets that the loss reads."""
    target_mean: float | None = None
    target_square: float | None = None
    """Mean and mean square of targets that are numbers."""
    double_softmax: str | None = None
    """What made probabilities of the values that cross entropy takes as logits."""
    double_sigmoid: str | None = None
    broadcast: LossBroadcast | None = None
    output_cut: OutputCut | None = None
    clamped: LossClamp | None = None
    coefficients: Coefficients | None = None
    made_by: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """From `double_softmax`, `double_sigmoid`, `broadcast` or `output_cut` to the module that made the values it is about."""


@declared
class Backward(EventBody):
    """How one backward pass counts in its step."""

    KIND: ClassVar[str] = "backward"
    factor: float
    """What the loss function's result was multiplied by."""
    by: str
    """The operation of the loss function."""
    num_targets: float
    """Over how many targets it is a mean; 0 where that is not known."""


@declared
class SkippedStep(EventBody):
    """A gradient scaler, or a fused optimizer, left a step out because gradients were not finite."""

    KIND: ClassVar[str] = "skipped_step"
    times: Count
    """So far, this one included."""
    scale: float | None = None
    """The loss scale, where it is read without waiting for a device."""
    fused: bool = False
    """Whether the optimizer skipped on the device."""


@declared
class GradientsDiscarded(EventBody):
    """Gradients were cleared without a step; told at powers of two."""

    KIND: ClassVar[str] = "gradients_discarded"
    times: Count
    num_backwards: Count
    weights_moved: bool = False
    """Whether weights are others than at the start all the same: the script moves them itself."""


@declared
class GradientsKept(EventBody):
    """Some gradients of the step before were still there, where others had been cleared."""

    KIND: ClassVar[str] = "gradients_kept"
    sites: tuple[str, ...]


@declared
class UndoneUpdates(EventBody):
    """Parameters that other code puts back after every step."""

    KIND: ClassVar[str] = "undone_updates"
    sites: tuple[str, ...]
    times: Count
    """Steps in a row after which that is told."""


@declared
class GraphsAlive(EventBody):
    """Autograd graphs of earlier losses that are still held."""

    KIND: ClassVar[str] = "graphs_alive"
    count: Count
    lines: tuple[str, ...]
    """Lines of the user's code that called backward on them."""


# ---- the model ----


@declared
class Modes(EventBody):
    """In which mode the model is when it is called to train; told when that changes."""

    KIND: ClassVar[str] = "modes"
    training: bool = always(True)
    """Whether the model itself is in training mode."""
    evaluating: tuple[str, ...]
    """Dropout and normalisation layers in evaluation mode, the first fifty."""
    in_training: tuple[str, ...]
    kinds_evaluating: tuple[str, ...]
    """The classes of all of them."""
    kinds_in_training: tuple[str, ...]


@declared
class EvalForward(Modes):
    """The same of a forward pass while evaluating in which layers are in training mode."""

    KIND: ClassVar[str] = "eval_forward"
    training: bool = always(False)


@declared
class EvalBegin(EventBody):
    """Evaluation begins."""

    KIND: ClassVar[str] = "eval_begin"
    num_training: Count
    """Modules that are in training mode."""
    training: tuple[str, ...]
    """The first twenty of them."""


@declared
class EvalEnd(EventBody):
    """Evaluation is over."""

    KIND: ClassVar[str] = "eval_end"


@declared
class Hooks(EventBody):
    """The number of hooks on the model grew."""

    KIND: ClassVar[str] = "hooks"
    modules: Mapping[str, int]
    """Modules with the most hooks of others, twenty at most."""


@declared
class Average(WireRecord):
    """An average of the weights that the user keeps."""

    type: str
    moved: bool = always(True)
    """Whether it changed since it was first seen."""
    given: bool
    """Whether the user told us of it."""


@declared
class Averages(EventBody):
    """Averages of the weights, and whether they are updated."""

    KIND: ClassVar[str] = "averages"
    averages: tuple[Average, ...]


@declared
class TwinPair(WireRecord):
    """An embedding and a head that began with equal values in different storage."""

    embedding: str
    head: str
    equal: bool = always(True)
    """Whether they still are."""


@declared
class Twins(EventBody):
    """Weights that were meant to be tied, by all appearance."""

    KIND: ClassVar[str] = "twins"
    pairs: tuple[TwinPair, ...]


@declared
class Copies(EventBody):
    """Matrices that train although all of their rows are the same."""

    KIND: ClassVar[str] = "copies"
    sites: tuple[str, ...]


@declared
class Untrained(EventBody):
    """Frozen matrices that are, when training begins, just as PyTorch initializes them."""

    KIND: ClassVar[str] = "untrained"
    sites: tuple[str, ...]


# ---- close looks ----


@declared
class Units(EventBody):
    """What a close look at units, bounded activations and routers showed, by module."""

    KIND: ClassVar[str] = "units"
    silent: Mapping[str, tuple[Count, Count, Count, Count]] | None = None
    """From a parameter to its number of units, and how many of them got no gradient for one, four and sixteen looks."""
    dormant: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The share of units that are hardly active."""
    saturation: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The share of values at the ends of a tanh or sigmoid."""
    batchnorm: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Over how many values a batch normalisation takes its statistics, a channel."""
    routed: Mapping[str, tuple[Count, ...]] = dataclasses.field(default_factory=dict)
    """How many rows have each expert as their first choice."""


@declared
class AttentionNumbers(WireRecord):
    """How sharp one attention is."""

    entropy: float
    """In nats, the mean over rows and heads."""
    uniform: float
    """The entropy of attending to everything alike."""
    lowest_head: float
    """The entropy of the sharpest head."""
    top: float
    """The mean of the largest weights."""
    max_logit: float | None = None
    """The largest score, where it is known."""
    heads: tuple[float, ...] = ()
    """The entropy of each head."""


@declared
class Attention(EventBody):
    """How sharp attention is, by module."""

    KIND: ClassVar[str] = "attention"
    modules: Mapping[str, AttentionNumbers]


# ---- recording itself ----


@declared
class Governor(EventBody):
    """What is measured how often, told when that changes."""

    KIND: ClassVar[str] = "governor"
    every: Mapping[str, int]
    """From a part of what is measured to the steps between two measurements."""


@declared
class NotMeasured(EventBody):
    """Steps that went by while the kernels for a device were being compiled; told when all of them are there."""

    KIND: ClassVar[str] = "not_measured"
    first: Count
    """The first step that was not measured whole."""
    rows_until: Count
    """The first step of which gradients, weights and updates were measured."""
    outputs_until: Count
    """The first step of which module outputs and histograms were measured too."""


@declared
class CaptureError(EventBody):
    """A step that could not be recorded."""

    KIND: ClassVar[str] = "capture_error"
    error: str


@declared
class Totals(EventBody):
    """What was counted over the whole run; the last event of a training that was stopped."""

    KIND: ClassVar[str] = "totals"
    num_steps: Count
    num_backwards: Count
    num_discarded: Count
    """Times that gradients were cleared without a step."""
    num_skipped: Count
    """Steps that a scaler or a fused optimizer left out."""
    num_scheduler_steps: Count
    num_errors: Count
    """Errors of ours that were kept from the training."""
    num_dropped_steps: Count
    """Steps whose measurements did not arrive in time, or at all."""
    num_capped: Count
    """Module outputs beyond `max_tracked_tensors`."""
    num_lost: Count
    """Module outputs that were gone before they could be measured."""
    weights_moved: bool = False
    """Of a run without a step, whether its weights are others than at the start all the same."""
    step_unfinished: bool = False
    """Whether a step with a closure had begun and was cut off."""


# ---- what session and hooks add ----


@declared
class Leak(EventBody):
    """A line whose tensors pile up from step to step."""

    KIND: ClassVar[str] = "leak"
    location: str = formerly("place")
    """File and line."""
    text: str
    severity: str


@declared
class Alert(EventBody):
    """An alert of one of the user's hooks."""

    KIND: ClassVar[str] = "alert"
    schema: int
    message: str
    severity: str
    hook: str
    layer: str
    step: int | None
    time: float


@declared
class ExperimentSummary(WireRecord):
    """One experiment of a checkup."""

    name: str
    question: str
    outcome: str
    looked_at: str
    codes: tuple[str, ...]


@declared
class Checkup(EventBody):
    """The checkup of the model before it was watched."""

    KIND: ClassVar[str] = "checkup"
    findings: tuple[Mapping[str, Any], ...]
    """Findings as JSON, see docs/schema.md."""
    num_experiments: Count
    experiments: tuple[ExperimentSummary, ...]
    not_examined: tuple[str, ...]
    """What could not be examined, and why."""
    seconds: float
    time: float


KINDS: Final[dict[str, type[EventBody]]] = {
    kind.KIND: kind
    for kind in (
        Alert,
        Attention,
        Averages,
        Backward,
        Batch,
        CaptureError,
        Checkup,
        Continuation,
        Copies,
        Untrained,
        DataFlow,
        EvalBatch,
        EvalBegin,
        EvalEnd,
        EvalForward,
        Governor,
        GradientsDiscarded,
        GradientsKept,
        GraphsAlive,
        Hooks,
        Leak,
        LossGraph,
        Modes,
        NotMeasured,
        Ownership,
        Replicas,
        SkippedStep,
        Start,
        Totals,
        Twins,
        UndoneUpdates,
        Units,
    )
}
"""From what stands in the files to the record."""
OLDER_KINDS: Final = frozenset({"coverage", "ledger", "logits"})
"""What runs of before version 0.1 may hold beside these."""
