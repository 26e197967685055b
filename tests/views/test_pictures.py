"""Trends and heatmaps, drawn from runs whose story is known."""

import numpy as np
import pytest

from stethoscope.analyse.bins import Mark, bins_over
from stethoscope.analyse.history import history
from stethoscope.record import Kind, Series, Severity, Site, SiteInfo
from stethoscope.store import open_run
from stethoscope.views.common.glyphs import ASCII, UNICODE
from stethoscope.views.common.styled_text import cell_width, to_text
from stethoscope.views.lines.heatmap import heatmap_lines
from stethoscope.views.lines.sparkline import sparkline
from stethoscope.views.terminal import Picture, Screen, render_heatmap, render_layers
from tests.views import synthetic
from tests.views.synthetic import NUM_ELEMENTS, healthy, row, write_run


def spark(values, width=80, glyphs=UNICODE):
    series = Series(np.arange(len(values), dtype=np.int64), np.array(values, dtype=float))
    return to_text([sparkline(series, width, glyphs)]).rstrip("\n")


def test_sparkline_rises_falls_and_says_nan():
    assert spark([1, 2, 3, 4, 5, 6, 7, 8]) == "▁▂▃▄▅▆▇█"
    assert spark([3, 3, np.nan, np.inf]) == "▁▁╳∞"
    assert spark([0, 7], glyphs=ASCII) == "_#"
    assert spark([]) == ""


def test_sparkline_keeps_one_spike_among_thousands():
    values = np.ones(4096)
    values[1234] = 50.0
    text = spark(values, 32)
    assert len(text) == 32
    assert text.count("█") == 1
    assert text[1234 // 128] == "█"


def test_sparkline_scale_is_a_logarithm_past_two_decades():
    assert spark([1, 10, 100, 1000]) == "▁▃▆█"


@pytest.fixture
def exploding(tmp_path):
    path = write_run(tmp_path / "run", synthetic.exploding, metrics=synthetic.exploding_metrics)
    with open_run(path) as run:
        yield run


def test_a_healthy_run_is_a_field_of_dots(tmp_path):
    with open_run(write_run(tmp_path / "run")) as run:
        text = render_heatmap(run, "gradient")
    body = [line for line in text.splitlines()[1:] if line.startswith("  layers")]
    assert len(body) == 8
    assert all(set(line.split()[1]) == {"·"} for line in body)


def test_the_first_wrong_row_stands_out(exploding):
    text = render_heatmap(exploding, "gradient", findings=[synthetic.CAUSE])
    lines = text.splitlines()
    (bad,) = [line for line in lines if line.startswith("◆ ")]
    assert bad == "◆ layers.2.attn  " + "·" * 39 + "░▒▓▓████╳╳╳╳ ^", "without color the end of the row says which way"
    assert lines[-1] == "  · usual  ^ larger  v smaller  ╳ NaN  4 steps a cell"
    assert lines[0].split() == ["gradient", "1", "100", "200"]


def test_ascii_says_larger_and_smaller_by_a_sign_at_the_end(exploding):
    text = render_heatmap(exploding, "gradient", ascii=True, findings=[synthetic.CAUSE])
    assert text.isascii()
    rows = {line[2:].split()[0]: line[-1] for line in text.splitlines() if line[2:].startswith("layers")}
    assert rows["layers.2.attn"] == "^"
    assert rows["layers.0.mlp"] == "v"


@pytest.mark.parametrize("width", [40, 80, 120, 200])
@pytest.mark.parametrize("plain", [False, True])
def test_no_line_is_wider_than_the_screen(exploding, width, plain):
    shown = history(exploding, "gradient")
    for text in (
        render_heatmap(exploding, "gradient", width=width, ascii=plain),
        render_layers(shown, width=width, ascii=plain),
    ):
        assert max(map(cell_width, text.splitlines())) <= width


def test_inf_dead_missing_and_frozen_are_drawn(tmp_path):
    def story(site, step):
        if site.kind == Kind.WEIGHT:
            return healthy(site, step)
        return {
            "a": row(1.0, num_inf=3 if step == 5 else 0),
            "b": row(0.0),
            "c": None if 3 <= step <= 5 else row(1.0),
        }[site.module]

    infos = synthetic.sites_of(["a", "b", "c"], (Kind.GRADIENT,))
    infos += synthetic.sites_of(["a", "b", "c", "d"], (Kind.WEIGHT,))
    with open_run(write_run(tmp_path / "run", story, infos=infos, steps=range(1, 9))) as run:
        text = render_heatmap(run, "gradient")
        table = render_layers(history(run, "gradient"))
    rows = {line[2]: line[12:] for line in text.splitlines() if line[2:3] in "abcd" and line[3:4] == " "}
    assert rows == {"a": "····∞···", "b": "________", "c": "··   ···", "d": "||||||||"}
    key = text.splitlines()[-1]
    assert key == "  · usual  ^ larger  v smaller  ∞ Inf  _ all zero  | frozen  blank missing"
    assert "no gradient" in table.splitlines()[4]


def test_raw_values_have_no_hue_and_name_their_ends(exploding):
    screen = Screen(80, color=True)
    shown = history(exploding, "gradient").window(100, 189)
    text = screen.write(heatmap_lines(shown, screen, Picture(raw=True)))
    assert "\x1b[33m" not in text
    assert "\x1b[34m" not in text
    assert "log scale" in text
    assert "█ 36.0" in text


def test_too_many_rows_leave_out_the_quiet_ones(tmp_path):
    modules = [f"m{n}" for n in range(60)]

    def story(site, step):
        return row(100.0) if site.module == "m41" and step > 40 else row(1.0)

    with open_run(write_run(tmp_path / "run", story, modules=modules, steps=range(1, 51))) as run:
        screen = Screen(80)
        text = screen.write(heatmap_lines(history(run, "gradient"), screen, Picture(limit=10)))
    assert "m41" in text
    assert "and 50 rows more, nearer to usual" in text


def test_hostile_names_are_escaped_and_cut(tmp_path):
    name = "blocks.\x1b]0;owned\x07" + "\u202e" + "x" * 300
    infos = [SiteInfo(Site(name, Kind.GRADIENT, "weight"), (8, 8), "float32", NUM_ELEMENTS)]
    with open_run(write_run(tmp_path / "run", infos=infos, steps=range(5))) as run:
        text = render_heatmap(run, "gradient", color=True) + render_layers(history(run, "gradient", depth=9))
    assert "\x1b]" not in text
    assert "\x07" not in text
    assert "\u202e" not in text
    assert "…" in text


def test_severity_is_a_glyph_before_it_is_a_color(exploding):
    shown = history(exploding, "gradient")
    screen = Screen(80)
    text = screen.write(heatmap_lines(shown, screen, Picture({"head": Severity.WARNING})))
    assert any(line.startswith("▲ head") for line in text.splitlines())


def test_marks_order_is_the_order_of_worry():
    assert Mark.NAN > Mark.INF > Mark.DEAD > Mark.MISSING
    assert len(bins_over(np.arange(1000), 64)) <= 64
