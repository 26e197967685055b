"""Errors as a person reads them: what and where on one line, what to do on the next."""

from __future__ import annotations

import sys

from stethoscope.record import StethoscopeError, printable

EXIT_USAGE = 2
EXIT_NO_DATA = 3


class UsageError(StethoscopeError):
    """The command was asked for something it cannot do."""


class NoDataError(StethoscopeError):
    """There is nothing to read: no run, or a run without rows."""


def report_error(error: StethoscopeError) -> int:
    """Prints the error to stderr and returns the exit code that belongs to it."""
    what = printable(error.what.rstrip("."), limit=1000)
    if error.where is not None:
        what += f": {printable(str(error.where))}"
    lines = [f"stethoscope: {what}"]
    if error.do:
        lines.append(printable(error.do, limit=1000).rstrip("."))
    for line in lines:
        sys.stderr.write(line.encode(sys.stderr.encoding or "utf-8", "backslashreplace").decode(
            sys.stderr.encoding or "utf-8") + "\n")  # fmt: skip
    return EXIT_NO_DATA if isinstance(error, NoDataError) else EXIT_USAGE
