"""Writes what the page takes from Python: its types, its table of screens, who draws each, and what statistics are called.

    python frontend/make_types.py            writes frontend/src/types.ts and frontend/src/drawings.ts
    python frontend/make_types.py --check    exits with 1 where they are not what Python says

The types are those that the questions of `views/pagedata` are annotated with, and all that these are made of.
"""

from __future__ import annotations

import json
import sys
import types
import typing
from pathlib import Path
from typing import Any, Literal, NotRequired, get_args, get_origin, get_type_hints

from stethoscope.kernels.statistics import STATISTICS
from stethoscope.views.pagedata.compare import CompareData
from stethoscope.views.pagedata.directions import Angles
from stethoscope.views.pagedata.query import Trouble
from stethoscope.views.pagedata.runlist import RunsData
from stethoscope.views.pagedata.screens import questions, screens
from stethoscope.views.report.document import ReportData

HERE = Path(__file__).parent
HEAD = "// Written by frontend/make_types.py: change the Python that it reads, then run it.\n"
PLAIN = {str: "string", int: "number", float: "number", bool: "boolean", type(None): "null", Any: "unknown"}
OTHERS = (RunsData, CompareData, Angles, ReportData, Trouble)
"""What is asked for beside the questions about one run."""


class Declarations:
    """TypeScript declarations, each after those it is made of."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def name_of(self, kind: Any) -> str:
        """The TypeScript of a Python annotation; what it is made of is declared on the way."""
        if kind in PLAIN:
            return PLAIN[kind]
        if isinstance(kind, type) and typing.is_typeddict(kind):
            return self._interface(kind)
        if isinstance(kind, type) and issubclass(kind, tuple):
            return self._row(kind)
        origin, inside = get_origin(kind), get_args(kind)
        if origin in (typing.Union, types.UnionType):
            return " | ".join(dict.fromkeys(self.name_of(part) for part in inside))
        if origin is Literal:
            return " | ".join(f'"{word}"' for word in inside)
        if origin is list or (origin is tuple and inside[-1] is Ellipsis):
            item = self.name_of(inside[0])
            return f"({item})[]" if " " in item else f"{item}[]"
        if origin is tuple:
            return f"[{', '.join(map(self.name_of, inside))}]"
        if origin is dict:
            return f"Record<string, {self.name_of(inside[1])}>"
        raise TypeError(f"no TypeScript is known for {kind!r}")

    def _interface(self, kind: Any) -> str:
        if kind.__name__ in self.found:
            return str(kind.__name__)
        lines = [self._field(name, hint) for name, hint in get_type_hints(kind, include_extras=True).items()]
        comment = f"/** {(kind.__doc__ or '').splitlines()[0]} */\n"
        self.found[kind.__name__] = f"{comment}export interface {kind.__name__} {{\n{''.join(lines)}}}\n"
        return str(kind.__name__)

    def _field(self, name: str, hint: Any) -> str:
        if get_origin(hint) is NotRequired:
            return f"  {name}?: {self.name_of(get_args(hint)[0])};\n"
        return f"  {name}: {self.name_of(hint)};\n"

    def _row(self, kind: Any) -> str:
        parts = ", ".join(f"{name}: {self.name_of(hint)}" for name, hint in get_type_hints(kind).items())
        self.found.setdefault(kind.__name__, f"export type {kind.__name__} = [{parts}];\n")
        return str(kind.__name__)


def types_text() -> str:
    """The page's types, and its table of screens."""
    told = Declarations()
    answers = {name: told.name_of(get_type_hints(answer)["return"]) for name, answer in questions().items()}
    for kind in OTHERS:
        told.name_of(kind)
    asked = "".join(f'  "{name}": {kind};\n' for name, kind in answers.items())
    rows = "".join(
        f'  {{ name: "{one.name}", title: "{one.title}", key: "{one.key}", icon: "{one.icon}", count: "{one.count}" }},\n'
        for one in screens()
    )
    labels = {"STAT_NAMES": {n: one.label for n, one in STATISTICS.items()}}
    labels["STAT_SHORT"] = {n: one.short for n, one in STATISTICS.items() if one.short}
    return "\n".join(
        [
            HEAD,
            *told.found.values(),
            "/** What can be asked about a run, and what the answer is. */",
            f"export interface Answers {{\n{asked}}}\n",
            "/** The screens of a run, in the order of their tabs. */",
            'export interface ScreenInfo { name: string; title: string; key: string; icon: string; count: keyof Counts | "" }',
            f"export const SCREENS: ScreenInfo[] = [\n{rows}];\n",
            "/** What statistics are called, and in narrow columns. */",
            *(
                f"export const {name}: Record<string, string> = {{\n"
                + "".join(f"  {stat}: {json.dumps(label)},\n" for stat, label in table.items())
                + "};"
                for name, table in labels.items()
            ),
            "",
        ]
    )


def drawings_text() -> str:
    """Who draws each screen."""
    names = {one.name: f"{one.name.capitalize()}Screen" for one in screens()}
    imports = "".join(f'import {{ {drawn} }} from "./screens/{name}";\n' for name, drawn in names.items())
    rows = "".join(f"  {name}: {drawn},\n" for name, drawn in names.items())
    return (
        f'{HEAD}import type {{ JSX }} from "preact";\nimport type {{ RunSession }} from "./session";\n{imports}\n'
        f"type Drawing = (props: {{ session: RunSession }}) => JSX.Element | null;\n"
        f"export const DRAWINGS: Record<string, Drawing> = {{\n{rows}}};\n"
    )


FILES = {HERE / "src" / "types.ts": types_text, HERE / "src" / "drawings.ts": drawings_text}


def main() -> int:
    """Writes the files, or says which are not what they should be."""
    stale = [path for path, text in FILES.items() if not path.exists() or path.read_text("utf-8") != text()]
    if "--check" in sys.argv[1:]:
        sys.stderr.writelines(f"{path} is stale: run python frontend/make_types.py\n" for path in stale)
        return int(bool(stale))
    for path in stale:
        path.write_text(FILES[path](), "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
