"""Names, fields and values of the seeds' inspector, debugger, diagnostics, hooks and profiler."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from enum import StrEnum

import pytest

from stethoscope import hooks
from stethoscope.analyse.convergence import ConvergenceStatus, TrainingStability
from stethoscope.instruments.bottlenecks import BottleneckType
from stethoscope.instruments.diagnostics import (
    ModelArchitectureInfo,
    ModelDiagnostics,
    ModelPerformanceMetrics,
)
from stethoscope.instruments.gradient_debugger import GradientDebugger
from stethoscope.instruments.inspector import TensorInspector
from stethoscope.instruments.profiler import Profiler

VALUES = {
    hooks.TriggerKind: "EveryForward EveryBackward EveryNSteps Conditional Once LayerSpecific",
    hooks.ConditionKind: "LossThreshold GradientNormThreshold MemoryThreshold StepRange Custom",
    hooks.ActionKind: "InspectTensor TrackGradients RecordActivations SaveSnapshot Alert CustomCallback PauseTraining",
    hooks.AlertSeverity: "Info Warning Critical",
    hooks.HookStatus: "Success Error Skipped",
    hooks.Comparison: "> < == >= <=",
    ConvergenceStatus: "Converging Converged Diverging Oscillating Plateau Unknown",
    TrainingStability: "Stable Unstable HighVariance Unknown",
    BottleneckType: "CpuBound MemoryBound IoBound GpuBound NetworkBound DataLoading ModelComputation "
    "GradientComputation",
}

METHODS = {
    TensorInspector: {"inspect_tensor": "tensor name layer operation", "get_tensor_info": "", "clear": ""},
    GradientDebugger: {"record_gradient_flow": "layer values", "analyze_gradient_flow": ""},
    ModelDiagnostics: {"record_architecture": "", "record_performance": ""},
    Profiler: {
        "start_timer": "name",
        "end_timer": "name",
        "record_layer_execution": "name type forward_time backward_time memory_usage parameter_count",
    },
    hooks.HookManager: {
        "register_hook": "hook",
        "remove_hook": "",
        "execute_hooks": "layer data shape is_forward step",
    },
    hooks.HookBuilder: dict.fromkeys(
        ("trigger", "action", "actions", "layer_patterns", "max_executions", "enabled", "build"), ""
    ),
}

FIELDS = {
    ModelArchitectureInfo: "total_parameters trainable_parameters model_size_mb layer_count",
    ModelPerformanceMetrics: "training_step loss accuracy learning_rate batch_size throughput_samples_per_sec "
    "memory_usage_mb gpu_utilization timestamp",
}


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)
def test_enumerations_are_strings_with_the_seeds_values(kind):
    assert issubclass(kind, StrEnum)
    assert set(VALUES[kind].split()) <= {str(member) for member in kind}


@pytest.mark.parametrize("owner", METHODS, ids=lambda owner: owner.__name__)
def test_methods_take_the_seeds_arguments_in_their_order(owner):
    for name, arguments in METHODS[owner].items():
        parameters = list(inspect.signature(getattr(owner, name)).parameters)[1:]
        wanted = arguments.split()
        assert parameters[: len(wanted)] == wanted


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: kind.__name__)
def test_records_have_the_seeds_fields_in_their_order(kind):
    names = [field.name for field in dataclasses.fields(kind)]
    wanted = FIELDS[kind].split()
    assert names[: len(wanted)] == wanted


@pytest.mark.parametrize("family", [hooks.HookTrigger, hooks.HookCondition, hooks.HookAction])
def test_every_kind_can_be_written_as_in_the_seeds(family):
    kinds = {
        hooks.HookTrigger: hooks.TriggerKind,
        hooks.HookCondition: hooks.ConditionKind,
        hooks.HookAction: hooks.ActionKind,
    }[family]
    assert all(hasattr(family, str(kind)) for kind in kinds)


def test_importing_and_using_them_on_arrays_never_imports_torch():
    code = (
        "import sys, numpy as np\n"
        "from stethoscope.hooks import HookManager, HookBuilder, HookAction\n"
        "from stethoscope.instruments import *\n"
        "TensorInspector().inspect_tensor(np.ones(9), 'x'); GradientDebugger().record_gradient_flow('a', [1.0])\n"
        "ModelDiagnostics().generate_report(); Profiler().bottlenecks(); compare([1.0], [2.0]); repr(inspect([1.0]))\n"
        "hooks = HookManager(sinks=[]); hooks.on(None, HookAction.InspectTensor)\n"
        "assert hooks.execute_hooks('a', [1.0], [1], True)[0].status == 'Success'\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
