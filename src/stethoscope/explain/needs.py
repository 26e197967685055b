"""What each rule needs to have been recorded, whether a run has it, and what would bring it.

A rule that lacks what it needs says nothing, and that silence is no health: this is where it is told apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from stethoscope.detect.curves import is_validation
from stethoscope.record import Kind
from stethoscope.store import Run


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
    is_extra: bool = False
    """Whether the rule works without it, and says less."""


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """A need beside what the run has of it."""

    need: Need
    is_met: bool
    how_much: str

    @property
    def blinds(self) -> bool:
        """Whether the rule can say nothing for want of it."""
        return not self.is_met and not self.need.is_extra

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "what": self.need.what, "met": self.is_met, "required": not self.need.is_extra, "how_much": self.how_much,
            "hint": "" if self.is_met else self.need.hint,
        }  # fmt: skip


UNITS_HINT: Final = "module outputs and units are looked at by default in eager mode"
BATCH_HINT: Final = "a DataLoader, or session.log_batch(inputs, targets) before they go to the GPU"
EVAL_HINT: Final = "with session.evaluating(): session.log(loss=...)"
OUTPUT_HINT: Final = (
    "module outputs are off under torch.compile unless activations=True, and thinned out by the governor when they cost too much"
)


def _extra(need: Need) -> Need:
    return dataclasses.replace(need, is_extra=True)


def _rows(kind: Kind, hint: str = "") -> Need:
    return Need(f"{kind.replace('_', ' ')} rows", "rows", (str(kind),), hint)


GRADIENTS, WEIGHTS, UPDATES = _rows(Kind.GRADIENT), _rows(Kind.WEIGHT), _rows(Kind.UPDATE)
STATE = _rows(Kind.OPTIMIZER_STATE, "recorded for Adam and its kin, and SGD with momentum")
OUTPUTS, FLOW = _rows(Kind.ACTIVATION, OUTPUT_HINT), _rows(Kind.ACTIVATION_GRADIENT, OUTPUT_HINT)
INPUTS, BUFFERS = _rows(Kind.INPUT, BATCH_HINT), _rows(Kind.BUFFER, "the model has no buffers")
LEDGER = Need("the ledger of gradients", "metric", ("ledger/arrived",), "watch(model, optimizer) while the optimizer steps")
LOSS = Need("the training loss", "metric", ("loss",), "loss.backward(), or session.log(loss=loss)")
RATE = Need("the learning rate", "metric", ("lr",), "watch(model, optimizer)")
OWNERS = Need("lists of who holds which parameter", "event", ("ownership",), "watch(model, optimizer)")
GRAPH = Need("readings of the loss's graph", "event", ("loss_graph",), "loss.backward() in eager mode")
FLOW_GRAPH = Need("the model's data-flow graph", "event", ("graph",), "one forward pass in eager mode")
UNITS = Need("looks at units", "event", ("units",), UNITS_HINT)
LOGITS = Need("looks at the output's logits", "metric", ("output/log_z",), UNITS_HINT)
PREDICTIONS = Need("looks at predictions", "metric", ("output/top_share",), UNITS_HINT)
BATCHES = Need("batches, sample by sample", "event", ("batch",), BATCH_HINT)
VALIDATION = Need("validation metrics", "validation", (), EVAL_HINT)
TOTALS = Need("the totals that end a run", "event", ("totals",), "told when the run has ended by session.stop() or the script's end")
RANKS = Need("several ranks", "ranks", (), "watch on every rank")
SCALER = Need("a gradient scaler", "metric", ("loss_scale",), "none was seen", may_be_absent=True)
CLIPS = Need("clip_grad_norm_", "metric", ("clip_norm",), "it was not called", may_be_absent=True)

NEEDS: Final[Mapping[str, tuple[Need, ...]]] = {
    "gradients_not_cleared": (LEDGER, GRADIENTS),
    "gradients_cleared_before_step": (LEDGER, _extra(GRADIENTS)),
    "optimizer_never_steps": (
        Need("backward passes without a step", "event", ("gradients_discarded", "totals"), "watch(model, optimizer)"),
    ),
    **dict.fromkeys(("accumulation_not_averaged", "accumulation_uneven"), (GRAPH, LEDGER)),
    "optimizer_params_not_in_model": (OWNERS,),
    "trainable_params_not_in_optimizer": (OWNERS,),
    "zero_lr_group": (RATE, _extra(OWNERS)),
    "silent_no_update": (UPDATES, GRADIENTS, WEIGHTS, RATE, OWNERS),
    "update_below_precision": (UPDATES, GRADIENTS, WEIGHTS, RATE, OWNERS),
    "nonfinite_origin": (_extra(LOSS), _extra(GRADIENTS), _extra(OUTPUTS)),
    "nonfinite_batch": (INPUTS,),
    "nonfinite_buffer": (BUFFERS,),
    "precision_overflow": (OUTPUTS,),
    "vanishing_gradients": (GRADIENTS,),
    "exploding_gradients": (GRADIENTS,),
    "update_too_large": (UPDATES, WEIGHTS, LOSS),
    "update_too_small": (UPDATES, WEIGHTS, RATE),
    **dict.fromkeys(("double_softmax", "double_sigmoid", "loss_broadcast", "output_clipped", "loss_clamped"), (GRAPH,)),
    "unregistered_module": (FLOW_GRAPH,),
    "detached_graph": (OWNERS, GRADIENTS, OUTPUTS),
    "frozen_params": (GRADIENTS, _extra(OUTPUTS)),
    "tied_weights_split": (
        Need("pairs of an embedding and a head that began equal", "event", ("twins",), "there is none on the CPU", may_be_absent=True),
    ),
    "eval_mode_in_training": (Need("the model's mode", "metric", ("training_mode",), "a forward pass of the watched model"),),
    "train_mode_in_eval": (Need("validation inside evaluating()", "event", ("eval_begin", "eval_forward"), EVAL_HINT),),
    "lr_decays_too_early": (RATE, TOTALS),
    "lr_stuck": (RATE, OWNERS, TOTALS),
    "scheduler_ahead_of_optimizer": (
        Need("scheduler steps", "metric", ("scheduler_steps",), "none was seen", may_be_absent=True), SCALER,
    ),
    "clipping_always_on": (CLIPS,),
    "clip_before_unscale": (CLIPS, SCALER),
    "adam_eps_dominates": (STATE, WEIGHTS, OWNERS),
    "adam_update_spike": (STATE, UPDATES, WEIGHTS, OWNERS),
    "weight_decay_dominates": (UPDATES, WEIGHTS, GRADIENTS, OWNERS),
    "loss_scale_collapse": (SCALER,),
    "precision_underflow": (GRADIENTS,),
    **dict.fromkeys(
        ("dead_units", "saturated_units", "dormant_units", "expert_collapse", "batchnorm_small_batch"), (UNITS,)
    ),
    "symmetric_units": (
        Need("layers whose rows began equal", "event", ("copies",), "there is none on the CPU", may_be_absent=True),
    ),
    "attention_logit_growth": (Need("looks at attention", "event", ("attention",), UNITS_HINT),),
    "output_logit_drift": (LOGITS,),
    "graph_retained": (Need("counts of live graphs", "metric", ("graphs_alive",), "watch(model, optimizer)"),),
    "hooks_accumulate": (Need("counts of hooks", "metric", ("num_hooks",), "counted every 16 steps"),),
    "ema_frozen": (Need("looks at averaged weights", "event", ("averages",), "watch(model, optimizer, ema=ema)"),),
    "optimizer_state_lost": (
        Need("the optimizer's own step count", "metric", ("optimizer_step",), "kept by Adam and its kin", is_extra=True),
        _extra(STATE),
    ),
    "bad_init_scale": (OUTPUTS,),
    "bad_initial_loss": (LOSS, GRAPH, OUTPUTS),
    "oscillation": (Need("cosines of successive updates", "metric", ("update_cos",), "updates of successive steps"), LOSS),
    "data_bound": (Need("waits before each step", "metric", ("data_ms",), "a forward pass of the watched model"),),
    "unscaled_inputs": (INPUTS, _extra(LOSS), _extra(UNITS)),
    "inputs_too_small": (INPUTS,),
    "inputs_ignored": (INPUTS, _extra(BATCHES)),
    "outlier_batch": (INPUTS, _extra(BATCHES), _extra(LOSS), _extra(GRADIENTS)),
    "constant_feature": (BATCHES,),
    "unshuffled_data": (BATCHES,),
    "duplicate_batches": (BATCHES,),
    "train_val_overlap": (BATCHES, Need("validation batches, sample by sample", "event", ("eval_batch",), BATCH_HINT)),
    "class_collapse": (PREDICTIONS, LOSS, _extra(BATCHES)),
    "loss_metric_disagree": (LOSS, VALIDATION),
    "over_regularised": (LOSS, VALIDATION),
    "labels_uninformative": (LOSS, VALIDATION, TOTALS),
    "overfitting": (LOSS, VALIDATION, TOTALS),
    "plateau": (LOSS,),
    "rank_desync": (RANKS, WEIGHTS),
    "same_data_on_ranks": (RANKS, BATCHES),
    "gradients_summed_across_ranks": (RANKS, GRADIENTS, FLOW),
}
"""By code; what only a checkup finds is not here."""


def seen(need: Need, run: Run) -> Seen:
    """What the run has of it."""
    count, words = _SOURCES[need.source](need, run)
    met = count > 0 or need.may_be_absent
    return Seen(need, met, words if count else need.hint if need.may_be_absent else "none")


def _seen_rows(need: Need, run: Run) -> tuple[int, str]:
    matrix = run.matrix(Kind(need.names[0]), "count")
    there = ~matrix.missing
    num_sites, num_steps = int(np.any(there, axis=0).sum()), int(np.any(there, axis=1).sum())
    return num_sites, f"{num_sites:,} sites, {num_steps:,} of {len(run.steps):,} steps"


def _seen_metrics(need: Need, run: Run) -> tuple[int, str]:
    known = [name for name in need.names if name in run.metrics()]
    count = max((len(run.metric(name)) for name in known), default=0)
    return count, f"{count:,} steps"


def _seen_events(need: Need, run: Run) -> tuple[int, str]:
    count = sum(len(run.events(name)) for name in need.names)
    return count, "once" if count == 1 else f"{count:,} times"


def _seen_validation(_: Need, run: Run) -> tuple[int, str]:
    counts = {name: len(run.metric(name)) for name in run.metrics() if is_validation(name)}
    told = ", ".join(f"{name} {count:,} times" for name, count in sorted(counts.items())[:4])
    return max(counts.values(), default=0), told


def _seen_ranks(_: Need, run: Run) -> tuple[int, str]:
    return (len(run.ranks) if len(run.ranks) > 1 else 0), f"{len(run.ranks)} ranks"


_SOURCES: Final = {
    "rows": _seen_rows, "metric": _seen_metrics, "event": _seen_events, "validation": _seen_validation, "ranks": _seen_ranks,
}  # fmt: skip
