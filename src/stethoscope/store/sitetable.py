"""The sites of a whole run: one number each, whichever rank and process start named them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.record import Kind, Site, SiteInfo, select
from stethoscope.store.checked import MOST_TEXT, Fields
from stethoscope.store.json_payload import EncodingError

_MOST_DIMENSIONS: Final = 64
_WILD: Final = frozenset("*?[")
_KINDS: Final = {str(kind): kind for kind in Kind}
_INT: Final = frozenset({int})


class SiteTable:
    """From site to its run-wide number and back. Numbers are given in order of first appearance."""

    def __init__(self) -> None:
        self.infos: list[SiteInfo] = []
        self._numbers: dict[Site, int] = {}
        self._by_path: dict[str, list[int]] = {}
        self._num_by_path = 0
        """Sites whose names are in there: they are put in at the first question by name."""
        self._descriptions: dict[bytes, tuple[int, list[int]]] = {}

    def described(self, checksum: bytes) -> tuple[int, list[int]] | None:
        """The first index and the numbers of the sites of a description that was read before."""
        return self._descriptions.get(checksum)

    def describe(self, checksum: bytes, first: int, bodies: Sequence[Mapping[str, Any]]) -> tuple[int, list[int]]:
        """Take in a description of sites: their first index in the file, and their numbers here."""
        infos = [site_info(body) for body in bodies]
        known = self._descriptions[checksum] = first, [self.add(info) for info in infos]
        return known

    def add(self, info: SiteInfo) -> int:
        """The site's number; what is newly known about it replaces what was known."""
        number = self._numbers.get(info.site)
        if number is None:
            number = self._numbers[info.site] = len(self.infos)
            self.infos.append(info)
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
            near = {n for n in self._numbers_named(pattern) if kind is None or self.infos[n].site.kind == Kind(kind)}
            return np.array(sorted(near), np.int64)
        chosen = [self._numbers[info.site] for info in select(self.infos, pattern, kind)]
        return np.array(chosen, np.int64)

    def _numbers_named(self, name: str) -> Sequence[int]:
        """The numbers of the sites that this names; one may come twice where two threads ask at once."""
        for number in range(self._num_by_path, len(self.infos)):
            for path in self.infos[number].site.names:
                self._by_path.setdefault(path, []).append(number)
            self._num_by_path = number + 1
        return self._by_path.get(name, ())

    def of(self, numbers: Iterable[int]) -> tuple[SiteInfo, ...]:
        """What is known about these sites."""
        return tuple(self.infos[number] for number in numbers)


def site_info(body: Any) -> SiteInfo:
    """What a run says of a site, its types tested."""
    # All fields in one go: 10,000 layers have 70,000 sites, and the user waits for the run to open.
    try:
        module, kind, name, shape = body["module"], _KINDS[body["kind"]], body["name"], body["shape"]
        dtype, count, measured = body["dtype"], body["num_elements"], body["measured"]
        is_plain = type(module) is type(name) is type(dtype) is type(measured) is str and type(count) is int
        if is_plain and type(shape) is list and _INT.issuperset(map(type, shape)):
            lengths = len(module) <= MOST_TEXT >= len(name) and len(dtype) <= 1000 >= len(measured)
            if (
                lengths
                and 0 <= count <= 2**62
                and len(shape) <= _MOST_DIMENSIONS
                and (not shape or 0 <= min(shape) <= max(shape) < 2**53)
            ):
                return SiteInfo(Site(module, kind, name), tuple(shape), dtype, count, measured)
    except (KeyError, TypeError):
        pass
    return _closely_checked(body)


def _closely_checked(body: Any) -> SiteInfo:
    """The same, field by field: an error names the one that is wrong."""
    fields = Fields(body, "a site")
    shape = fields.items("shape", int)
    if len(shape) > _MOST_DIMENSIONS or any(not 0 <= size < 2**53 for size in shape):
        raise EncodingError("shape of a site cannot be one")
    try:
        kind = Kind(fields.text("kind", most=100))
    except ValueError as error:
        raise EncodingError(f"kind of a site is not known: {error}") from error
    return SiteInfo(
        Site(fields.text("module"), kind, fields.text("name")),
        tuple(int(size) for size in shape),
        fields.text("dtype", most=1000),
        fields.whole("num_elements", 0, 2**62),
        fields.text("measured", most=1000),
    )
