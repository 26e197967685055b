"""`stethoscope run` before a launcher: its workers are watched, with the options that were given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import stethoscope
from stethoscope.cli.launchers import LAUNCHERS, find_launcher, watch_workers
from stethoscope.store import find_runs

TORCHRUN, LAUNCH, ACCELERATE = LAUNCHERS
SCRIPT = """
import os, sys
import torch
print(sys.argv, __name__, os.environ["RANK"], flush=True)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def test_which_commands_are_launchers() -> None:
    assert find_launcher(TORCHRUN, ["train.py"]) == (TORCHRUN, ["train.py"])
    assert find_launcher(None, ["/usr/bin/torchrun", "--standalone", "train.py"]) == (
        TORCHRUN,
        ["--standalone", "train.py"],
    )
    assert find_launcher(None, ["accelerate", "launch", "train.py"]) == (ACCELERATE, ["train.py"])
    assert find_launcher(None, ["accelerate", "config"]) is None
    assert find_launcher("package.train", ["--lr", "1"]) is None
    assert find_launcher(None, ["train.py", "torchrun"]) is None


@pytest.mark.parametrize(
    ("launcher", "words", "expected"),
    [
        (TORCHRUN, "--nnodes 1 train.py --lr 1 -m x", "-m --nnodes 1 stethoscope run --name a -- train.py --lr 1 -m x"),
        (TORCHRUN, "-m package.train", "-m -m stethoscope run --name a -m package.train"),
        (TORCHRUN, "--no-python ./train.sh", None),
        (TORCHRUN, "--run-path train.py", None),
        (TORCHRUN, "--nnodes", "--nnodes"),
        (LAUNCH, "train.py 1", "--use-env -m stethoscope run --name a -- train.py --local-rank=${local_rank} 1"),
        (LAUNCH, "--use-env train.py 1", "-m --use-env stethoscope run --name a -- train.py 1"),
    ],
)
def test_what_the_launcher_is_told(launcher: str, words: str, expected: str | None) -> None:
    found = watch_workers(launcher, words.split(), ["--name", "a"])
    assert found == (None if expected is None else expected.split())


def test_a_launched_script_is_watched(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT + "sys.exit(3)\n")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(stethoscope.__file__).parents[1])}
    command = "-m stethoscope run --name mine --set companion=off torchrun --standalone train.py --lr 1"
    done = subprocess.run(
        [sys.executable, *command.split()], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=180
    )
    assert done.returncode == 1, done.stderr
    assert "failed (exitcode: 3)" in done.stderr, "the launcher's own log"
    assert done.stdout == "['train.py', '--lr', '1'] __main__ 0\n"
    assert "nothing was watched" not in done.stderr
    (folder,) = find_runs(tmp_path / ".stethoscope")
    assert stethoscope.open_run(folder).name == "mine"
    assert stethoscope.open_run(folder).steps.tolist() == [0, 1, 2]
