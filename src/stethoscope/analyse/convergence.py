"""What a loss curve says: falling, settled, stuck, swinging or running away; steady or not; fitting too much
or too little.

Losses are in time order, oldest first. Thresholds are relative to the curve's own noise and to how far it has
come, so that an ordinary noisy curve is called what it is. Every answer carries its reason and its numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from stethoscope.analyse.trends import Direction, finite, mann_kendall, noise, oscillation
from stethoscope.record import FloatArray, plural

WINDOW = 20
IMPROVEMENT = 0.001
VARIANCE = 0.1
PLATEAU = 10
OVERFIT_GAP = 0.05
MIN_LOSSES = 5
SETTLED = 0.5
"""A loss that has fallen by this share of its first value and is flat now has converged; one that has not is
stuck."""


class ConvergenceStatus(StrEnum):
    """Where a loss curve stands."""

    CONVERGING = "Converging"
    CONVERGED = "Converged"
    DIVERGING = "Diverging"
    OSCILLATING = "Oscillating"
    PLATEAU = "Plateau"
    UNKNOWN = "Unknown"


class TrainingStability(StrEnum):
    """How steady a loss curve is around its own course."""

    STABLE = "Stable"
    UNSTABLE = "Unstable"
    HIGH_VARIANCE = "HighVariance"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A status, why, and the numbers behind it."""

    status: str
    reason: str
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Onset:
    """Something that began at a step and goes on: a plateau, overfitting, a loss of speed."""

    step: int
    reason: str
    numbers: dict[str, float] = field(default_factory=dict)


