"""GradientFlowAnimator beyond golden: array kinds, NaN and Inf, files, the terminal, size."""

from __future__ import annotations

import csv
import io
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
from stethoscope.instruments.animator_grid import natural_key
from stethoscope.instruments.intake import ArrayError
from stethoscope.record import ConfigError


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
    from stethoscope.instruments.intake import NonFinite

    return {layer: NonFinite(f"layer.{layer:04d}", 1, 0, (0,), 5003)}
