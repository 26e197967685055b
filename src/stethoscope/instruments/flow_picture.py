"""The flow as text and as a picture: layers in columns along the data, ribbons as wide as the gradient.

Every mark has a shape before it has a color, so each color scheme, and none, can be read.
"""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from stethoscope.instruments.files import write_atomically, write_json, write_text
from stethoscope.instruments.flow_layout import Position, apex, curve, edges_to_draw, node_positions
from stethoscope.instruments.flow_types import (
    CriticalGradientPath,
    FlowNode,
    GradientFlowVisualization,
    NodeType,
)
from stethoscope.record import ConfigError, printable
from stethoscope.views.common.plot_data import number
from stethoscope.views.common.style import (
    HEADING_WEIGHT,
    FlowPalette,
    Tokens,
    figure_style,
    flow_palette,
    monospace,
    tokens,
)
from stethoscope.views.common.styled_text import cut_middle

NODE_MARKS = {
    NodeType.BOTTLENECK: "▸◂",
    NodeType.AMPLIFIER: "◂▸",
    NodeType.SINK: "_",
    NodeType.SOURCE: "◆",
    NodeType.NORMAL: "·",
}
WORTH_SAYING = 0.01
"""A path that lets less through than this is worth a sentence; norms differ tenfold in any healthy model."""
SPARKS = "▁▂▃▄▅▆▇█"


