"""`stethoscope checkup train.py:build`: experiments before training. Exit 0 clean, 1 findings, 2 usage.

`build()` is a function of the user's script that returns (model, batch, loss_fn) or (model, batch, loss_fn, optimizer), or
a dict with these keys and any of causal, pad_id, val_batch. The script is imported, not run: what stands under
`if __name__ == "__main__":` does not happen.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethoscope.cli.diagnose import EXIT_FINDINGS, LEVELS, is_failure
from stethoscope.cli.errors import UsageError
from stethoscope.cli.options import add_output, emit, emit_json, screen_of
from stethoscope.record import plural

if TYPE_CHECKING:
    from stethoscope.explain import Diagnosis
    from stethoscope.views.common.glyphs import Screen
    from stethoscope.views.common.styled_text import Line

KEYS = ("model", "batch", "loss_fn", "optimizer", "causal", "pad_id", "val_batch")
HOW = "Write def build(): return model, (inputs, targets), loss_fn, optimizer"


HINTS = {
    "causality": "--causal, or causal=True: ask whether outputs see later inputs",
    "padding": "--pad-id N, or pad_id=N: ask whether padding reaches the output",
}
"""What would let an experiment run that does not apply by itself."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to examine, and what counts as a failure."""
    parser.add_argument("target", metavar="FILE.py[:FUNCTION]", help="the function that builds; default: build")
    parser.add_argument("--causal", action="store_true", default=None, help="outputs may not depend on later inputs")
    parser.add_argument("--pad-id", type=int, metavar="ID", help="the id that stands for padding")
    parser.add_argument("--all", action="store_true", help="every cause in full, and what could not be examined")
    parser.add_argument(
        "--fail-on", choices=LEVELS, default="warning", help="exit 1 from this severity on; default: warning"
    )
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Builds, examines, and says so with the exit code."""
    from stethoscope.checkup import checkup

    built = build(args.target)
    options = {key: built[key] for key in ("causal", "pad_id", "val_batch") if built.get(key) is not None}
    if args.causal is not None:
        options["causal"] = True
    if args.pad_id is not None:
        options["pad_id"] = args.pad_id
    diagnosis = checkup(built["model"], built["batch"], built["loss_fn"], built.get("optimizer"), **options)
    if args.json:
        emit_json(diagnosis.to_json())
    else:
        screen = screen_of(args)
        emit(screen, checkup_lines(diagnosis, screen, full=args.all))
    return EXIT_FINDINGS if is_failure(diagnosis, args.fail_on) else 0


def build(target: str) -> dict[str, Any]:
    """What the user's function returns, by name."""
    made = _user_function(target)()
    if isinstance(made, Mapping):
        built = {str(key): value for key, value in made.items()}
    elif isinstance(made, (tuple, list)) and 3 <= len(made) <= 4:
        built = dict(zip(KEYS, made, strict=False))
    else:
        raise UsageError(
            "The function must return a model, a batch, a loss and perhaps an optimizer", where=target, do=HOW
        )
    missing = [key for key in KEYS[:3] if built.get(key) is None]
    unknown = [key for key in built if key not in KEYS]
    if missing or unknown:
        what = f"has no {' and no '.join(missing)}" if missing else f"has unknown keys: {', '.join(unknown)}"
        raise UsageError(f"What the function returns {what}", where=target, do=f"The keys are {', '.join(KEYS)}")
    return built


def _user_function(target: str) -> Callable[[], Any]:
    location, colon, name = target.rpartition(":")
    if not colon or name.endswith(".py"):
        location, name = target, "build"
    if not _may_define(location, name):
        raise UsageError(f"There is no function {name}, and nothing was run", where=location, do=HOW)
    module = _import_module(location)
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"There is no function {name}", where=location, do=HOW)

    def call() -> Any:
        try:
            return function()
        except Exception as error:
            raise UsageError(f"{name}() failed: {type(error).__name__}: {error}", where=location) from error

    return call


def _may_define(location: str, name: str) -> bool:
    """Whether the script may bind this name: a training script without it should not start to train first."""
    path = Path(location)
    if not path.is_file():
        return True
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return True  # importing it says what is wrong
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name:
            return True
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name:
            return True
        if isinstance(node, ast.alias) and (node.asname or node.name) in (name, "*"):
            return True
    return False


def _import_module(location: str) -> Any:
    """The script as a module, with its own folder first on the path, as Python would have it."""
    path = Path(location)
    if path.suffix == ".py" or path.exists():
        if not path.is_file():
            raise UsageError("There is no such file", where=location)
        folder = str(path.resolve().parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise UsageError("This file cannot be imported", where=location)
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(path.stem, module)
        load: Callable[[], Any] = lambda: spec.loader.exec_module(module)  # type: ignore[union-attr]  # noqa: E731
    else:
        module = None
        load = lambda: importlib.import_module(location)  # noqa: E731
    try:
        loaded = load()
    except Exception as error:
        raise UsageError(f"The script fails when imported: {type(error).__name__}: {error}", where=location) from error
    return module if module is not None else loaded


def checkup_lines(diagnosis: Diagnosis, screen: Screen, *, full: bool) -> list[Line]:
    """The verdict, and how much was examined."""
    from stethoscope.views.common.styled_text import NOTE
    from stethoscope.views.lines.verdict import rows_lines, verdict_lines
    from stethoscope.views.terminal.experiments import experiment_lines

    looked = diagnosis.looked_at
    idle = {one.name for one in looked.experiments if one.outcome == "does not apply"}
    share = f"{len(looked.experiments) - len(idle)} of " if idle else ""
    examined = f"{share}{plural(looked.num_detectors, 'experiment')}, {plural(looked.num_sites, 'parameter')}"
    notes = [(f"not examined: {need}", NOTE) for need in looked.unmet_needs] if full else []
    if not diagnosis.causes:
        notes += [(hint, NOTE) for name, hint in HINTS.items() if name in idle]
    lines: list[Line]
    if not diagnosis.findings:
        lines = [[(f"{screen.glyphs.clear} Nothing to report. {examined}.", NOTE)]]
    else:
        lines = verdict_lines(diagnosis, None, screen, full=full)
        if not diagnosis.causes:
            lines = [
                [(f"No cause found. {examined}. Worth knowing:", NOTE)],
                *rows_lines(diagnosis.findings, diagnosis, screen),
            ]
        else:
            lines += [[], [(f"{examined}; nothing was changed", NOTE)]]
    if full or not diagnosis.causes:
        lines += [[], *experiment_lines(looked.experiments, screen)]
    return [*lines, *([note] for note in notes)]
