"""DebugVisualizer and TerminalVisualizer: plots of whatever numbers the user has, to files and to the
terminal.

Promises: files appear whole or not at all, under names that cannot leave the output folder; HTML is static,
escaped and needs nothing from the network; every picture carries a sentence and its table.
"""

from __future__ import annotations

import base64
import csv
import html
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from stethoscope.instruments.array_input import as_floats
from stethoscope.instruments.files import write_atomically, write_json, write_text
from stethoscope.record import ConfigError, printable
from stethoscope.views.common.plot_data import Heatmap, Histogram, Lines, Plot, number
from stethoscope.views.common.style import Tokens, tokens
from stethoscope.views.plots import terminal as terminal_plots

FORMATS = ("png", "svg", "html", "json", "csv", "txt")
MAX_TABLE_ROWS = 200

Kept = TypeVar("Kept", Histogram, Lines, Heatmap)


@dataclass(frozen=True, kw_only=True, slots=True)
class VisualizationConfig:
    """Where plots go and how they look."""

    output_directory: str | Path = "./debug_plots"
    formats: tuple[str, ...] = ()
    """What to write for each new plot at once; nothing by default: `save` writes on request."""
    dark: bool = False
    title: str = "Training"
    """The title of dashboards."""

    def __post_init__(self) -> None:
        for kind in self.formats:
            _check_format(kind)


def _check_format(kind: str) -> str:
    if kind not in FORMATS:
        raise ConfigError("unknown plot format", where=kind, do=f"Use one of {', '.join(FORMATS)}")
    return kind


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Several plots together; already written as HTML at `path`."""

    path: Path
    plot_names: tuple[str, ...]
    html: str

    def __str__(self) -> str:
        return str(self.path)


class DebugVisualizer:
    """Keeps plots by name; saves them one by one or several on a dashboard."""

    def __init__(self, config: VisualizationConfig | None = None) -> None:
        self.config = config or VisualizationConfig()
        self._plots: dict[str, Plot] = {}

    def plot_tensor_distribution(self, name: str, values: Any, bins: int = 50) -> Histogram:
        """A histogram of the values."""
        plot = Histogram.of(name, as_floats(values, name), bins)
        return self._keep_plot(f"{name}_distribution", plot)

    def plot_gradient_flow(self, name: str, steps: Any, gradients: Any) -> Lines:
        """A layer's gradient over steps; a mapping of layers draws them together."""
        items = gradients if isinstance(gradients, Mapping) else {name: gradients}
        series = {str(layer): (steps, as_floats(values, str(layer))) for layer, values in items.items()}
        return self._keep_plot(f"{name}_gradient_flow", Lines.of(f"{name}: gradient", series))

    def plot_lines(self, name: str, x: Any, series: Any, x_label: str = "step") -> Lines:
        """One line, or a mapping of label to values, over the same x."""
        items = series if isinstance(series, Mapping) else {name: series}
        drawn = {str(label): (as_floats(x), as_floats(y, str(label))) for label, y in items.items()}
        return self._keep_plot(name, Lines.of(name, drawn, x_label=x_label))

    def plot_heatmap(
        self,
        name: str,
        values: Any,
        labels: Sequence[str] | None = None,
        columns: Any = None,
        *,
        history: bool = False,
    ) -> Heatmap:
        """Rows by columns; with `history` each row against its own median."""
        return self._keep_plot(name, Heatmap.of(name, values, labels, columns, history))

    def _keep_plot(self, name: str, plot: Kept) -> Kept:
        self._plots[name] = plot
        for kind in self.config.formats:
            self.save(name, kind)
        return plot

    def get_plot_names(self) -> list[str]:
        """Names in the order of creation."""
        return list(self._plots)

    def get_plot(self, name: str) -> Plot:
        """A plot by its name."""
        if name not in self._plots:
            known = ", ".join(self._plots) or "none yet"
            raise ConfigError("no plot of that name", where=name, do=f"Known plots: {known}")
        return self._plots[name]

    def clear(self) -> None:
        """Forgets every plot; files stay."""
        self._plots.clear()

    def save(self, name: str, kind: str = "png") -> Path:
        """Writes one plot as png, svg, html, json, csv or txt; returns where."""
        plot = self.get_plot(name)
        path = Path(self.config.output_directory) / f"{file_name(name)}.{_check_format(kind)}"
        if kind in ("png", "svg"):
            return write_atomically(path, lambda file: _draw_plots([plot], file, kind, self.config.dark))
        if kind == "json":
            return write_json(path, to_json(name, plot))
        if kind == "csv":
            return write_text(path, to_csv(plot))
        if kind == "txt":
            return write_text(path, terminal_plots.render(plot, 100, 30))
        return write_text(path, to_html(name, [(name, plot)], self.config.dark))

    def create_dashboard(self, names: Iterable[str] | None = None, name: str = "dashboard") -> Dashboard:
        """One HTML page with the named plots, all of them by default."""
        chosen = tuple(self._plots) if names is None else tuple(names)
        page = to_html(self.config.title, [(n, self.get_plot(n)) for n in chosen], self.config.dark)
        path = write_text(Path(self.config.output_directory) / f"{file_name(name)}.html", page)
        return Dashboard(path, chosen, page)

    def save_dashboard(self, names: Iterable[str] | None = None, kind: str = "png", name: str = "dashboard") -> Path:
        """The named plots together, all of them by default: one png, svg, html, json, csv or txt; returns where."""
        chosen = list(self._plots if names is None else names)
        plots = [self.get_plot(n) for n in chosen]
        path = Path(self.config.output_directory) / f"{file_name(name)}.{_check_format(kind)}"
        title, dark = self.config.title, self.config.dark
        if kind in ("png", "svg"):
            return write_atomically(path, lambda f: _draw_plots(plots, f, kind, dark, title))
        pairs = list(zip(chosen, plots, strict=True))
        if kind == "json":
            return write_json(path, {"title": title, "plots": [to_json(n, plot) for n, plot in pairs]})
        if kind == "csv":
            return write_text(path, to_long_csv(pairs))
        if kind == "txt":
            return write_text(path, TerminalVisualizer(100, 24 * max(len(plots), 1)).dashboard(plots))
        return write_text(path, to_html(title, pairs, dark))


