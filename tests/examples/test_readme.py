"""The README's first code block runs as it stands, and says what the README says it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def _blocks(language: str) -> list[str]:
    """The code blocks of one language, in order."""
    parts = README.read_text(encoding="utf-8").split("```")[1::2]
    return [body for head, _, body in (part.partition("\n") for part in parts) if head == language]


def _shape(text: str) -> list[str]:
    """The lines, with what differs from run to run taken out: dates, ids and losses, which no seed fixes."""
    text = re.sub(r"\d{8}-\d{6}-train-[0-9a-f]{6}", "RUN", text)
    text = re.sub(r"from \d+\.\d+ to 0\.0\d+", "from FIRST to LAST", text)
    text = re.sub(r"mean gives \d+\.\d+", "mean gives BASELINE", text)
    return [line.strip() for line in text.strip().splitlines()]


def test_the_first_block_runs_and_prints_what_stands_under_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_blocks("python")[0], encoding="utf-8")
    quiet = {key: value for key, value in os.environ.items() if not key.startswith("STETHOSCOPE_")}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=quiet, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert _shape(done.stderr) == _shape(_blocks("")[0])