def convergence(losses: npt.ArrayLike, *, window: int = WINDOW, improvement: float = IMPROVEMENT) -> Verdict:
    """Where the curve stands now; see `ConvergenceStatus`."""
    raw = np.asarray(losses, dtype=np.float64).reshape(-1)
    values = finite(raw)
    if len(raw) and not np.isfinite(raw[-3:]).all():
        return Verdict(ConvergenceStatus.DIVERGING, "the loss is no longer a finite number")
    if len(values) < MIN_LOSSES:
        return Verdict(ConvergenceStatus.UNKNOWN, f"only {plural(len(values), 'loss', 'losses')} so far")
    recent = values[-max(window, len(values) // 4) :]
    for test in (_find_divergence, _find_oscillation):
        found = test(values, recent, window)
        if found is not None:
            return found
    falling = _find_fall(values, recent, window, improvement)
    if falling is not None:
        return falling
    if len(values) < PLATEAU:
        return Verdict(ConvergenceStatus.UNKNOWN, f"no clear course in {len(values)} losses")
    return _judge_plateau(values, recent)


def _find_fall(values: FloatArray, recent: FloatArray, window: int, improvement: float) -> Verdict | None:
    """A fall in the last quarter, or one in the last half that the last quarter still carries on."""
    for part in (recent, values[-2 * len(recent) :]):
        enough = len(part) >= window
        trend = mann_kendall(part, alpha=0.01 if enough else 0.05, correlated=enough)
        fall = -trend.slope * (len(part) - 1)
        level = float(np.median(part))
        late = mann_kendall(recent)
        goes_on = part is recent or (late.tau < 0 and late.p_value < 0.3)
        large = fall > improvement * max(abs(level), abs(level + fall))
        if trend.direction is Direction.FALLING and large and goes_on:
            reason = f"fell by {fall:.3g} over the last {len(part)} losses (p = {trend.p_value:.1g})"
            numbers = {"level": float(np.median(recent)), "fall": fall, "p_value": trend.p_value}
            return Verdict(ConvergenceStatus.CONVERGING, reason, numbers)
    return None


def _find_divergence(values: FloatArray, recent: FloatArray, window: int) -> Verdict | None:
    block = max(3, min(window // 2, len(values) // 4))
    medians = _block_medians(values, block)
    best, now = float(medians.min()), float(np.median(recent[-block:]))
    fallen = float(medians[0]) - best
    rise = now - best
    jitter = noise(recent)
    if rise <= max(0.5 * fallen, 0.2 * abs(best), 4.0 * jitter):
        return None
    # A curve that has doubled and lost all it had gained needs no allowance for wobbling.
    clear = rise > max(fallen, abs(best), 8.0 * jitter)
    tail = values[-max(2 * block, len(recent)) :]
    trend = mann_kendall(tail, alpha=0.01 if clear or len(values) < window else 1e-3, correlated=not clear)
    if trend.direction is not Direction.RISING:
        return None
    reason = f"rose from {best:.3g} to {now:.3g} (p = {trend.p_value:.1g})"
    return Verdict(ConvergenceStatus.DIVERGING, reason, {"best": best, "level": now, "p_value": trend.p_value})


def _find_oscillation(values: FloatArray, recent: FloatArray, window: int) -> Verdict | None:
    tail = values[-2 * window :] if len(values) >= 2 * window else values
    level = float(np.median(tail))
    swing = oscillation(tail, amplitude=0.05 * abs(level))
    if not swing.found or mann_kendall(recent, alpha=0.01).direction is Direction.FALLING:
        return None
    reason = f"swings by ±{swing.amplitude:.3g} around {level:.3g} every {swing.period:.1f} losses"
    numbers = {"amplitude": swing.amplitude, "period": swing.period, "p_value": swing.p_value, "level": level}
    return Verdict(ConvergenceStatus.OSCILLATING, reason, numbers)


def _judge_plateau(values: FloatArray, recent: FloatArray) -> Verdict:
    first = float(np.median(values[: max(1, min(3, len(values) // 5))]))
    level = float(np.median(recent))
    gained = (first - level) / abs(first) if first else 0.0
    numbers = {"level": level, "first": first, "gained": gained}
    if gained >= SETTLED:
        reason = f"flat at {level:.3g} after falling from {first:.3g}"
        return Verdict(ConvergenceStatus.CONVERGED, reason, numbers)
    return Verdict(ConvergenceStatus.PLATEAU, f"flat at {level:.3g}; it began at {first:.3g}", numbers)


def _block_medians(values: FloatArray, block: int) -> FloatArray:
    whole = len(values) // block * block
    medians: FloatArray = np.median(values[len(values) - whole :].reshape(-1, block), axis=1)
    return medians


def stability(losses: npt.ArrayLike, *, window: int = WINDOW, variance: float = VARIANCE) -> Verdict:
    """How steady the curve is: `Unstable` for jumps and non-finite values, `HighVariance` for wide noise.

    The variance is that of the recent losses around their running median, relative to the square of their
    level.
    """
    raw = np.asarray(losses, dtype=np.float64).reshape(-1)
    values = finite(raw)
    if len(raw) < MIN_LOSSES:
        return Verdict(TrainingStability.UNKNOWN, f"only {plural(len(raw), 'loss', 'losses')} so far")
    num_bad = int((~np.isfinite(raw[-window:])).sum())
    if num_bad:
        return Verdict(TrainingStability.UNSTABLE, f"{num_bad} of the last losses are not finite")
    recent = values[-window:]
    course = running_median(recent, 7)
    residual = recent - course
    low, high = np.percentile(values, [5, 95])
    scale = abs(float(np.median(recent))) + 0.1 * float(high - low) + 0.5 * float(np.ptp(course))
    spread = 1.4826 * float(np.median(np.abs(residual)))
    before = np.array(
        [np.median(values[max(0, i - 5) : i]) for i in range(len(values) - len(recent), len(values)) if i]
    )
    jumps = int((recent[-len(before) :] - before > max(8.0 * spread, 0.5 * scale)).sum()) if scale > 0 else 0
    relative = float(np.var(residual)) / scale**2 if scale > 0 else 0.0
    numbers = {"relative_variance": relative, "jumps": float(jumps)}
    if jumps >= 2:
        return Verdict(TrainingStability.UNSTABLE, f"{jumps} jumps in the last {len(recent)} losses", numbers)
    if convergence(raw, window=window).status == ConvergenceStatus.DIVERGING:
        return Verdict(TrainingStability.UNSTABLE, "the loss runs away", numbers)
    if relative > variance:
        reason = f"the losses vary by {100 * relative**0.5:.0f}% of their level"
        return Verdict(TrainingStability.HIGH_VARIANCE, reason, numbers)
    return Verdict(TrainingStability.STABLE, "the losses keep close to their course", numbers)


def plateau(
    steps: Sequence[int], losses: npt.ArrayLike, *, length: int = PLATEAU, improvement: float = IMPROVEMENT
) -> Onset | None:
    """Since when the loss has stopped improving, where that has lasted `length` losses or more."""
    raw = np.asarray(losses, dtype=np.float64).reshape(-1)
    kept = np.isfinite(raw)
    values, at = raw[kept], np.asarray(steps)[kept]
    if len(values) < length + MIN_LOSSES // 2:
        return None
    smooth = running_median(values, 5)
    least = max(improvement * abs(float(np.median(smooth))), noise(values))
    last, best = 0, smooth[0]
    for index, value in enumerate(smooth):
        if value < best - least:
            last, best = index, value
    tail = values[last + 1 :]
    # A curve that runs away does not stand still either, and one that is no longer finite is no level.
    moving = (ConvergenceStatus.CONVERGING, ConvergenceStatus.DIVERGING)
    if len(tail) < length or convergence(raw).status in moving:
        return None
    level = float(np.median(tail))
    reason = f"no improvement for {len(tail)} losses; the level is {level:.3g}"
    return Onset(int(at[last]), reason, {"level": level, "length": float(len(tail))})


def running_median(values: FloatArray, width: int) -> FloatArray:
    """The median of each value and its neighbours; the ends use what there is."""
    half = width // 2
    padded = np.concatenate([np.full(half, np.nan), values, np.full(half, np.nan)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)
    medians: FloatArray = np.nanmedian(windows, axis=1) if len(values) else values
    return medians


@dataclass(frozen=True, slots=True)
class Curve:
    """Values at steps, both in time order."""

    steps: Sequence[int]
    values: Sequence[float]

    def known(self) -> tuple[npt.NDArray[np.int64], FloatArray]:
        """Steps and values where the value is finite."""
        values = np.asarray(self.values, dtype=np.float64)
        kept = np.isfinite(values)
        return np.asarray(self.steps, dtype=np.int64)[kept], values[kept]


def overfitting(train: Curve, validation: Curve, *, gap: float = OVERFIT_GAP) -> Onset | None:
    """Since when the validation loss rises while the training loss does not; None where it does not.

    The rise must exceed three times the validation curve's own noise and `gap` of its best level, hold as a
    trend, and widen the distance to the training loss.
    """
    steps, values = validation.known()
    train_steps, train_values = train.known()
    if len(values) < 5 or len(train_values) < 5:
        return None
    smooth = running_median(values, 3)
    best = int(np.argmin(smooth))
    tail = values[best:]
    if len(tail) < 4:
        return None
    low, now = float(smooth[best]), float(np.median(values[-3:]))
    rise = now - low
    if (
        rise <= max(3.0 * noise(values), gap * abs(low))
        or mann_kendall(tail, alpha=0.05).direction is not Direction.RISING
    ):
        return None
    train_then, train_now = (
        _level_at(train_steps, train_values, int(steps[best])),
        float(np.median(train_values[-5:])),
    )
    if train_now > train_then + noise(train_values) or (now - train_now) - (low - train_then) <= gap * abs(low):
        return None
    reason = (
        f"validation loss rose from {low:.3g} to {now:.3g} since step {int(steps[best]):,} "
        f"while the training loss went from {train_then:.3g} to {train_now:.3g}"
    )
    numbers = {
        "best": low,
        "now": now,
        "train_then": train_then,
        "train_now": train_now,
        "gap": now - train_now,
    }
    return Onset(int(steps[best]), reason, numbers)


def overfitting_by_accuracy(train: Curve, validation: Curve, *, gap: float = OVERFIT_GAP) -> Onset | None:
    """The same from accuracies alone: since when validation no longer gains while training goes on to.

    Since validation came as far as it ever would, training must have gained on it by more than `gap` and more than three
    times the validation curve's noise, as a trend; two curves that level off together, one below the other, have not.
    """
    steps, values = validation.known()
    train_steps, train_values = train.known()
    if len(values) < 5 or len(train_values) < 5:
        return None
    levels = np.array([_level_at(train_steps, train_values, int(step)) for step in steps])
    smooth = running_median(values, 3)
    best = int(np.argmax(smooth >= smooth.max() - noise(values)))
    if len(values) - best < 4:
        return None
    then, now = float(smooth[best]), float(np.median(values[-3:]))
    train_then, train_now = float(levels[best]), float(np.median(levels[-3:]))
    parted = (train_now - now) - (train_then - then)
    if parted <= max(gap, 3.0 * noise(values)) or train_now <= train_then + noise(train_values) or train_now <= now:
        return None
    if mann_kendall((levels - values)[best:], alpha=0.05).direction is not Direction.RISING:
        return None
    reason = (
        f"validation accuracy went from {then:.3g} to {now:.3g} since step {int(steps[best]):,} "
        f"while the training accuracy went from {train_then:.3g} to {train_now:.3g}"
    )
    numbers = {"best": then, "now": now, "train_then": train_then, "train_now": train_now, "gap": train_now - now}
    return Onset(int(steps[best]), reason, numbers)


def _level_at(steps: npt.NDArray[np.int64], values: FloatArray, step: int) -> float:
    index = int(np.searchsorted(steps, step))
    return float(np.median(values[max(0, index - 2) : index + 3] if index < len(values) else values[-5:]))


def underfitting(train: Curve, validation: Curve | None = None, *, window: int = WINDOW) -> Onset | None:
    """Since when the training loss is stuck near where it began, with validation no worse: the model learns
    little."""
    steps, values = train.known()
    if len(values) < window:
        return None
    verdict = convergence(values, window=window)
    first = float(np.median(values[:3]))
    level = float(np.median(values[-window:]))
    if verdict.status != ConvergenceStatus.PLATEAU or not first or (first - level) / abs(first) > 0.1:
        return None
    numbers = {"first": first, "level": level}
    if validation is not None and len(validation.known()[1]):
        numbers["validation"] = float(np.median(validation.known()[1][-3:]))
        if numbers["validation"] - level > OVERFIT_GAP * abs(level) + 3.0 * noise(values):
            return None
    since = plateau(list(steps), values)
    reason = f"training loss is {level:.3g}, it began at {first:.3g} and no longer falls"
    return Onset(since.step if since else int(steps[0]), reason, numbers)


def degradation(curve: Curve, *, higher_is_better: bool = True, drop: float = 0.2, window: int = 10) -> Onset | None:
    """Since when a measure of performance is worse than it was by more than `drop` and more than its
    noise."""
    steps, values = curve.known()
    if len(values) < 2 * window:
        return None
    signed = values if higher_is_better else -values
    before, after = signed[:-window], signed[-window:]
    usual, now = float(_block_medians(before, window).max()), float(np.median(after))
    lost = usual - now
    if not usual or lost <= max(drop * abs(usual), 4.0 * noise(before)):
        return None
    if float(np.mean(after < usual - lost / 2.0)) < 0.8:
        return None
    below = running_median(signed, 5) < usual - lost / 2.0
    above = np.flatnonzero(~below)
    begin = int(above[-1]) + 1 if len(above) else 0
    begin = min(begin, len(values) - 1)
    reason = f"went from {abs(usual):.3g} to {abs(now):.3g} since step {int(steps[begin]):,}"
    return Onset(int(steps[begin]), reason, {"usual": abs(usual), "now": abs(now), "lost_share": lost / abs(usual)})
