"""What the user's hooks are told of a Step once its numbers are there. Made only while there are hooks."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.kernels.columns import INDEX
from stethoscope.record import FloatArray, Kind, SiteInfo
from stethoscope.record.metrics import GRADIENT_NORM, LOSS, STEP_MS
from stethoscope.record.wire import EventBody

if TYPE_CHECKING:
    from stethoscope.capture.sites import Sink, SiteTable

MAX_ARRIVED: Final = 1024
_NORM: Final = INDEX["norm"]
_BROKEN: Final = [INDEX[name] for name in ("num_nan", "num_posinf", "num_neginf")]


@dataclasses.dataclass(frozen=True, slots=True)
class StepFacts:
    """What is known of a Step once its numbers are there."""

    step: int
    gradient_norm: float | None
    metrics: dict[str, float]

    @property
    def loss(self) -> float | None:
        """The loss, where a backward was heard."""
        return self.metrics.get(LOSS)


class StepFactsSink:
    """Stands before the run's writer, passes everything on, and keeps the facts of each Step for the hooks to take."""

    def __init__(self, run: Sink, table: SiteTable) -> None:
        self._run, self._table = run, table
        self._is_gradient = np.zeros(0, bool)
        self._gradient_norm: tuple[int, float] | None = None
        self.arrived: deque[StepFacts] = deque(maxlen=MAX_ARRIVED)
        """Steps whose numbers are there."""

    def sites(self, infos: Sequence[SiteInfo]) -> None:
        """Passes on."""
        self._run.sites(list(infos))

    def rows(
        self,
        step: int,
        index: npt.NDArray[np.uint32],
        table: FloatArray,
        calls: npt.NDArray[np.uint32] | None = None,
    ) -> None:
        """Of the rows of a Step, the norm of all gradients together."""
        self._run.rows(step, index, table, calls)
        if len(index) and int(index.max()) >= len(self._is_gradient):
            new = [kind == Kind.GRADIENT for kind in self._table.kinds_from(len(self._is_gradient))]
            self._is_gradient = np.concatenate([self._is_gradient, np.array(new, bool)])
        gradients = table[self._is_gradient[index]]
        if len(gradients):
            norms = gradients[:, _NORM]
            is_broken = bool(gradients[:, _BROKEN].any())
            self._gradient_norm = step, float("nan") if is_broken else float(np.sqrt(norms @ norms))

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """A Step's own numbers come last and say that it is complete."""
        self._run.scalars(step, values)
        if STEP_MS not in values:
            return
        norm = values.get(GRADIENT_NORM)
        if norm is None and self._gradient_norm is not None and self._gradient_norm[0] == step:
            norm = self._gradient_norm[1]
        self.arrived.append(StepFacts(step, norm, values))

    def scalars_of_steps(self, told: list[tuple[int, dict[str, float]]]) -> None:
        """One after the other."""
        for step, values in told:
            self.scalars(step, values)

    def vectors(self, step: int, name: str, index: npt.NDArray[np.uint32], values: npt.NDArray[Any]) -> None:
        """Passes on."""
        self._run.vectors(step, name, index, values)

    def tell(self, step: int, said: EventBody) -> None:
        """Passes on."""
        self._run.tell(step, said)
