"""The words everyone shares: sites, series, findings, severities and errors.

Ground floor: imports nothing of ours and no torch. Everything here is plain data that can be
written to JSON and read back equal.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

ROOT_NAME = "(root)"


class Severity(StrEnum):
    """How much a finding matters; only Warning and Critical ever become causes."""

    INFO = "Info"
    WARNING = "Warning"
    CRITICAL = "Critical"

    @property
    def rank(self) -> int:
        """0 for Info, 1 for Warning, 2 for Critical: for sorting and thresholds."""
        return list(Severity).index(self)


class Kind(StrEnum):
    """What is measured at a site."""

    WEIGHT = "weight"
    GRADIENT = "gradient"
    UPDATE = "update"
    ACTIVATION = "activation"
    ACTIVATION_GRADIENT = "activation_gradient"
    OPTIMIZER_STATE = "optimizer_state"
    BUFFER = "buffer"
    INPUT = "input"
    TARGET = "target"
    OUTPUT = "output"
    LOSS = "loss"


OUTPUT_KINDS = frozenset({Kind.ACTIVATION, Kind.ACTIVATION_GRADIENT, Kind.OUTPUT})
"""What is measured on what a module returns: the name of such a site is a position or a key, no name of its own."""


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class Site:
    """A module path and what is measured there.

    `name` is the tensor inside the module: "weight", "bias", "weight.exp_avg"; for activations it is
    "" where the module returns one tensor, else the position or key ("0", "hidden").
    """

    module: str
    kind: Kind
    name: str = ""

    @property
    def path(self) -> str:
        """`module.name`, what a user would type: "blocks.3.attn.qkv.weight"; "(root).1" for the model's second output."""
        # A bare position would read like a module: "1" is also the second member of a Sequential.
        module = ROOT_NAME if not self.module and self.kind in OUTPUT_KINDS else self.module
        return ".".join(part for part in (module, self.name) if part) or ROOT_NAME

    @property
    def names(self) -> frozenset[str]:
        """What names it: its path, its module, and at the root the tensor alone, as runs written earlier call it."""
        return frozenset({self.path, self.module or ROOT_NAME, *(() if self.module or not self.name else (self.name,))})

    def __str__(self) -> str:
        return f"{self.path} [{self.kind}]"

    def matches(self, pattern: str) -> bool:
        """Whether a glob such as "blocks.3.*" names this site, by its path or by its module."""
        by_module = fnmatchcase(self.path, pattern) or fnmatchcase(self.module or ROOT_NAME, pattern)
        return by_module or (not self.module and self.name != "" and fnmatchcase(self.name, pattern))


