"""One open run with what is worked out of it: diagnosis, tree, histories, each made once and kept up to date.

Everything that draws a run asks an OpenRun. It is not safe for threads by itself: threads that share one hold its `lock`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from stethoscope.analyse.history import Grid, History, HistoryReader, grid
from stethoscope.analyse.tree import Node, module_tree
from stethoscope.explain import Diagnosis, conclude, diagnose, weigh
from stethoscope.explain.verdict import broken_detectors, looked_at
from stethoscope.record import Finding, Kind, RunNotFoundError, StethoscopeError
from stethoscope.store import Run, open_run
from stethoscope.views.common.coverage import Coverage

REFRESH_S: Final = 0.25
"""A live run is read again no more often than this."""
HEAT_KINDS: Final = (
    Kind.GRADIENT,
    Kind.WEIGHT,
    Kind.UPDATE,
    Kind.ACTIVATION,
    Kind.ACTIVATION_GRADIENT,
    Kind.OPTIMIZER_STATE,
)
"""What a heatmap can show, in the order of its keys 1 to 6."""


class OpenRun:
    """A run, open for reading, with what is worked out of it."""

    def __init__(self, path: Path, run: Run | None = None) -> None:
        self.path = path
        self.lock = threading.RLock()
        self.run: Run = run if run is not None else open_run(path)
        self.histories = HistoryReader(self.run)
        self.version = 1
        """Grows whenever anything of the run changed: the cursor of a stream."""
        self.read_at = time.time()
        self._state = self.run.state
        self._looked_at = time.monotonic()
        self._trees: dict[Kind, tuple[int, tuple[Node, ...]]] = {}
        self._diagnosis: tuple[int, Diagnosis] | None = None
        self._coverage = Coverage(self.run)
        self._examined: Diagnosis | None = None
        self._examination: threading.Thread | None = None
        self.angles: tuple[object, object] | None = None
        """What the comparison with another run last read, and of which: sketches take longer to read than all else."""
        self.trouble = ""
        """Why the run could not be examined, where it could not."""

    @classmethod
    def of(cls, run: Run) -> OpenRun:
        """A run that is open already, as it stands."""
        return cls(run.path, run)

    def refresh(self) -> int:
        """Picks up what came since, and returns the version; RunNotFoundError where the folder is gone."""
        with self.lock:
            if time.monotonic() - self._looked_at < REFRESH_S:
                return self.version
            if not self.path.is_dir():
                raise RunNotFoundError(
                    "The run's folder is gone", where=self.path.name, do="Go back to the list of runs"
                )
            changed = self.run.refresh()
            self._looked_at = time.monotonic()
            if changed or self.run.state != self._state:
                self.read_at = time.time()
                self._state = self.run.state
                self.version += 1
            return self.version

    @property
    def diagnosis(self) -> Diagnosis:
        """What was found while it ran; without a companion, what an examination found since."""
        if self._diagnosis is None or self._diagnosis[0] != self.version:
            own = self._examined
            broken = broken_detectors(self.run.failures()) if own is None else own.looked_at.broken_detectors
            seen = looked_at(self.run, broken, has_rows=self._coverage.has_rows())
            self._diagnosis = (self.version, conclude(self.run, self._heard(), looked_at=seen))
        return self._diagnosis[1]

    def _heard(self) -> list[Finding]:
        return list(self._examined.findings) if self._examined is not None else self.run.findings()

    @property
    def was_examined(self) -> bool:
        """Whether anything has looked for findings: while the run was written, or since."""
        return self._examined is not None or self.run.was_examined

    def examine(self) -> None:
        """Searches for findings now, and returns when that is done."""
        with open_run(self.path) as own:
            found = diagnose(own)
        with self.lock:
            self._examined = found
            self.version += 1

    def examine_later(self) -> bool:
        """Starts a search for findings in a thread, where there was none; True while that is under way."""
        if self.was_examined or self.run.state == "live":
            return False
        if self._examination is None:
            self._examination = threading.Thread(target=self._examine_quietly, daemon=True)
            self._examination.start()
        return self._examination.is_alive()

    def _examine_quietly(self) -> None:
        try:
            self.examine()
        except (StethoscopeError, OSError, ValueError, KeyError) as error:
            self.trouble = f"The run could not be examined: {error}"

    def tree(self, kind: Kind) -> tuple[Node, ...]:
        """The modules that have something of this kind."""
        num_sites = len(self.run.sites)
        kept = self._trees.get(kind)
        if kept is None or kept[0] != num_sites:
            kept = self._trees[kind] = (num_sites, module_tree(self.run, kind))
        return kept[1]

    @property
    def span(self) -> tuple[int, int]:
        """First and last step with rows or a loss."""
        return self.histories.span

    def kinds(self) -> list[Kind]:
        """The kinds a heatmap can show of this run."""
        recorded = {info.site.kind for info in self.run.sites}
        return [kind for kind in HEAT_KINDS if kind in recorded]

    def usual_before(self) -> int | None:
        """Where the past ends against which everything is shown: where the first cause began."""
        causes = self._diagnosis[1].causes if self._diagnosis is not None else weigh(self.run, self._heard())[1]
        return min((cause.first_step for cause in causes), default=None)

    def history(self, kind: Kind, stat: str, nodes: Sequence[Node], window: tuple[int, int] | None = None) -> History:
        """These nodes over the steps of a window, against what was usual before the first cause."""
        return self.histories.nodes(kind, stat, nodes, window, before=self.usual_before())

    def grid(
        self,
        kind: Kind,
        stat: str,
        nodes: Sequence[Node],
        view: tuple[int, int, int],
        *,
        raw: bool = True,
        has_time: bool = False,
    ) -> Grid:
        """These nodes over first..last in at most `width` bins, as values or as ratios to the usual.

        `has_time` is whether rows may be read although stored buckets would come sooner.
        """
        window, before = view[:2], self.usual_before()
        found = self.histories.nodes(kind, stat, nodes, window, view[2], before=before, has_time=has_time)
        return grid(found, view[2], raw=raw)

    def close(self) -> None:
        """Forgets what was read."""
        with self.lock:
            self.run.close()


@contextlib.contextmanager
def both_locks(a: OpenRun, b: OpenRun) -> Iterator[None]:
    """The locks of two runs, always taken in the same order."""
    first, second = sorted((a, b), key=id)
    with first.lock, second.lock:
        yield