def file_name(name: str) -> str:
    """A name that is one plain path part: letters, digits, dot, dash, underscore; never empty or hidden."""
    clean = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[:120]
    return clean or "plot"


def _draw_plots(plots: Sequence[Plot], file: BinaryIO, kind: str, dark: bool, title: str = "") -> None:
    from stethoscope.views.plots import figures as pictures

    pictures.save(pictures.draw(plots, dark=dark, title=title), file, kind)


def to_json(name: str, plot: Plot) -> dict[str, Any]:
    """The plot's kind, sentence and table."""
    columns, rows = plot.table()
    kind = type(plot).__name__.lower()
    return {"name": name, "kind": kind, "sentence": plot.sentence, "columns": columns, "rows": rows}


def to_csv(plot: Plot) -> str:
    """The plot's table."""
    columns, rows = plot.table()
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def to_long_csv(plots: Sequence[tuple[str, Plot]]) -> str:
    """Plots of any kind in one table: a line a cell, with the plot, the row and the column it belongs to."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("plot", "row", "column", "value"))
    for name, plot in plots:
        columns, rows = plot.table()
        writer.writerows(
            (name, index, column, value)
            for index, row in enumerate(rows)
            for column, value in zip(columns, row, strict=True)
        )
    return text.getvalue()


def to_html(title: str, plots: Sequence[tuple[str, Plot]], dark: bool) -> str:
    """A page of its own: no script, nothing from the network, pictures inside."""
    figures = "\n".join(_figure_html(name, plot, dark) for name, plot in plots) or "<p>No plots.</p>"
    safe = html.escape(printable(title))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">\n"
        f"<title>{safe}</title>\n<style>{_page_css(tokens(dark))}</style>\n</head>\n<body>\n"
        f"<h1>{safe}</h1>\n<main>\n{figures}\n</main>\n</body>\n</html>\n"
    )


def _figure_html(name: str, plot: Plot, dark: bool) -> str:
    picture = io.BytesIO()
    _draw_plots([plot], picture, "svg", dark)
    data = base64.b64encode(picture.getvalue()).decode()
    sentence = html.escape(plot.sentence)
    return (
        f'<figure id="{html.escape(file_name(name))}">\n'
        f'<img src="data:image/svg+xml;base64,{data}" alt="{sentence}">\n'
        f"<figcaption>{sentence}</figcaption>\n"
        f"<details><summary>Table</summary>{_table_html(plot)}</details>\n</figure>"
    )


def _table_html(plot: Plot) -> str:
    columns, rows = plot.table()
    head = "".join(f"<th>{html.escape(printable(column))}</th>" for column in columns)
    body = "".join("<tr>" + "".join(_cell_html(value) for value in row) + "</tr>" for row in rows[:MAX_TABLE_ROWS])
    more = len(rows) - MAX_TABLE_ROWS
    note = f"<p>{more:,} more rows are in the CSV file.</p>" if more > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"


def _cell_html(value: Any) -> str:
    if isinstance(value, float):
        return f'<td class="n">{number(value)}</td>'
    return f"<td>{html.escape(printable(str(value)))}</td>"


def _page_css(look: Tokens) -> str:
    return (
        f"body{{margin:24px 16px;background:{look.sheet};color:{look.ink2};"
        'font:13px/20px system-ui,-apple-system,"Segoe UI",Roboto,Inter,"Noto Sans",sans-serif;'
        "font-variant-numeric:tabular-nums}"
        f"h1{{font-size:22px;line-height:28px;font-weight:600;letter-spacing:-.014em;color:{look.ink}}}"
        "main{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:40px 40px}"
        f"figure{{margin:0;border-top:1px solid {look.line};padding-top:12px}}img{{width:100%;height:auto}}"
        f"figcaption,summary{{font-size:12px;line-height:16px;color:{look.ink3}}}"
        "table{border-collapse:collapse;font-size:12px}th,td{text-align:left;padding:2px 12px 2px 0}"
        f"td.n{{text-align:right}}tr{{border-bottom:1px solid {look.line}}}"
    )


class TerminalVisualizer:
    """Plots as text that fits a terminal of `width` by `height` characters."""

    def __init__(self, width: int = 80, height: int = 24) -> None:
        if width < 20 or height < 5:
            raise ConfigError("too small to draw in", where=f"{width} x {height}", do="Use at least 20 x 5")
        self.width = width
        self.height = height

    def ascii_histogram(self, values: Any, bins: int = 10, title: str = "values") -> str:
        """A bar a bin; neighbouring bins join where there are more than lines."""
        plot = Histogram.of(title, as_floats(values, title), bins)
        return terminal_plots.histogram(plot, self.width, self.height)

    def ascii_line_plot(self, x: Any, y: Any, title: str = "") -> str:
        """One line, or a mapping of label to values, over x."""
        items = y if isinstance(y, Mapping) else {title or "y": y}
        series = {str(label): (as_floats(x), as_floats(values)) for label, values in items.items()}
        return terminal_plots.lines(Lines.of(title, series), self.width, self.height)

    def ascii_heatmap(
        self, values: Any, labels: Sequence[str] | None = None, title: str = "", *, history: bool = False
    ) -> str:
        """A glyph a cell; the latest columns that fit."""
        plot = Heatmap.of(title, values, labels, None, history)
        return terminal_plots.heatmap(plot, self.width, self.height)

    def render(self, plot: Plot) -> str:
        """Any plot of a DebugVisualizer."""
        return terminal_plots.render(plot, self.width, self.height)

    def dashboard(self, plots: Iterable[Plot]) -> str:
        """Several plots under each other, sharing the height."""
        chosen = list(plots)
        each = max(self.height // max(len(chosen), 1), 6)
        return "\n".join(terminal_plots.render(plot, self.width, each) for plot in chosen)
