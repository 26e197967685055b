"""`torch.autograd.set_detect_anomaly`, and torch without it."""

from __future__ import annotations

import torch
from benchmarks.faults.catalogue import Program
from benchmarks.faults.peers.stage import without_us, words

NOTICE = "Anomaly Detection has been enabled"
"""Said at every switching on."""


def alone(program: Program, seed: int) -> list[str]:
    """What torch says by itself."""
    return words(program, seed, without_us())


def run(program: Program, seed: int) -> list[str]:
    """What torch says with its anomaly mode on."""
    with without_us():
        return [said for said in words(program, seed, torch.autograd.set_detect_anomaly(True)) if NOTICE not in said]
