"""Sites: a module path and what is measured there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from stethoscope.record.kinds import OUTPUT_KINDS, ROOT_NAME, Kind


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


def select(sites: Iterable[SiteInfo], pattern: str = "*", kind: Kind | str | None = None) -> list[SiteInfo]:
    """The sites that a glob and a kind name, in their order."""
    wanted = None if kind is None else Kind(kind)
    return [s for s in sites if (wanted is None or s.site.kind == wanted) and s.site.matches(pattern)]
