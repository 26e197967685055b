"""GradientFlowAnimator beyond golden: array kinds, NaN and Inf, files, the terminal, size."""

from __future__ import annotations

import csv
import io
import itertools
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from stethoscope.instruments import GradientFlowAnimator
from stethoscope.instruments.animator import GradientHealth
from stethoscope.instruments.animator_grid import build_grid, natural_key
from stethoscope.instruments.array_input import ArrayError
from stethoscope.record import ConfigError, StethoscopeError


class ArrayLike:
    """Stands for JAX: only `__array__`."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.array(self.values, dtype=dtype)


def test_every_kind_of_array_gives_the_same_frame() -> None:
    values = [3.0, -4.0, 0.0, 12.0]
    kinds = [
        values,
        np.array(values),
        torch.tensor(values),
        ArrayLike(values),
        torch.tensor(values).bfloat16(),
    ]
    for kind in kinds:
        animator = GradientFlowAnimator()
        animator.record_step(5, {"fc": kind})
        layer = animator.frames[0].layers[0]
        assert (layer.mean_abs_grad, layer.max_abs_grad, layer.grad_norm) == (4.75, 12.0, 13.0)
        assert layer.flow_intensity == 1.0


def test_statistics_against_torch() -> None:
    torch.manual_seed(0)
    grads = {f"l{i}": torch.randn(64, 33) * 10.0**-i for i in range(5)}
    animator = GradientFlowAnimator()
    animator.record_step(0, grads)
    for layer in animator.frames[0].layers:
        grad = grads[layer.name].double()
        assert layer.grad_norm == pytest.approx(torch.linalg.vector_norm(grad).item(), rel=1e-6)
        assert layer.mean_abs_grad == pytest.approx(grad.abs().mean().item(), rel=1e-6)
        assert layer.max_abs_grad == pytest.approx(grad.abs().max().item(), rel=1e-6)


def test_nan_is_critical_and_located() -> None:
    animator = GradientFlowAnimator()
    grad = np.ones((4, 5))
    animator.record_step(6, {"a": grad, "b": grad})
    broken = grad.copy()
    broken[2, 3] = np.nan
    animator.record_step(7, {"a": grad, "b": broken})
    summary = animator.summary_report()
    assert summary.overall_health is GradientHealth.CRITICAL
    where = summary.non_finite[0]
    assert (where.name, where.step, where.first_index, where.num_nan) == ("b", 7, (2, 3), 1)
    assert "b: 1 NaN at step 7, the first at index [2, 3]" in summary.recommendations[0]
    layer = animator.frames[1].layers[1]
    assert layer.non_finite == where
    assert layer.grad_norm == pytest.approx(np.sqrt(19))  # over the finite values
    assert animator.to_ascii_animation().splitlines()[-1].endswith("╳")


def test_infinity_explodes_and_all_nan_does_not_vanish() -> None:
    animator = GradientFlowAnimator()
    animator.record_step(0, {"inf": [1.0, -np.inf], "nan": [np.nan, np.nan]})
    inf, nan = animator.frames[0].layers
    assert inf.is_exploding
    assert not nan.is_vanishing
    assert not nan.is_exploding
    rows = animator.to_ascii_animation().splitlines()
    assert rows[3].endswith("∞")
    assert rows[4].endswith("╳")


def test_window_missing_layers_and_none() -> None:
    animator = GradientFlowAnimator(max_frames=2)
    for step in range(5):
        animator.record_step(step, {"a": [1.0], **({"b": None} if step % 2 else {"b": [2.0]})})
    assert [frame.step for frame in animator.frames] == [3, 4]
    assert [layer.name for layer in animator.frames[0].layers] == ["a"]
    assert animator.frames[-1].layers[1].name == "b"
    assert len(animator.frames[0:2]) == 2
    animator.clear()
    assert len(animator.frames) == 0
    assert animator.summary_report().total_steps == 0
    assert "No gradient frames" in animator.to_ascii_animation()


def test_bad_input_is_named() -> None:
    animator = GradientFlowAnimator()
    with pytest.raises(ArrayError, match="words"):
        animator.record_step(0, {"ok": [1.0], "words": ["a", "b"]})
    assert len(animator.frames) == 0
    with pytest.raises(ConfigError, match="max_frames"):
        GradientFlowAnimator(max_frames=-1)


def recorded() -> GradientFlowAnimator:
    animator = GradientFlowAnimator()
    rng = np.random.default_rng(0)
    for step in range(12):
        grads = {f"layers.{i}": rng.normal(size=8) for i in (0, 1, 2, 10)}
        if step > 9:
            grads["layers.2"][0] = np.nan
        animator.record_step(step, {**grads, 'odd,"name"\n': np.zeros(3)})
    return animator


def test_json_and_csv_read_back(tmp_path: Path) -> None:
    animator = recorded()
    frames = json.loads(animator.export_json(tmp_path / "deep" / "f.json").read_text())
    assert [frame["step"] for frame in frames] == list(range(12))
    assert frames[11]["layers"][2]["name"] == "layers.10"
    assert frames[11]["layers"][3]["non_finite"]["num_nan"] == 1
    with animator.export_csv(tmp_path / "f.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    header = "step,layer,mean_abs_grad,max_abs_grad,grad_norm,is_vanishing,is_exploding"
    assert ",".join(rows[0]) == header
    assert len(rows) == 1 + 12 * 5
    assert rows[5][1] == 'odd,"name"\n'
    assert float(rows[1][4]) == pytest.approx(animator.frames[0].layers[0].grad_norm, rel=1e-7)
    assert rows[5][5:] == ["1", "0"]


def test_failed_export_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    animator = recorded()
    path = animator.export_csv(tmp_path / "f.csv")
    before = path.read_bytes()

    def fail(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        animator.export_csv(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["f.csv"]


def test_pictures(tmp_path: Path) -> None:
    animator = recorded()
    svg = animator.export_svg(tmp_path / "f.svg").read_text()
    assert ET.fromstring(svg).tag.endswith("svg")
    assert "layers.10" in svg  # text as text
    assert animator.export_svg(tmp_path / "g.svg").read_text() == svg  # equal data, equal file
    with Image.open(animator.export_gif(tmp_path / "f.gif", max_pictures=5, dark=True)) as gif:
        assert gif.n_frames == 5
    with Image.open(animator.export_png(tmp_path / "f.png")) as png:
        assert png.size[0] == 1600
    assert "Critical" in animator.export_text(tmp_path / "f.txt").read_text()


def test_live_view_and_replay_in_a_terminal() -> None:
    animator = recorded()
    out = io.StringIO()
    console = Console(file=out, width=60, height=20, force_terminal=True, color_system=None)
    with animator.live(console):
        animator.record_step(12, {"layers.0": np.ones(8)})
    assert "layers.10" in out.getvalue()
    assert "╳" in out.getvalue()
    assert animator._listeners == []
    plain = io.StringIO()
    animator.play(Console(file=plain, width=60, height=20, force_terminal=False))
    lines = plain.getvalue().splitlines()
    assert max(map(len, lines)) <= 60
    assert [i for i, line in enumerate(lines) if "layers.2" in line] < [
        i for i, line in enumerate(lines) if "layers.10" in line
    ]


def test_natural_order() -> None:
    assert sorted(["l.10", "l.2", "a"], key=natural_key) == ["a", "l.2", "l.10"]


def test_thousand_layers_by_ten_thousand_steps_stay_usable() -> None:
    """Frames are put in directly: what is under test is the size, not the kernel."""
    from stethoscope.instruments.animator import _Frame

    animator = GradientFlowAnimator()
    names = tuple(f"layer.{i:04d}" for i in range(1000))
    values = np.random.default_rng(0).random((1000, 3))
    no = np.zeros(1000, dtype=bool)
    for step in range(10_000):
        animator._kept.append(_Frame(step, names, values, no, no, {}))
    animator._kept[5003] = _Frame(5003, names, values, no, no, animator._kept[0].non_finite | _nan_at(7))
    text = animator.to_ascii_animation()
    lines = text.splitlines()
    assert len(lines) <= 203
    assert max(map(len, lines)) < 460
    assert "steps a column" in lines[0]
    assert text.count("╳") == 1
    assert "╳" in next(line for line in lines if "layer.0000 …" in line)
    assert animator.frames[9_999].layers[0].grad_norm == values[0, 2]


def _nan_at(layer: int) -> dict[int, Any]:
    from stethoscope.instruments.array_input import NonFinite

    return {layer: NonFinite(f"layer.{layer:04d}", 1, 0, (0,), 5003)}


def test_layers_with_nan_or_inf_are_marked_in_the_csv_and_in_nothing_else(tmp_path: Path) -> None:
    animator = GradientFlowAnimator()
    animator.record_step(
        0, {"a": [1.0, float("nan")], "b": [1.0, float("-inf")], "c": [3.0, 4.0], "d": [float("nan"), float("inf")]}
    )
    with animator.export_csv(tmp_path / "f.csv").open(newline="") as file:
        rows = {row["layer"]: row for row in csv.DictReader(file)}
    columns = ("mean_abs_grad", "max_abs_grad", "grad_norm")
    for layer, value in (("a", "nan"), ("b", "inf"), ("d", "nan")):
        assert {rows[layer][column] for column in columns} == {value}
    # NumPy over all elements says the same of the mean and the norm.
    assert np.isnan(np.mean(np.abs([1.0, np.nan])))
    assert np.isinf(np.linalg.norm([1.0, -np.inf]))
    assert [float(rows["c"][column]) for column in columns] == [3.5, 4.0, 5.0]
    assert [rows[layer]["is_exploding"] for layer in "abcd"] == ["0", "1", "0", "1"]
    assert animator.frames[0].layers[0].grad_norm == 1.0


def test_an_animator_without_frames_says_so_and_draws_nothing(tmp_path: Path) -> None:
    animator = GradientFlowAnimator()
    report = animator.summary_report()
    assert report.overall_health == "Healthy"  # as in golden/
    assert report.recommendations == ["Nothing was recorded, so nothing is known: call record_step first."]
    assert json.loads(animator.export_json(tmp_path / "f.json").read_text()) == []
    for kind in ("svg", "png", "gif", "html"):
        with pytest.raises(StethoscopeError, match="no step was recorded"):
            getattr(animator, f"export_{kind}")(tmp_path / f"f.{kind}")
    assert [path.name for path in tmp_path.iterdir()] == ["f.json"]


def test_names_of_dtypes_are_put_together_once() -> None:
    from stethoscope.kernels.pointers import array_dtype_name

    animator = GradientFlowAnimator()
    before = array_dtype_name.cache_info().misses
    for step in range(3):
        animator.record_step(step, {f"l{i}": np.ones(4, np.float32) for i in range(200)})
    assert array_dtype_name.cache_info().misses <= before + 1
    assert array_dtype_name.cache_info().hits >= 600


def test_only_what_moves_is_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    animator, num_drawn = recorded(), []
    whole = FigureCanvasAgg.draw
    monkeypatch.setattr(FigureCanvasAgg, "draw", lambda self: (num_drawn.append(1), whole(self))[1])
    path = animator.export_gif(tmp_path / "f.gif")
    assert len(num_drawn) == 1
    with Image.open(path) as picture:
        frames = []
        for place in range(picture.n_frames):
            picture.seek(place)
            frames.append(np.asarray(picture.convert("RGB")).copy())
    assert len(frames) == 12
    assert all((a != b).any() for a, b in itertools.pairwise(frames))


def test_a_layer_that_turned_nan_is_usually_what_it_was_before() -> None:
    from stethoscope.views.common.style import tokens
    from stethoscope.views.plots.figures import new_figure
    from stethoscope.views.plots.moving import _draw_bars

    lengths = np.array([[2.0, 3.0, 4.0, *[np.nan] * 9], [np.nan] * 12])
    _, ticks = _draw_bars(new_figure(2, 2).subplots(), lengths, tokens(dark=False))
    places = [segment[0][0] for segment in ticks.get_segments() if len(segment)]
    assert places == [3.0]


def test_tensors_of_one_module_share_a_row():
    names = [f"layers.{n}.{part}.{kind}" for n in range(12) for part in ("attn", "mlp") for kind in ("weight", "bias")]
    names = ["wte.weight", *names]
    columns = [(step, tuple(names), np.ones(len(names)), np.zeros(len(names)), {}) for step in range(3)]
    assert build_grid(columns, 30, None, as_given=True).labels[:3] == (
        "wte.weight",
        "layers.0.attn (2)",
        "layers.0.mlp (2)",
    )
    assert build_grid(columns, 20, None, as_given=True).labels[:3] == ("wte.weight", "layers.0 (4)", "layers.1 (4)")
    # No depth fits: neighbors share a row, and it says which.
    assert build_grid(columns, 8, None, as_given=True).labels[0] == "wte.weight … layers.1.mlp.weight (8)"
