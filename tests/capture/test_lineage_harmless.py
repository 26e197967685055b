"""Following a forward pass changes nothing, leaves nothing, and fails without harm."""

from __future__ import annotations

import copy
import io
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.overrides import _get_current_function_mode_stack

from stethoscope.analyse.graph import Graph
from stethoscope.capture.lineage import Before, Lineage, PartBefore

from .lineage_models import Branches, Experts, ResNet, Shared, Tagger, Transformer, UNet
from .lineage_reading import chain, edges, follow


def hooks_on(model: nn.Module) -> int:
    tables = (
        torch_module._global_forward_hooks,
        torch_module._global_forward_pre_hooks,
        torch_module._global_forward_hooks_with_kwargs,
        torch_module._global_forward_hooks_always_called,
    )
    own = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    return own + sum(len(table) for table in tables) + len(_get_current_function_mode_stack())


def run(model: nn.Module, batch: torch.Tensor, *, followed: bool) -> list[torch.Tensor]:
    torch.manual_seed(3)
    got: list[dict[str, Any]] = []
    if followed:
        Lineage(model, got.append).attach()
    out = model(batch)
    out = out["logits"] if isinstance(out, dict) else out[0] if isinstance(out, tuple) else out
    out.square().mean().backward()
    if followed:
        assert got[0]["status"] == "traced"
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [out.detach(), *gradients, *model.buffers(), torch.get_rng_state()]


@pytest.mark.parametrize(
    ("make", "batch"),
    [
        (ResNet, torch.randn(2, 3, 8, 8)),
        (Transformer, torch.randint(0, 11, (2, 5))),
        (Tagger, torch.randint(0, 9, (2, 7))),
        (UNet, torch.randn(1, 1, 8, 8)),
        (Experts, torch.randn(16, 4)),
        (Branches, torch.randn(2, 4)),
        (lambda: nn.TransformerEncoderLayer(8, 2, 16), torch.randn(2, 5, 8)),
    ],
)
def test_outputs_gradients_and_random_state_are_the_same_to_the_bit(make: Any, batch: torch.Tensor) -> None:
    torch.manual_seed(0)
    plain = make()
    twin = copy.deepcopy(plain)
    for left, right in zip(run(plain, batch, followed=False), run(twin, batch, followed=True), strict=True):
        assert torch.equal(left, right)


def test_nothing_is_left_and_copies_work_at_any_moment() -> None:
    class Copies(Transformer):
        def forward(self, tokens: torch.Tensor) -> dict[str, Any]:
            self.__dict__["twin"] = None
            self.__dict__["twin"] = copy.deepcopy(self), pickle.dumps(self)
            return super().forward(tokens)

    globals()["Copies"] = Copies
    Copies.__qualname__ = "Copies"
    model = Copies()
    before = hooks_on(model)
    lineage = Lineage(model, lambda body: None)
    lineage.attach()
    assert hooks_on(model) == before + 2
    torch.save(copy.deepcopy(model), io.BytesIO())
    tokens = torch.randint(0, 11, (2, 5))
    model(tokens)
    assert lineage.done
    assert hooks_on(model) == before
    twin, pickled = model.__dict__["twin"]
    model.__dict__["twin"] = None
    Transformer.forward(twin, tokens)
    pickle.loads(pickled).eval()(tokens)
    assert hooks_on(model) == before


def test_exceptions_and_interrupts_of_the_user_pass_and_leave_nothing() -> None:
    class Fails(Transformer):
        error: BaseException | None = None

        def forward(self, tokens: torch.Tensor) -> dict[str, Any]:
            out = super().forward(tokens)
            if self.error is not None:
                raise self.error
            return out

    model, tokens = Fails(), torch.randint(0, 11, (2, 5))
    before = hooks_on(model)
    got: list[dict[str, Any]] = []
    lineage = Lineage(model, got.append)
    lineage.attach()
    model.error = ValueError("theirs")
    with pytest.raises(ValueError, match="theirs"):
        model(tokens)
    assert hooks_on(model) == before + 2
    model.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        model(tokens)
    lineage.settle()
    assert hooks_on(model) == before + 2
    model.error = None
    try:
        raise RuntimeError("around the training")
    except RuntimeError:
        model(tokens)
    assert hooks_on(model) == before
    assert [body["status"] for body in got] == ["traced"]


