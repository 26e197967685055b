"""Watching changes nothing: not one bit of a loss or a weight, not the RNG, not what the model is made of."""

from __future__ import annotations

import copy
import io
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import stethoscope
from stethoscope.capture.seams import MARK, SEAMS
from tests.models import MODELS, make_batch

STEPS = 50


def _train(
    name: str,
    optimizer_name: str,
    style: str,
    folder: Path | None,
    *,
    compiled: bool = False,
    steps: int = STEPS,
    **settings: Any,
) -> tuple[list[float], dict[str, torch.Tensor], torch.Tensor]:
    torch.manual_seed(7)
    model = MODELS[name][0]()
    kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[optimizer_name]
    optimizer = kind(model.parameters(), lr=0.01, **({"momentum": 0.9} if optimizer_name == "sgd" else {}))
    scaler = torch.amp.GradScaler("cpu", enabled=style == "amp", init_scale=256.0)
    runner = torch.compile(model) if compiled else model
    session = None
    if folder is not None:
        session = stethoscope.watch(
            model,
            optimizer,
            dir=str(folder),
            quiet=True,
            companion="off",
            every=1,
            histogram_every=5,
            **settings,
        )
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(3 if style == "accumulate" else 1):
            x, y = make_batch(name, generator)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=style == "amp"):
                loss = F.cross_entropy(runner(x), y) / (3 if style == "accumulate" else 1)
            scaler.scale(loss).backward()
            losses.append(loss.item())
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    random_state = torch.get_rng_state()
    if session is not None:
        assert session.step == steps
        session.stop()
        assert sum(session._watcher.guard.errors.values()) == 0, session._watcher.guard.last_traceback
    return losses, state, random_state


def _assert_same(plain: Any, watched: Any) -> None:
    assert plain[0] == watched[0]
    assert list(plain[1]) == list(watched[1])
    for key, value in plain[1].items():
        assert torch.equal(value, watched[1][key]), key
    assert torch.equal(plain[2], watched[2])


