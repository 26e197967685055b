"""GradientFlowAnimator: every layer's gradient over the steps, kept in a rolling window.

Promises: a frame is a few numbers per layer, so a thousand layers over ten thousand steps stay usable; a NaN
or an infinity makes the run Critical and is located by layer, step and index; numbers of a layer are over its
finite values; nothing is drawn or imported until asked for.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np

from stethoscope.instruments import animator_export
from stethoscope.instruments.animator_grid import Grid, build_grid, draw_rows
from stethoscope.instruments.array_input import NonFinite, locate
from stethoscope.instruments.limits import own_limits
from stethoscope.instruments.rows import measure_rows
from stethoscope.kernels.columns import stat
from stethoscope.record import ConfigError, FloatArray, name_list

if TYPE_CHECKING:
    from stethoscope.instruments.animator_live import LiveView
    from stethoscope.store import Run


logger = logging.getLogger(__name__)


class GradientHealth(StrEnum):
    """The verdict over all recorded frames, best first."""

    HEALTHY = "Healthy"
    MINOR_ISSUES = "MinorIssues"
    PROBLEMS_DETECTED = "ProblemsDetected"
    CRITICAL = "Critical"


@dataclass(frozen=True, slots=True)
class LayerGradientInfo:
    """One layer's gradient at one step, over its finite values."""

    name: str
    mean_abs_grad: float
    max_abs_grad: float
    grad_norm: float
    is_vanishing: bool
    is_exploding: bool
    flow_intensity: float
    """The norm as a share of the largest norm in the frame."""
    non_finite: NonFinite | None = None


@dataclass(frozen=True, slots=True)
class GradientFrame:
    """All layers at one step, sorted by name."""

    step: int
    layers: tuple[LayerGradientInfo, ...]


@dataclass(frozen=True, slots=True)
class GradientFlowSummary:
    """What the recorded frames say together."""

    total_steps: int
    """The last recorded step plus one."""
    layers_with_vanishing_grads: list[str]
    layers_with_exploding_grads: list[str]
    overall_health: GradientHealth
    recommendations: list[str]
    non_finite: list[NonFinite] = field(default_factory=list)
    """The first NaN or infinity of each layer, in the order of appearance."""
    limits: str = ""
    """What it is judged by."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """A frame as it is kept: names shared between frames, three numbers and two flags a layer."""

    step: int
    names: tuple[str, ...]
    values: FloatArray
    """[layers, 3]: mean abs, max abs, norm."""
    vanishing: np.ndarray[Any, np.dtype[np.bool_]]
    exploding: np.ndarray[Any, np.dtype[np.bool_]]
    non_finite: dict[int, NonFinite]

    def intensities(self) -> FloatArray:
        norms = self.values[:, 2]
        largest = float(norms.max(initial=0.0))
        if largest <= 0.0:
            return np.zeros(len(norms))
        return np.clip(norms / largest, 0.0, 1.0)

    def rows(self) -> Iterator[tuple[str, float, float, float, bool, bool, float, NonFinite | None]]:
        """A layer at a time, in the order of LayerGradientInfo's fields."""
        columns = (
            self.names,
            *self.values.T.tolist(),
            self.vanishing.tolist(),
            self.exploding.tolist(),
            self.intensities().tolist(),
            (self.non_finite.get(index) for index in range(len(self.names))),
        )
        return zip(*columns, strict=True)

    def public(self) -> GradientFrame:
        return GradientFrame(self.step, tuple(LayerGradientInfo(*row) for row in self.rows()))


class Frames(Sequence[GradientFrame]):
    """The retained frames, oldest first; each is built when read."""

    def __init__(self, kept: deque[_Frame]) -> None:
        self._kept = kept

    @overload
    def __getitem__(self, index: int) -> GradientFrame: ...
    @overload
    def __getitem__(self, index: slice) -> list[GradientFrame]: ...
    def __getitem__(self, index: int | slice) -> GradientFrame | list[GradientFrame]:
        if isinstance(index, slice):
            return [self._kept[i].public() for i in range(*index.indices(len(self._kept)))]
        return self._kept[index].public()

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[GradientFrame]:
        return (frame.public() for frame in self._kept)

    def __repr__(self) -> str:
        return f"Frames({len(self)})"


