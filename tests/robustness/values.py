"""Rows 31 to 43: tensors of every kind, compiled models, no memory for a snapshot, very many layers, hostile names."""

from __future__ import annotations

import contextlib
import io
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from stethoscope import open_run
from tests.robustness.lab import MOST_EXIT_S, Lab, Outcome
from tests.robustness.processes import start_rank, start_ranks
from tests.robustness.registry import row

STEPS = 6
NAN, INF = math.nan, math.inf


def train_with(tensor: Any, folder: Path | None) -> tuple[list[float], Any]:
    """Losses of a small training whose model also hands out the tensor as a module's output; watched where there is a folder."""
    import torch

    import stethoscope
    from tests.robustness.odd import Odd

    torch.manual_seed(0)
    model = Odd(tensor)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = None
    if folder is not None:
        session = stethoscope.watch(model, optimizer, dir=str(folder), quiet=True, companion="off", every=1)
    generator, losses = torch.Generator().manual_seed(1), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 6, generator=generator)).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if session is not None:
        session.stop()
    return losses, session


def check_tensor(lab: Lab, outcome: Outcome, name: str, tensor: Any, values: Any) -> None:
    """Its row is that of `values`, or it has none and no number; its neighbours have every row; the losses are the plain ones."""
    from stethoscope.kernels import reference
    from stethoscope.store.encoding import stored_floats
    from tests.kernels.agreement import assert_rows_agree

    outcome.tries += 1
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        plain, _ = train_with(tensor, None)
        losses, session = train_with(tensor, lab.new_folder())
    outcome.expect(losses == plain, "harmed", f"{name}: the losses differ")
    block = session.run.block(0, STEPS)
    gaps = []
    for column, info in enumerate(block.sites):
        there = block.present[:, column]
        if info.site.module != "odd":
            gaps += [] if there.all() else [str(info.site)]
        elif values is None:
            held = block.rows[there, column]
            outcome.expect(
                not np.isfinite(held[:, 7:]).any(), "wrong", f"{name}: numbers of a tensor without values: {held[:1]}"
            )
        else:
            outcome.expect(bool(there.all()), "wrong", f"{name}: rows are missing")
            for found in block.rows[there, column]:
                try:
                    assert_rows_agree(found, stored_floats(reference.row(values)[None]))
                except AssertionError as error:
                    outcome.expect(False, "wrong", f"{name}: {str(error)[:200]}")
    outcome.expect(not gaps, "wrong", f"{name}: its neighbours {gaps} have no row at some steps")
    errors = dict(session._watcher.guard.errors)
    outcome.expect(not errors, "wrong", f"{name}: errors inside {errors}")


def check_kernel(outcome: Outcome, name: str, tensor: Any) -> None:
    """The row of a tensor handed to the kernels is that of the reference, and null where nothing is finite."""
    from stethoscope import kernels
    from stethoscope.kernels import reference
    from tests.kernels.agreement import assert_rows_agree

    outcome.tries += 1
    measured = kernels.measure_async([tensor]).result().rows[0]
    try:
        assert_rows_agree(measured, reference.row(tensor))
    except AssertionError as error:
        outcome.expect(False, "wrong", f"{name} of {tensor.dtype}: {str(error)[:200]}")


def odd_values(dtype: Any) -> list[Any]:
    """Tensors of one dtype: everything that can stand in it, nothing finite, a scalar, nothing."""
    import torch

    from tests.kernels.agreement import tensor_of_bits

    warnings.filterwarnings("ignore", "ComplexHalf")
    found = [
        tensor_of_bits(dtype, 4099, 3),
        tensor_of_bits(dtype, 5, 4),
        torch.ones((), dtype=dtype),
        torch.empty(0, 3, dtype=dtype),
    ]
    if dtype.is_floating_point and "e8m0" not in str(dtype):
        found += [torch.full((9,), NAN).to(dtype), torch.tensor([NAN, 0.0, 1e-40, 1.0]).to(dtype)]
    return found


def check_dtypes(lab: Lab, outcome: Outcome, dtypes: Any) -> None:
    for dtype in dtypes:
        for tensor in odd_values(dtype):
            check_kernel(outcome, "any bits", tensor)
        if dtype.is_floating_point or dtype.is_complex:
            tensor = odd_values(dtype)[1]
            check_tensor(lab, outcome, str(dtype), tensor, tensor)


