"""The page's types, its screens and who draws them are what Python says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from stethoscope.views.pagedata.screens import questions, screens

FRONTEND = Path(__file__).parents[2] / "frontend"


def check(*, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(cwd / "make_types.py"), "--check"], capture_output=True, text=True, timeout=120
    )


def test_the_types_are_what_python_says():
    done = check(cwd=FRONTEND)
    assert done.returncode == 0, done.stderr


def test_a_type_that_differs_is_noticed(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "make_types.py").write_text((FRONTEND / "make_types.py").read_text("utf-8"), "utf-8")
    for name in ("types.ts", "drawings.ts"):
        (tmp_path / "src" / name).write_text((FRONTEND / "src" / name).read_text("utf-8"), "utf-8")
    assert check(cwd=tmp_path).returncode == 0
    types = tmp_path / "src" / "types.ts"
    types.write_text(types.read_text("utf-8").replace("lastStep: number | null", "lastStep: number", 1), "utf-8")
    done = check(cwd=tmp_path)
    assert done.returncode == 1
    assert "types.ts is stale" in done.stderr
    assert "drawings.ts" not in done.stderr


def test_every_screen_is_drawn_and_no_question_is_asked_twice():
    names = [one.name for one in screens()]
    assert names[:3] == ["overview", "layers", "flow"]
    assert len({one.order for one in screens()}) == len(set(names)) == len(names)
    for one in screens():
        drawn = (FRONTEND / "src" / "screens" / f"{one.name}.tsx").read_text("utf-8")
        assert f"export function {one.name.capitalize()}Screen(" in drawn
    assert len(questions()) == sum(len(one.questions) for one in screens())
