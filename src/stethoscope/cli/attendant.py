"""Who attends a script that does not know us: waits for torch, watches what is found, speaks on stderr.

Nothing is imported or patched before the script itself has imported torch. The closing summary comes when the process
ends, whatever ended it. A forked child is not watched.
"""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.machinery
import os
import sys
import threading
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stethoscope.config import DebugConfig
from stethoscope.record import metrics, plural

if TYPE_CHECKING:
    from stethoscope.capture.discovery import Discovery
    from stethoscope.explain import Diagnosis
    from stethoscope.session import DebugSession

REDRAW_SECONDS: Final = 0.5
FIRST_LINE_SECONDS: Final = 30.0
"""Where the script's own output shares the terminal: a line after this long, then each time after twice as long."""


class Attendant:
    """One script, and the sessions that watch what it trains."""

    def __init__(self, config: DebugConfig) -> None:
        self._config = config
        self._discovery: Discovery | None = None
        self._sessions: list[DebugSession] = []
        self._has_watched = False
        self._pid = os.getpid()
        self._ticker: LiveLine | None = None

    def wait_for_torch(self) -> None:
        """Be called when the script imports torch."""
        if self._config.mode == "off":
            return
        atexit.register(self._at_exit)
        if "torch" in sys.modules:
            self._torch_is_here()
        else:
            sys.meta_path.insert(0, TorchFinder(self._torch_is_here))

    def _torch_is_here(self) -> None:
        from stethoscope.capture.discovery import Discovery

        self._discovery = Discovery(self._found)
        self._discovery.start()

    def _found(self, models: dict[str, Any], optimizers: list[Any]) -> None:
        from stethoscope.capture.guard import warn
        from stethoscope.record import StethoscopeError
        from stethoscope.session import watch

        if os.getpid() != self._pid:
            return
        for old in self._sessions:
            # What was trained before is over: its optimizers did not step since these were made.
            old.stop()
        self._sessions.clear()  # each holds its model, and a script may train hundreds
        several = models if len(models) > 1 else next(iter(models.values()))
        try:
            session = watch(several, optimizers, config=self._config)
        except StethoscopeError as error:
            warn(f"nothing is watched: {error}")
            return
        session.closing_words = lambda diagnosis, folder: summary(diagnosis, folder, models, optimizers)
        self._sessions.append(session)
        self._has_watched = True
        if not self._config.quiet and _is_terminal(sys.stderr):
            self._ticker = self._ticker or LiveLine()
            self._ticker.follow(session)

    def _at_exit(self) -> None:
        if os.getpid() != self._pid:
            return
        if self._ticker is not None:
            self._ticker.stop()
        missed = self._what_was_missed()
        if missed and not self._config.quiet:
            from stethoscope.session import joining, messages

            if joining.this_rank()[0] == 0:
                messages.say(f"stethoscope: {missed}")

    def _what_was_missed(self) -> str:
        if not self._has_watched:
            return f"nothing was watched: {self._why_not_watched()}"
        if self._discovery is not None and self._discovery.was_put_off:
            return (
                "what was trained last was not watched: looking for its model would have taken more than the time that is "
                "set apart for it. stethoscope.watch(model, optimizer) needs no look"
            )
        return ""

    def _why_not_watched(self) -> str:
        if self._discovery is None:
            return "the script did not import torch"
        if not self._discovery.num_optimizers:
            return "the script made no optimizer"
        if not self._discovery.num_looks:
            return "no backward pass and no optimizer step was seen"
        return "no live torch.nn.Module holds what the optimizers train, or the script watches it itself"