@row(31, "NaN, Inf, subnormal numbers", short=1, long=1)
def hand_out_no_numbers(lab: Lab, tries: int, outcome: Outcome) -> None:
    import torch

    for values in ([NAN, 1.0, INF, -INF, 0.0, 1e-40, 3e38], [NAN] * 3, [INF, -INF], [1e-40, -1e-45]):
        check_tensor(lab, outcome, str(values), torch.tensor(values), torch.tensor(values))
        check_kernel(outcome, str(values), torch.tensor(values).repeat(5000))


@row(32, "complex numbers", short=1, long=1)
def hand_out_complex(lab: Lab, tries: int, outcome: Outcome) -> None:
    from tests.kernels.agreement import COMPLEX

    check_dtypes(lab, outcome, COMPLEX)


@row(33, "bf16, fp16, float64", short=1, long=1)
def hand_out_half_precision(lab: Lab, tries: int, outcome: Outcome) -> None:
    from tests.kernels.agreement import FLOATS

    check_dtypes(lab, outcome, FLOATS)


@row(34, "every fp8", short=1, long=1)
def hand_out_fp8(lab: Lab, tries: int, outcome: Outcome) -> None:
    from tests.kernels.agreement import FP8

    check_dtypes(lab, outcome, FP8)


@row(35, "integers and bool", short=1, long=1)
def hand_out_integers(lab: Lab, tries: int, outcome: Outcome) -> None:
    import torch

    from tests.kernels.agreement import INTEGERS

    check_dtypes(lab, outcome, INTEGERS)
    for tensor in (torch.tensor([1, 0, 2]), torch.tensor([True, False])):
        check_tensor(lab, outcome, str(tensor.dtype), tensor, None)


@row(36, "tensors without dimensions, and empty ones", short=1, long=1)
def hand_out_scalars(lab: Lab, tries: int, outcome: Outcome) -> None:
    import torch

    for tensor in (torch.tensor(3.0), torch.tensor(NAN), torch.empty(0), torch.empty(3, 0, 2)):
        check_tensor(lab, outcome, str(tuple(tensor.shape)), tensor, tensor)


