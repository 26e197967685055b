"""Names and fields that users of the ancestor look for, and what importing costs."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from enum import StrEnum

import pytest

from stethoscope.instruments import animator, flow_types, weight_types
from stethoscope.instruments.animator_export import JSON_FIELDS

FIELDS = {
    animator.LayerGradientInfo: "name mean_abs_grad max_abs_grad grad_norm is_vanishing is_exploding flow_intensity",
    animator.GradientFrame: "step layers",
    animator.GradientFlowSummary: "total_steps layers_with_vanishing_grads layers_with_exploding_grads "
    "overall_health recommendations",
    flow_types.CriticalGradientPath: "path_id layers path_length total_flow_strength bottleneck_layers "
    "criticality_score optimization_potential",
    flow_types.VanishingRegion: "region_id affected_layers severity_level extent mitigation_suggestions",
    flow_types.ExplodingRegion: "region_id affected_layers severity_level extent mitigation_suggestions",
    flow_types.RegionExtent: "start_layer end_layer affected_parameters duration_steps",
    flow_types.GradientDeadZone: "zone_id affected_layers dead_duration recovery_potential intervention_required",
    flow_types.GradientVisualizationConfig: "show_temporal_flows show_critical_paths show_problem_regions "
    "color_scheme temporal_window flow_threshold",
    flow_types.GradientFlowVisualization: "layer_flows temporal_flows flow_network critical_paths "
    "vanishing_regions exploding_regions dead_zones visualization_config",
    flow_types.FlowNode: "layer_name node_type gradient_strength connectivity influence_score",
    flow_types.FlowEdge: "from_layer to_layer flow_strength flow_consistency edge_type",
    weight_types.ExplodingLayer: "layer_index gradient_norm severity recommended_action",
    weight_types.GradientExplosionAnalysis: "exploding_layers max_gradient_norm mean_gradient_norm "
    "std_gradient_norm explosion_ratio overall_severity mitigation_recommendations",
    weight_types.LayerWeightAnalysis: "layer_index statistics health_score issues recommendations",
    weight_types.WeightStatistics: "mean std_dev skewness kurtosis entropy min max zero_fraction",
    weight_types.WeightOutlier: "layer_index weight_index value z_score severity",
    weight_types.WeightDriftAnalysis: "mean_drift max_drift severity affected_layers",
    weight_types.WeightHealth: "score issues recommendations",
    weight_types.DistributionHealth: "score status",
}

VALUES = {
    animator.GradientHealth: "Healthy MinorIssues ProblemsDetected Critical",
    flow_types.FlowDirection: "Forward Backward Oscillating Stagnant",
    flow_types.NodeType: "Source Sink Bottleneck Amplifier Normal",
    flow_types.EdgeType: "Strong Weak Intermittent Blocked",
    flow_types.VanishingSeverity: "Mild Moderate Severe Critical",
    flow_types.ExplodingSeverity: "Mild Moderate Severe Critical",
    flow_types.RecoveryPotential: "High Medium Low None",
    flow_types.ColorScheme: "default high_contrast color_blind monochrome",
    weight_types.ExplosionSeverity: "Low Medium High Critical",
    weight_types.DistributionHealthStatus: "Excellent Good Fair Poor Critical Unknown",
    weight_types.OutlierSeverity: "Medium High",
    weight_types.WeightDriftSeverity: "Minimal Low Medium High Unknown",
}


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: kind.__name__)
def test_fields(kind: type) -> None:
    assert set(FIELDS[kind].split()) <= {field.name for field in dataclasses.fields(kind)}


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)
def test_enumerations(kind: type[StrEnum]) -> None:
    assert [str(value) for value in kind] == VALUES[kind].split()


def test_exported_fields_are_the_objects_fields() -> None:
    assert tuple(field.name for field in dataclasses.fields(animator.LayerGradientInfo)) == JSON_FIELDS


def test_importing_brings_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from stethoscope.instruments import GradientFlowAnimator, GradientFlowVisualizer, WeightAnalyzer\n"
        "from stethoscope.instruments import DebugVisualizer\n"
        "GradientFlowAnimator().record_step(0, {'a': [1.0]})\n"
        "GradientFlowVisualizer().create_visualization({'a': [1.0, 2.0], 'b': [1.0, 2.0]})\n"
        "heavy = ('torch', 'matplotlib', 'networkx', 'safetensors', 'PIL')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
