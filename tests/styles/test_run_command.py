"""`stethoscope run` is not there: argv, exit codes, stdout, tracebacks, signals and imports as plain python has them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import stethoscope
from stethoscope.store import find_runs

SOURCE = Path(stethoscope.__file__).parents[1]

TRAIN = """
import torch
def train(steps=6):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(steps):
        loss = net(torch.randn(16, 4)).square().mean()
        opt.zero_grad(); loss.backward(); opt.step()
    return loss
"""

ENDINGS = {
    "returns": "print(train().item())",
    "exits": "import sys\nprint(train().item())\nsys.exit(7)",
    "exits_with_words": "import sys\ntrain()\nsys.exit('no more data')",
    "raises": "def deeper(loss):\n    raise ValueError('bad ' + str(loss.ndim))\ndeeper(train())",
    "raises_in_backward": "loss = train()\nloss.backward()",
    "raises_from": "try:\n    train().backward()\nexcept RuntimeError as e:\n    raise KeyError('x') from e",
    "raises_in_data": (
        "class Bad(list):\n    def __getitem__(self, n):\n        raise KeyError(n)\n"
        "train()\nfor x in torch.utils.data.DataLoader(Bad([1, 2])):\n    pass"
    ),
    "raises_before_torch": "1 / 0",
    "bad_optimizer": "torch.optim.SGD([], lr=0.1)",
    "syntax": "def f(:\n    pass",
    "own_hook": "import sys\ndef hook(k, e, t):\n    print('mine', k.__name__, t.tb_next)\nsys.excepthook = hook\ntrain()\n1/0",
    # A shell may start what it runs in the background with this signal ignored.
    "interrupted": (
        "import os, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "train()\nos.kill(os.getpid(), signal.SIGINT)\nimport time; time.sleep(5)"
    ),
    "terminated": "import os, signal\ntrain()\nos.kill(os.getpid(), signal.SIGTERM)\nimport time; time.sleep(5)",
    "at_exit": "import atexit\natexit.register(print, 'bye')\ntrain()",
    "facts": "import sys\ntrain()\nprint(sys.argv, __name__, __file__, sys.path[0], __spec__, __package__, __doc__)",
}


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}


def call(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=folder, env=environment(), timeout=180
    )


def ours(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("stethoscope: "))


RUN = ("-m", "stethoscope", "run", "--set", "companion=off")


RARE = {"exits_with_words", "raises_from", "raises_in_data", "bad_optimizer", "own_hook", "at_exit"}
"""Endings that take the way of another one here, and differ in the interpreter."""


@pytest.mark.parametrize(
    "ending", [pytest.param(name, marks=pytest.mark.slow) if name in RARE else name for name in ENDINGS]
)
def test_a_script_ends_as_it_would(ending: str, tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(TRAIN + ENDINGS[ending])
    plain = call(tmp_path, "s.py", "--lr", "1", "--", "-x")
    watched = call(tmp_path, *RUN, "s.py", "--lr", "1", "--", "-x")
    assert watched.returncode == plain.returncode
    assert watched.stdout == plain.stdout
    assert ours(watched.stderr) == plain.stderr
    runs = find_runs(tmp_path / ".stethoscope")
    trains = ending not in ("syntax", "bad_optimizer", "raises_before_torch")
    assert len(runs) == trains
    if trains:
        ended = stethoscope.open_run(runs[0]).ended
        expected = {"interrupted": "exception", "terminated": "signal", "own_hook": "exception"}
        failed = ending.startswith("raises")
        assert ended is not None
        assert ended["ended"] == expected.get(ending, "exception" if failed else "finished")


def test_a_module(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "sibling.py").write_text("VALUE = 3")
    (tmp_path / "pack" / "job.py").write_text(
        TRAIN + "import sys\nfrom .sibling import VALUE\nprint(train().item(), sys.argv, __name__, VALUE, __package__)"
    )
    plain = call(tmp_path, "-m", "pack.job", "a", "-b")
    watched = call(tmp_path, *RUN, "-m", "pack.job", "a", "-b")
    assert (watched.returncode, watched.stdout) == (plain.returncode, plain.stdout)
    assert len(find_runs(tmp_path / ".stethoscope")) == 1


@pytest.mark.parametrize("words", [("nothing.py",), ("-m", "no.such.module"), ("-m", "nosuchmodule")])
def test_what_is_not_there(words: tuple[str, ...], tmp_path: Path) -> None:
    plain, watched = call(tmp_path, *words), call(tmp_path, *RUN, *words)
    assert watched.returncode == plain.returncode
    assert watched.stderr == plain.stderr


def test_our_options_come_first(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(TRAIN + "import sys\ntrain()\nprint(sys.argv)")
    words = (
        "--name",
        "mine",
        "--every",
        "2",
        "--no-activations",
        "--quiet",
        "--dir",
        "there",
        "--",
        "s.py",
        "--name",
        "theirs",
    )
    done = call(tmp_path, *RUN, *words)
    assert (done.stdout, done.stderr) == ("['s.py', '--name', 'theirs']\n", "")
    (folder,) = find_runs(tmp_path / "there")
    run = stethoscope.open_run(folder)
    assert run.name == "mine"
    assert run.info["config"]["every"] == 2
    assert run.info["config"]["activations"] is False


@pytest.mark.parametrize("words", [(), ("--every",), ("--set", "nonsense=1", "s.py"), ("--every", "x", "s.py")])
def test_wrong_usage(words: tuple[str, ...], tmp_path: Path) -> None:
    done = call(tmp_path, *RUN[:3], *words)
    assert done.returncode == 2
    assert done.stderr
    assert "Traceback" not in done.stderr


def test_torch_is_not_imported_for_the_script(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("import sys\nprint('torch' in sys.modules)")
    done = call(tmp_path, *RUN, "s.py")
    assert done.stdout == "False\n"
    assert "did not import torch" in done.stderr


def test_off_by_the_environment(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(TRAIN + "print(train().item())")
    done = subprocess.run(
        [sys.executable, *RUN, "s.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=180,
        env=environment() | {"STETHOSCOPE_MODE": "off"},
    )
    assert done.returncode == 0
    assert done.stderr == ""
    assert not (tmp_path / ".stethoscope").exists()


def test_a_signal_from_outside(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(TRAIN + "print('go', flush=True)\ntrain(10**9)")
    process = subprocess.Popen(
        [sys.executable, *RUN, "s.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment(),
    )
    assert process.stdout is not None
    process.stdout.readline()
    until = time.monotonic() + 120
    while time.monotonic() < until and not any(f.stat().st_size > 20_000 for f in tmp_path.rglob("journal-*")):
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGTERM
    run = stethoscope.open_run(find_runs(tmp_path / ".stethoscope")[0])
    assert run.ended is not None
    assert run.ended["ended"] == "signal"
    assert run.last_step is not None


def test_two_trainings_one_after_the_other_are_two_runs(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(TRAIN + "train(5)\ntrain(9)")
    done = call(tmp_path, *RUN, "s.py")
    assert done.returncode == 0
    lengths = [len(stethoscope.open_run(f).steps) for f in find_runs(tmp_path / ".stethoscope")]
    assert sorted(lengths) == [5, 9]


def test_a_script_that_watches_itself_is_watched_once(tmp_path: Path) -> None:
    script = TRAIN.replace(
        "    for _",
        "    import stethoscope; stethoscope.watch(net, opt, companion='off', quiet=True)\n    for _",
    )
    (tmp_path / "s.py").write_text(script + "train()")
    assert call(tmp_path, *RUN, "s.py").returncode == 0
    assert len(find_runs(tmp_path / ".stethoscope")) == 1


WORKERS = """
import multiprocessing, torch
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self): return 64
    def __getitem__(self, n): return torch.full((4,), n / 64)
