"""Labels and how samples are drawn: imbalance, leaks, overlap, order, repetition."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from benchmarks.faults.catalogue import Outcome, finished, program, ready
from benchmarks.faults.data import batches, cancer, digits, moons
from benchmarks.faults.models import mlp
from benchmarks.faults.training import fit, score
from torch.utils.data import DataLoader, IterableDataset

import stethoscope


@program()
def f59_collapse_to_the_majority(seed: int) -> Outcome:
    """Five rare samples in a hundred, hard to tell: saying "common" to all of them is the easy way out."""
    torch.manual_seed(seed)
    data = moons(4000, noise=0.6)
    common, rare = (data.y == 0).nonzero().squeeze(1), (data.y == 1).nonzero().squeeze(1)
    rows = torch.cat([common, rare[: len(common) // 19]])
    model = mlp(2, 32, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, batches(data.x[rows], data.y[rows], steps=250, seed=seed), log_batches=True)
    return finished(session)


@program(site="*17*")
def f60_feature_leaks_the_label(seed: int) -> Outcome:
    """Column 17 of the table was computed from the label."""
    torch.manual_seed(seed)
    data, model = cancer(), mlp(30, 32, 2)
    x = data.x.clone()
    x[:, 17] = data.y.float() * 2 - 1
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Outcome(checkup=ready(model, (x[:400], data.y[:400]), F.cross_entropy, optimizer))


@program()
def f61_train_and_validation_overlap(seed: int) -> Outcome:
    """The validation rows were drawn from the whole table, training rows included."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    val_x, val_y = torch.cat([data.val_x[:64], data.x[:64]]), torch.cat([data.val_y[:64], data.y[:64]])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)

    def validate() -> dict[str, float]:
        session.log_batch(val_x, val_y)
        return score(model, val_x, val_y)

    fit(
        session,
        model,
        optimizer,
        batches(data.x, data.y, steps=120, seed=seed),
        log_batches=True,
        validate=validate,
    )
    return finished(session)


@program(step=0)
def f62_sorted_and_unshuffled(seed: int) -> Outcome:
    """shuffle=False over a folder per class: each batch holds one digit."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    order = data.y.argsort()
    loader = DataLoader(list(zip(data.x[order], data.y[order], strict=True)), batch_size=32, shuffle=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    for _ in range(4):
        fit(session, model, optimizer, loader, log_batches=True)
    return finished(session)


class AugmentedStream(IterableDataset):  # type: ignore[type-arg]
    """Draws samples and their noise from one generator, of which every worker gets a copy."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, seed: int) -> None:
        self.x, self.y, self.seed = x, y, seed

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        generator = torch.Generator(torch.get_default_device()).manual_seed(self.seed)
        for _ in range(60 * 32):
            row = int(torch.randint(len(self.x), (1,), generator=generator))
            noise = 0.1 * torch.randn(64, generator=generator)
            yield self.x[row] + noise, int(self.y[row])


@program(step=1)
def f63_generator_copied_into_workers(seed: int) -> Outcome:
    """Two workers, one seed: every batch comes twice."""
    torch.manual_seed(seed)
    data, model = digits(), mlp(64, 64, 10)
    loader = DataLoader(AugmentedStream(data.x, data.y, seed), batch_size=32, num_workers=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = stethoscope.watch(model, optimizer)
    fit(session, model, optimizer, loader, log_batches=True)
    return finished(session)
