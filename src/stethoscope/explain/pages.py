"""The page of each code: the bug, how it looks, why it happens, the fix, how we know.

One Markdown file a code, in `codes/` beside this module, is the only source: the terminal prints it, the documentation
links to it. A page's second line says its theme, severity, when it is found and on what footing; a comment at its end
names the limits that its text quotes, so that a test can hold them against the rules.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from importlib import resources
from typing import Any, Final

from stethoscope.detect.registry import known
from stethoscope.record import Severity, StethoscopeError, did_you_mean

THEMES: Final = (
    "The training loop",
    "Parameters and the optimizer",
    "Learning rate, schedule, clipping",
    "The loss",
    "NaN, Inf and precision",
    "The network",
    "Data and labels",
    "Generalization and progress",
    "Several ranks",
)
"""In the order in which they are listed."""
SECTIONS: Final = ("How it looks", "Why it happens", "The fix", "How we know")
_FACTS: Final = re.compile(r"^\*(?P<theme>[^|*]+)\|(?P<severity>[^|]+)\|(?P<found_by>[^|]+)\|(?P<tier>[^|*]+)\*$", re.M)
_LIMITS: Final = re.compile(r"<!-- limits: (.*?) -->", re.S)


class UnknownCodeError(StethoscopeError, KeyError):
    """No finding has this code."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """What is known about one code."""

    code: str
    summary: str
    theme: str
    severity: Severity
    """The highest that its findings have."""
    found_by: tuple[str, ...]
    """"watch", "checkup", "finished run", "several ranks"."""
    tier: str
    """"exact", "statistical" or "advice"."""
    text: str
    """The whole page as Markdown, without its title and comments."""
    limits: tuple[tuple[str, float], ...] = ()
    """Names of constants in the rules, `module.NAME`, and the values that the text quotes."""

    def section(self, name: str) -> str:
        """One section's Markdown, without its heading."""
        found = re.search(rf"^## {re.escape(name)}\n(.*?)(?=^## |\Z)", self.text, re.M | re.S)
        return found[1].strip() if found else ""

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "code": self.code,
            "summary": self.summary,
            "theme": self.theme,
            "severity": str(self.severity),
            "found_by": list(self.found_by),
            "tier": self.tier,
            **{name.lower().replace(" ", "_"): self.section(name) for name in SECTIONS},
        }


def codes() -> tuple[str, ...]:
    """Every code there is, by name: those with a page of ours, and those of installed packages' detectors."""
    folder = resources.files("stethoscope.explain") / "codes"
    own = {item.name.removesuffix(".md") for item in folder.iterdir() if item.name.endswith(".md")}
    return tuple(sorted(own | set(known().codes)))


@functools.cache
def page(code: str) -> Page:
    """The page of a code; an unknown one is an error that names the nearest."""
    if code not in codes():
        near = did_you_mean(code, codes())
        raise UnknownCodeError("There is no such code", where=code, do=near or "stethoscope explain lists them all")
    owner = known().owner(code)
    package = owner.__module__.partition(".")[0] if owner is not None else "stethoscope"
    folder = resources.files("stethoscope.explain" if package == "stethoscope" else package) / "codes"
    source = folder / f"{code}.md"
    if source.is_file():
        return parse(code, source.read_text(encoding="utf-8"))
    summary = (inspect.getdoc(owner) or code).partition("\n")[0]
    return Page(code, summary, f"From {package}", Severity.WARNING, ("watch",), "statistical", summary + "\n")


def parse(code: str, source: str) -> Page:
    """A page from its Markdown."""
    facts, limits = _FACTS.search(source), _LIMITS.search(source)
    if facts is None or not source.startswith(f"# {code}\n"):
        raise ValueError(f"the page of {code} does not begin with its title and its facts")
    text = _LIMITS.sub("", source).partition("\n")[2].strip() + "\n"
    quoted = [item.partition("=") for item in limits[1].split()] if limits else []
    return Page(
        code=code,
        summary=text[: text.index("\n\n")].replace("\n", " "),
        theme=facts["theme"].strip(),
        severity=Severity(facts["severity"].strip()),
        found_by=tuple(word.strip() for word in facts["found_by"].split(",")),
        tier=facts["tier"].strip(),
        text=text,
        limits=tuple((name, float(value)) for name, _, value in quoted),
    )


def by_theme() -> dict[str, list[Page]]:
    """All pages, themes in their order, codes by name."""
    every = [page(code) for code in codes()]
    themes = dict.fromkeys([*THEMES, *sorted(one.theme for one in every if one.theme not in THEMES)])
    return {theme: [one for one in every if one.theme == theme] for theme in themes}
