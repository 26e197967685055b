"""Every error and warning of ours: what happened, where, and what to do about it."""

from __future__ import annotations

from stethoscope.record.text import printable


class StethoscopeError(Exception):
    """Base of every error of ours: what happened, where, and what to do about it."""

    def __init__(self, what: str, *, where: object = None, do: str = "") -> None:
        self.what, self.where, self.do = what, where, do
        parts = [what if where is None else f"{what}: {printable(str(where))}"]
        if do:
            parts.append(do)
        super().__init__(". ".join(part.rstrip(".") for part in parts) + ".")


class ConfigError(StethoscopeError, ValueError):
    """A setting that cannot be used."""


class WatchError(StethoscopeError, TypeError):
    """Something was handed to `watch` that cannot be watched."""


class RunError(StethoscopeError):
    """Base of everything that can be wrong with a run folder."""


class RunNotFoundError(RunError, FileNotFoundError):
    """There is no run at this place."""


class RunFormatError(RunError):
    """The run was written by a newer version of this program."""


class RunDamagedError(RunError):
    """The run's own description cannot be trusted: its checksum does not match."""


class MissingExtraError(StethoscopeError, ImportError):
    """An optional package is needed for this."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}", do=f'Install it with: pip install "stethoscope[{extra}]"')


class StopTraining(Exception):  # noqa: N818 - a request, not an error; named as users type it
    """Raised into the training loop only where a user's own hook asks for it."""


class StethoscopeWarning(UserWarning):
    """Every warning of ours."""