@dataclasses.dataclass(frozen=True, slots=True)
class SiteInfo:
    """A site and what is fixed about it: shape, dtype, how it is measured."""

    site: Site
    shape: tuple[int, ...] = ()
    dtype: str = ""
    num_elements: int = 0
    measured: str = "all"
    """"all", "sampled" (a fixed sample of coordinates), "shard" (what each rank holds of it), or why not: "meta",
    "unsupported", "capped"."""

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "module": self.site.module,
            "kind": str(self.site.kind),
            "name": self.site.name,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "num_elements": self.num_elements,
            "measured": self.measured,
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> SiteInfo:
        """The inverse of `to_json`."""
        return cls(
            site=Site(str(body["module"]), Kind(body["kind"]), str(body["name"])),
            shape=tuple(int(n) for n in body["shape"]),
            dtype=str(body["dtype"]),
            num_elements=int(body["num_elements"]),
            measured=str(body["measured"]),
        )


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Series:
    """One statistic of one site, or one metric, over steps. `steps` rises strictly."""

    steps: IntArray
    values: FloatArray

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        if not len(self):
            return "Series(empty)"
        return f"Series({len(self)} steps {self.steps[0]}..{self.steps[-1]}, last {self.values[-1]:.4g})"

    def at(self, step: int) -> float | None:
        """The value at exactly this step, or None where nothing was recorded."""
        place = int(np.searchsorted(self.steps, step))
        if place < len(self.steps) and self.steps[place] == step:
            return float(self.values[place])
        return None


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


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """One number that shows a finding: what it is, before and after."""

    label: str
    value: float | None
    before: float | None = None
    unit: str = ""
    site: str = ""
    """The path of the site whose series shows it, with `kind` and `stat`, where there is one."""
    kind: str = ""
    stat: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, where, since when, and the numbers that show it."""

    code: str
    severity: Severity
    message: str
    first_step: int
    last_step: int
    sites: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    remedy: str = ""
    confidence: float = 1.0
    rank: int | None = None
    """The distributed rank it concerns, None for all."""

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        body = dataclasses.asdict(self)
        body["severity"] = str(self.severity)
        body["sites"] = list(self.sites)
        body["evidence"] = [dataclasses.asdict(e) for e in self.evidence]
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Finding:
        """The inverse of `to_json`."""
        fields = {f.name for f in dataclasses.fields(cls)}
        kept = {key: value for key, value in body.items() if key in fields}
        kept["severity"] = Severity(kept["severity"])
        kept["sites"] = tuple(kept.get("sites", ()))
        kept["evidence"] = tuple(Evidence(**e) for e in kept.get("evidence", ()))
        return cls(**kept)


class StethoscopeError(Exception):
    """Base of every error of ours: what happened, where, and what to do about it."""

    def __init__(self, what: str, *, where: object = None, do: str = "") -> None:
        self.what, self.where, self.do = what, where, do
        parts = [what if where is None else f"{what}: {printable(str(where))}"]
        if do:
            parts.append(do)
        super().__init__(". ".join(part.rstrip(".") for part in parts) + ".")


class ConfigError(StethoscopeError, ValueError):
    """A setting that cannot be used."""


class WatchError(StethoscopeError, TypeError):
    """Something was handed to `watch` that cannot be watched."""


class RunError(StethoscopeError):
    """Base of everything that can be wrong with a run folder."""


class RunNotFoundError(RunError, FileNotFoundError):
    """There is no run at this place."""


class RunFormatError(RunError):
    """The run was written by a newer version of this program."""


class RunDamagedError(RunError):
    """The run's own description cannot be trusted: its checksum does not match."""


class MissingExtraError(StethoscopeError, ImportError):
    """An optional package is needed for this."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}", do=f'Install it with: pip install "stethoscope[{extra}]"')


class StopTraining(Exception):  # noqa: N818 - a request, not an error; named as users type it
    """Raised into the training loop only where a user's own hook asks for it."""


class StethoscopeWarning(UserWarning):
    """Every warning of ours."""


DRAWING = "stethoscope.views.notebook"
"""Who draws for notebooks. By name and when asked: the rooms whose objects are drawn lie below it and know nothing of it."""


class Drawn:
    """An object that a notebook shows as a picture, and a terminal as text."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(import_module(DRAWING).html(self))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        found: dict[str, str] = import_module(DRAWING).bundle(self)
        return {
            name: text
            for name, text in found.items()
            if (not include or name in include) and name not in (exclude or ())
        }


BIDI_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(text: str, limit: int = 400) -> str:
    """The text with control and bidirectional characters escaped, cut in the middle past `limit`."""
    if len(text) > limit:
        half = (limit - 1) // 2
        text = f"{text[:half]}…{text[-half:]}"
    return "".join(
        char if char.isprintable() and char not in BIDI_CONTROLS else char.encode("unicode_escape").decode()
        for char in text
    )


def did_you_mean(word: str, known: Iterable[str], limit: int = 3) -> str:
    """ "Did you mean a or b?" for a word that is nearly one of those known, "" where none is near."""
    by_lower = {name.lower(): name for name in known}
    near = [by_lower[name] for name in difflib.get_close_matches(word.lower(), list(by_lower), limit, 0.6)]
    # A part of a long name is what people remember of it.
    near += [name for lower, name in by_lower.items() if len(word) > 3 and word.lower() in lower and name not in near]
    near = [printable(name, limit=80) for name in near[:limit]]
    if not near:
        return ""
    return f"Did you mean {near[0] if len(near) == 1 else ', '.join(near[:-1]) + ' or ' + near[-1]}?"


def select(sites: Iterable[SiteInfo], pattern: str = "*", kind: Kind | str | None = None) -> list[SiteInfo]:
    """The sites that a glob and a kind name, in their order."""
    wanted = None if kind is None else Kind(kind)
    return [s for s in sites if (wanted is None or s.site.kind == wanted) and s.site.matches(pattern)]