@row(37, "sparse, nested and quantised tensors", short=1, long=1)
def hand_out_sparse(lab: Lab, tries: int, outcome: Outcome) -> None:
    import torch

    dense = torch.tensor([[0.0, 1.0, -2.0], [0.0, 0.0, 5.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_tensor(lab, outcome, "sparse COO", dense.to_sparse(), dense)
        check_tensor(lab, outcome, "sparse CSR", dense.to_sparse_csr(), dense)
        quantised = torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8)
        check_tensor(lab, outcome, "quantised", quantised, None)
        pieces = [torch.ones(2, 3), torch.zeros(4, 3)]
        for layout in (torch.jagged, torch.strided):
            nested = torch.nested.nested_tensor(pieces, layout=layout)
            values = torch.cat(pieces) if recorded(lab, nested) else None
            check_tensor(lab, outcome, f"nested {layout}", nested, values)


def recorded(lab: Lab, tensor: Any) -> bool:
    """Whether its values are measured at all: what is named unsupported must have no numbers instead."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, session = train_with(tensor, lab.new_folder())
    block = session.run.block(0, STEPS)
    return any(
        info.site.module == "odd" and np.isfinite(block.rows[block.present[:, column], column][:, 7:]).any()
        for column, info in enumerate(block.sites)
    )


@row(38, "meta and fake tensors", short=1, long=1)
def hand_out_nothing(lab: Lab, tries: int, outcome: Outcome) -> None:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(3)
    check_tensor(lab, outcome, "fake", fake, None)
    check_tensor(lab, outcome, "meta", torch.ones(3, device="meta"), None)


@row(39, "DTensor shards on two ranks", short=1, long=3)
def shard_a_weight(lab: Lab, tries: int, outcome: Outcome) -> None:
    """Each rank's row is that of its own shard; merged, that of the whole weight."""
    from stethoscope.kernels import reference
    from tests.kernels.agreement import assert_rows_agree

    for _ in range(tries):
        ranks = start_ranks(lab, steps=4)
        for rank, one in enumerate(ranks):
            start_rank(one, rank, "shards.py")
        for one in ranks:
            outcome.expect(one.child.wait() == 0, "harmed", one.child.err[-500:])
        run = open_run(ranks[0].runs / "ranks")
        local = [np.load(ranks[0].folder / f"shard-{rank}.npy") for rank in (0, 1)]
        for rank, values in ((0, local[0]), (1, local[1]), (None, np.concatenate([one.reshape(-1) for one in local]))):
            outcome.tries += 1
            block = run.block(3, 3, rank=rank)
            at = next(n for n, info in enumerate(block.sites) if info.site.kind == "weight")
            try:
                assert_rows_agree(block.rows[0, at], reference.row(values))
            except AssertionError as error:
                outcome.expect(False, "wrong", f"rank {rank}: {str(error)[:200]}")
            outcome.expect(
                tuple(block.sites[at].shape) == (8, 6), "wrong", f"its shape is shown as {block.sites[at].shape}"
            )


@row(40, "torch.compile on the CPU (CUDA graphs need a device)", short=2, long=6)
def compile_the_model(lab: Lab, tries: int, outcome: Outcome) -> None:
    """The bits of a plain compiled training, the right rows, and no graph break: `fullgraph` raises at one."""
    from tests.styles.test_life import test_torch_compile

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for how in ("fullgraph", "after", "before", "in_place", "regional", "function")[:tries]:
            outcome.try_it("harmed", test_torch_compile, how, lab.new_folder())


@row(41, "no memory for a snapshot (host memory: no device here)", short=1, long=3)
def run_short_of_memory(lab: Lab, tries: int, outcome: Outcome) -> None:
    """Captures on a device do not exist yet; a hook's snapshot is what copies a tensor today."""
    for _ in range(tries):
        one = lab.prepare()
        one.start("snapshot.py")
        outcome.tries += 1
        outcome.expect(one.child.wait() == 0, "harmed", f"exit code {one.child.code}: {one.child.err[-500:]}")
        said = one.child.out.split()
        outcome.expect("plain-losses" in said, "harmed", f"the losses are not the plain ones: {said}")
        outcome.expect("snapshot-failed" in said, "wrong", f"the snapshot that found no memory was not counted: {said}")


@row(42, "10,000 layers (1,000 in the short form); layers added during the run", short=1, long=2)
def stack_many_layers(lab: Lab, tries: int, outcome: Outcome) -> None:
    from tests.styles.test_modelling import test_layers_added_and_replaced

    outcome.try_it("wrong", test_layers_added_and_replaced, lab.new_folder())
    num_layers = 10_000 if tries > 1 else 1_000
    one = lab.prepare(steps=8, layers=num_layers, flush_every=0, watch={"companion": "process", "every": 64}).start()
    done = one.finish(outcome, timeout=300)
    words = dict(line.split()[:2] for line in one.child.out.splitlines() if line.startswith(("watching", "began")))
    took = float(words["began"]) - float(words["watching"])
    outcome.expect(took < MOST_EXIT_S, "harmed", f"watch() took {took:.1f} s")
    plain = lab.plain(one.given)
    outcome.expect(len(done.step_ms) == 8, "harmed", f"{len(done.step_ms)} steps")
    slower = sorted(done.step_ms)[4] / sorted(plain.step_ms)[4]
    outcome.expect(slower < 2.0, "harmed", f"a step takes {slower:.1f} times as long as a plain one")


@row(43, "names: unicode, NUL, 10 kB, markup, terminal escapes, duplicates", short=1, long=1)
def name_modules_strangely(lab: Lab, tries: int, outcome: Outcome) -> None:
    import torch

    import stethoscope
    from stethoscope.cli import main
    from tests.store import test_store_reader as names

    outcome.try_it("wrong", names.test_strange_names_make_the_round_trip, lab.new_folder())
    outcome.try_it("wrong", names.test_two_tensors_of_one_name_count_as_one, lab.new_folder())
    hostile = [
        "\x1b[31mred\x1b]0;title\x07",
        "nul\0",
        "<script>alert(1)</script>",
        "\u202egnp",
        "日本語" * 5,
        "n" * 10_000,
        "a\nb\r",
    ]
    model = torch.nn.Sequential()
    for name in hostile:
        model.add_module(name, torch.nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = stethoscope.watch(model, optimizer, dir=str(lab.new_folder()), quiet=True, companion="off")
    for _ in range(4):
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    session.stop()
    outcome.tries += 1
    found = {info.site.module for info in session.run.sites}
    outcome.expect(set(hostile) <= found, "lost", f"names that did not come back: {set(hostile) - found}")
    for command in ("show", "diagnose", "doctor", "list"):
        outcome.tries += 1
        shown, said = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(said):
            main([command, str(session.run.path if command != "list" else session.run.path.parent)])
        raw = set("\x1b\0\x07\u202e\r") & set(shown.getvalue() + said.getvalue())
        outcome.expect(not raw, "wrong", f"`stethoscope {command}` prints {raw} as they are")