def square(x): return x * x
def main():
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for x in DataLoader(Data(), batch_size=8, num_workers=1, multiprocessing_context=METHOD):
        loss = (net(x) - 1).square().mean()
        opt.zero_grad(); loss.backward(); opt.step()
    with multiprocessing.get_context(METHOD).Pool(1) as pool:
        print(pool.map(square, [1, 2, 3]), loss.item())
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers(method: str, tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(WORKERS.replace("METHOD", repr(method)))
    plain, watched = call(tmp_path, "s.py"), call(tmp_path, *RUN, "s.py")
    assert (watched.returncode, watched.stdout) == (plain.returncode, plain.stdout), watched.stderr
    (folder,) = find_runs(tmp_path / ".stethoscope")
    run = stethoscope.open_run(folder)
    assert len(run.steps) == 8
    assert len(run.starts) == 1
    assert run.state == "finished"


def test_a_terminal_gets_a_live_line_and_a_summary(tmp_path: Path) -> None:
    """Only stderr is the terminal here: the script's own output stays as it is."""
    pty = pytest.importorskip("pty")
    (tmp_path / "s.py").write_text(
        TRAIN + "import os, time\nuntil = time.time() + 120\n"
        "while time.time() < until and not os.path.exists('seen'): train(50)\nprint('over')"
    )
    ours, theirs = pty.openpty()
    command = [sys.executable, *RUN, "s.py"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, cwd=tmp_path, env=environment())
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other end was closed
            break
        if not piece:
            break
        shown += piece
        if b"\r\x1b[K" in shown:
            (tmp_path / "seen").touch()
    out, _ = process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == 0
    assert out == b"over\n"
    assert b"\r" in shown.replace(b"\r\n", b"\n"), shown[-500:]
    assert b"step" in shown
    assert b"cannot tell: " in shown
    assert shown.endswith((b"\n", b"\r\x1b[K")), "the cursor stands on an empty line"
