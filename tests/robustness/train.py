"""A small deterministic training that says what it did: `step N LOSS MS TIME`, `kept N` once a flush succeeded, `ending TIME`.

Its one argument is JSON: `steps`, `watch` (keyword arguments, none for a plain training), `flush_every`, `flush_until` (a step),
`pause_s` after each step, `wait_at` (a step: it says `waiting` and goes on once the file `go` is there; the files `raise` and
`exit` say how it ends), `fill_descriptors_at`, `workers` ("fork" or "spawn"), `layers`, `save_at` (a step: a checkpoint), `resume`
(from that checkpoint), `gloo` (a file to meet the other ranks at: a group is made and no collective used).
"""

import hashlib
import json
import os
import resource
import sys
import time
from pathlib import Path

import torch
import torch.distributed
from torch.nn import functional as F

from tests.robustness.forks import run_delay_s


def wait_for_go(name: str) -> None:
    """Say so, and wait until somebody made the file."""
    print(f"waiting {name}", flush=True)
    while not Path(name).exists():
        time.sleep(0.005)


def fill_descriptors() -> list[int]:
    """Take every file descriptor that is left."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        return taken


def batches(given: dict):
    """The same batches in every try, from this process or from a loader's workers."""
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(given["steps"] * 16, 8, generator=generator)
    targets = torch.randint(4, (given["steps"] * 16,), generator=generator)
    if "workers" not in given:
        return zip(data.split(16), targets.split(16), strict=True)
    from torch.utils.data import DataLoader, TensorDataset

    return iter(DataLoader(TensorDataset(data, targets), 16, num_workers=2, multiprocessing_context=given["workers"]))


def make_model(given: dict) -> torch.nn.Sequential:
    torch.manual_seed(0)
    middle = [torch.nn.Linear(32, 32) for _ in range(given.get("layers", 0))]
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), *middle, torch.nn.Linear(32, 4))


def main(given: dict) -> None:
    torch.set_num_threads(1)
    model = make_model(given)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    session, taken, first = None, [], 0
    if "gloo" in given:
        meet = f"file://{given['gloo']}"
        torch.distributed.init_process_group("gloo", meet, rank=int(os.environ["RANK"]), world_size=2)
    if given.get("resume"):
        held = torch.load("checkpoint.pt")
        model.load_state_dict(held["model"])
        optimizer.load_state_dict(held["optimizer"])
        first = held["step"]
    if given.get("fill_descriptors_at") == -1:
        taken = fill_descriptors()
    if given.get("watch") is not None:
        import stethoscope

        print("watching", time.monotonic(), flush=True)
        session = stethoscope.watch(model, optimizer, **given["watch"])
    print("began", time.monotonic(), flush=True)
    print("begun", os.getpid(), flush=True)
    every = given.get("flush_every", 5)
    flushing = range(every - 1, given.get("flush_until", given["steps"]), every) if every else ()
    for step, (x, y) in enumerate(batches(given)):
        if step < first:
            continue
        if given.get("save_at") == step:
            torch.save(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, "checkpoint.pt"
            )
        if given.get("wait_at") == step:
            wait_for_go("go")
        if given.get("fill_descriptors_at") == step:
            taken = fill_descriptors()
        began = time.monotonic()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        now = time.monotonic()
        print(f"step {step} {loss.item().hex()} {1000 * (now - began):.1f} {now}", flush=True)
        if session is not None and session.folder and step in flushing and session.flush(2.0):
            print("kept", step, flush=True)
        time.sleep(given.get("pause_s", 0.0))
    for descriptor in taken:
        os.close(descriptor)
    if given.get("wait_at") == given["steps"]:
        wait_for_go("go")
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print("weights", hashlib.sha256(weights).hexdigest(), flush=True)
    print("ending", time.monotonic() - run_delay_s(os.getpid()), flush=True)
    if Path("raise").exists():
        raise KeyError("the user's own")
    if Path("exit").exists():
        sys.exit(3)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
