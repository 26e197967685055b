"""inspect(x): one line that says what an array is; more on request.

`repr` is the line, a notebook shows it as static HTML (escaped, no scripts), `.rich()` is a table for the
terminal and `.detail()` the same as text.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stethoscope.instruments.alerts import TensorAlert, TensorAlertKind, value_alerts
from stethoscope.instruments.distribution import TensorDistribution
from stethoscope.instruments.inspector import TensorStats, tensor_stats
from stethoscope.record import plural, printable
from stethoscope.views.common.numbers import number, percent, size

if TYPE_CHECKING:
    from rich.console import RenderableType

SPARK: Final = "▁▂▃▄▅▆▇█"
SPARK_WIDTH: Final = 12
MAX_LISTED: Final = 200


@dataclass(frozen=True, slots=True, repr=False)
class TensorSummary:
    """What one array is and holds."""

    name: str
    stats: TensorStats
    distribution: TensorDistribution | None
    alerts: tuple[TensorAlert, ...]

    def __repr__(self) -> str:
        return "  ".join(part for part in self._summary_parts() if part)

    def _summary_parts(self) -> list[str]:
        stats = self.stats
        where = "" if stats.device == "cpu" else f" {stats.device}"
        head = f"{stats.dtype}[{', '.join(map(str, stats.shape))}]{where} {size(stats.memory_usage_bytes)}"
        parts = [printable(self.name), head]
        if stats.total_elements == 1 and stats.mean is not None:
            return [*parts, f"= {self._value_text(stats.mean)}"]
        if stats.mean is not None:
            parts.append(f"{self._value_text(stats.min)} … {self._value_text(stats.max)}")
            parts.append(f"mean {number(stats.mean)} ± {number(stats.std)}")
            parts.append(self.spark)
        elif not stats.total_elements:
            parts.append("empty")
        if stats.sparsity and stats.sparsity >= 0.005:
            parts.append(f"{percent(stats.sparsity)} zero")
        return [*parts, *(_alert_text(alert) for alert in self.alerts)]

    def _value_text(self, value: float | None) -> str:
        """One element's value: whole numbers of whole-number arrays stay whole."""
        whole = value is not None and not self.stats.dtype.startswith(("float", "bfloat", "complex", "q"))
        return f"{value:,.0f}" if whole else number(value)

    @property
    def spark(self) -> str:
        """The histogram as a dozen glyphs."""
        if self.distribution is None or self.stats.min == self.stats.max:
            return ""
        counts = self.distribution.histogram.astype(np.float64)
        edges = np.linspace(0, len(counts), SPARK_WIDTH + 1).astype(int)
        heights = np.array([counts[a:b].sum() / (b - a) for a, b in pairwise(edges)])
        levels = np.ceil(heights / heights.max() * (len(SPARK) - 1)).astype(int)
        return "".join(SPARK[level] for level in levels)

    def rows(self) -> list[tuple[str, str]]:
        """Label and value of everything known, in reading order."""
        stats, spread = self.stats, self.distribution
        out = [
            ("shape", f"[{', '.join(map(str, stats.shape))}]"),
            ("dtype", f"{stats.dtype} on {stats.device}"),
            ("elements", f"{stats.total_elements:,} ({size(stats.memory_usage_bytes)})"),
        ]
        for label in ("mean", "std", "min", "max", "l1_norm", "l2_norm", "skewness", "kurtosis"):
            value = getattr(stats, label)
            if value is not None:
                out.append((label.replace("_", " "), number(value)))
        if stats.sparsity is not None:
            out.append(("zeros", f"{stats.zero_count:,} ({percent(stats.sparsity)})"))
        if spread is not None:
            out.extend((label, number(value)) for label, value in spread.percentiles.items())
            out.append(("outliers", f"{spread.num_outliers:,}"))
            out.append(("entropy", f"{spread.entropy:.2f} bits"))
        if spread is not None and spread.num_sampled is not None:
            out.append(("distribution from", plural(spread.num_sampled, "sampled element")))
        return [*out, *((str(alert.severity), printable(alert.message)) for alert in self.alerts)]

    def detail(self) -> str:
        """Everything known, a line each."""
        rows = self.rows()
        width = max(len(label) for label, _ in rows)
        return "\n".join([repr(self), *(f"  {label:<{width}}  {value}" for label, value in rows)])

    def rich(self) -> RenderableType:
        """Everything known, as a table for rich."""
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(repr(self)), show_header=False, box=None, title_justify="left")
        for label, value in self.rows():
            bad = label in ("Critical", "Warning")
            table.add_row(Text(label, style="bold red" if bad else "dim"), Text(value))
        return table

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><td style='text-align:left;opacity:.6'>{html.escape(label)}</td>"
            f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
            for label, value in self.rows()
        )
        return (
            f"<details><summary><code>{html.escape(repr(self))}</code></summary>"
            f"<table style='font-variant-numeric:tabular-nums'>{cells}</table></details>"
        )


@dataclass(frozen=True, slots=True, repr=False)
class SummaryList:
    """The summaries of several arrays: a model's parameters, a batch."""

    items: tuple[TensorSummary, ...]
    num_hidden: int = 0
    """Arrays beyond the first 200."""

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, key: int | str) -> TensorSummary:
        if isinstance(key, int):
            return self.items[key]
        for item in self.items:
            if item.name == key:
                return item
        raise KeyError(key)

    def _more_text(self) -> list[str]:
        return [f"and {plural(self.num_hidden, 'more array')}"] if self.num_hidden else []

    def __repr__(self) -> str:
        return "\n".join([*map(repr, self.items), *self._more_text()]) or "no arrays"

    def detail(self) -> str:
        """Everything known of each."""
        return "\n\n".join([*(item.detail() for item in self.items), *self._more_text()])

    def rich(self) -> RenderableType:
        """Everything known of each, for rich."""
        from rich.console import Group
        from rich.text import Text

        return Group(*(item.rich() for item in self.items), *map(Text, self._more_text()))

    def _repr_html_(self) -> str:
        return "".join([*(item._repr_html_() for item in self.items), *map(html.escape, self._more_text())])


def inspect(value: Any, name: str = "") -> TensorSummary | SummaryList:
    """What an array is and holds; a model or a mapping of arrays gives one line each."""
    if hasattr(value, "named_parameters") and callable(value.named_parameters):
        value = dict(value.named_parameters())
    if isinstance(value, Mapping):
        shown = list(value.items())[:MAX_LISTED]
        items = tuple(_summarize_array(item, f"{name}.{key}" if name else str(key)) for key, item in shown)
        return SummaryList(items, len(value) - len(items))
    return _summarize_array(value, name)


def _summarize_array(value: Any, name: str) -> TensorSummary:
    stats, spread, array = tensor_stats(value, name or "array")
    return TensorSummary(name, stats, spread, tuple(value_alerts(array, name or "it")))


def _alert_text(alert: TensorAlert) -> str:
    words = {
        TensorAlertKind.NAN_VALUES: "NaN",
        TensorAlertKind.INFINITE_VALUES: "Inf",
        TensorAlertKind.EXTREME_VALUES: "beyond 1e10",
    }
    return f"{alert.count:,} {words.get(alert.kind, str(alert.kind))} from {list(alert.first_index or ())}"