@pytest.fixture
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("style", ["plain", "amp", "accumulate"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("name", list(MODELS))
def test_eager_training_is_bit_identical(
    name: str, optimizer: str, style: str, tmp_path: Path, one_thread: Any
) -> None:
    _assert_same(_train(name, optimizer, style, None), _train(name, optimizer, style, tmp_path))


@pytest.fixture(scope="module")
def inductor_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Most of these trainings compile the same graphs: each is built once, for plain and watched alike."""
    return tmp_path_factory.mktemp("inductor")


@pytest.mark.filterwarnings("ignore::UserWarning:torch.*")  # dynamo looks at .grad of what it traces
@pytest.mark.parametrize(
    ("name", "optimizer", "style"),
    [
        pytest.param(name, optimizer, style, marks=pytest.mark.slow if (name, style) == ("transformer", "amp") else ())
        for name in MODELS
        for optimizer in ("adamw", "sgd")
        for style in ("plain", "amp", "accumulate")
    ],
)
def test_compiled_training_is_bit_identical(
    name: str,
    optimizer: str,
    style: str,
    tmp_path: Path,
    inductor_cache: Path,
    one_thread: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if shutil.which("c++") is None and shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(inductor_cache))
    plain = _train(name, optimizer, style, None, compiled=True)
    torch._dynamo.reset()
    watched = _train(name, optimizer, style, tmp_path, compiled=True)
    torch._dynamo.reset()
    _assert_same(plain, watched)


def _hooks(model: torch.nn.Module) -> int:
    names = [
        attribute for attribute in vars(model) if attribute.endswith(("_hooks", "_hooks_with_kwargs", "_always_called"))
    ]
    return sum(len(getattr(module, name)) for module in model.modules() for name in names)


def test_nothing_is_left_after_stop(tmp_path: Path) -> None:
    model = MODELS["conv"][0]()
    optimizer = torch.optim.AdamW(model.parameters())
    keys = list(model.state_dict())
    watched = [
        torch.autograd,
        torch.nn.utils.clip_grad,
        torch.nn.utils,
        torch.amp.grad_scaler.GradScaler,
        torch.optim.lr_scheduler,
    ]
    before = [dict(vars(owner)) for owner in watched]
    hook_before, signal_hook = sys.excepthook, sys.__excepthook__
    session = stethoscope.watch(model, optimizer, dir=str(tmp_path), quiet=True, companion="off")
    assert _hooks(model) > 0
    assert SEAMS.num_open > 0
    assert list(model.state_dict()) == keys
    x, y = make_batch("conv", torch.Generator().manual_seed(0))
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    session.stop()
    assert _hooks(model) == 0
    assert SEAMS.num_open == 0
    assert [dict(vars(owner)) for owner in watched] == before
    assert not any(getattr(value, MARK, False) for owner in watched for value in vars(owner).values())
    assert sys.excepthook is hook_before
    assert signal_hook is sys.__excepthook__
    assert len(optimizer._optimizer_step_pre_hooks) == len(optimizer._optimizer_step_post_hooks) == 0
    from torch.optim import optimizer as module

    assert len(module._global_optimizer_pre_hooks) == len(module._global_optimizer_post_hooks) == 0


@pytest.mark.parametrize("name", list(MODELS))
def test_copies_and_pickles_of_a_watched_model_work_and_are_not_watched(name: str, tmp_path: Path) -> None:
    model = MODELS[name][0]()
    session = stethoscope.watch(model, dir=str(tmp_path), quiet=True, companion="off")
    x, _ = make_batch(name, torch.Generator().manual_seed(0))
    twin = copy.deepcopy(model)
    loaded = pickle.loads(pickle.dumps(model))
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=False)
    num_sites = len(session._watcher.table)
    for other in (twin, loaded, saved):
        for first, second in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
            assert torch.equal(first, second)
        other.train()(x).sum().backward()
    assert len(session._watcher.assembly.rows.batches) == 0
    assert len(session._watcher.table) == num_sites
    session.stop()


def test_a_pickle_of_a_watched_model_loads_without_us(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    session = stethoscope.watch(model, dir=str(tmp_path), quiet=True, companion="off")
    raw = pickle.dumps(model)
    session.stop()
    assert b"stethoscope" not in raw


COMPILED_LATER = """
import sys
import torch
from torch.nn import functional as F
import stethoscope
from tests.models import MODELS, make_batch

asked = {"None": None, "True": True}[sys.argv[1]]
torch.set_num_threads(1)
torch.manual_seed(0)
model = MODELS["mlp"][0]()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
runner = torch.compile(model, backend="eager")
session = stethoscope.watch(
    model, optimizer, dir=sys.argv[2], quiet=True, companion="off", every=1, activations=asked
)
tapped = [module for module in model.modules() if module is not model and module._forward_hooks]
assert tapped
x, y = make_batch("mlp", torch.Generator().manual_seed(1))
for _ in range(3):
    optimizer.zero_grad()
    F.cross_entropy(runner(x), y).backward()
    optimizer.step()
hooks = [hook for module in tapped for hook in module._forward_hooks.values()]
assert bool(asked) == bool(hooks), hooks
session.stop()
assert len(session.run.series("*", "gradient", "norm")) == len(list(model.parameters()))
(inputs,) = session.run.series("*", "input", "mean").values()
assert list(inputs.steps) == [0, 1, 2]
print("all held")
"""


@pytest.mark.parametrize("asked", [None, True])
def test_taps_make_way_for_torch_compile_unless_asked_for(asked: bool | None, tmp_path: Path) -> None:
    """The model is handed over bare and called compiled: only its calls can show that.

    In a process of its own: what torch.compile has seen and given up on before stays with a process.
    """
    ran = subprocess.run(
        [sys.executable, "-c", COMPILED_LATER, str(asked), str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "all held" in ran.stdout, ran.stderr
