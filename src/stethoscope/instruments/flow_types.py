"""What the flow visualizer takes and gives: histories, settings, flows, network, paths, regions, zones.

Plain data. Enumerations are strings whose values are the names users of the ancestor know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from stethoscope.instruments.limits import own_limits
from stethoscope.record import ConfigError, plural
from stethoscope.views.common.style import ColorScheme as ColorScheme


class FlowDirection(StrEnum):
    """Where a layer's norm went over its last three steps."""

    FORWARD = "Forward"
    BACKWARD = "Backward"
    OSCILLATING = "Oscillating"
    STAGNANT = "Stagnant"


class NodeType(StrEnum):
    """What a layer does to the gradient."""

    SOURCE = "Source"
    SINK = "Sink"
    BOTTLENECK = "Bottleneck"
    AMPLIFIER = "Amplifier"
    NORMAL = "Normal"


class EdgeType(StrEnum):
    """The ancestor's classes of edges, kept for parity; `FlowEdge.state` is what a user is shown."""

    STRONG = "Strong"
    WEAK = "Weak"
    INTERMITTENT = "Intermittent"
    BLOCKED = "Blocked"


class RegionSeverity(StrEnum):
    """How far beyond its threshold a region is."""

    MILD = "Mild"
    MODERATE = "Moderate"
    SEVERE = "Severe"
    CRITICAL = "Critical"


VanishingSeverity = RegionSeverity
ExplodingSeverity = RegionSeverity


class RecoveryPotential(StrEnum):
    """How likely a dead zone is to come back by itself."""

    HIGH = "High"
    MEDIUM = "Medium"
    LOW = "Low"
    NONE = "None"


@dataclass(slots=True)
class GradientHistory:
    """A layer's gradient norms over steps.

    `sketches` are random projections of the gradient, one vector a step, from which directions come;
    `num_parameters` is how many weights the norm is over. Both may be left out.
    """

    step_numbers: Sequence[int] = ()
    gradient_norms: Sequence[float] = ()
    sketches: Any = field(default=None, compare=False)
    num_parameters: int | None = None

    def __post_init__(self) -> None:
        norms = np.asarray(self.gradient_norms, dtype=np.float64).reshape(-1)
        steps = [int(s) for s in self.step_numbers]
        if len(steps) != len(norms):
            raise ConfigError(
                f"{len(steps)} steps but {len(norms)} norms",
                where="GradientHistory",
                do="Give one norm a step",
            )
        self.step_numbers, self.gradient_norms = steps, norms.tolist()
        if self.sketches is not None:
            self.sketches = np.asarray(self.sketches, dtype=np.float64)
            if len(self.sketches) != len(steps):
                raise ConfigError(
                    f"{len(self.sketches)} sketches but {len(steps)} steps",
                    where="GradientHistory",
                    do="Give one vector a step",
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientVisualizationConfig:
    """What to generate and how to draw it."""

    show_temporal_flows: bool = True
    show_critical_paths: bool = True
    show_problem_regions: bool = True
    color_scheme: ColorScheme | str = ColorScheme.DEFAULT
    temporal_window: int = 50
    """How many of the latest steps temporal flows look at and pictures show."""
    flow_threshold: float = 0.01
    """A connection whose gradient is under this share of the network's largest carries no flow: it is drawn
    as a hairline, and with a model graph no critical path uses it where another way exists."""

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "color_scheme", ColorScheme(str(self.color_scheme)))
        except ValueError as error:
            known = ", ".join(ColorScheme)
            raise ConfigError("unknown color_scheme", where=self.color_scheme, do=f"Use one of {known}") from error
        if self.temporal_window < 1:
            raise ConfigError("temporal_window must be at least 1", where=self.temporal_window, do="Use 50")


@dataclass(frozen=True, slots=True)
class GradientDirection:
    """A layer's gradient at one step: size, direction, and how steady the size is."""

    step: int
    direction_vector: list[float]
    """The sketch at unit length; empty where no sketch is known."""
    magnitude: float
    consistency_score: float
    cosine: float | None = None
    """With the step before, estimated from the sketches; None without them."""


@dataclass(frozen=True, slots=True)
class GradientLayerFlow:
    """One layer's gradient over time."""

    layer_name: str
    gradient_magnitudes: list[float]
    gradient_directions: list[GradientDirection]
    flow_consistency: float
    bottleneck_score: float
    information_flow_rate: float


@dataclass(frozen=True, slots=True)
class TemporalGradientFlow:
    """Where a layer's gradient is going now."""

    step: int
    layer_name: str
    gradient_magnitude: float
    flow_direction: FlowDirection
    stability_score: float


@dataclass(frozen=True, slots=True)
class FlowNode:
    """A layer in the network."""

    layer_name: str
    node_type: NodeType
    gradient_strength: float
    """The mean norm over the finite steps."""
    connectivity: int
    """Its degree: how many layers it takes from and gives to."""
    influence_score: float
    num_inputs: int = 0
    num_outputs: int = 0
    num_parameters: int | None = None
    gate_of: int = 0
    """How many layers get their gradient through this one alone; known with a model graph."""
    is_narrow: bool | None = None
    """Whether others depend on it and a tenth or less goes on; None without a model graph."""


