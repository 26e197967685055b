"""Ways for a training process to end, each in a process of its own; run as a script by test_endings.

    python ending_cases.py FOLDER NAME...

torch is imported once and every case is a fork of that process. A case runs twice, plain and watched. For each the exit
status, its stderr and the seconds from what ended it to its death come out as one JSON object.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

import stethoscope
from tests.forking import prepare

PRELUDE = """
import atexit, code, contextlib, ctypes, os, signal, sys, threading, time

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)

class Failing(torch.autograd.Function):
    @staticmethod
    def forward(context, value, error):
        context.error = error
        return value * 1.0
    @staticmethod
    def backward(context, gradient):
        raise context.error

def train(steps=6, error=None):
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(3, 4)).square().mean()
        if error is not None and step == steps - 1:
            loss = Failing.apply(loss, error)
        loss.backward()
        optimizer.step()

def watch(**settings):
    return stethoscope.watch(model, optimizer, run=folder, **settings) if watched else contextlib.nullcontext()

def companion_pid():
    return session._recording.companion._process.pid if watched else None

def wait_for_companion():
    until = time.monotonic() + 20
    while watched and time.monotonic() < until and not list(folder.glob("findings/*")):
        time.sleep(0.05)

def ready():
    (folder.parent / (folder.name + ".ready")).touch()
"""

CASES: dict[str, tuple[str, tuple[int, ...]]] = {
    "interrupted_backward": ("session = watch(companion='off')\ntrain(error=KeyboardInterrupt())", ()),
    "interrupted_in_with": (
        "with watch(companion='off'):\n    train()\n    ready()\n    time.sleep(30)",
        (signal.SIGINT,),
    ),
    "failed_backward": ("session = watch(companion='off')\ntrain(error=ValueError('mine'))", ()),
    "failed_thread": (
        "session = watch(companion='off')\n"
        "worker = threading.Thread(target=train, kwargs={'error': ValueError('in a thread')})\n"
        "worker.start()\nworker.join()",
        (),
    ),
    "interrupted_beside_thread": (
        "session = watch(companion='off')\n"
        "worker = threading.Thread(target=train, args=(20,))\nworker.start()\nready()\ntime.sleep(30)",
        (signal.SIGINT,),
    ),
    "at_a_prompt": (
        "session = watch(companion='off')\nprompt = code.InteractiveInterpreter(globals())\nsys.ps1 = '>>> '\n"
        "prompt.runsource('train(error=KeyboardInterrupt())')\nprompt.runsource('train(3)')",
        (),
    ),
    "own_handlers": (
        "def mine(*given): print('my hook', given[0].__name__, file=sys.stderr)\n"
        "def goodbye(word): print(word, file=sys.stderr)\n"
        "def stop(*given): raise SystemExit(7)\n"
        "sys.excepthook = mine\natexit.register(goodbye, 'registered before')\n"
        "signal.signal(signal.SIGTERM, stop)\nsession = watch(companion='off')\n"
        "atexit.register(goodbye, 'registered after')\ntrain()\nready()\ntime.sleep(30)",
        (signal.SIGTERM,),
    ),
    "own_hook_after": (
        "def mine(*given): print('my hook', given[0].__name__, file=sys.stderr)\n"
        "session = watch(companion='off')\nsys.excepthook = mine\ntrain()\n1 / 0",
        (),
    ),
    "broken_pipe": (
        "session = watch(companion='off')\ntrain()\nreading, writing = os.pipe()\nos.close(reading)\n"
        "os.dup2(writing, 1)\nprint('gone', flush=True)",
        (),
    ),
    "terminated_inside_torch": (
        "session = watch(companion='off')\ntrain()\nmutex = (ctypes.c_char * 64)()\n"
        "lock = ctypes.CDLL(None).pthread_mutex_lock\nlock(mutex)\nready()\nlock(mutex)",
        (signal.SIGTERM,),
    ),
    "terminated_with_a_lock": (
        "session = watch(companion='off')\ntrain()\n"
        "with (session._recording.writer._queue._lock if watched else contextlib.nullcontext()):\n    ready()\n    time.sleep(30)",
        (signal.SIGTERM,),
    ),
    "stopped_companion": (
        "session = watch()\ntrain()\nif watched: os.kill(companion_pid(), signal.SIGSTOP)\nready()\nsys.exit(3)",
        (),
    ),
    "killed_companion": (
        "session = watch()\ntrain()\nwait_for_companion()\nif watched: os.kill(companion_pid(), signal.SIGKILL)\n"
        "ready()\nraise ValueError('mine')",
        (),
    ),
    "second_interrupt": (
        "session = watch()\ntrain()\nif watched: os.kill(companion_pid(), signal.SIGSTOP)\nready()\ntime.sleep(30)",
        (signal.SIGINT, signal.SIGINT),
    ),
    "full_disk": (
        "session = watch()\ntrain()\nif watched:\n    session.flush()\n"
        "    with contextlib.suppress(OSError), open(folder / 'filler', 'wb', 0) as filler:\n"
        "        while True: filler.write(bytes(4096))\n"
        "train(40)\nready()",
        (),
    ),
}
"""From a case to its program and the signals it is sent, a second apart, when it says that it is ready."""
SECONDS_BETWEEN = 1.0


class Child:
    """A case under way."""

    def __init__(self, name: str, pid: int, folder: Path, signals: tuple[int, ...]) -> None:
        self.name, self.pid, self.signals = name, pid, list(signals)
        self.ready = folder.with_name(folder.name + ".ready")
        self.began: float | None = None
        self.result: dict[str, Any] | None = None

    def look(self) -> None:
        now = time.monotonic()
        if self.ready.exists() and (self.began is None or (self.signals and now - self.began > SECONDS_BETWEEN)):
            if self.signals:
                os.kill(self.pid, self.signals.pop(0))
            self.began = now
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            seconds = None if self.began is None else now - self.began
            self.result = {"status": os.waitstatus_to_exitcode(status), "seconds": seconds}


def redirect(path: Path) -> None:
    """This process writes its words to a file from now on."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(file, 2)
    os.dup2(file, 1)


base, names = Path(sys.argv[1]), sys.argv[2:]
torch.set_num_threads(1)
prepare()
children: list[Child] = []
own: tuple[str, bool, Path] | None = None
for name in names:
    for watched in (False, True):
        folder = base / f"{name}-{'watched' if watched else 'plain'}"
        folder.mkdir(parents=True, exist_ok=True)
        process = os.fork()
        if process == 0:
            own = name, watched, folder
            break
        children.append(Child(folder.name, process, folder, CASES[name][1]))
    if own is not None:
        break
if own is not None:
    # The script of the case is the rest of this one: how it ends is how the interpreter ends.
    redirect(own[2].with_name(own[2].name + ".err"))
    program = {"__name__": "__main__", "torch": torch, "stethoscope": stethoscope, "watched": own[1], "folder": own[2]}
    exec(compile(PRELUDE + CASES[own[0]][0], f"{own[0]}.py", "exec"), program)
else:
    while any(child.result is None for child in children):
        for child in children:
            if child.result is None:
                child.look()
        time.sleep(0.01)
    print(json.dumps({child.name: child.result for child in children}))