def summary(diagnosis: Diagnosis, folder: Path, models: dict[str, Any], optimizers: Sequence[Any]) -> str:
    """What was watched, how it went, where to look; a few lines."""
    from stethoscope.session import messages

    kinds = [type(getattr(model, "_orig_mod", model)).__name__ for model in models.values()]
    trained = ", ".join(
        kind if len(models) == 1 or kind == name else f"{name} ({kind})"
        for name, kind in zip(models, kinds, strict=True)
    )
    looked = diagnosis.looked_at
    lines = [
        f"stethoscope: {looked.num_steps:,} steps of {trained} with {', '.join(type(o).__name__ for o in optimizers)}, "
        f"{looked.num_sites} of {looked.num_sites_expected} tensors"
    ]
    for cause in diagnosis.causes:
        lines.append(messages.cause(cause))
        if cause.remedy:
            lines.append(f"stethoscope:     {cause.remedy}")
    verdict = diagnosis.verdict
    causes = plural(len(diagnosis.causes), "cause")
    said = (
        " ".join([f"{verdict.state.label}: {causes}.", *verdict.reservations])
        if diagnosis.causes
        else messages.stated(diagnosis)
    )
    command = "diagnose" if verdict.state.is_trouble else "show"
    lines.append(f"stethoscope: {said} stethoscope {command} {messages.shown(folder)}")
    return "\n".join(lines)


class LiveLine:
    """One line on a terminal about the step, drawn in place where the script writes elsewhere."""

    def __init__(self) -> None:
        self._session: DebugSession | None = None
        self._stopping = threading.Event()
        self._in_place = not _is_terminal(sys.stdout)
        self._drawn = False
        # Who clears the line knows that none is drawn after it; a signal may clear it in the middle of clearing it.
        self._pen = threading.RLock()
        self._thread = threading.Thread(target=self._run, name="stethoscope-live", daemon=True)

    def follow(self, session: DebugSession) -> None:
        """Speak of this session from now on."""
        self._session = session
        if not self._thread.is_alive():
            self._thread.start()

    def stop(self) -> None:
        """Clear the line."""
        self._stopping.set()
        with self._pen:
            if self._drawn:
                _write("\r\x1b[K")

    def _run(self) -> None:
        due = time.monotonic() + (0.0 if self._in_place else FIRST_LINE_SECONDS)
        pause = FIRST_LINE_SECONDS
        step, when = 0, time.monotonic()
        while not self._stopping.wait(REDRAW_SECONDS):
            now = time.monotonic()
            session = self._session
            bars = sys.modules.get("tqdm")
            if now < due or session is None or (bars is not None and getattr(bars.tqdm, "_instances", None)):
                continue
            line = _status_line(session, (session.step - step) / max(now - when, 1e-9))
            step, when = session.step, now
            with self._pen:
                if self._stopping.is_set():
                    return
                if self._in_place:
                    self._drawn = _write(f"\r\x1b[K{line}")
                    continue
                _write(f"{line}\n")
            due, pause = now + 2 * pause, 2 * pause


def _status_line(session: DebugSession, rate: float) -> str:
    watcher = session._watcher
    loss = watcher.ring.latest.get(metrics.LOSS) if watcher is not None else None
    said = "" if loss is None else f", loss {loss:.4g}"
    return f"stethoscope: step {session.step:,}{said}, {rate:.1f} steps/s"


def _write(text: str) -> bool:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except Exception:  # whatever the script put in the place of stderr
        return False
    return True


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except Exception:
        return False


class TorchFinder(importlib.abc.MetaPathFinder):
    """Tells when the script has imported torch; then it is gone."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """torch's own spec, with a loader that calls us after torch's own."""
        if name != "torch":
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: importlib.machinery.ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Afterwards(spec.loader, self._then)
                return spec
        return None


class _Afterwards(importlib.abc.Loader):
    """Another loader, and a call when it is done."""

    def __init__(self, loader: Any, then: Callable[[], None]) -> None:
        self._loader, self._then = loader, then

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        """As the other loader does."""
        spec.loader = self._loader
        made: types.ModuleType | None = self._loader.create_module(spec)
        spec.loader = self
        return made

    def exec_module(self, module: types.ModuleType) -> None:
        """Let the module see its own loader, run it, and call."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        try:
            self._then()
        except Exception as error:  # whatever it is, the script goes on unwatched
            print(f"stethoscope: not watching: {error!r}", file=sys.stderr)  # noqa: T201 - nothing else is set up yet

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
