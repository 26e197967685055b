"""A bench for ways to train: each is run without and with watching, and judged against hooks of the test's own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

import stethoscope
from stethoscope.kernels import reference
from stethoscope.kernels.columns import COLUMNS, merge
from stethoscope.record import Kind, Site
from stethoscope.session import DebugSession
from tests.capture.test_rows import _assert_row, _flatten, _site

Key = tuple[int, Site]
AT_STEPS = (Kind.GRADIENT, Kind.WEIGHT, Kind.UPDATE, Kind.OPTIMIZER_STATE)


class Truth:
    """Rows in float64, by hooks on the user's side of the framework: modules, outputs, optimizer instances."""

    def __init__(self) -> None:
        self.rows: dict[Key, Any] = {}
        self.calls: dict[Key, int] = defaultdict(int)
        self.step = 0
        self.scale: Callable[[], float] = lambda: 1.0
        """What gradients are multiplied by when an optimizer sees them."""
        self._before: dict[int, dict[str, torch.Tensor]] = {}

    def see(self, site: Site, tensor: torch.Tensor, scale: float = 1.0) -> None:
        tensor = tensor.detach().cpu().clone()
        if tensor.is_sparse:
            tensor = tensor.to_dense()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        row = reference.row(tensor.to(torch.float64) / scale)
        row[COLUMNS.index("num_tiny")] = reference.row(tensor)[COLUMNS.index("num_tiny")]
        key = (self.step, site)
        self.rows[key] = merge(self.rows[key], row) if key in self.rows else row
        self.calls[key] += 1

    def modules(self, model: torch.nn.Module, prefix: str = "") -> None:
        """Hooks on every module's output and its gradient."""
        containers = (torch.nn.Sequential, torch.nn.ModuleList)
        for path, module in model.named_modules():
            full = ".".join(filter(None, (prefix, path)))
            if path and type(module) not in containers:
                module.register_forward_hook(lambda _m, _a, out, p=full: self._output(p, out))
        model.register_forward_hook(lambda _m, _a, out: self._root(prefix, out))

    def _root(self, prefix: str, out: Any) -> None:
        if torch.is_grad_enabled():
            for name, tensor in _flatten(out):
                self.see(Site(prefix, Kind.OUTPUT, name), tensor)

    def _output(self, path: str, out: Any) -> None:
        if not torch.is_grad_enabled():
            return
        for name, tensor in _flatten(out):
            if not tensor.is_floating_point() and not tensor.is_complex():
                continue
            self.see(Site(path, Kind.ACTIVATION, name), tensor)
            if tensor.requires_grad:
                site = Site(path, Kind.ACTIVATION_GRADIENT, name)
                tensor.register_hook(lambda g, s=site: self.see(s, g))

    def optimizer(self, optimizer: Any, names: dict[str, torch.Tensor]) -> None:
        """Hooks on one optimizer: gradients before (after, with a closure), the rest after."""
        by_id = {id(p): name for name, p in names.items()}

        def mine() -> Iterable[tuple[str, torch.Tensor]]:
            for group in optimizer.param_groups:
                for p in group["params"]:
                    if id(p) in by_id:
                        yield by_id[id(p)], p

        def gradients() -> None:
            for name, p in mine():
                if p.grad is not None:
                    self.see(_site(name, Kind.GRADIENT), p.grad, self.scale())

        closure: list[bool] = []

        def before(_o: Any, args: Any, kwargs: Any) -> None:
            closure[:] = [bool(kwargs.get("closure")) or len(args) > 1]
            if not closure[0]:
                gradients()
            self._before[id(optimizer)] = {name: p.detach().clone() for name, p in mine()}

        def after(_o: Any, _args: Any, _kwargs: Any) -> None:
            if closure[0]:
                gradients()
            for name, p in mine():
                self.see(_site(name, Kind.WEIGHT), p)
                old = self._before[id(optimizer)][name]
                wide = torch.complex128 if p.is_complex() else torch.float64
                self.see(_site(name, Kind.UPDATE), p.detach().to(wide) - old.to(wide))
                for key, value in optimizer.state[p].items():
                    if isinstance(value, torch.Tensor) and value.dim() and value.is_floating_point():
                        self.see(_site(name, Kind.OPTIMIZER_STATE, f".{key}"), value)

        # Where the step is compiled, what the test itself computes is not to be: it would take most of the time.
        optimizer.register_step_pre_hook(torch.compiler.disable(before))
        optimizer.register_step_post_hook(torch.compiler.disable(after))


