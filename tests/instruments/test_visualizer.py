"""DebugVisualizer and TerminalVisualizer: every format reads back, names cannot escape, text fits."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stethoscope.instruments import DebugVisualizer, TerminalVisualizer, VisualizationConfig
from stethoscope.instruments.visualizer import FORMATS, file_name
from stethoscope.record import ConfigError
from stethoscope.views.common.plot_data import Histogram, number


def filled(folder: Path, **settings: object) -> DebugVisualizer:
    visualizer = DebugVisualizer(VisualizationConfig(output_directory=str(folder), **settings))
    visualizer.plot_tensor_distribution("weights", [1.0, 2.0, 1.5, 3.0, 2.5, 1.8, 2.2], 10)
    visualizer.plot_gradient_flow("layer1", [0, 1, 2, 3, 4], [0.1, 0.08, 0.06, 0.04, 0.03])
    visualizer.plot_lines("loss", range(4), {"train": [3.0, 2.0, np.nan, np.inf], "val": [3, 2.5, 2, 2]})
    visualizer.plot_heatmap("grads", [[1.0, 2.0, np.nan], [0.0, 0.0, 0.0]], ["<b>", "b"], history=True)
    return visualizer


def test_every_plot_in_every_format(tmp_path: Path) -> None:
    visualizer = filled(tmp_path)
    names = visualizer.get_plot_names()
    assert names == ["weights_distribution", "layer1_gradient_flow", "loss", "grads"]
    for name in names:
        paths = {kind: visualizer.save(name, kind) for kind in FORMATS}
        with Image.open(paths["png"]) as picture:
            assert picture.size[0] == 1440
        ET.fromstring(paths["svg"].read_text())
        body = json.loads(paths["json"].read_text())
        assert body["sentence"]
        with paths["csv"].open(newline="") as file:
            rows = list(csv.reader(file))
        assert rows[0] == [str(c) for c in body["columns"]]
        assert len(rows) == 1 + len(body["rows"])
        assert paths["txt"].read_text().strip()


def test_histogram_counts_against_numpy(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=999)
    visualizer = DebugVisualizer(VisualizationConfig(output_directory=tmp_path))
    plot = visualizer.plot_tensor_distribution("w", np.append(values, [np.nan, np.inf, -np.inf]), 20)
    counts, edges = np.histogram(values, bins=20)
    np.testing.assert_array_equal(plot.counts, counts)
    np.testing.assert_allclose(plot.edges, edges)
    assert (plot.num_nan, plot.num_inf) == (1, 2)
    assert "1 NaN and 2 Inf left out" in plot.sentence


@pytest.mark.parametrize("values", [[], [5.0], [0.0, 0.0], [-1.7e308, 1.7e308], [np.nan]])
def test_histogram_corners(values: list[float]) -> None:
    plot = Histogram.of("x", np.array(values, dtype=float), 4)
    assert plot.counts.sum() == np.isfinite(values).sum()
    assert len(plot.edges) == 5
    assert (np.diff(plot.edges / 4) > 0).all()


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.extend(attrs)


def test_dashboard_is_static_escaped_and_whole(tmp_path: Path) -> None:
    visualizer = filled(tmp_path, title="<script>alert(1)</script>")
    dashboard = visualizer.create_dashboard(visualizer.get_plot_names())
    page = dashboard.path.read_text()
    assert page == dashboard.html
    tags = Tags()
    tags.feed(page)
    assert tags.tags.count("img") == tags.tags.count("figure") == 4
    assert "script" not in tags.tags
    assert "b" not in tags.tags
    assert "style" not in [name for name, _ in tags.attributes]
    assert all((value or "").startswith("data:") for name, value in tags.attributes if name == "src")
    assert "http" not in page.replace("http-equiv", "")
    with Image.open(visualizer.save_dashboard()) as picture:
        assert picture.size[0] == 2200


def test_names_stay_in_the_folder(tmp_path: Path) -> None:
    visualizer = DebugVisualizer(VisualizationConfig(output_directory=tmp_path / "out", formats=("json",)))
    visualizer.plot_lines("../../etc/passwd", [0], [1.0])
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["etc_passwd.json"]
    assert file_name("..") == "plot"


def test_mistakes_are_named(tmp_path: Path) -> None:
    visualizer = DebugVisualizer(VisualizationConfig(output_directory=tmp_path))
    with pytest.raises(ConfigError, match="no plot of that name"):
        visualizer.save("nothing")
    with pytest.raises(ConfigError, match="one y an x"):
        visualizer.plot_lines("l", [0, 1], [1.0])
    with pytest.raises(ConfigError, match="format"):
        VisualizationConfig(formats=("bmp",))
    with pytest.raises(ConfigError, match="rows by columns"):
        visualizer.plot_heatmap("h", [1.0, 2.0])


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (20, 5), (132, 50)])
def test_text_fits(tmp_path: Path, width: int, height: int) -> None:
    terminal = TerminalVisualizer(width, height)
    visualizer = filled(tmp_path)
    rng = np.random.default_rng(0)
    texts = [terminal.render(visualizer.get_plot(name)) for name in visualizer.get_plot_names()]
    texts.append(terminal.ascii_histogram(rng.normal(size=500), 100))
    texts.append(terminal.ascii_line_plot(range(500), rng.normal(size=500), "Training loss"))
    texts.append(terminal.ascii_heatmap(rng.random((60, 300)), title="big"))
    for text in texts:
        lines = text.splitlines()
        assert max(map(len, lines)) <= width, text
        assert len(lines) <= height, text


def test_line_plot_shows_the_curve() -> None:
    text = TerminalVisualizer(40, 12).ascii_line_plot([0, 1, 2, 3], [3.0, 2.0, 1.0, np.nan], "Training loss")
    lines = text.splitlines()
    assert lines[0] == "Training loss"
    assert lines[1].startswith("3 │•")
    assert lines[-2].startswith("1 │")
    assert lines[-2].endswith("╳")


def test_bar_lengths_are_proportional() -> None:
    lines = TerminalVisualizer(60, 10).ascii_histogram([1.0] * 10 + [2.0] * 5, 2).splitlines()
    bars = [line.count("█") for line in lines[1:]]
    assert bars[0] == pytest.approx(2 * bars[1], abs=1)


def test_numbers_in_words() -> None:
    assert [number(v) for v in (0.0, 5.62e-4, 1234567.0, -0.5, 12.0, float("nan"), 9.999e-5, 1e-310)] == [
        "0",
        "5.62 × 10⁻⁴",
        "1,234,567",
        "−0.5",
        "12",
        "NaN",
        "1 × 10⁻⁴",
        "1 × 10⁻³¹⁰",
    ]
