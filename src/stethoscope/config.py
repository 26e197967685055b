"""DebugConfig: every setting, its default, and where its value may come from.

Data only. An argument wins over the environment (`STETHOSCOPE_<FIELD>`), which wins over
`[tool.stethoscope]` in the nearest pyproject.toml, which wins over the default.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args

from stethoscope.record import ConfigError

Mode = Literal["on", "off"]
Companion = Literal["process", "inline", "off"]

ENVIRONMENT_PREFIX: Final = "STETHOSCOPE_"
NOT_RECORDED: Final = "not_recorded"
"""Marks a field, in its metadata, whose value is not to be written to a run."""
OWN_VARIABLES: Final = {"STETHOSCOPE_DIR": "dir", "STETHOSCOPE_MODE": "mode"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DebugConfig:
    """Settings of a session; keyword-only, validated once, never changed after."""

    mode: Mode = "on"
    """"off" makes `watch` return a session that does nothing."""
    dir: str = ".stethoscope"
    """The folder that holds the run folders."""
    name: str = ""
    """A name for the run; by default the script's."""

    weights: bool = True
    """Measure every parameter after the step."""
    gradients: bool = True
    """Measure every gradient at the step."""
    updates: bool = True
    """Measure what the step changed, on a fixed sample of coordinates."""
    optimizer_state: bool = True
    """Measure the optimizer's moments."""
    buffers: bool = True
    """Measure floating-point buffers, such as BatchNorm's running statistics."""
    activations: bool | None = None
    """Measure module outputs and their gradients; None: in eager yes, under torch.compile no. True: there too, by a second
    graph for the steps that are measured."""
    graph: bool = True
    """Follow the first training forward once, for the model's data-flow graph."""
    layers: tuple[str, ...] = ("*",)
    """Globs of module paths to measure; the ledger and the non-finite checks see all of them anyway."""

    every: int = 0
    """Measure weights, state and module outputs at steps divisible by this; 0 lets the governor choose."""
    overhead: float = 0.01
    """The share of a step that watching may cost; "1%" or 0.01."""
    overhead_floor_ms: float = 0.1
    """What a step may cost in any case, in milliseconds; ten times as much in the first 256 steps, where most faults show."""
    update_sample: int = 1024
    """Coordinates per tensor on which the update is measured, at most; with over 2,048 tensors fewer, down to 64."""
    histogram_every: int = 10
    """Histograms and sketches at steps divisible by this; 0 for none."""
    leaks_every: int = 0
    """Watch steps divisible by this for tensors that outlive them, at some 20 µs an operator; 0 for never."""

    disk: int = 2 << 30
    """Bytes a run may take before old steps thin out; "2GB" or a number."""
    companion: Companion = "process"
    """What seals and detects: a process beside the training, this process when it stops, or nothing."""
    quiet: bool = False
    """Print nothing."""
    record_command: bool = False
    """Keep the command line and the environment in the run. Values under names such as TOKEN, KEY or PASSWORD are masked;
    a secret under another name is kept."""

    ignore: tuple[str, ...] = ()
    """Codes, or `code:site-glob`, that the user knows about and does not want to hear."""
    expect: tuple[str, ...] = ()
    """What the user intends, in the same form; kept as Info."""

    detectors: tuple[str, ...] = ()
    """Further detectors, each as `module:Class`; those of installed packages are found without it."""

    enable_tensor_inspection: bool = True
    """Whether the session's TensorInspector looks at anything."""
    enable_gradient_debugging: bool = True
    """Whether the session's GradientDebugger takes anything in; the run has the gradients either way."""
    enable_model_diagnostics: bool = True
    """Whether the session's ModelDiagnostics keeps records."""
    enable_hooks: bool = True
    """Run the user's hooks."""
    enable_profiling: bool = True
    """Whether the session's Profiler keeps what it timed."""
    enable_visualization: bool = False
    """Whether the session's DebugVisualizer writes each plot at once, and the session a dashboard at its end."""
    max_tracked_tensors: int = 1000
    """Sites beyond this many modules' outputs are not tapped, and counted as capped."""
    max_gradient_history: int = 100
    """Steps of history that the instruments keep in memory."""
    sampling_rate: float = 1.0
    """An explicit cap: the share of steps at which anything but the ledger is measured."""
    output_dir: str = ""
    """Where instruments write their files; by default the run folder."""
    webhook: str = dataclasses.field(default="", repr=False, metadata={NOT_RECORDED: True})
    """An address that alerts are posted to; only ever from this configuration. Of it the run keeps scheme and host alone."""

    def __post_init__(self) -> None:
        """Check every field once, here."""
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _checked_value(field.name, str(field.type), getattr(self, field.name)))
        _check_range("overhead", self.overhead, 0.0, 1.0)
        _check_range("sampling_rate", self.sampling_rate, 0.0, 1.0)
        for name in (
            "every",
            "disk",
            "update_sample",
            "histogram_every",
            "leaks_every",
            "max_tracked_tensors",
            "max_gradient_history",
            "overhead_floor_ms",
        ):
            _check_range(name, getattr(self, name), 0, float("inf"))

    @classmethod
    def load(cls, config: DebugConfig | None = None, **fields: Any) -> DebugConfig:
        """Arguments over a given config, over the environment, over pyproject, over the defaults."""
        _refuse_unknown(fields, "argument")
        given = {key: value for key, value in fields.items() if value is not None}
        if config is not None:
            return dataclasses.replace(config, **given)
        return cls(**{**_from_pyproject(), **_from_environment(os.environ), **given})

    @classmethod
    def development(cls) -> DebugConfig:
        """Everything, every step, for looking closely at a small model."""
        return cls(max_tracked_tensors=1000, max_gradient_history=100, sampling_rate=1.0, every=1)

    @classmethod
    def training(cls) -> DebugConfig:
        """Half of the steps, for ordinary runs."""
        return cls(max_tracked_tensors=500, max_gradient_history=50, sampling_rate=0.5)

    @classmethod
    def research(cls) -> DebugConfig:
        """Twice the sites and history."""
        return cls(max_tracked_tensors=2000, max_gradient_history=200, sampling_rate=1.0)

    @classmethod
    def production(cls) -> DebugConfig:
        """One step in a hundred; the ledger and the non-finite checks stay on every step."""
        return cls(max_tracked_tensors=50, max_gradient_history=5, sampling_rate=0.01)