class GradientFlowAnimator:
    """Records each layer's gradient step by step; exports, draws and sums up what it saw.

    `max_frames` is the length of the rolling window, 0 for no limit. A layer vanishes where its mean absolute
    gradient is under `vanishing_threshold`, explodes where an element passes `exploding_threshold`.
    """

    def __init__(
        self, max_frames: int = 0, vanishing_threshold: float = 1e-7, exploding_threshold: float = 1e3
    ) -> None:
        if max_frames < 0:
            raise ConfigError("max_frames is negative", where=max_frames, do="Use 0 for no limit")
        self.max_frames = max_frames
        self.vanishing_threshold = vanishing_threshold
        self.exploding_threshold = exploding_threshold
        self._kept: deque[_Frame] = deque(maxlen=max_frames or None)
        self._names: tuple[str, ...] = ()
        self._listeners: list[LiveView] = []
        self._in_model_order = False
        """Whether the frames have their layers as the model has them; by hand their order carries no meaning."""

    @property
    def frames(self) -> Frames:
        """The retained frames, oldest first."""
        return Frames(self._kept)

    @classmethod
    def from_run(cls, run: Run, *, max_frames: int = 0, first: int | None = None, last: int | None = None) -> Self:
        """The gradients of a recorded run, a frame for every step that has any."""
        from stethoscope.instruments.run_gradients import RunGradients

        out = cls(max_frames)
        out._in_model_order = True
        found = RunGradients.read(run, first, last)
        paths = [info.site.path for info in found.sites]
        shared: dict[tuple[int, ...], tuple[str, ...]] = {}
        for row, (step, indices) in enumerate(found.frames()):
            order = sorted(indices)  # as the model has them; by name "layers.10" would come before "layers.2"
            names = shared.setdefault(tuple(order), tuple(paths[i] for i in order))
            values = np.column_stack([found.mean_abs[row], found.abs_max[row], found.norm[row]])[order]
            nans, infs = found.num_nan[row, order], found.num_inf[row, order]
            broken = {
                int(i): NonFinite(names[i], int(nans[i]), int(infs[i]), None, step) for i in np.flatnonzero(nans + infs)
            }
            out._keep_frame(step, names, np.nan_to_num(values, nan=0.0), broken, infs > 0)
        return out

    def record_step(self, step: int, gradients: Mapping[str, Any]) -> None:
        """Adds one frame. A missing gradient (None) is left out of the frame, as a missing layer is."""
        present = {str(name): gradient for name, gradient in gradients.items() if gradient is not None}
        names = tuple(sorted(present))
        if names == self._names:
            names = self._names
        self._names = names
        arrays = [present[name] for name in names]
        table = measure_rows(arrays, names)
        values = np.column_stack([stat(table, name) for name in ("mean_abs", "abs_max", "norm")])
        values = np.nan_to_num(values.reshape(len(names), 3), nan=0.0)
        num_inf = stat(table, "num_posinf") + stat(table, "num_neginf")
        broken = np.flatnonzero(stat(table, "num_nonfinite") > 0)
        found = {int(i): locate(arrays[i], names[i], step) for i in broken}
        located = {i: where for i, where in found.items() if where is not None}
        self._keep_frame(int(step), names, values, located, num_inf > 0)
        for view in list(self._listeners):
            self._redraw(view)

    def _keep_frame(
        self,
        step: int,
        names: tuple[str, ...],
        values: FloatArray,
        broken: dict[int, NonFinite],
        infinite: np.ndarray[Any, np.dtype[np.bool_]],
    ) -> None:
        whole = np.ones(len(names), dtype=np.bool_)
        whole[list(broken)] = False
        vanishing = (values[:, 0] < self.vanishing_threshold) & whole
        exploding = (values[:, 1] > self.exploding_threshold) | infinite
        self._kept.append(_Frame(step, names, values, vanishing, exploding, broken))

    def _redraw(self, view: LiveView) -> None:
        """Redraws; a terminal that fails is left alone from then on, because training must go on."""
        try:
            view.refresh()
        except Exception:
            logger.exception("the live view failed and is switched off")
            self._listeners.remove(view)

    def rows(self) -> Iterator[tuple[int, Iterator[tuple[Any, ...]]]]:
        """Step by step: every layer's fields as a tuple; what exports read, without an object a cell."""
        return ((frame.step, frame.rows()) for frame in self._kept)

    def clear(self) -> None:
        """Forgets every frame."""
        self._kept.clear()

    def summary_report(self) -> GradientFlowSummary:
        """Which layers vanished or exploded in any frame, the verdict, and what to do.

        Without a frame the verdict is Healthy, as in the seeds, and the advice says that nothing was recorded.
        """
        vanishing: set[str] = set()
        exploding: set[str] = set()
        non_finite: dict[str, NonFinite] = {}
        num_bad = 0
        for frame in self._kept:
            vanishing.update(frame.names[i] for i in np.flatnonzero(frame.vanishing))
            exploding.update(frame.names[i] for i in np.flatnonzero(frame.exploding))
            for where in frame.non_finite.values():
                non_finite.setdefault(where.name, where)
            num_bad += bool(frame.vanishing.any() or frame.exploding.any() or frame.non_finite)
        share = num_bad / max(len(self._kept), 1)
        health = _classify_health(bool(vanishing), bool(exploding), bool(non_finite), share)
        located = list(non_finite.values())
        return GradientFlowSummary(
            total_steps=self._kept[-1].step + 1 if self._kept else 0,
            layers_with_vanishing_grads=sorted(vanishing),
            layers_with_exploding_grads=sorted(exploding),
            overall_health=health,
            recommendations=_advice_for(health, sorted(vanishing), sorted(exploding), located)
            if self._kept
            else ["Nothing was recorded, so nothing is known: call record_step first."],
            non_finite=located,
            limits=own_limits(
                "animator",
                f"a mean magnitude under {self.vanishing_threshold:g} vanishes, an element over "
                f"{self.exploding_threshold:g} explodes, at any one step",
            ),
        )

    def grid(self, max_rows: int | None = None, max_columns: int | None = None, *, natural: bool = False) -> Grid:
        """Layers x steps as arrays, neighbours binned together where there are more than asked for.

        `natural` sorts the numbers in names as numbers: layers.2 before layers.10. Layers of a run keep the model's order.
        """
        columns = [
            (
                f.step,
                f.names,
                f.values[:, 2],
                f.intensities(),
                {i: "NaN" if where.num_nan else "Inf" for i, where in f.non_finite.items()},
            )
            for f in self._kept
        ]
        return build_grid(columns, max_rows, max_columns, natural=natural, as_given=self._in_model_order)

    def to_ascii_animation(self, max_rows: int | None = 200, max_columns: int | None = 400) -> str:
        """The heatmap as text: a layer a row, a step a column; `╳` is NaN and `∞` infinity.

        Past `max_rows` layers or `max_columns` steps neighbours share a cell, which shows the worst of them.
        """
        if not self._kept:
            return "No gradient frames: record_step has not been called.\n"
        return draw_rows(self.grid(max_rows, max_columns))

    def export_json(self, path: str | Path) -> Path:
        """Every frame as JSON, atomically; non-finite numbers as null."""
        return animator_export.export_json(self, path)

    def export_csv(self, path: str | Path) -> Path:
        """A line per step and layer, atomically; `nan` and `inf` stand in the numbers of layers that hold such."""
        return animator_export.export_csv(self, path)

    def export_text(self, path: str | Path) -> Path:
        """The heatmap as a UTF-8 text file."""
        return animator_export.export_text(self, path)

    def export_svg(self, path: str | Path, *, dark: bool = False) -> Path:
        """The heatmap as a still SVG, its text as text."""
        return animator_export.export_picture(self, path, "svg", dark=dark)

    def export_png(self, path: str | Path, *, dark: bool = False) -> Path:
        """The heatmap as a still PNG."""
        return animator_export.export_picture(self, path, "png", dark=dark)

    def export_gif(
        self, path: str | Path, *, frames_per_second: float = 8.0, max_pictures: int = 60, dark: bool = False
    ) -> Path:
        """The steps as a moving picture: the heatmap with a cursor, and every layer's norm at the cursor."""
        return animator_export.export_gif(self, path, frames_per_second, max_pictures, dark=dark)

    def export_html(self, path: str | Path, *, title: str = "Gradient flow", frames_per_second: float = 8.0) -> Path:
        """The steps as one page to play and scrub, with nothing to load."""
        return animator_export.export_html(self, path, title, frames_per_second)

    def export_mp4(
        self, path: str | Path, *, frames_per_second: float = 8.0, max_pictures: int = 240, dark: bool = False
    ) -> Path:
        """The moving picture as a film; needs the program ffmpeg."""
        return animator_export.export_mp4(self, path, frames_per_second, max_pictures, dark=dark)

    def live(self, console: Any = None, *, max_rows: int | None = None) -> LiveView:
        """A context manager that redraws the heatmap in the terminal whenever a step is recorded."""
        from stethoscope.instruments.animator_live import LiveView

        return LiveView(self, console, max_rows)

    def play(self, console: Any = None, *, frames_per_second: float = 8.0) -> None:
        """Plays the recorded steps in the terminal."""
        from stethoscope.instruments.animator_live import play

        play(self, console, frames_per_second)


