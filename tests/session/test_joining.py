"""Ranks of one launch write to one folder; those of another launch, or of an earlier one, to another."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import stethoscope

SOURCE = Path(stethoscope.__file__).parents[1]
RANK = """
import sys, time
from stethoscope.config import DebugConfig
from stethoscope.session.location import locate_run
from stethoscope.store import RunWriter

for _ in range(int(sys.argv[1])):
    place = locate_run(DebugConfig.load(dir=".", quiet=True), None)
    info = {"launch_id": place.launch_id, "created": time.time()}
    writer = RunWriter.create(place.folder, info, rank=place.rank, world_size=place.world_size)
    print(place.folder.name, flush=True)
    time.sleep(0.5)
    writer.close()
"""


def start(folder: Path, rank: int, num_sessions: int = 1, **variables: str) -> subprocess.Popen[str]:
    """One rank of a launch as torchrun starts it on its default port."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("STETHOSCOPE", "TORCHELASTIC"))
    }
    environment |= {"PYTHONPATH": str(SOURCE), "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    environment |= {
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
    } | variables
    command = [sys.executable, "-c", RANK, str(num_sessions)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment)


def folders_of(*ranks: subprocess.Popen[str]) -> list[list[str]]:
    return [rank.communicate(timeout=120)[0].split() for rank in ranks]


def test_two_launches_at_once_in_one_folder(tmp_path: Path) -> None:
    ranks = [start(tmp_path, rank, MASTER_PORT=port) for rank in (1, 0) for port in ("29500", "29501")]
    first_1, second_1, first_0, second_0 = folders_of(*ranks)
    assert first_1 == first_0
    assert second_1 == second_0
    assert first_0 != second_0


def test_a_launch_on_the_port_of_the_last_one(tmp_path: Path) -> None:
    (last,) = {tuple(found) for found in folders_of(start(tmp_path, 0), start(tmp_path, 1))}
    late = start(tmp_path, 1)
    time.sleep(1.5)
    now_0, now_1 = folders_of(start(tmp_path, 0), late)
    assert now_0 == now_1
    assert tuple(now_1) != last


def test_an_elastic_restart_and_several_sessions(tmp_path: Path) -> None:
    (crashed,) = folders_of(start(tmp_path, 0))
    late = start(tmp_path, 1, 2, TORCHELASTIC_RESTART_COUNT="1")
    time.sleep(1.0)
    again_0, again_1 = folders_of(start(tmp_path, 0, 2, TORCHELASTIC_RESTART_COUNT="1"), late)
    assert again_0 == again_1
    assert len(set(again_1)) == 2
    assert crashed[0] not in again_1
