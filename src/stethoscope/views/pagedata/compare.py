"""Two runs beside each other: curves, layers, settings, and the first step where each row differs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final, NotRequired, TypedDict

import numpy as np

from stethoscope.analyse.bins import Mark, bins_over
from stethoscope.analyse.history import History
from stethoscope.analyse.tree import Node
from stethoscope.explain.context_evidence import CLIP, metric_series
from stethoscope.kernels.statistics import statistic
from stethoscope.record import Kind, Series, metrics
from stethoscope.store import Run
from stethoscope.views.common.open_run import OpenRun, both_locks
from stethoscope.views.pagedata import facts, overview
from stethoscope.views.pagedata.compare_settings import Settings, settings_data
from stethoscope.views.pagedata.directions import Angles, cosine_data, sketches_of
from stethoscope.views.pagedata.heat import MAX_CELLS, TreeRow, shown_rows, tree_data, troubled
from stethoscope.views.pagedata.packing import Number, Packed, binned, floats, number, small, text
from stethoscope.views.pagedata.runlist import nan_at

EQUAL: Final = 7
"""The mark of a cell in which both runs say the same to the last bit that is kept."""
_TRACKS: Final = (
    (metrics.LOSS, "Loss"),
    (metrics.GRADIENT_NORM, "Gradient norm"),
    (metrics.LEARNING_RATE, "Learning rate"),
)
_KIND_WORDS: Final = {Kind.ACTIVATION: "output", Kind.ACTIVATION_GRADIENT: "output gradient"}


class Side(facts.Identity):
    """One of the two runs, with its verdict in a sentence."""

    verdict: str
    severity: str


class FirstDifference(TypedDict):
    """Where the two runs first say something else."""

    step: int
    path: str
    place: int
    numAfter: int


class PairTrack(TypedDict):
    """One quantity of both."""

    key: str
    label: str
    note: str
    log: bool
    a: Packed
    b: Packed


class OutcomeRow(TypedDict):
    """One number of both."""

    label: str
    site: NotRequired[str]
    a: Number
    b: Number


class NanAt(TypedDict):
    """The step from which each loss is no number any more."""

    a: int | None
    b: int | None


class PairCells(TypedDict):
    """A over B in bins."""

    start: int
    size: int
    count: int
    levels: str
    marks: str
    valuesA: str
    valuesB: str


class CompareData(PairCells):
    """Everything of the compare screen but the angles."""

    version: int
    isExamining: bool
    a: Side
    b: Side
    kind: str
    stat: str
    span: tuple[int, int]
    window: tuple[int, int]
    kinds: list[str]
    first: FirstDifference | None
    numShared: int
    numRows: int
    tree: list[TreeRow]
    rows: list[int]
    differs: list[int | None]
    common: list[bool]
    tracks: list[PairTrack]
    outcome: list[OutcomeRow]
    settings: Settings
    nan: NanAt


def common_span(a: OpenRun, b: OpenRun) -> tuple[int, int]:
    """From the first step of either to the last of either."""
    spans = [a.span, b.span]
    return min(span[0] for span in spans), max(span[1] for span in spans)


def compare_data(
    a: OpenRun,
    b: OpenRun,
    kind: Kind,
    stat: str,
    view: tuple[int, int, int],
    rows: Sequence[int] | None = None,
) -> CompareData:
    """Everything of the compare screen but the angles between the two, which take longer than all the rest."""
    is_examining = [viewed.examine_later() for viewed in (a, b)]
    tree = a.tree(kind)
    there = {node.path for node in b.tree(kind)}
    indices = shown_rows(a, tree, rows)
    shared = [at for at, node in enumerate(tree) if node.path in there]
    all_pairs = _both_histories(a, b, kind, stat, [tree[at] for at in shared])
    differs = dict(zip(shared, _first_difference(*all_pairs), strict=True))
    leaves = [at for at in shared if not tree[at].num_children]
    parted = [(step, at) for at in leaves if (step := differs[at]) is not None]
    first = min(parted, key=lambda pair: (pair[0], pair[1]), default=None)
    parted_pair = (
        None if first is None else _parted_row(tree[first[1]].path, kind, stat, all_pairs, shared.index(first[1]))
    )
    cells = _ratio_cells(a, b, kind, stat, [tree[at] for at in indices], view)
    return {
        "version": a.version + b.version,
        "isExamining": any(is_examining),
        "a": _side_data(a),
        "b": _side_data(b),
        "kind": str(kind),
        "stat": stat,
        "span": common_span(a, b),
        "window": _window_of_both(a, b, first[0] if first else None),
        "kinds": [str(one) for one in a.kinds() if one in b.kinds()],
        "first": None
        if first is None
        else {
            "step": first[0],
            "path": text(tree[first[1]].path, 10_000),
            "place": first[1],
            "numAfter": sum(s <= first[0] + 1 for s, _ in parted),
        },
        "numShared": len(shared),
        "numRows": len(tree),
        "tree": tree_data(tree, troubled(tree, a.diagnosis.causes)),
        "rows": indices,
        "differs": [differs.get(at) for at in indices],
        "common": [at in differs for at in indices],
        "tracks": _pair_tracks(a, b, view, parted_pair),
        "outcome": _outcome_rows(a.run, b.run, parted_pair),
        "settings": settings_data(a.run, b.run),
        "nan": {"a": nan_at(a.run), "b": nan_at(b.run)},
        **cells,
    }


@dataclasses.dataclass(frozen=True, slots=True)
class Parted:
    """The quantity in which two runs first differ, over the steps of each."""

    path: str
    label: str
    series: tuple[Series, Series]


def _parted_row(path: str, kind: Kind, stat: str, pair: tuple[History, History], row: int) -> Parted:
    words = (
        f"{_KIND_WORDS.get(kind, str(kind).replace('_', ' '))} {statistic(stat).short or statistic(stat).label.lower()}"
    )
    return Parted(path, words, (pair[0].series(row), pair[1].series(row)))


def angles_data(
    a: OpenRun,
    b: OpenRun,
    kind: Kind,
    window: tuple[int, int],
    rows: Sequence[int] | None = None,
    *,
    is_unwanted: Callable[[], bool] = lambda: False,
) -> Angles:
    """The cosine between the two, of the rows that the screen shows. Takes the runs' locks itself, for each tensor anew.

    Whoever looks at one of the runs meanwhile waits for one tensor, not for all of them.
    """
    found = sketches_of(a, b, kind, lambda: both_locks(a, b), is_unwanted)
    with both_locks(a, b):
        tree = a.tree(kind)
        indices = shown_rows(a, tree, rows)
        return {"kind": str(kind), "rows": indices, "cosine": cosine_data(found, [tree[at] for at in indices], window)}


def _side_data(viewed: OpenRun) -> Side:
    causes = viewed.diagnosis.causes
    if not causes and not viewed.was_examined and viewed.run.state != "live":
        words = viewed.trouble or "Nobody has examined this run yet; it is being looked through"
        return {**facts.identity(viewed.run), "verdict": text(words, 300), "severity": ""}
    verdict = viewed.diagnosis.verdict
    return {
        **facts.identity(viewed.run),
        "verdict": text(verdict.message if causes else f"{verdict.state.label}: {verdict.message}", 300),
        "severity": str(verdict.severity) if verdict.state.is_trouble else "",
    }


def _window_of_both(a: OpenRun, b: OpenRun, parted: int | None) -> tuple[int, int]:
    begin, end = common_span(a, b)
    ends = sorted((a.span[1], b.span[1]))
    if parted is None:
        return begin, end
    lead = max(32, (ends[0] - parted) // 3)
    return max(begin, parted - lead), min(end, ends[0] + max(16, (ends[0] - parted) // 4))


def _both_histories(a: OpenRun, b: OpenRun, kind: Kind, stat: str, nodes: Sequence[Node]) -> tuple[History, History]:
    return a.history(kind, stat, nodes), b.history(kind, stat, nodes)


def _first_difference(a: History, b: History) -> list[int | None]:
    """Of each row the first step, recorded in both, at which the two do not say the same."""
    steps, at_a, at_b = np.intersect1d(a.steps, b.steps, assume_unique=True, return_indices=True)
    left, right = a.values[at_a], b.values[at_b]
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    same &= a.marks[at_a] == b.marks[at_b]
    differs = ~same
    found = differs.argmax(axis=0) if len(steps) else np.zeros(left.shape[1], np.int64)
    return [int(steps[found[row]]) if len(steps) and differs[found[row], row] else None for row in range(left.shape[1])]


def _ratio_cells(
    a: OpenRun, b: OpenRun, kind: Kind, stat: str, nodes: Sequence[Node], view: tuple[int, int, int]
) -> PairCells:
    """A over B in bins: the ratio farthest from one, and what is no number."""
    first, last, width = view
    left, right = (one.window(first, last) for one in _both_histories(a, b, kind, stat, nodes))
    steps, at_a, at_b = np.intersect1d(left.steps, right.steps, assume_unique=True, return_indices=True)
    bins = bins_over(np.union1d(left.steps, right.steps), max(8, min(width, MAX_CELLS // max(1, len(nodes)))))
    shape = (len(nodes), len(bins))
    levels, marks = np.full(shape, np.nan), np.full(shape, Mark.MISSING, dtype=np.uint8)
    values_a, values_b = np.full(shape, np.nan), np.full(shape, np.nan)
    index = bins.index(steps)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log2(np.abs(left.values[at_a])) - np.log2(np.abs(right.values[at_b]))
    worst = np.maximum(left.marks[at_a], right.marks[at_b])
    equal = (left.values[at_a] == right.values[at_b]) & (worst < Mark.INF)
    for column in np.unique(index):
        inside = np.flatnonzero(index == column)
        far = np.abs(np.nan_to_num(ratio[inside], nan=0.0, posinf=64, neginf=64)).argmax(axis=0)
        pick = inside[far], np.arange(len(nodes))
        levels[:, column], values_a[:, column] = ratio[pick], left.values[at_a][pick]
        values_b[:, column] = right.values[at_b][pick]
        mark = worst[inside].max(axis=0)
        mark[equal[inside].all(axis=0) & (mark != Mark.FROZEN)] = EQUAL
        mark[(mark == Mark.DEAD) | (mark == Mark.SKIPPED)] = Mark.PLAIN
        marks[:, column] = mark
    return {
        "start": int(bins.starts[0]) if len(bins) else first,
        "size": bins.size,
        "count": len(bins),
        "levels": floats(levels),
        "marks": small(marks),
        "valuesA": floats(values_a),
        "valuesB": floats(values_b),
    }


def _pair_tracks(a: OpenRun, b: OpenRun, view: tuple[int, int, int], parted: Parted | None) -> list[PairTrack]:
    """Loss of both, the quantity in which they part, gradient norm and learning rate."""
    told = [(name, label, "", [_track_series(viewed, name) for viewed in (a, b)]) for name, label in _TRACKS]
    if parted is not None:
        told.insert(1, ("parted", parted.label[:1].upper() + parted.label[1:], parted.path, list(parted.series)))
    out: list[PairTrack] = []
    for name, label, note, pair in told:
        if not all(len(one) for one in pair):
            continue
        whole = np.concatenate([one.values[(one.steps >= view[0]) & (one.steps <= view[1])] for one in pair])
        finite = whole[np.isfinite(whole) & (whole > 0)]
        decades = {metrics.GRADIENT_NORM: 100, "parted": 16}.get(name)
        log = bool(len(finite) and decades and finite.max() / finite.min() > decades)
        out.append(
            {
                "key": name,
                "label": text(label, 80),
                "note": text(note, 10_000),
                "log": log,
                "a": binned(pair[0], *view),
                "b": binned(pair[1], *view),
            }
        )
    return out


def _track_series(viewed: OpenRun, name: str) -> Series:
    if name == metrics.GRADIENT_NORM:
        return overview.gradient_norm(viewed)[0]
    return viewed.run.metric(name)


def _outcome_rows(a: Run, b: Run, parted: Parted | None) -> list[OutcomeRow]:
    """A few numbers of both: loss at the last common step, last loss, what parted them, clipping, speed."""
    out: list[OutcomeRow] = []
    left, right = a.metric(metrics.LOSS), b.metric(metrics.LOSS)
    step = _last_common(left, right)
    if len(left) and len(right):
        if step is not None:
            out.append({"label": f"Loss at step {step:,}", "a": number(left.at(step)), "b": number(right.at(step))})
        out.append({"label": "Last loss", "a": facts.last_loss(a), "b": facts.last_loss(b)})
    if parted is not None:
        left, right = parted.series
        at = _last_common(left, right, step)
        if at is not None:
            label = f"{parted.label[:1].upper()}{parted.label[1:]} of {text(parted.path, 200)}"
            out.append(
                {"label": label, "site": text(parted.path, 200), "a": number(left.at(at)), "b": number(right.at(at))}
            )
    clipped = [_num_clipped(run) for run in (a, b)]
    if None not in clipped:
        out.append({"label": "Steps clipped", "a": clipped[0], "b": clipped[1]})
    out.append({"label": "Throughput, steps/s", "a": number(facts.throughput(a)), "b": number(facts.throughput(b))})
    return out


def _last_common(left: Series, right: Series, until: int | None = None) -> int | None:
    """The last step at which both are finite."""
    common = np.intersect1d(left.steps[np.isfinite(left.values)], right.steps[np.isfinite(right.values)])
    common = common if until is None else common[common <= until]
    return int(common[-1]) if len(common) else None


def _num_clipped(run: Run) -> int | None:
    """At how many steps clipping left less than the whole gradient; None where nothing clips."""
    series = metric_series(run, CLIP)
    return None if series is None else int((series.values < 1.0).sum())
