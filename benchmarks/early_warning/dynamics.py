"""Systems that run away by what feeds back: recurrences, bootstrapped targets, games, variances, temperatures, ranges."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from benchmarks.early_warning.training import Training, diverging
from benchmarks.faults.data import batches, digits
from benchmarks.faults.models import mlp
from torch import nn


@diverging("recurrence whose spectral radius grows, unclipped", steps=800, bad=2.0, good=0.01)
def recurrence_grows(seed: int, rate: float) -> Training:
    """Find a linear system from what it gives: the way back through time is a power of the recurrence."""
    generator = torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(8, 8, generator=generator))[0]

    class System(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.state, self.enter, self.leave = (nn.Linear(a, b, bias=False) for a, b in ((8, 8), (2, 8), (8, 2)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden, out = torch.zeros(len(x), 8), []
            for moment in x.unbind(1):
                hidden = self.state(hidden) + self.enter(moment)
                out.append(self.leave(hidden))
            return torch.stack(out, 1)

    model, truth = System(), System().requires_grad_(False)
    truth.state.weight.copy_(0.9 * turn)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)

    def loss(step: int) -> torch.Tensor:
        x = torch.randn(32, 30, 2, generator=generator)
        return F.mse_loss(model(x), truth(x))

    def warm_up(step: int) -> None:
        optimizer.param_groups[0]["lr"] = rate * (step + 1) / 800

    return Training(model, optimizer, loss, before=warm_up)


@diverging("Q-learning with bootstrapped targets and no target network", steps=1000, bad=0.99, good=0.5)
def bootstrapped_values(seed: int, discount: float) -> Training:
    """States drawn off the policy, values of the best next action as targets: the deadly triad."""
    generator = torch.Generator().manual_seed(seed)
    model = mlp(6, 64, 64, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    turn = torch.linalg.qr(torch.randn(4, 6, 6, generator=generator))[0]

    def loss(step: int) -> torch.Tensor:
        state = torch.randn(64, 6, generator=generator)
        action = torch.randint(4, (64,), generator=generator)
        after = 1.2 * torch.einsum("bij,bj->bi", turn[action], state)
        with torch.no_grad():
            target = state[:, 0] + discount * model(after).amax(1)
        return F.mse_loss(model(state).gather(1, action.unsqueeze(1)).squeeze(1), target)

    return Training(model, optimizer, loss)


@diverging("off-policy temporal differences with shared features (Baird)", steps=1500, bad=0.99, good=0.6)
def baird(seed: int, discount: float) -> Training:
    """Baird's seven states: no bound at all, and it begins with small errors."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.zeros(7, 8)
    features[:6, :6] = 2 * torch.eye(6)
    features[:6, 7] = 1.0
    features[6, 6], features[6, 7] = 1.0, 2.0
    model = nn.Linear(8, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    with torch.no_grad():
        model.weight[0, 6] = 10.0
        model.weight.add_(0.1 * torch.randn(1, 8, generator=generator))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.004)

    def loss(step: int) -> torch.Tensor:
        state = torch.randint(7, (16,), generator=generator)
        with torch.no_grad():
            target = discount * model(features[6])
        return F.mse_loss(model(features[state]).squeeze(1), target.expand(16))

    return Training(model, optimizer, loss)


@diverging("a game of two networks: the discriminator wins", steps=1000, bad=0.002, good=0.0005)
def gan(seed: int, rate: float) -> Training:
    """Non-saturating; the loss is the generator's."""
    data = digits().x
    generator = torch.Generator().manual_seed(seed)
    maker, judge = mlp(8, 64, 64), mlp(64, 64, 1)
    model = nn.ModuleDict({"maker": maker, "judge": judge})
    of_maker = torch.optim.Adam(maker.parameters(), lr=5e-4, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), lr=rate, betas=(0.5, 0.999))

    def judge_turn(step: int) -> None:
        real = data[torch.randint(len(data), (64,), generator=generator)]
        made = maker(torch.randn(64, 8, generator=generator)).detach()
        of_judge.zero_grad()
        (F.softplus(-judge(real)).mean() + F.softplus(judge(made)).mean()).backward()
        of_judge.step()

    def loss(step: int) -> torch.Tensor:
        return F.softplus(-judge(maker(torch.randn(64, 8, generator=generator)))).mean()

    return Training(model, of_maker, loss, before=judge_turn, others=(of_judge,))


@diverging("half precision: a critic without a constraint grows out of the range", steps=1200, bad=0.0, good=0.1)
def critic_out_of_range(seed: int, decay: float) -> Training:
    """A difference of means has no optimum: the outputs of the critic grow until float16 ends."""
    data = digits()
    model = mlp(64, 64, 64, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=decay)
    source = iter(batches(data.x, data.y, size=64, steps=1200, seed=seed))

    def loss(step: int) -> torch.Tensor:
        x, y = next(source)
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(x).squeeze(1)
            sign = torch.where(y < 5, 1.0, -1.0)
            # A healthy one is held by a penalty on its size.
            return (out * sign).mean().float() + (decay > 0) * 0.1 * out.float().square().mean()

    return Training(model, optimizer, loss)


@diverging("Poisson likelihood with an exponential link and a high rate", steps=800, bad=0.3, good=0.003)
def exponential_link(seed: int, rate: float) -> Training:
    generator = torch.Generator().manual_seed(seed)
    model = mlp(4, 32, 32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)

    def loss(step: int) -> torch.Tensor:
        x = torch.randn(64, 4, generator=generator)
        counts = torch.poisson(torch.exp(0.8 * x[:, 0] - 0.5 * x[:, 1] + 0.5), generator=generator)
        return F.poisson_nll_loss(model(x).squeeze(1), counts, full=True)

    def warm_up(step: int) -> None:
        optimizer.param_groups[0]["lr"] = rate * (step + 1) / 800

    return Training(model, optimizer, loss, before=warm_up)


@diverging("a teacher that follows its student, without a normalization", steps=1000, bad=1.1, good=0.9)
def student_and_teacher(seed: int, gain: float) -> Training:
    """The teacher's targets are the student's own outputs, a little larger: a loop with a gain above one."""
    generator = torch.Generator().manual_seed(seed)
    student = mlp(8, 32, 8)
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)

    def loss(step: int) -> torch.Tensor:
        x = torch.randn(64, 8, generator=generator)
        return F.mse_loss(student(x), gain * teacher(x) + 0.1 * x)

    def follow(step: int) -> None:
        with torch.no_grad():
            for mine, own in zip(teacher.parameters(), student.parameters(), strict=True):
                mine.lerp_(own, 0.3)

    return Training(student, optimizer, loss, after=follow)
