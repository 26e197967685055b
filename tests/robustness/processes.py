"""Rows 18 to 30: several processes, other clocks, workers, threads, hooks that raise, every way to end, several ranks."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

from stethoscope import diagnose, open_run
from tests.robustness.disk import fill
from tests.robustness.lab import Lab, Outcome, SkipRowError, Training, Try, doctor, wait_for_all
from tests.robustness.registry import row

FLAGGED = re.compile(r"another process", re.I)


@row(18, "two processes with the same run name", short=1, long=5)
def share_a_run(lab: Lab, tries: int, outcome: Outcome) -> None:
    for _ in range(tries):
        one = lab.prepare(wait_at=20)
        one.given["watch"]["run"] = str(one.runs / "shared")
        other = Try(lab, one.folder, one.given)
        for each in (one, other):
            each.start()
            assert each.child.wait_for("waiting"), each.child.err
        one.go()
        wait_for_all([one, other])
        for each in (one, other):
            each.finish(outcome)
        run, losses = open_run(one.runs / "shared"), list(map(float.fromhex, one.training.losses))
        lengths = [
            start.last_step - start.first_step + 1
            for start in run.starts
            if None not in (start.first_step, start.last_step)
        ]
        outcome.expect(lengths == [40, 40], "lost", f"two starts of 40 steps are shown with {lengths}")
        # The second goes on counting where the first stood when it came: its steps lie over the first one's last.
        shift, shown = run.starts[-1].first_step or 0, run.metric("loss")
        expected = [losses[step - shift] if step >= shift else losses[step] for step in shown.steps.tolist()]
        outcome.expect(shown.values.tolist() == expected, "wrong", "losses that neither of the two processes had")
        facts = [f"{what} {how}" for what, how, fine in doctor(run) if not fine and FLAGGED.search(f"{what} {how}")]
        outcome.expect(bool(facts), "wrong", f"doctor does not say that two processes wrote at once: {doctor(run)}")


@row(19, "clock jumps back and forth", short=1, long=10)
def move_the_clock(lab: Lab, tries: int, outcome: Outcome) -> None:
    lab.need_shim()
    for number in range(tries):
        one = lab.prepare(steps=60, wait_at=20, pause_s=0.01).start()
        assert one.child.wait_for("waiting"), one.child.err
        jumps = (-3600, 86400, -(10**9)) if number % 2 else (86400, -3600, 10**9)
        one.rules(f"clock shift {jumps[0]} 0 0 -")
        one.go()
        for at, jump in ((30, jumps[1]), (40, jumps[2])):
            one.child.wait_for(f"step {at}")
            one.rules(f"clock shift {jump} 0 0 -")
        done = one.finish(outcome)
        run = one.check_run(outcome)
        assert run is not None
        outcome.expect(run.steps.tolist() == list(range(60)), "lost", "steps are missing or out of order")
        outcome.expect(run.metric("loss").steps.tolist() == list(range(60)), "wrong", "the losses are out of order")
        outcome.expect(run.state == "finished", "wrong", f"a finished run is called {run.state}")
        outcome.expect(max(done.step_ms) < 1000, "harmed", f"a step took {max(done.step_ms)} ms")


@row(20, "step counter restarts on resume", short=1, long=5)
def resume_from_before(lab: Lab, tries: int, outcome: Outcome) -> None:
    for _ in range(tries):
        one = lab.prepare(save_at=20)
        one.given["watch"]["run"] = str(one.runs / "resumed")
        one.start().finish(outcome)
        again = Try(lab, one.folder, one.given | {"resume": True}).start()
        plain = lab.plain(one.given)
        outcome.expect(again.child.wait() == 0, "harmed", again.child.err[-300:])
        outcome.expect(
            again.training.losses == plain.losses[20:], "harmed", "the resumed losses are not the plain ones"
        )
        run = open_run(one.runs / "resumed")
        spans = [(start.first_step, start.last_step) for start in run.starts]
        outcome.expect(spans == [(0, 39), (20, 39)], "wrong", f"the starts are shown as {spans}")
        outcome.lost += len(set(range(40)) - set(run.steps.tolist()))
        # On a busy machine the time between the steps of so small a training is large, and rightly told.
        blamed = [cause for cause in diagnose(run).causes if cause.code != "data_bound"]
        outcome.expect(not blamed, "wrong", f"a healthy resume is blamed: {blamed}")


def load_with_workers(lab: Lab, tries: int, outcome: Outcome, method: str) -> None:
    for _ in range(tries):
        one = lab.prepare(workers=method).start()
        done = one.finish(outcome)
        run = one.check_run(outcome)
        assert run is not None
        outcome.expect(len(run.starts) == 1, "wrong", f"{len(run.starts)} starts: a worker wrote too")
        outcome.lost += len(done.losses) - len(run.steps)


@row(21, "fork in a DataLoader", short=1, long=10)
def fork_workers(lab: Lab, tries: int, outcome: Outcome) -> None:
    load_with_workers(lab, tries, outcome, "fork")


@row(22, "spawn in a DataLoader", short=1, long=3)
def spawn_workers(lab: Lab, tries: int, outcome: Outcome) -> None:
    load_with_workers(lab, tries, outcome, "spawn")


@row(23, "forward in four threads", short=1, long=5)
def forward_in_threads(lab: Lab, tries: int, outcome: Outcome) -> None:
    from tests.styles.test_modelling import test_a_model_called_from_threads

    for _ in range(tries):
        outcome.try_it("wrong", test_a_model_called_from_threads, lab.new_folder())


@row(24, "a user's hook raises", short=1, long=5)
def raise_in_a_hook(lab: Lab, tries: int, outcome: Outcome) -> None:
    from tests.session.training import begin, go_on

    for _ in range(tries):
        outcome.tries += 1
        plain = go_on(begin(lab.new_folder(), mode="off"), 12)
        trained = begin(lab.new_folder())

        @trained.session.on(every=1)
        def broken(context: object) -> None:
            raise ValueError("the user's own")

        go_on(trained, 12)
        is_disabled = trained.session.hooks.stats(1).disabled
        counted = trained.session.stop().summary()["hooks"]
        outcome.expect(trained.losses == plain.losses, "harmed", "the losses differ")
        same = all((a == b).all() for a, b in zip(trained.model.parameters(), plain.model.parameters(), strict=True))
        outcome.expect(same, "harmed", "the weights differ")
        outcome.expect(is_disabled and counted == {"Error": 3}, "harmed", f"not disabled after three times: {counted}")
        told = [event.body["message"] for event in trained.session.run.events("alert")]
        outcome.expect(len(told) == 3 and "disabled" in told[-1], "wrong", f"the run says {told}")


def endings(lab: Lab, tries: int) -> Iterator[tuple[Try, str]]:
    """Trainings at their end, with a companion: as it is, stopped by SIGSTOP, and on a disk that is full."""
    for number in range(tries):
        trouble = ("none", "stopped companion", "full disk")[number % 3]
        one = lab.prepare(wait_at=40, flush_until=0 if trouble == "full disk" else 40, watch={"companion": "process"})
        if trouble == "full disk":
            with lab.small_disk(one.runs, "size=2m"):
                one.start()
                assert one.child.wait_for("waiting"), one.child.err
                fill(one.runs / "ballast")
                yield one, trouble
            continue
        one.start()
        assert one.child.wait_for("waiting"), one.child.err
        stopped = one.companions() if trouble == "stopped companion" else []
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        yield one, trouble
        for pid in stopped:
            os.kill(pid, signal.SIGKILL)


def check_ending(
    one: Try, trouble: str, outcome: Outcome, code: int, since: float | None = None, says: str = ""
) -> None:
    one.finish(outcome, code=code, since=since)
    outcome.expect(
        says in one.child.err, "harmed", f"the user's own {says!r} is not on stderr: {one.child.err[-300:]!r}"
    )
    if trouble == "full disk":
        one.check_told(outcome, one.check_run(outcome))
        return
    run = one.check_run(outcome)
    if run is not None:
        outcome.lost += len(one.training.losses) - len(run.steps)


@row(25, "exception in training; Ctrl-C", short=2, long=12)
def raise_or_interrupt(lab: Lab, tries: int, outcome: Outcome) -> None:
    for number, (one, trouble) in enumerate(endings(lab, tries)):
        if number % 2:
            since = one.child.own_clock()
            one.child.send(signal.SIGINT)
            check_ending(one, trouble, outcome, -signal.SIGINT, since, "KeyboardInterrupt")
            continue
        (one.folder / "raise").touch()
        one.go()
        check_ending(one, trouble, outcome, 1, None, 'KeyError: "the user\'s own"')


@row(26, "sys.exit", short=1, long=6)
def exit_early(lab: Lab, tries: int, outcome: Outcome) -> None:
    for one, trouble in endings(lab, tries):
        (one.folder / "exit").touch()
        one.go()
        check_ending(one, trouble, outcome, 3)


@row(27, "SIGTERM", short=1, long=6)
def terminate(lab: Lab, tries: int, outcome: Outcome) -> None:
    for one, trouble in endings(lab, tries):
        since = one.child.own_clock()
        one.child.send(signal.SIGTERM)
        check_ending(one, trouble, outcome, -signal.SIGTERM, since)


def start_ranks(lab: Lab, **given: object) -> list[Try]:
    """Two ranks in one gloo group, writing to one run."""
    import torch.distributed

    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        raise SkipRowError("torch has no gloo here")
    first = lab.prepare(**given)
    first.given |= {"gloo": str(first.folder / "meeting")}
    first.given["watch"]["run"] = str(first.runs / "ranks")
    return [first, Try(lab, first.folder, dict(first.given))]


def start_rank(one: Try, rank: int, script: str = "train.py") -> None:
    one.start(script, RANK=str(rank), WORLD_SIZE="2", GLOO_SOCKET_IFNAME="lo")


@row(28, "one of two ranks is killed", short=1, long=5)
def kill_a_rank(lab: Lab, tries: int, outcome: Outcome) -> None:
    for _ in range(tries):
        ranks = start_ranks(lab, wait_at=20)
        for rank, one in enumerate(ranks):
            start_rank(one, rank)
        for one in ranks:
            assert one.child.wait_for("waiting"), one.child.err
        ranks[1].child.send(signal.SIGKILL)
        ranks[1].finish(outcome, code=-9)
        ranks[0].go()
        ranks[0].finish(outcome)
        run = open_run(ranks[0].runs / "ranks")
        for rank, (one, count) in enumerate(zip(ranks, (40, one_more(ranks[1].training)), strict=True)):
            steps = set(run.block(0, 99, rank=rank).steps.tolist())
            outcome.lost += len(set(range(count)) - steps) if one.training.kept >= 0 else 0
        how = {start.rank: start.how for start in run.starts}
        outcome.expect(how == {0: "finished", 1: "crashed"}, "wrong", f"the ranks are shown as {how}")
        outcome.expect(run.state == "crashed", "wrong", f"a run that lost a rank is called {run.state}")


def one_more(training: Training) -> int:
    """How many steps are known to be durable."""
    return training.kept + 1


@row(29, "ranks at different steps", short=1, long=5)
def let_a_rank_fall_behind(lab: Lab, tries: int, outcome: Outcome) -> None:
    for _ in range(tries):
        ranks = start_ranks(lab)
        ranks[1].given |= {"wait_at": 20}
        for rank, one in enumerate(ranks):
            start_rank(one, rank)
        ranks[0].finish(outcome)
        assert ranks[1].child.wait_for("waiting"), ranks[1].child.err
        run = open_run(ranks[0].runs / "ranks")
        spans = [run.block(0, 99, rank=rank).steps.tolist() for rank in (0, 1)]
        outcome.expect(spans == [list(range(40)), list(range(20))], "wrong", f"the ranks' own steps are {spans}")
        both = run.block(0, 99)
        outcome.expect(both.steps.tolist() == list(range(40)), "wrong", f"merged steps are {both.steps.tolist()}")
        ranks[1].go()
        ranks[1].finish(outcome)
        run.refresh()
        outcome.lost += 40 - len(run.block(0, 99, rank=1).steps)


@row(30, "collectives counted, with DistributedDataParallel", short=1, long=3)
def count_collectives(lab: Lab, tries: int, outcome: Outcome) -> None:
    for _ in range(tries):
        outcome.tries += 1
        said = []
        for watched in (False, True):
            ranks = start_ranks(lab)
            for rank, one in enumerate(ranks):
                one.given |= {} if watched else {"watch": None}
                start_rank(one, rank, "ranks.py")
            for one in ranks:
                outcome.expect(one.child.wait() == 0, "harmed", one.child.err[-500:])
            said.append([one.child.out for one in ranks])
        outcome.expect(said[0] == said[1] and "collectives" in said[0][0], "harmed", f"plain and watched: {said}")
        run = open_run(Path(ranks[0].runs) / "ranks")
        outcome.expect(run.ranks == (0, 1), "wrong", f"ranks {run.ranks} wrote")
