"""Errors as a person reads them: what and where on one line, what to do on the next."""

from __future__ import annotations

import sys

from stethoscope.record import StethoscopeError, printable

EXIT_USAGE = 2
EXIT_NO_DATA = 3
_MOST_LINES = 4


class UsageError(StethoscopeError):
    """The command was asked for something it cannot do."""


class NoDataError(StethoscopeError):
    """There is nothing to read: no run, or a run without rows."""


def report_error(error: StethoscopeError) -> int:
    """Prints the error to stderr and returns the exit code that belongs to it."""
    what, *more = [line for line in error.what.rstrip(".").splitlines() if line.strip()] or [""]
    if error.where is not None:
        what += f": {error.where}"
    lines = [f"stethoscope: {what}", *more[:_MOST_LINES], *([error.do.rstrip(".")] if error.do else [])]
    encoding = sys.stderr.encoding or "utf-8"
    for line in lines:
        safe = printable(line, limit=1000).encode(encoding, "backslashreplace").decode(encoding)
        sys.stderr.write(safe + "\n")
    return EXIT_NO_DATA if isinstance(error, NoDataError) else EXIT_USAGE


def report_unexpected(command: str, error: Exception) -> int:
    """What a command cannot cope with, in the form of every other error: a run folder may hold anything."""
    what = f"`stethoscope {command}` failed ({type(error).__name__}: {error!s:.300})"
    do = "The run holds something it should not, or this is a bug. STETHOSCOPE_TRACEBACK=1 shows where it failed"
    return report_error(StethoscopeError(what, do=do))
