"""Every name, argument, field and value that users of the ancestor look for; and what importing costs."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from enum import StrEnum
from typing import Any

import pytest

import stethoscope

CALLS = {
    "debug_session": "config",
    "DebugSession": "config",
    "DebugSession.start": "",
    "DebugSession.stop": "",
    "SessionReport.summary": "",
    "HookBuilder": "name",
    "HookBuilder.trigger": "trigger",
    "HookBuilder.action": "action",
    "HookBuilder.actions": "actions",
    "HookBuilder.layer_patterns": "patterns",
    "HookBuilder.max_executions": "n",
    "HookBuilder.enabled": "enabled",
    "HookBuilder.build": "",
    "HookManager.register_hook": "hook",
    "HookManager.remove_hook": "hook_id",
    "HookManager.execute_hooks": "layer data shape is_forward step",
    "HookTrigger.EveryNSteps": "n",
    "HookTrigger.Conditional": "condition",
    "HookTrigger.LayerSpecific": "names",
    "HookCondition.LossThreshold": "threshold comparison",
    "HookCondition.GradientNormThreshold": "threshold comparison",
    "HookCondition.MemoryThreshold": "megabytes",
    "HookCondition.StepRange": "first last",
    "HookCondition.Custom": "predicate",
    "HookAction.SaveSnapshot": "path",
    "HookAction.Alert": "message severity",
    "HookAction.CustomCallback": "callback",
    "TensorInspector.inspect_tensor": "tensor name layer operation",
    "TensorInspector.get_tensor_info": "tensor_id",
    "TensorInspector.clear": "",
    "GradientDebugger.record_gradient_flow": "layer values",
    "GradientDebugger.analyze_gradient_flow": "",
    "ModelDiagnostics.record_architecture": "info",
    "ModelDiagnostics.record_performance": "metrics",
    "Profiler.start_timer": "name",
    "Profiler.end_timer": "name",
    "Profiler.record_layer_execution": "name type forward_time backward_time memory_usage parameter_count",
    "DebugVisualizer": "config",
    "DebugVisualizer.plot_tensor_distribution": "name values bins",
    "DebugVisualizer.plot_gradient_flow": "name steps gradients",
    "DebugVisualizer.get_plot_names": "",
    "DebugVisualizer.create_dashboard": "names",
    "TerminalVisualizer": "width height",
    "TerminalVisualizer.ascii_histogram": "values bins",
    "TerminalVisualizer.ascii_line_plot": "x y title",
    "GradientFlowAnimator": "max_frames vanishing_threshold exploding_threshold",
    "GradientFlowAnimator.record_step": "step gradients",
    "GradientFlowAnimator.summary_report": "",
    "GradientFlowAnimator.to_ascii_animation": "",
    "GradientFlowAnimator.export_json": "path",
    "GradientFlowAnimator.export_csv": "path",
    "GradientFlowVisualizer": "config",
    "GradientFlowVisualizer.generate_visualization": "gradient_histories current_step graph",
    "GradientFlowVisualizer.create_visualization": "gradient_histories",
    "GradientHistory": "step_numbers gradient_norms",
    "WeightAnalyzer.compute_l2_norm": "tensor",
    "WeightAnalyzer.detect_gradient_explosion": "arrays threshold",
    "WeightAnalyzer.analyze_weight_distribution": "arrays",
    "WeightAnalyzer.analyze_weight_drift": "before after",
    "compare": "first second",
    "inspect": "value",
    "watch": "model optimizer",
}
"""What is called, and its first arguments in their order."""

FIELDS = {
    "DebugConfig": "enable_tensor_inspection enable_gradient_debugging enable_model_diagnostics enable_hooks "
    "enable_profiling enable_visualization max_tracked_tensors max_gradient_history sampling_rate output_dir",
    "VisualizationConfig": "output_directory",
    "ModelArchitectureInfo": "total_parameters trainable_parameters model_size_mb layer_count",
    "ModelPerformanceMetrics": "training_step loss accuracy learning_rate batch_size throughput_samples_per_sec "
    "memory_usage_mb gpu_utilization timestamp",
    "LayerGradientInfo": "name mean_abs_grad max_abs_grad grad_norm is_vanishing is_exploding flow_intensity",
    "GradientFrame": "step layers",
    "GradientFlowSummary": "total_steps layers_with_vanishing_grads layers_with_exploding_grads overall_health "
    "recommendations",
    "GradientFlowVisualization": "layer_flows temporal_flows flow_network critical_paths vanishing_regions "
    "exploding_regions dead_zones visualization_config",
    "GradientLayerFlow": "gradient_magnitudes gradient_directions flow_consistency bottleneck_score "
    "information_flow_rate",
    "GradientDirection": "step direction_vector magnitude consistency_score",
    "TemporalGradientFlow": "step layer_name gradient_magnitude flow_direction stability_score",
    "GradientFlowNetwork": "nodes edges network_metrics",
    "FlowNode": "layer_name node_type gradient_strength connectivity influence_score",
    "FlowEdge": "from_layer to_layer flow_strength flow_consistency edge_type",
    "CriticalGradientPath": "path_id layers path_length total_flow_strength bottleneck_layers criticality_score "
    "optimization_potential",
    "VanishingRegion": "region_id affected_layers severity_level extent mitigation_suggestions",
    "ExplodingRegion": "region_id affected_layers severity_level extent mitigation_suggestions",
    "RegionExtent": "start_layer end_layer affected_parameters duration_steps",
    "GradientDeadZone": "zone_id affected_layers dead_duration recovery_potential intervention_required",
    "GradientVisualizationConfig": "show_temporal_flows show_critical_paths show_problem_regions color_scheme "
    "temporal_window flow_threshold",
    "ExplodingLayer": "layer_index gradient_norm severity recommended_action",
    "GradientExplosionAnalysis": "exploding_layers max_gradient_norm mean_gradient_norm std_gradient_norm "
    "explosion_ratio overall_severity mitigation_recommendations",
    "LayerWeightAnalysis": "layer_index statistics health_score issues recommendations",
    "WeightOutlier": "layer_index weight_index value z_score severity",
    "WeightDriftAnalysis": "mean_drift max_drift severity affected_layers",
    "WeightHealth": "score issues recommendations",
    "GradientFlowAnalysis": "overall_health",
    "TensorInfo": "stats",
}

VALUES = {
    "AlertSeverity": "Info Warning Critical",
    "HookStatus": "Success Error Skipped",
    "Comparison": "> < == >= <=",
    "GradientHealth": "Healthy MinorIssues ProblemsDetected Critical",
    "FlowDirection": "Forward Backward Oscillating Stagnant",
    "NodeType": "Source Sink Bottleneck Amplifier Normal",
    "EdgeType": "Strong Weak Intermittent Blocked",
    "VanishingSeverity": "Mild Moderate Severe Critical",
    "ExplodingSeverity": "Mild Moderate Severe Critical",
    "RecoveryPotential": "High Medium Low None",
    "ColorScheme": "default high_contrast color_blind monochrome",
    "ExplosionSeverity": "Low Medium High Critical",
    "DistributionHealthStatus": "Excellent Good Fair Poor Critical Unknown",
    "OutlierSeverity": "Medium High",
    "WeightDriftSeverity": "Minimal Low Medium High Unknown",
    "ConvergenceStatus": "Converging Converged Diverging Oscillating Plateau Unknown",
    "TrainingStability": "Stable Unstable HighVariance Unknown",
    "BottleneckType": "CpuBound MemoryBound IoBound GpuBound NetworkBound DataLoading ModelComputation "
    "GradientComputation",
}

ATTRIBUTES = "tensor_inspector gradient_debugger model_diagnostics hooks profiler visualizer"
CONSTANTS = {
    "HookTrigger": "EveryForward EveryBackward Once",
    "HookAction": "InspectTensor TrackGradients RecordActivations PauseTraining",
}


def named(path: str) -> Any:
    found: Any = stethoscope
    for part in path.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("path", CALLS)
def test_what_is_called_takes_its_arguments_in_the_known_order(path: str) -> None:
    parameters = [name for name in inspect.signature(named(path)).parameters if name != "self"]
    wanted = CALLS[path].split()
    assert parameters[: len(wanted)] == wanted


@pytest.mark.parametrize("name", FIELDS)
def test_records_have_the_known_fields(name: str) -> None:
    assert set(FIELDS[name].split()) <= {field.name for field in dataclasses.fields(named(name))}


@pytest.mark.parametrize("name", VALUES)
def test_enumerations_are_strings_with_the_known_values(name: str) -> None:
    assert issubclass(named(name), StrEnum)
    assert set(VALUES[name].split()) == {str(member) for member in named(name)}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_are_of_their_own_kind(name: str) -> None:
    assert all(isinstance(getattr(named(name), part), named(name)) for part in CONSTANTS[name].split())


def test_a_session_carries_its_instruments_as_plain_attributes() -> None:
    session = stethoscope.debug_session()
    for name in ATTRIBUTES.split():
        assert getattr(session, name) is getattr(session, name)


def test_every_public_name_is_there_and_dir_knows_it() -> None:
    assert all(getattr(stethoscope, name) is not None for name in stethoscope.__all__)
    assert set(stethoscope.__all__) <= set(dir(stethoscope))
    with pytest.raises(AttributeError, match="no attribute 'nothing_of_that_name'"):
        _ = stethoscope.nothing_of_that_name


def test_the_type_checkers_names_are_the_real_ones() -> None:
    text = inspect.getsource(stethoscope)
    declared = {line.split()[-1] for line in text.splitlines() if line.startswith("    from stethoscope.")}
    assert declared == set(stethoscope.__all__)


def test_importing_brings_nothing_heavy() -> None:
    """How long it takes is printed by benchmarks/import_time.py; what makes it long is checked here."""
    code = "import sys, stethoscope; print([m for m in ('torch', 'numpy', 'pyarrow', 'rich', 'duckdb') if m in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert told == "[]"