class Bench:
    """What a style trains on: with a folder it is watched and checked, without it runs plain."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.session: DebugSession | None = None
        self.truth = Truth()
        self.losses: list[float] = []
        self.num_steps = 0
        self._models: dict[str, torch.nn.Module] = {}
        self.dtype = torch.float32
        torch.manual_seed(5)

    def watch(self, model: Any, *optimizers: Any, given: bool = True, hooks: bool = True, **settings: Any) -> None:
        """Begin: the truth's hooks first, then ours."""
        self._models = dict(model) if isinstance(model, dict) else {"": model}
        if self.folder is None:
            return
        names = {
            ".".join(filter(None, (prefix, name))): p
            for prefix, m in self._models.items()
            for name, p in m.named_parameters()
        }
        if hooks:
            for prefix, m in self._models.items():
                self.truth.modules(m, prefix)
        for optimizer in optimizers:
            self.truth.optimizer(optimizer, names)
        self.session = stethoscope.watch(
            model,
            list(optimizers) if given else None,
            **{"dir": str(self.folder), "quiet": True, "companion": "off", "every": 1} | settings,
        )

    def tick(self, loss: Any) -> None:
        """The user's own idea of a step is over."""
        self.losses.append(float(loss.detach() if isinstance(loss, torch.Tensor) else loss))
        self.num_steps += 1
        self.truth.step += 1

    def state(self) -> dict[str, torch.Tensor]:
        return {
            f"{prefix}/{name}": value.detach().clone()
            for prefix, model in self._models.items()
            for name, value in model.state_dict().items()
            if isinstance(value, torch.Tensor)
        }

    def finish(self) -> stethoscope.Run:
        assert self.session is not None
        self.session.stop()
        errors = self.session._watcher.guard
        assert sum(errors.errors.values()) == 0, errors.last_traceback
        return self.session.run

    def compare(self, run: stethoscope.Run, kinds: tuple[Kind, ...] | None = None) -> int:
        """Every row of the run is the truth's, and every one of the truth's is in the run."""
        block = run.block(0, max(self.num_steps, 1))
        kinds = kinds or (*AT_STEPS, Kind.ACTIVATION, Kind.ACTIVATION_GRADIENT, Kind.OUTPUT)
        seen: set[Key] = set()
        for place, info in enumerate(block.sites):
            if info.site.kind not in kinds:
                continue
            for at, step in enumerate(block.steps):
                if block.present[at, place]:
                    key = (int(step), info.site)
                    assert key in self.truth.rows, f"{key} was not measured by the test"
                    _assert_row(block.rows[at, place], self.truth.rows[key], f"{info.site} at {step}", self.dtype)
                    assert block.calls[at, place] == self.truth.calls[key], key
                    seen.add(key)
        missing = {key for key in self.truth.rows if key[1].kind in kinds} - seen
        assert not missing, sorted(map(str, missing))[:5]
        return len(seen)


Style = Callable[[Bench], None]


def judge(
    style: Style,
    folder: Path,
    *,
    kinds: tuple[Kind, ...] | None = None,
    steps: int | None = None,
    identical: bool = True,
    silent: bool = True,
) -> Bench:
    """Plain, then watched: the same bits, the right rows, the right number of steps, nothing said."""
    plain = Bench(None)
    style(plain)
    watched = Bench(folder)
    style(watched)
    assert watched.session is not None
    run = watched.finish()
    assert watched.session.step == (watched.num_steps if steps is None else steps)
    if identical:
        assert plain.losses == watched.losses
        before, after = plain.state(), watched.state()
        assert list(before) == list(after)
        for name, value in before.items():
            assert torch.equal(value, after[name]), name
    assert watched.compare(run, kinds) > 0
    if silent:
        assert watched.session.diagnosis.causes == ()
    return watched
