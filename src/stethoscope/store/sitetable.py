"""The sites of a whole run: one number each, whichever rank and process start named them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.record import Kind, Site, SiteInfo, select

_WILD: Final = frozenset("*?[")


class SiteTable:
    """From site to its run-wide number and back. Numbers are given in order of first appearance."""

    def __init__(self) -> None:
        self.infos: list[SiteInfo] = []
        self._numbers: dict[Site, int] = {}
        self._by_path: dict[str, list[int]] = {}
        self._descriptions: dict[bytes, list[int]] = {}

    def add_all(self, checksum: bytes, bodies: Sequence[Mapping[str, Any]]) -> list[int]:
        """The numbers of the sites of one description; each file of a start repeats it, it is read once."""
        known = self._descriptions.get(checksum)
        if known is None:
            known = self._descriptions[checksum] = [self.add(SiteInfo.from_json(body)) for body in bodies]
        return known

    def add(self, info: SiteInfo) -> int:
        """The site's number; what is newly known about it replaces what was known."""
        number = self._numbers.get(info.site)
        if number is None:
            number = self._numbers[info.site] = len(self.infos)
            self.infos.append(info)
            for path in info.site.names:
                self._by_path.setdefault(path, []).append(number)
        else:
            self.infos[number] = info
        return number

    def number(self, site: Site) -> int | None:
        """The site's number, None where the run does not know it."""
        return self._numbers.get(site)

    def select(self, pattern: str = "*", kind: Kind | str | None = None) -> npt.NDArray[np.int64]:
        """The numbers of the sites that a glob and a kind name, rising."""
        if pattern == "*" and kind is None:
            return np.arange(len(self.infos))
        if _WILD.isdisjoint(pattern):
            near = {
                n
                for n in self._by_path.get(pattern, ())
                if kind is None or self.infos[n].site.kind == Kind(kind)
            }
            return np.array(sorted(near), np.int64)
        chosen = [self._numbers[info.site] for info in select(self.infos, pattern, kind)]
        return np.array(chosen, np.int64)

    def of(self, numbers: Iterable[int]) -> tuple[SiteInfo, ...]:
        """What is known about these sites."""
        return tuple(self.infos[number] for number in numbers)
