"""`stethoscope run train.py [args]`: an unchanged script, watched.

The script sees what it would see without us: its arguments, `__name__ == "__main__"`, its folder first on `sys.path`, its
own exit code, its own signals; an uncaught exception is printed without frames of ours. torch is touched when
the script has imported it, never before. Everything of ours is said on stderr.
"""

from __future__ import annotations

import argparse
import atexit
import importlib.machinery
import importlib.util
import io
import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stethoscope.cli import launchers
from stethoscope.cli.errors import UsageError
from stethoscope.config import FIELD_NAMES, DebugConfig

EXIT_USAGE = 2
HOME = str(Path(__file__).parents[1]) + os.sep
USAGE = (
    "stethoscope run [options] [--] script.py [args]\n       stethoscope run [options] -m module [args]\n"
    "       stethoscope run [options] torchrun [torchrun's options] script.py [args]"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Our options; everything from the script's name on is the script's."""
    parser.usage = USAGE
    parser.add_argument("--name", help="a name for the run; default: the script's")
    parser.add_argument("--dir", help="where run folders go; default: .stethoscope here")
    parser.add_argument("--every", type=int, metavar="N", help="weights, state and module outputs every N steps")
    parser.add_argument("--overhead", metavar="SHARE", help="what watching may cost of a step; default: 1%%")
    parser.add_argument("--no-activations", action="store_true", help="leave module outputs alone")
    parser.add_argument("--ignore", metavar="CODES", help="findings that you know of, separated by commas")
    parser.add_argument("--quiet", action="store_true", help="say nothing; the run is recorded all the same")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="any setting of DebugConfig")
    parser.add_argument("-m", dest="module", metavar="MODULE", help="run a module, as python -m does")
    parser.add_argument("script", nargs="*", help="the script and its arguments")


def main(words: Sequence[str]) -> int:
    """Split our options from the script's words, then run it. What the script raises passes."""
    parser = argparse.ArgumentParser(prog="stethoscope run", description="Watch an unchanged script.")
    add_arguments(parser)
    ours, theirs = split(parser, words)
    try:
        args = parser.parse_args(ours)
    except SystemExit as stop:
        return int(stop.code or 0)
    if not args.module and not theirs:
        parser.print_usage(sys.stderr)
        return EXIT_USAGE
    from stethoscope.cli.errors import report_error
    from stethoscope.record import StethoscopeError

    try:
        config = settings(args)
    except StethoscopeError as error:
        return report_error(error)
    launched = launchers.find_launcher(args.module, theirs)
    if launched is None:
        return execute(args.module, theirs, config)
    return launch(*launched, ours[: ours.index(_module_word(ours))] if args.module else ours)


def launch(launcher: str, words: list[str], options: list[str]) -> int:
    """Run a launcher whose workers are watched with these options of ours."""
    try:
        handed_on = launchers.watch_workers(launcher, words, options)
    except ImportError as error:
        return _report_refusal(f"No module named {error.name}", 1)
    if handed_on is None:
        print(  # noqa: T201 - nothing is watched, so nobody else says it
            f"stethoscope: {launcher} starts no Python script here, so nothing is watched. Call `python -m stethoscope run "
            "train.py` in what it starts",
            file=sys.stderr,
        )
    return execute(launcher, words if handed_on is None else handed_on, None)


def _module_word(ours: list[str]) -> str:
    return next(word for word in ours if word.startswith("-m") and not word.startswith("--"))


def split(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Ours: the options up to the script's name, up to `--`, or up to `-m module`. Theirs: the rest."""
    index = 0
    while index < len(words) and words[index].startswith("-"):
        word = words[index]
        if word == "--":
            return list(words[:index]), list(words[index + 1 :])
        if word.startswith("-m") and not word.startswith("--"):
            end = index + (2 if word == "-m" else 1)
            return list(words[:end]), list(words[end:])
        action = parser._option_string_actions.get(word)
        index += 1 if action is None or action.nargs == 0 else 2
    return list(words[:index]), list(words[index:])


def settings(args: argparse.Namespace) -> DebugConfig:
    """The configuration that our options make."""
    fields: dict[str, Any] = {}
    for pair in args.set:
        name, equals, value = pair.partition("=")
        if not equals or name not in FIELD_NAMES:
            raise UsageError(f"--set got {pair!r}", do=f"Use FIELD=VALUE with one of {', '.join(sorted(FIELD_NAMES))}")
        fields[name] = value
    for name in ("name", "dir", "every", "overhead", "ignore"):
        if getattr(args, name) is not None:
            fields[name] = getattr(args, name)
    if args.no_activations:
        fields["activations"] = False
    if args.quiet:
        fields["quiet"] = True
    return DebugConfig.load(**fields)


def execute(module: str | None, words: list[str], config: DebugConfig | None) -> int:
    """Become the script, watched where there is a config: returns its exit code, or raises what it raised."""
    from stethoscope.cli.attendant import Attendant

    prepared = _find_module(module, words) if module else _find_script(words)
    if isinstance(prepared, int):
        return prepared
    main_module, source = prepared
    interrupted: list[bool] = []
    # Registered before anything of the script's, so that it runs after all of it.
    atexit.register(_end_as_interrupted, interrupted)
    ours = sys.modules["__main__"]
    sys.modules["__main__"] = main_module
    if config is not None:
        Attendant(config).wait_for_torch()
    try:
        code = source() if callable(source) else source
        exec(code, main_module.__dict__)  # noqa: S102 - running the user's script is what this command is for
    except BaseException as error:
        sys.excepthook = _without_us(sys.excepthook)
        interrupted.append(isinstance(error, KeyboardInterrupt))
        raise
    finally:
        # Held so that neither is taken apart while exit handlers and threads of the script still run.
        _KEPT.extend((ours, main_module))
    return 0


def _end_as_interrupted(interrupted: list[bool]) -> None:
    """A script that Ctrl-C ended dies of that signal, as the interpreter lets it."""
    if any(interrupted):
        from stethoscope.session.endings import mark_interrupted

        mark_interrupted()


_KEPT: list[types.ModuleType] = []


def _find_script(words: list[str]) -> tuple[types.ModuleType, Any] | int:
    """The main module and its code, for a file, or for a folder or archive with a __main__.py."""
    name = words[0]
    path = os.path.abspath(name)  # noqa: PTH100 - as the interpreter does: symbolic links stay
    sys.argv[:] = words
    if os.path.isdir(path) or name.endswith((".zip", ".pyz")):  # noqa: PTH112
        _first_on_path(path)
        spec = importlib.machinery.PathFinder.find_spec("__main__", [path])
        if spec is None or spec.loader is None:
            return _report_refusal(f"can't find '__main__' module in {path!r}", 1)
        return _main_module(spec.origin or path, spec, package=""), spec.loader.get_code("__main__")  # type: ignore[attr-defined]
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        return _report_refusal(f"can't open file {path!r}: [Errno {error.errno}] {error.strerror}", EXIT_USAGE)
    _first_on_path(os.path.dirname(os.path.realpath(path)))  # noqa: PTH120
    module = _main_module(path, None, package=None)
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    return module, lambda: compile(source, path, "exec", dont_inherit=True)


def _find_module(name: str, words: list[str]) -> tuple[types.ModuleType, Any] | int:
    """The main module and its code, for what `python -m` takes."""
    _first_on_path(str(Path.cwd()))
    sys.argv[:] = ["-m", *words]
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name += ".__main__"
            spec = importlib.util.find_spec(name)
    except (ImportError, ValueError) as error:
        return _report_refusal(
            f"Error while finding module specification for {name!r} ({type(error).__name__}: {error})", 1
        )
    if spec is None or spec.loader is None or spec.origin is None:
        return _report_refusal(f"No module named {name}", 1)
    sys.argv[0] = spec.origin
    module = _main_module(spec.origin, spec, package=spec.parent)
    return module, spec.loader.get_code(name)  # type: ignore[attr-defined]


def _main_module(path: str, spec: Any, *, package: str | None) -> types.ModuleType:
    module = types.ModuleType("__main__")
    module.__doc__ = None
    module.__file__ = path
    module.__spec__ = spec
    module.__package__ = package
    module.__loader__ = getattr(spec, "loader", None)
    vars(module)["__builtins__"] = sys.modules["builtins"]
    vars(module)["__cached__"] = getattr(spec, "cached", None)
    return module


def _first_on_path(folder: str) -> None:
    """Put the script's folder where the interpreter would have put it: in place of ours."""
    if not sys.flags.safe_path:
        sys.path[0:1] = [folder]


def _report_refusal(message: str, code: int) -> int:
    print(f"{sys.executable}: {message}", file=sys.stderr)  # noqa: T201 - as the interpreter says it
    return code


def _without_us(hook: Any) -> Any:
    """An exception hook that shows the script's frames alone."""
    from stethoscope.session import tracebacks

    def show(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        tracebacks.strip(error, trace, _is_ours)
        hook(kind, error, error.__traceback__)

    return show


def _is_ours(frame: types.FrameType) -> bool:
    """Whether this frame is ours, or led to us: the interpreter's -m, the console script."""
    launcher = bool(_KEPT) and frame.f_globals is vars(_KEPT[0])
    return launcher or frame.f_code.co_filename.startswith((HOME, "<frozen runpy>"))