@dataclass(frozen=True, slots=True)
class FlowEdge:
    """Data goes from `from_layer` to `to_layer`; the gradient comes back."""

    from_layer: str
    to_layer: str
    flow_strength: float
    flow_consistency: float
    edge_type: EdgeType
    gradient: float = 0.0
    """The smaller of the two ends' mean norms: what certainly gets through."""
    gain: float = 1.0
    """The from-layer's mean norm over the to-layer's: below 1 the gradient shrinks on its way back."""
    carries_flow: bool = True
    """Whether `gradient` is over the flow threshold's share of the largest one."""

    @property
    def state(self) -> str:
        """In plain words: no flow, fading, growing or steady."""
        if not self.carries_flow:
            return "no flow"
        if self.gain < 0.1:
            return "fading"
        return "growing" if self.gain > 10.0 else "steady"


@dataclass(frozen=True, slots=True)
class NetworkMetrics:
    """The network as a whole."""

    overall_flow_efficiency: float
    network_connectivity: float
    bottleneck_density: float
    flow_stability: float
    information_propagation_speed: float


@dataclass(frozen=True, slots=True)
class GradientFlowNetwork:
    """Layers and how they are connected."""

    nodes: list[FlowNode]
    edges: list[FlowEdge]
    network_metrics: NetworkMetrics
    from_model_graph: bool = False


@dataclass(frozen=True, slots=True)
class SkipConnection:
    """A connection that is not there, and what the path would let through if it were."""

    from_layer: str
    to_layer: str
    transmission: float
    """The path's transmission with it."""
    factor: float
    """How many times more gradient than now."""


@dataclass(frozen=True, slots=True)
class CriticalGradientPath:
    """The way by which an earliest layer gets most of its gradient; layers in the order of the data."""

    path_id: str
    layers: list[str]
    path_length: int
    total_flow_strength: float
    bottleneck_layers: list[str]
    criticality_score: float
    """What is lost when its weakest connection is cut: 1 without another way, 0 where one is as good."""
    optimization_potential: float
    """The share of the gradient that the path loses: what a perfect one would win."""
    transmission: float = 1.0
    """The share of the gradient that gets from the end of the path to its beginning; gains do not count."""
    weakest_edge: tuple[str, str] | None = None
    """Where it loses most, in the order of the data."""
    weakest_gain: float = 1.0
    skip: SkipConnection | None = None
    """The single added connection that would help most; None where none would help much."""


@dataclass(frozen=True, slots=True)
class RegionExtent:
    """Where a region is and how much it covers."""

    start_layer: str
    end_layer: str
    affected_parameters: int | None
    """None where their number is unknown."""
    duration_steps: int


@dataclass(frozen=True, slots=True)
class GradientRegion:
    """Neighbouring layers with the same trouble."""

    region_id: str
    affected_layers: list[str]
    severity_level: RegionSeverity
    extent: RegionExtent
    mitigation_suggestions: list[str]
    since_step: int | None = None
    """The first step at which one of its layers was beyond the threshold."""


VanishingRegion = GradientRegion
ExplodingRegion = GradientRegion


@dataclass(frozen=True, slots=True)
class GradientDeadZone:
    """Layers that get no gradient most of the time."""

    zone_id: str
    affected_layers: list[str]
    dead_duration: int
    recovery_potential: RecoveryPotential
    intervention_required: bool


@dataclass(frozen=True, slots=True)
class NonFiniteNorm:
    """A layer's first step with a NaN or infinite norm, and how many followed."""

    layer_name: str
    step: int
    value: float
    num_steps: int


@dataclass(frozen=True, slots=True, repr=False)
class GradientFlowVisualization:
    """Everything the visualizer found; `to_terminal`, `to_json` and `save` show it."""

    layer_flows: dict[str, GradientLayerFlow]
    temporal_flows: list[TemporalGradientFlow]
    flow_network: GradientFlowNetwork
    critical_paths: list[CriticalGradientPath]
    vanishing_regions: list[GradientRegion]
    exploding_regions: list[GradientRegion]
    dead_zones: list[GradientDeadZone]
    visualization_config: GradientVisualizationConfig
    current_step: int = 0
    non_finite: list[NonFiniteNorm] = field(default_factory=list)

    def __repr__(self) -> str:
        parts = {
            "layer": len(self.layer_flows),
            "critical path": len(self.critical_paths),
            "vanishing region": len(self.vanishing_regions),
            "exploding region": len(self.exploding_regions),
            "dead zone": len(self.dead_zones),
            "layer with NaN or Inf": len(self.non_finite),
        }
        words = {"layer with NaN or Inf": "layers with NaN or Inf"}
        said = ", ".join(plural(n, word, words.get(word, "")) for word, n in parts.items() if n)
        return f"GradientFlowVisualization(step {self.current_step:,}: {said or 'nothing'}; print() shows it)"

    @property
    def limits(self) -> str:
        """What regions are found by."""
        from stethoscope.instruments.regions import RULES

        return own_limits("flow visualizer", RULES)

    def __str__(self) -> str:
        return str(self.to_terminal())

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; non-finite numbers as None."""
        from stethoscope.instruments.files import plain

        body: dict[str, Any] = plain(self)
        return body

    def to_terminal(self, width: int = 80) -> Any:
        """As a rich `Text`; `str()` of it is plain."""
        from stethoscope.instruments.flow_picture import to_text

        return to_text(self, width)

    def save(self, path: str | Path, *, dark: bool = False) -> Path:
        """As .png, .svg, .json or .txt, by the name's ending; atomically."""
        from stethoscope.instruments.flow_picture import save

        return save(self, Path(path), dark)
