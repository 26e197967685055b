"""The names of all metrics that are recorded without being logged by the user, each declared once with its label and unit.

A metric is a named number of a step. The user's own stand beside these under whatever names they were logged; one that was
logged while evaluating stands under `eval/`. A name is never given another meaning, because runs that hold it stay readable.
docs/events.md is made from this file.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Final


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """What is declared about one metric."""

    name: str
    label: str
    """What it is, for a reader."""
    unit: str = ""
    """"" for a plain number or a count."""


OWN: Final[dict[str, Metric]] = {}
"""All of them by name."""


def _own(name: str, label: str, unit: str = "") -> str:
    OWN[name] = Metric(name, label, unit)
    return name


LOSS: Final = _own("loss", "loss that the step's backward passes began from")
LEARNING_RATE: Final = _own("lr", "learning rate of the first parameter group")
GRADIENT_NORM: Final = _own("grad_norm", "gradient norm of the model before clipping")
CLIP_NORM: Final = _own("clip_norm", "limit given to clip_grad_norm_")
CLIP_SCALED: Final = _own("clip_scaled", "1 where gradients were clipped while a loss scale was still in them")
CLIP_VALUE: Final = _own("clip_value", "limit given to clip_grad_value_")
LOSS_SCALE: Final = _own("loss_scale", "the gradient scaler's loss scale")
FOUND_INF: Final = _own("found_inf", "1 where a fused optimizer skipped the step")
SKIPPED_STEPS: Final = _own("skipped_steps", "steps that a gradient scaler skipped so far")
SCHEDULER_STEPS: Final = _own("scheduler_steps", "steps of learning rate schedulers so far")
OPTIMIZER_STEP: Final = _own("optimizer_step", "the optimizer's own count of its steps")
UPDATE_COSINE: Final = _own("update_cos", "cosine between this step's update and the last one's")

NUM_BACKWARDS: Final = _own("num_backwards", "backward passes in the step")
NUM_GRADS: Final = _own("num_grads", "calls of torch.autograd.grad in the step")
TRAINING_MODE: Final = _own("training_mode", "1 where the model was called in training mode")
NUM_HOOKS: Final = _own("num_hooks", "hooks of others on the model's modules")
GRAPHS_ALIVE: Final = _own("graphs_alive", "autograd graphs of earlier losses that are still held")
OUTPUTS_ALIVE: Final = _own("outputs_alive", "outputs of earlier steps whose graphs are still held")
OUTPUTS_MARKED: Final = _own("outputs_marked", "outputs of the model that were followed so far")

STEP_MS: Final = _own("step_ms", "time of the step", "ms")
DATA_MS: Final = _own("data_ms", "wait for data", "ms")
LOADER_MS: Final = _own("loader_ms", "wait inside a DataLoader", "ms")
IDLE_MS: Final = _own("idle_ms", "of the wait for data, time in which the processor does nothing", "ms")
FORWARD_MS: Final = _own("forward_ms", "time of the forward pass", "ms")
BACKWARD_MS: Final = _own("backward_ms", "time of the backward pass", "ms")
OPTIMIZER_MS: Final = _own("optimizer_ms", "time of the optimizer's step", "ms")
OVERHEAD_MS: Final = _own("overhead_ms", "time that Stethoscope took", "ms")
OVERHEAD_DEVICE_MS: Final = _own("overhead_device_ms", "time that Stethoscope took on the device", "ms")
MEMORY_IN_USE: Final = _own("memory_in_use_mb", "memory in use, of the device or of the process", "MB")

LOG_Z: Final = _own("output/log_z", "mean log-sum-exp of the logits", "nats")
TOP_SHARE: Final = _own("output/top_share", "share of predictions that are the most predicted class")
TOP_CLASS: Final = _own("output/top_class", "the most predicted class")
NUM_UNITS: Final = _own("output/num_units", "units of the output")

LEDGER_BACKWARDS: Final = _own("ledger/num_backwards", "backward passes since the optimizer's last step")
LEDGER_LOOKED_AT: Final = _own("ledger/looked_at", "parameters whose gradients are followed")
LEDGER_ARRIVED: Final = _own("ledger/arrived", "of these, with a gradient after backward")
LEDGER_KEPT: Final = _own("ledger/kept", "of these, with the gradient of the step before still in it")
LEDGER_VANISHED: Final = _own("ledger/vanished", "of these, whose gradient was gone when the optimizer stepped")
LEDGER_TOUCHED: Final = _own("ledger/touched", "of these, whose gradient was changed between backward and step")
RETAIN_GRAPH: Final = _own("ledger/retain_graph", "backward passes that kept their graph")
CREATE_GRAPH: Final = _own("ledger/create_graph", "backward passes that were to be differentiated again")

EVALUATION: Final = "eval/"
"""Before the names of metrics that were logged while evaluating."""
LEDGER: Final = "ledger/"
OUTPUT: Final = "output/"
_NUMBERED: Final = re.compile(r"(?:lr|loss)\.[0-9]+")


@functools.cache
def learning_rate(group: int) -> str:
    """The name of the learning rate of a parameter group, numbered over all optimizers."""
    return LEARNING_RATE if group == 0 else f"{LEARNING_RATE}.{group}"


def loss_of(optimizer: int) -> str:
    """The name of the loss that belongs to one of several optimizers' steps."""
    return LOSS if optimizer == 0 else f"{LOSS}.{optimizer}"


def is_learning_rate(name: str) -> bool:
    """Whether a metric is the learning rate of some group."""
    return name == LEARNING_RATE or name.startswith(f"{LEARNING_RATE}.")


def is_own(name: str) -> bool:
    """Whether a metric is one of ours, not the user's."""
    return name in OWN or _NUMBERED.fullmatch(name) is not None