def to_text(shown: GradientFlowVisualization, width: int) -> Text:
    """A line a layer: mark, name, spark of the last steps, mean norm; then paths and regions in words."""
    palette = flow_palette(shown.visualization_config.color_scheme)
    text = Text(no_wrap=True, overflow="crop")
    nodes = shown.flow_network.nodes
    broken = {where.layer_name for where in shown.non_finite}
    exploding = {name for region in shown.exploding_regions for name in region.affected_layers}
    vanishing = {name for region in shown.vanishing_regions for name in region.affected_layers}
    label_width = min(max((len(node.layer_name) for node in nodes), default=5), max(width // 3, 8))
    room = max(width - label_width - 18, 4)
    window = min(shown.visualization_config.temporal_window, room)
    for node in nodes:
        style = _node_style(node.layer_name, broken | exploding, vanishing, palette)
        text.append(f"{NODE_MARKS[shown_type(node)]:>2} ", style=style)
        text.append(f"{cut_middle(printable(node.layer_name), label_width):<{label_width}} ", style=style)
        norms = norms_of(shown, node.layer_name)[-window:]
        text.append(f"{spark(norms):<{window}} ", style=style)
        text.append(f"{number(node.gradient_strength):>12}\n", style=style)
    for line in [*sentences(shown), *textwrap.wrap(shown.limits, max(width, 20))]:
        text.append(line + "\n")
    return text


def norms_of(shown: GradientFlowVisualization, layer: str) -> list[float]:
    """A layer's norms over the steps; of a module whose parameters were recorded, those of all of them together."""
    own = shown.layer_flows.get(layer)
    if own is not None:
        return own.gradient_magnitudes
    parts = [flow.gradient_magnitudes for name, flow in shown.layer_flows.items() if name.rpartition(".")[0] == layer]
    shortest = min((len(part) for part in parts), default=0)
    if not shortest:
        return []
    together: list[float] = np.sqrt(np.square([part[-shortest:] for part in parts]).sum(axis=0)).tolist()
    return together


def shown_type(node: FlowNode) -> NodeType:
    """On the model's graph a bottleneck is a layer that others depend on; a norm that fell as training went is
    none."""
    fell = node.node_type is NodeType.BOTTLENECK and node.is_narrow is False
    return NodeType.NORMAL if fell else node.node_type


def _node_style(name: str, larger: set[str], smaller: set[str], palette: FlowPalette) -> str:
    if name in larger:
        return palette.terminal[2]
    return palette.terminal[1] if name in smaller else ""


def spark(norms: list[float]) -> str:
    """Eight heights on a log scale between the smallest and largest; ╳ NaN, ∞ infinite, _ zero."""
    logs = [math.log(n) for n in norms if math.isfinite(n) and n > 0]
    low, high = (min(logs), max(logs)) if logs else (0.0, 0.0)
    out = []
    for norm in norms:
        if math.isnan(norm):
            out.append("╳")
        elif math.isinf(norm):
            out.append("∞")
        elif norm <= 0:
            out.append("_")
        else:
            share = (math.log(norm) - low) / (high - low) if high - low > 0.1 else 0.4
            out.append(SPARKS[min(int(share * 8), 7)])
    return "".join(out)


def sentences(shown: GradientFlowVisualization) -> list[str]:
    """What was found, worst first; the words of edges and directions kept for parity are not among them."""
    found = [
        f"◆ {printable(where.layer_name)}: the gradient is not finite since step {where.step:,}"
        for where in shown.non_finite[:5]
    ]
    for word, regions in (("explode", shown.exploding_regions), ("vanish", shown.vanishing_regions)):
        found += [
            f"▲ Gradients {word} in {_layer_range(region.affected_layers)}, {region.severity_level.lower()}"
            for region in regions
        ]
    found += [
        f"▲ {_layer_range(zone.affected_layers)}: no gradient at {zone.dead_duration:,} steps"
        for zone in shown.dead_zones
    ]
    found += [_path_sentence(path) for path in shown.critical_paths[:1] if path.transmission < WORTH_SAYING]
    return found or ["✓ Nothing to report"]


def _layer_range(layers: list[str]) -> str:
    ends = [printable(layers[0]), printable(layers[-1])]
    return ends[0] if len(layers) == 1 else f"{ends[0]} to {ends[1]} ({len(layers)} layers)"


def _path_sentence(path: CriticalGradientPath) -> str:
    first, second = (printable(name) for name in path.weakest_edge or path.layers[:2])
    lost = "all of it" if path.weakest_gain == 0 else f"×{number(1 / path.weakest_gain)}"
    line = f"● The gradient reaches {printable(path.layers[0])} at {number(path.transmission)} of its size; "
    line += f"it loses most ({lost}) from {second} to {first}"
    if path.skip is not None:
        more = "" if math.isinf(path.skip.factor) else f" ×{number(path.skip.factor)}"
        ends = f"{printable(path.skip.from_layer)} to {printable(path.skip.to_layer)}"
        line += f"; a skip from {ends} would carry{more} more"
    return line


def save(shown: GradientFlowVisualization, path: Path, dark: bool) -> Path:
    """By the name's ending."""
    match path.suffix.lower():
        case ".json":
            return write_json(path, shown.to_json())
        case ".txt":
            return write_text(path, to_text(shown, 120).plain)
        case ".png" | ".svg":
            from stethoscope.views.plots import figures as plots

            figure = draw(shown, dark)
            kind = path.suffix.lower()[1:]
            return write_atomically(path, lambda file: plots.save(figure, file, kind))
    raise ConfigError("cannot save a flow like this", where=path, do="End the name in .png, .svg, .json or .txt")


def draw(shown: GradientFlowVisualization, dark: bool = False) -> Any:
    """The network as a matplotlib figure: ribbons by gradient, critical path cased, troubles outlined."""
    from stethoscope.views.plots import figures as plots

    palette = flow_palette(shown.visualization_config.color_scheme, dark)
    look = tokens(dark)
    positions = node_positions(shown)
    edges, num_hidden = edges_to_draw(shown)
    heights = {
        (e.from_layer, e.to_layer): apex(positions[e.from_layer], positions[e.to_layer], list(positions.values()))
        for e in edges
    }
    routes = {pair: curve(positions[pair[0]], positions[pair[1]], height) for pair, height in heights.items()}
    reached = [y for _, y in positions.values()] + [h for h in heights.values() if h is not None]
    levels = max((x for x, _ in positions.values()), default=0.0) + 1
    low, high = min(reached, default=0.0) - 0.55, max(reached, default=0.0) + 0.55
    with figure_style(dark):
        figure = plots.new_figure(min(max(1.0 * levels + 1, 6.0), 24.0), min(max(0.9 * (high - low) + 0.9, 2.0), 14.0))
        axis = figure.subplots()
        axis.set_axis_off()
        _draw_edges(axis, shown, routes, palette, look.sheet)
        _draw_nodes(axis, shown, positions, palette, look)
        axis.set_xlim(-0.7, levels - 0.3)
        axis.set_ylim(low, high)
        title = sentences(shown)[0].lstrip("◆▲●✓ ")
        axis.set_title(plots.plain_text(title), fontweight=HEADING_WEIGHT)
        if num_hidden:
            note = f"{num_hidden:,} more connections carry less and are not drawn"
            axis.annotate(note, (-0.6, low), fontsize=7, color=look.ink3, va="bottom")
    return figure


def _color_map(palette: FlowPalette) -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("flow", list(palette.ramp))


def _log_shares(shown: GradientFlowVisualization) -> dict[float, float]:
    """Each distinct gradient as a share of the range from smallest to largest, on a log scale."""
    values = [edge.gradient for edge in shown.flow_network.edges]
    values += [node.gradient_strength for node in shown.flow_network.nodes]
    largest = max(values, default=0.0)
    if largest <= 0:
        return dict.fromkeys(values, 0.0)
    smallest = max(min((v for v in values if v > 0), default=largest), largest * 1e-6)
    span = math.log(largest / smallest) or 1.0
    return {v: 0.0 if v <= 0 else min(max(math.log(v / smallest) / span, 0.0), 1.0) for v in values}


def _draw_edges(
    axis: Any,
    shown: GradientFlowVisualization,
    routes: dict[tuple[str, str], list[Position]],
    palette: FlowPalette,
    sheet: str,
) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    ramp, shares = _color_map(palette), _log_shares(shown)
    critical: set[tuple[str, str]] = set()
    for path in shown.critical_paths[:1]:
        critical.update(zip(path.layers, path.layers[1:], strict=False))
    edges = {(edge.from_layer, edge.to_layer): edge for edge in shown.flow_network.edges}
    for pair, points in routes.items():
        edge = edges[pair]
        codes = [Outline.MOVETO] + [Outline.LINETO if len(points) == 2 else Outline.CURVE4] * (len(points) - 1)
        line = Outline(points, codes)
        width = (0.8 + 6.0 * shares[edge.gradient]) * palette.line_scale if edge.carries_flow else 0.8
        if pair in critical:
            for color, more in ((palette.critical_path, 3.0), (sheet, 1.0)):
                axis.add_patch(PathPatch(line, edgecolor=color, facecolor="none", lw=width + more, zorder=1))
        color = ramp(0.15 + 0.85 * shares[edge.gradient]) if edge.carries_flow else palette.outline
        dashes = "solid" if edge.carries_flow else (0, (2, 2))
        axis.add_patch(PathPatch(line, edgecolor=color, facecolor="none", lw=width, linestyle=dashes, zorder=2))


def _draw_nodes(
    axis: Any,
    shown: GradientFlowVisualization,
    positions: dict[str, Position],
    palette: FlowPalette,
    look: Tokens,
) -> None:
    """Boxes filled by the ramp; past 24 columns only every few, and those in trouble, carry their name."""
    from matplotlib.patches import FancyBboxPatch

    ramp, shares = _color_map(palette), _log_shares(shown)
    exploding = {name for region in shown.exploding_regions for name in region.affected_layers}
    vanishing = {name for region in shown.vanishing_regions for name in region.affected_layers}
    columns = max((x for x, _ in positions.values()), default=0.0) + 1
    every = math.ceil(columns / 24)
    for node in shown.flow_network.nodes:
        name, (x, y) = node.layer_name, positions[node.layer_name]
        bad, weak = name in exploding, name in vanishing
        edge = palette.exploding if bad else palette.vanishing if weak else palette.outline
        axis.add_patch(
            FancyBboxPatch(
                (x - 0.25, y - 0.14),
                0.5,
                0.28,
                boxstyle="round,pad=0,rounding_size=0.05",
                facecolor=ramp(shares[node.gradient_strength]),
                edgecolor=edge,
                zorder=3,
                linewidth=(2.2 if bad else 1.0) * palette.line_scale,
                linestyle="dashed" if weak else "solid",
            )
        )
        if x % every == 0 or bad:
            _label_node(axis, node, (x, y), look, ramp(shares[node.gradient_strength]))


def _label_node(axis: Any, node: FlowNode, position: Position, look: Tokens, fill: Any) -> None:
    """The mean norm in the box, its mark over it, the name under it on a patch that keeps ribbons off."""
    from stethoscope.views.plots import figures as plots

    x, y = position
    patch = {"facecolor": look.sheet, "edgecolor": "none", "pad": 0.6, "alpha": 0.85}
    settings: dict[str, Any] = {"ha": "center", "zorder": 5}
    is_dark = 0.299 * fill[0] + 0.587 * fill[1] + 0.114 * fill[2] < 0.55
    axis.annotate(
        number(node.gradient_strength),
        (x, y),
        va="center",
        fontsize=7,
        color="white" if is_dark else "black",
        **settings,
    )
    if shown_type(node) in (NodeType.BOTTLENECK, NodeType.AMPLIFIER):
        mark = NODE_MARKS[shown_type(node)]
        axis.annotate(mark, (x, y + 0.17), va="bottom", fontsize=7, color=look.ink, bbox=patch, **settings)
    axis.annotate(
        plots.plain_text(cut_middle(printable(node.layer_name), 16)),
        (x, y - 0.2),
        va="top",
        fontsize=6.5,
        fontfamily=monospace(),
        color=look.ink2,
        bbox=patch,
        **settings,
    )
