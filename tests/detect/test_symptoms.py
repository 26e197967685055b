"""Symptoms over curves whose truth is known, and what is no evidence of learning."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from stethoscope.detect.symptoms import LossFamily, LossKind, Progress, learning, symptoms
from stethoscope.detect.symptoms.loss_kind import loss_kind
from stethoscope.record import Series
from stethoscope.record.events import Backward, LossGraph

CLASSES = LossKind(LossFamily.CLASSES, "NllLoss", 10, is_mean=True)
BINARY = LossKind(LossFamily.BINARY, "BinaryCrossEntropyWithLogits", is_mean=True)
DISTANCE = LossKind(LossFamily.DISTANCE, "MseLoss", is_mean=True)
UNKNOWN = LossKind(LossFamily.UNKNOWN, operations=("Neg", "Mean", "Mul"))
CHANCE = math.log(10)


def curve(*parts: tuple[float, float, int], noise: float = 0.02) -> Series:
    """Straight pieces from one level to another, with noise."""
    values = np.concatenate([np.linspace(first, last, count) for first, last, count in parts])
    random = np.random.default_rng(hash((parts, noise)) % 2**32)  # the same in whatever order tests run
    values = values * (1.0 + noise * random.standard_normal(len(values)))
    return Series(np.arange(len(values)), values)


def run(loss: Series, kind: LossKind = CLASSES, **more: object) -> Progress:
    return Progress(loss, kind, first_step=0, last_step=len(loss) - 1, **more)  # type: ignore[arg-type]


def names(progress: Progress) -> list[str]:
    return [symptom.name for symptom in symptoms(progress)]


FALLS = curve((2.3, 0.2, 200))
STANDS = curve((2.3, 2.3, 200))


def test_what_falls_far_below_guessing_learns() -> None:
    assert names(run(FALLS)) == []
    found = learning(run(FALLS))
    assert found.learns
    assert "guessing among 10 classes gives 2.3" in found.message
    assert found.limits, "nothing was validated, and that is said"


@pytest.mark.parametrize(
    ("progress", "name", "step"),
    [
        (run(STANDS), "does_not_learn", 0),
        (run(curve((40.0, 2.3, 50), (2.3, 2.3, 150))), "does_not_learn", 49),
        (run(curve((2.3, 0.3, 100), (0.3, 9.0, 50), (9.0, 9.0, 50))), "diverges", 105),
        (run(Series(np.arange(100), np.r_[np.full(60, 1.0), np.full(40, np.nan)])), "not_a_number", 60),
        (run(curve((0.5, -0.8, 100))), "impossible_value", 39),
        (run(curve((1.0, 1.0, 200)), DISTANCE, target_variance=1.0), "does_not_learn", 0),
        (run(curve((0.693, 0.693, 200)), BINARY), "does_not_learn", 0),
    ],
)
def test_each_symptom_with_its_beginning(progress: Progress, name: str, step: int) -> None:
    found = symptoms(progress)
    assert found[0].name == name
    assert abs(found[0].first_step - step) <= 15
    assert found[0].last_step == progress.last_step
    assert found[0].evidence[0].before is not None, "a size stands against a baseline"
    assert not learning(progress).learns or name in ("diverges", "not_a_number", "impossible_value")


def test_swings_are_counted_from_where_they_began() -> None:
    values = curve((2.3, 0.2, 100), (0.2, 0.2, 100)).values
    values[[120, 140, 160, 180]] = 30.0
    (found,) = symptoms(run(Series(np.arange(200), values)))
    assert (found.name, found.first_step) == ("swings", 120)


def test_a_game_that_stands_at_chance_is_no_symptom() -> None:
    """Of two networks against each other a loss near that of guessing is what balance looks like."""
    assert names(run(STANDS, num_losses=2)) == []


def test_a_loss_that_is_scaled_is_not_held_against_chance() -> None:
    graph = LossGraph(operations=(("Mul", ()), ("NllLoss", ()), ("LogSoftmax", (8, 10))), num_classes=10)
    scaled = loss_kind(graph, Backward(factor=1e-6, by="NllLoss", num_targets=8.0))
    assert not scaled.is_mean
    flat = Series(np.arange(200), np.full(200, 2.3e-6))
    assert run(flat, scaled).chance is None
    assert not learning(run(flat, scaled)).learns
    plain = loss_kind(graph, Backward(factor=1.0, by="NllLoss", num_targets=8.0))
    assert run(STANDS, plain).chance == CHANCE


def test_an_error_with_its_sign_turned_round() -> None:
    operations = (("Neg", ()), ("NllLoss", ()), ("LogSoftmax", (8, 10)))
    negated = loss_kind(LossGraph(operations=operations, num_classes=10), None)
    assert negated.is_negated
    assert not negated.measures_error
    grows = Series(np.arange(100), np.linspace(-2.3, -40.0, 100))
    assert names(run(grows, negated)) == ["errors_grow"]
    assert names(run(grows, negated, num_losses=2)) == [], "one side of a game may want errors"
    back = loss_kind(LossGraph(operations=(("Neg", ()), ("Mean", ()), *operations), num_classes=10), None)
    assert not back.is_negated


def test_the_prior_alone_is_no_learning() -> None:
    """Nine of ten samples are of one class: a loss far below ln 10 is what the frequencies give."""
    prior = 0.9 * math.log(1 / 0.9) + 0.1 * math.log(9 / 0.1)
    skewed = curve((2.3, prior, 40), (prior, prior, 160))
    assert names(run(skewed, label_entropy=prior)) == ["does_not_learn"]
    collapsed = learning(run(skewed, same_class=1.0))
    assert not collapsed.learns
    assert "one and the same class" in collapsed.message
    assert not learning(run(curve((2.3, 1.6, 200)))).learns, "the frequencies of ten classes may explain that much"


def test_a_model_that_answers_the_mean_is_no_learning() -> None:
    falls = curve((100.0, 1.0, 50), (1.0, 1.0, 150))
    assert learning(run(falls, DISTANCE, output_std=1.0)).learns
    assert not learning(run(falls, DISTANCE, output_std=0.01)).learns
    assert names(run(falls, DISTANCE, target_variance=1.0)) == ["does_not_learn"]


@pytest.mark.parametrize(
    "progress",
    [
        run(curve((1.0, -30.0, 200)), UNKNOWN),
        run(curve((0.1, 90.0, 200)), UNKNOWN),
        run(FALLS, num_losses=2),
        run(FALLS, is_mixed=True),
        run(Series(np.empty(0, np.int64), np.empty(0))),
        run(curve((2.3, 2.2, 8))),
        run(curve((1.0, 1.0, 200)), DISTANCE),
        run(curve((0.2, 0.2, 200))),
        run(curve((2.3, 0.3, 100), (0.3, 1.5, 50), (1.5, 1.5, 50))),
    ],
    ids=["falling", "rising", "game", "mixed", "no loss", "short", "no baseline", "pretrained", "risen"],
)
def test_what_cannot_be_told_is_neither_trouble_nor_learning(progress: Progress) -> None:
    assert names(progress) == []
    found = learning(progress)
    assert not found.learns
    assert found.message.endswith(".")
    assert found.line, "the line that would tell"


def test_a_reward_tells_where_the_loss_does_not() -> None:
    reward = {"reward": curve((0.1, 0.9, 50))}
    found = learning(run(curve((0.0, 0.1, 200)), UNKNOWN, validation=reward))
    assert found.learns
    assert found.message.startswith("reward rose from 0.138 to 0.775")


def test_a_score_that_only_jitters_shows_no_learning() -> None:
    """Not by its first value either, which jitters as much as the others."""
    loss, told = curve((0.0, 0.1, 200)), 0
    for number in range(300):
        values = 0.1 * (1.0 + 0.3 * np.random.default_rng(number).standard_normal(50))
        told += learning(run(loss, UNKNOWN, validation={"reward": Series(np.arange(50), values)})).learns
    assert told <= 3


def test_no_symptom_before_the_rate_has_warmed_up_or_while_the_loss_falls() -> None:
    assert names(run(STANDS, warm_up_ends=180)) == []
    assert names(run(curve((2.6, 2.26, 200), noise=0.001))) == []
    assert names(run(STANDS, is_live=True)) == [], "a live run is given longer"
    assert names(run(Series(np.arange(75), np.linspace(2.36, 2.24, 75)))) == [], "slow is not stuck"


def test_validation_that_parts_from_training() -> None:
    steps = np.arange(20, 201, 20)

    def against(values: list[float], name: str = "eval/loss") -> Progress:
        return run(FALLS, validation={name: Series(steps, np.array(values))})

    assert names(against([2.3, 2.6, 3, 3.4, 3.8, 4, 4.4, 5, 5.5, 6])) == ["parts_from_training"]
    assert names(against([2.3, 1, 0.5, 0.4, 0.4, 0.9, 1.8, 3, 4, 5])) == ["parts_from_training"]
    assert names(against([0.5, 0.9, 0.9, 0.9, 0.9, 0.6, 0.5, 0.4, 0.4, 0.4], "eval/accuracy")) == [
        "parts_from_training"
    ]
    good = against([2, 1.5, 1, 0.8, 0.6, 0.5, 0.4, 0.35, 0.3, 0.3])
    assert names(good) == []
    assert learning(good).learns
    stands = dataclasses.replace(good, loss=curve((2.3, 2.2, 200)))
    assert names(stands) == ["parts_from_training"], "validation is far better than training ever was"


@pytest.mark.parametrize(
    ("operations", "family"),
    [
        (["NllLoss", "LogSoftmax"], LossFamily.CLASSES),
        (["Div", "NllLoss", "LogSoftmax"], LossFamily.CLASSES),
        (["Mean", "Pow", "Sub", "Addmm"], LossFamily.DISTANCE),
        (["MseLoss", "Addmm"], LossFamily.DISTANCE),
        (["BinaryCrossEntropyWithLogits"], LossFamily.BINARY),
        (["CompiledFunction"], LossFamily.OPAQUE),
        ([], LossFamily.OPAQUE),
        (["Neg", "NllLoss", "LogSoftmax"], LossFamily.CLASSES),
        (["Neg", "Mean", "Pow", "Sub"], LossFamily.UNKNOWN),
        (["Sub", "Neg", "Mul", "Mean"], LossFamily.UNKNOWN),
        (["Mean", "ClampMin", "Sub"], LossFamily.UNKNOWN),
    ],
)
def test_the_kind_of_loss_is_read_from_its_graph(operations: list[str], family: LossFamily) -> None:
    graph = LossGraph(operations=tuple((name, ()) for name in operations), num_classes=10)
    assert loss_kind(graph, None).family is family


def test_a_sum_over_the_batch_has_no_baseline() -> None:
    mean = LossGraph(operations=(("NllLoss", ()), ("LogSoftmax", (64, 10))), num_classes=10)
    assert run(
        curve((23.0, 23.0, 200)), loss_kind(mean, Backward(factor=1.0, by="NllLoss", num_targets=64.0))
    ).chance == pytest.approx(CHANCE)
    assert (
        run(curve((147.0, 147.0, 200)), loss_kind(mean, Backward(factor=1.0, by="NllLoss", num_targets=0.0))).chance
        is None
    )
    terms = LossGraph(operations=(("Add", ()), ("NllLoss", ()), ("LogSoftmax", (64, 10))), num_classes=10)
    assert run(STANDS, loss_kind(terms, None)).chance is None
