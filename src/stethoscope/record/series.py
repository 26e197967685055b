"""Rows and series as a reader sees them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from stethoscope.record.sites import Site

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Series:
    """One statistic of one site, or one metric, over steps. `steps` rises strictly; `Series()` is that of nothing."""

    steps: IntArray = dataclasses.field(default_factory=lambda: np.empty(0, np.int64))
    values: FloatArray = dataclasses.field(default_factory=lambda: np.empty(0))

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        if not len(self):
            return "Series(empty)"
        return f"Series({len(self)} steps {self.steps[0]}..{self.steps[-1]}, last {self.values[-1]:.4g})"

    def at(self, step: int) -> float | None:
        """The value at exactly this step, or None where nothing was recorded."""
        index = int(np.searchsorted(self.steps, step))
        if index < len(self.steps) and self.steps[index] == step:
            return float(self.values[index])
        return None

    @property
    def finite(self) -> FloatArray:
        """The values that are numbers."""
        return self.values[np.isfinite(self.values)]

    def between(self, first: int | None = None, last: int | None = None) -> Series:
        """The part from `first` to `last`, both included; None is as far as it goes."""
        begin = 0 if first is None else int(np.searchsorted(self.steps, first))
        end = len(self) if last is None else int(np.searchsorted(self.steps, last, side="right"))
        return Series(self.steps[begin:end], self.values[begin:end])


class SeriesMap(Mapping[Site, Series]):
    """From site to series; a site's path as a string finds it too where that is unique."""

    def __init__(self, items: Mapping[Site, Series]) -> None:
        self._items = dict(items)
        self._by_path: dict[str, list[Site]] = {}
        for site in self._items:
            self._by_path.setdefault(site.path, []).append(site)

    def __getitem__(self, key: Site | str) -> Series:
        if isinstance(key, Site):
            return self._items[key]
        sites = self._by_path.get(key, [])
        if len(sites) == 1:
            return self._items[sites[0]]
        known = ", ".join(sorted(self._by_path)[:5]) or "none"
        raise KeyError(f"{key!r} names {len(sites)} sites here; known: {known}")

    def __contains__(self, key: object) -> bool:
        return key in self._items or (isinstance(key, str) and len(self._by_path.get(key, [])) == 1)

    def __iter__(self) -> Iterator[Site]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return (
            f"SeriesMap({len(self)} sites: {', '.join(s.path for s in list(self)[:4])}{', …' if len(self) > 4 else ''})"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """One row as a reader sees it: a step, a site, its named statistics."""

    step: int
    site: Site
    stats: Mapping[str, float]
