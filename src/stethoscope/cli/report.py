"""`stethoscope report`: one run as one file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from stethoscope import __version__
from stethoscope.cli.choose import choose_path
from stethoscope.cli.errors import UsageError
from stethoscope.cli.options import add_run, emit_json

FORMATS = {".html": "html", ".htm": "html", ".md": "md", ".json": "json"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which run, where to, in which form."""
    add_run(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="default: report.html; - for stdout")
    parser.add_argument("--format", choices=("html", "md", "json"), help="default: by the file's name, else html")


def run(args: argparse.Namespace) -> int:
    """Writes the report and says where it is."""
    from stethoscope.cli.show import require_data
    from stethoscope.views.common.open_run import OpenRun
    from stethoscope.views.report import report_data, report_html, report_markdown

    output = args.output or f"report.{args.format or 'html'}"
    form = args.format or form_of(output)
    viewed = OpenRun(choose_path(args.run))
    require_data(viewed.run)
    if form == "json" and output == "-":
        emit_json(report_data(viewed, __version__))
        return 0
    if form == "json":
        import json

        text = json.dumps(report_data(viewed, __version__), allow_nan=False, indent=1) + "\n"
    elif form == "md":
        if not viewed.was_examined and viewed.run.state != "live":
            viewed.examine()
        text = report_markdown(viewed)
    else:
        text = report_html(viewed, __version__)
    if output == "-":
        sys.stdout.write(text)
        return 0
    size = write_whole(Path(output), text)
    sys.stdout.write(f"{output}  {size / 1000:,.0f} kB\n")
    return 0


def form_of(output: str) -> str:
    """The form that a file's name asks for; html where it asks for none."""
    suffix = Path(output).suffix.lower()
    if suffix and suffix not in FORMATS:
        raise UsageError(
            f"A report cannot be written as {suffix}",
            where=output,
            do=f"Name it {', '.join(FORMATS)}, or say --format; a browser prints the .html to PDF",
        )
    return FORMATS.get(suffix, "html")


def write_whole(path: Path, text: str) -> int:
    """Replaces the file in one step, so that no half of one is ever read; returns the number of bytes."""
    from stethoscope.views.common.placing import placed_beside

    data = text.encode("utf-8", "replace")
    try:
        with placed_beside(path, makes_folders=False) as beside:
            beside.write_bytes(data)
    except OSError as error:
        raise UsageError(f"The file cannot be written ({error.strerror})", where=path) from error
    return len(data)