FIELD_NAMES: Final = frozenset(f.name for f in dataclasses.fields(DebugConfig))


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in environment.items():
        if not key.startswith(ENVIRONMENT_PREFIX) or not value:
            continue
        name = OWN_VARIABLES.get(key, key.removeprefix(ENVIRONMENT_PREFIX).lower())
        if name in FIELD_NAMES:
            found[name] = value
    return found


def _from_pyproject() -> dict[str, Any]:
    try:
        folder = Path.cwd()
    except OSError:  # it was deleted
        return {}
    for candidate in (folder, *folder.parents):
        path = candidate / "pyproject.toml"
        try:
            if not path.is_file():
                continue
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise _broken_project(path, error) from error
        except OSError:  # somebody else's, above us
            continue
        return _settings_table(path, text)
    return {}


def _settings_table(path: Path, text: str) -> dict[str, Any]:
    try:
        table: Any = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _broken_project(path, error) from error
    for name in ("tool", "stethoscope"):
        table = table.get(name, {})
        if not isinstance(table, dict):
            raise _broken_project(path, f"{name} is no table")
    _refuse_unknown(table, f"[tool.stethoscope] in {path}")
    return dict(table)


def _broken_project(path: Path, why: object) -> ConfigError:
    return ConfigError(f"pyproject.toml cannot be read ({why})", where=path, do="Mend its syntax")


def _refuse_unknown(fields: Mapping[str, Any], where: str) -> None:
    for name in fields:
        if name not in FIELD_NAMES:
            raise ConfigError(f"unknown setting {name!r}", where=where, do=f"Known: {', '.join(sorted(FIELD_NAMES))}")


def _checked_value(name: str, kind: str, value: Any) -> Any:
    """The value as the field's type, from what a keyword, a variable or TOML may hold."""
    if name in ("overhead", "sampling_rate"):
        return _parse_share(name, value)
    if name == "disk":
        return _num_bytes(name, value)
    if kind.startswith("bool"):
        return _parse_bool(name, value, optional="None" in kind)
    if kind.startswith("tuple"):
        return _parse_words(name, value)
    if kind in ("int", "float"):
        return _parse_number(name, kind, value)
    if kind in ("Mode", "Companion"):
        allowed = get_args(Mode if kind == "Mode" else Companion)
        if value not in allowed:
            raise ConfigError(f"{name} is {value!r}", do=f"Use one of {', '.join(allowed)}")
        return value
    if not isinstance(value, (str, os.PathLike)):
        raise ConfigError(f"{name} is {value!r}", do="Use text")
    return os.fspath(value)


def _parse_number(name: str, kind: str, value: Any) -> int | float:
    try:
        number = float(value)
        if isinstance(value, bool) or number != number or (kind == "int" and number != int(number)):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{name} is {value!r}", do=f"Use a number ({kind})") from None
    return int(number) if kind == "int" else number


def _parse_bool(name: str, value: Any, *, optional: bool) -> bool | None:
    if isinstance(value, bool) or (optional and value is None):
        return value
    words = {
        "1": True,
        "true": True,
        "yes": True,
        "on": True,
        "0": False,
        "false": False,
        "no": False,
        "off": False,
    }
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise ConfigError(f"{name} is {value!r}", do="Use true or false")


def _parse_words(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(word.strip() for word in value.split(",") if word.strip())
    try:
        words = tuple(value)
    except TypeError:
        words = (value,)
    if not all(isinstance(word, str) for word in words):
        raise ConfigError(f"{name} is {value!r}", do="Use a list of texts")
    return words


def _parse_share(name: str, value: Any) -> float:
    if isinstance(value, str) and value.strip().endswith("%"):
        return float(_parse_number(name, "float", value.strip()[:-1])) / 100.0
    return float(_parse_number(name, "float", value))


def _num_bytes(name: str, value: Any) -> int:
    if not isinstance(value, str):
        return int(_parse_number(name, "int", value))
    match = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?)i?b?\s*", value.lower())
    if match is None:
        raise ConfigError(f"{name} is {value!r}", do='Use a size such as "500MB" or "2GB"')
    power = " kmgt".index(match[2] or " ")
    return int(float(_parse_number(name, "float", match[1])) * 1024**power)


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name} is {value!r}", do=f"Use a value from {low:g} to {high:g}")