def test_our_own_errors_leave_no_graph_and_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise OSError("ours")

    for target in ("Tags.join", "Tags.wire", "Tags.tag"):
        with monkeypatch.context() as patched:
            patched.setattr(f"stethoscope.capture.lineage_mode.{target}", broken)
            model, got = Transformer(), []
            before = hooks_on(model)
            Lineage(model, got.append).attach()
            model(torch.randint(0, 11, (2, 5)))["logits"].sum().backward()
            assert got[0]["status"] == "unknown"
            assert "ours" in got[0]["reason"]
            assert hooks_on(model) == before


def test_evaluation_is_not_followed() -> None:
    model, got = Shared(), []
    lineage = Lineage(model, got.append)
    lineage.attach()
    with torch.no_grad():
        model(torch.randn(2, 4))
    assert not lineage.done
    lineage.detach()
    assert got == []


def test_memory_of_intermediate_values_is_not_kept() -> None:
    class Drops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.alive = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                big = x * 2
                big += 1
                watched = weakref.ref(big.untyped_storage())
                del big
            self.alive = watched() is not None
            return self.a(x)

    model = Drops()
    follow(model, torch.randn(2, 4))
    assert not model.alive


@pytest.mark.parametrize("how", ["method", "wrapper", "part"])
@pytest.mark.filterwarnings("ignore")
def test_compiled_models_are_followed_on_a_copy(how: str) -> None:
    torch._dynamo.reset()
    graphs: list[Any] = []

    def backend(module: Any, example: Any) -> Any:
        graphs.append(module)
        return module

    model = Branches()
    called: Any = model
    if how == "method":
        model.compile(backend=backend)
    elif how == "wrapper":
        called = torch.compile(model, backend=backend)
    else:
        model.head = torch.compile(model.head, backend=backend)
    before = hooks_on(model)
    got: list[dict[str, Any]] = []
    lineage = Lineage(model, got.append, model=called)
    lineage.attach()
    state = torch.get_rng_state()
    batch = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    called(batch)
    num_graphs = len(graphs)
    called(batch)
    assert torch.equal(state, torch.get_rng_state())
    assert got[0]["status"] == "copy", got
    names = edges(Graph.from_json(got[0]))
    assert {"trained | side", "trained | teacher", "teacher | after"} <= names
    assert hooks_on(model) == before
    assert len(graphs) == num_graphs
    torch._dynamo.reset()


class Halves(nn.Module):
    """Never called as a whole: its training step calls the parts."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)])

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.encoder(x))
        return (self.heads[0](h) - self.heads[1](h)).square().mean()


def test_a_root_that_is_never_called_is_followed_in_parts() -> None:
    torch.manual_seed(0)
    model, got = Halves(), []
    batch = torch.randn(3, 4)
    model.loss(batch).backward()
    wanted = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    before = hooks_on(model)
    lineage = Lineage(model, got.append)
    lineage.attach()
    for _ in range(3):
        model.zero_grad()
        loss = model.loss(batch)
        lineage.settle()
        loss.backward()
        if not lineage.done:
            assert len(_get_current_function_mode_stack()) == 0
            copy.deepcopy(model)
    assert [body["status"] for body in got] == ["parts"]
    graph = Graph.from_json(got[0])
    truth = chain("(input) encoder.0 encoder.1 heads.0 (output)") | chain("encoder.1 heads.1 (output)")
    assert edges(graph) == truth
    assert hooks_on(model) == before
    for left, right in zip(wanted, [p.grad for p in model.parameters()], strict=True):
        assert torch.equal(left, right)


def test_checkpointing_does_not_count_what_the_copy_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stethoscope.capture.lineage._uses_compile", lambda _root: True)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    bodies: list[dict[str, Any]] = []
    lineage = Lineage(model, bodies.append)
    lineage.attach()
    x = torch.randn(2, 4, requires_grad=True)
    torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum().backward()
    lineage.settle()
    lineage.detach()
    assert x.grad is not None
    assert bodies
    assert bodies[0]["status"] != "unknown"


def test_what_was_never_attached_puts_no_hooks_on_parts() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    before = hooks_on(model)
    Lineage(model, lambda _body: None).settle()
    assert hooks_on(model) == before


def test_a_hook_that_another_thread_takes_off_may_be_called_without_keywords() -> None:
    model = nn.Linear(4, 3)
    lineage = Lineage(model, lambda _body: None)
    for hook in (Before(lineage), PartBefore(lineage)):
        assert hook(model, (torch.randn(2, 4),)) is None  # type: ignore[func-returns-value]
