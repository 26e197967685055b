"""A hook asks for a snapshot of an output that does not fit into the memory that is left; prints how that went."""

import json
import resource
import sys
from pathlib import Path

import torch

import stethoscope
from tests.robustness.odd import Odd

given = json.loads(sys.argv[1])
torch.set_num_threads(1)
losses = {}
for watched in (False, True):
    torch.manual_seed(0)
    model = Odd(torch.ones(64 << 20))  # 256 MB
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if watched:
        session = stethoscope.watch(model, optimizer, **given["watch"])
        action = stethoscope.HookAction.SaveSnapshot("snapshots")
        session.hooks.register_hook(stethoscope.HookBuilder("keep").layer_patterns(["odd"]).action(action).build())
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20), used + (200 << 20)))
    losses[watched] = []
    for step in range(6):
        optimizer.zero_grad()
        loss = model(torch.full((4, 6), 0.1 * step)).square().sum()
        loss.backward()
        optimizer.step()
        losses[watched].append(loss.item())
    del model
print("plain-losses" if losses[True] == losses[False] else losses)
counts = {str(status): number for status, number in session.hooks.counts.items()}
print("snapshot-failed" if counts.get("Error") else counts)
session.stop()