def _classify_health(vanishing: bool, exploding: bool, non_finite: bool, bad_share: float) -> GradientHealth:
    if non_finite or (exploding and bad_share > 0.5):
        return GradientHealth.CRITICAL
    if exploding or bad_share > 0.3:
        return GradientHealth.PROBLEMS_DETECTED
    if vanishing or bad_share > 0.1:
        return GradientHealth.MINOR_ISSUES
    return GradientHealth.HEALTHY


_CLOSING = {
    GradientHealth.CRITICAL: "Stop the run and fix this first: later steps train on damaged numbers.",
    GradientHealth.PROBLEMS_DETECTED: "Look at the learning rate schedule and the depth of the named layers.",
    GradientHealth.MINOR_ISSUES: "Keep an eye on the named layers; nothing has to change yet.",
    GradientHealth.HEALTHY: "Nothing to report of the size of gradients.",
}


def _advice_for(
    health: GradientHealth, vanishing: list[str], exploding: list[str], non_finite: list[NonFinite]
) -> list[str]:
    advice = [f"{where}. Find what produced it: replay the step before." for where in non_finite[:5]]
    if len(non_finite) > 5:
        more = len(non_finite) - 5
        advice.append(f"{more:,} more {'layer holds' if more == 1 else 'layers hold'} NaN or Inf.")
    if vanishing:
        advice.append(
            f"Gradients vanish in {name_list(vanishing, 8)}: a residual path or a normalisation layer before them "
            "keeps the signal; check that their initial weights are scaled to fan-in (Kaiming, Xavier)."
        )
    if exploding:
        advice.append(
            f"Gradients explode in {name_list(exploding, 8)}: clip them with "
            "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0), then try a smaller learning rate."
        )
    return [*advice, _CLOSING[health]]
