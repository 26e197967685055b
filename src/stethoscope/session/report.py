"""What `stop` returns: the diagnosis, and what each instrument has to say. Worked out when asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethoscope.record import Severity, plural
from stethoscope.session.agreement import differences

if TYPE_CHECKING:
    from stethoscope.explain import Diagnosis
    from stethoscope.session.instruments import Instruments

MAX_LISTED = 10
MAX_LAYERS = 5


class SessionReport:
    """The session in facts; `summary()` for a few, `str()` to read."""

    def __init__(
        self, instruments: Instruments, folder: Path | None, num_steps: int, diagnose: Callable[[], Diagnosis]
    ) -> None:
        self._instruments, self._diagnose = instruments, diagnose
        self.path, self.num_steps = folder, num_steps

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """Causes and findings of the run; empty for a session without a model."""
        return self._diagnose()

    def summary(self) -> dict[str, Any]:
        """The session in plain values that JSON can hold: a part for each instrument that has seen anything."""
        body: dict[str, Any] = {"num_steps": self.num_steps, "run": str(self.path) if self.path else None}
        if self.path is not None:
            body["causes"] = [cause.message for cause in self.diagnosis.causes]
            body["findings"] = [finding.code for finding in self.diagnosis.findings]
        return body | self._parts

    @cached_property
    def differences(self) -> list[str]:
        """Where an instrument and the diagnosis say something else of the same run, and why."""
        if self.path is None:
            return []
        gradients = self._instruments.gradient_debugger.analyze_gradient_flow()
        return differences(self.diagnosis, gradients, self._instruments.model_diagnostics.generate_report())

    @cached_property
    def _parts(self) -> dict[str, Any]:
        parts = {
            "tensors": self._tensors(),
            "gradients": self._gradients(),
            "training": self._training(),
            "hooks": self._hooks(),
            "profile": self._profile(),
            "differences": self.differences,
            "leaks": [str(leak) for leak in self._instruments.leaks()],
            "plots": self._instruments.visualizer.get_plot_names() if self._instruments.used("visualizer") else [],
        }
        return {name: part for name, part in parts.items() if part}

    def _tensors(self) -> dict[str, Any] | None:
        if not (self._instruments.have_run or self._instruments.used("tensor_inspector")):
            return None
        inspector = self._instruments.tensor_inspector
        if not inspector.num_inspected:
            return None
        alerts = [str(alert) for alert in inspector.alerts(Severity.WARNING)]
        part: dict[str, Any] = {
            "num_inspected": inspector.num_inspected,
            "num_alerts": len(alerts),
            "alerts": alerts[:MAX_LISTED],
        }
        if self._instruments.have_run:
            largest = list(inspector.memory.by_layer().items())[:MAX_LAYERS]
            part["largest_layers_mb"] = {name: round(size / 1e6, 3) for name, size in largest}
        return part

    def _gradients(self) -> dict[str, Any] | None:
        analysis = self._instruments.gradient_debugger.analyze_gradient_flow()
        if not analysis.layers:
            return None
        return {
            "num_layers": len(analysis.layers),
            "overall_health": str(analysis.overall_health),
            "health_score": analysis.health_score,
            "reasons": [reason.text for reason in analysis.reasons][:MAX_LISTED],
            "limits": analysis.limits,
        }

    def _training(self) -> dict[str, Any] | None:
        report = self._instruments.model_diagnostics.generate_report()
        if not report.num_records:
            return None
        return {
            "num_records": report.num_records,
            "convergence": str(report.dynamics.convergence_status),
            "stability": str(report.dynamics.training_stability),
            "health_score": report.health.score,
            "reasons": list(report.health.reasons),
            "recommendations": list(report.recommendations),
            "limits": report.limits,
        }

    def _hooks(self) -> dict[str, Any] | None:
        if not self._instruments.used("hooks") or not self._instruments.hooks.counts:
            return None
        return {str(status): count for status, count in sorted(self._instruments.hooks.counts.items())}

    def _profile(self) -> dict[str, Any] | None:
        if not (self._instruments.have_run or self._instruments.used("profiler")):
            return None
        profiler = self._instruments.profiler
        if not profiler.totals and not profiler.layers:
            return None
        return {
            "num_timers": len(profiler.totals),
            "num_layers": len(profiler.layers),
            "mean_ms": {entry.name: 1e3 * entry.mean_s for entry in profiler.slowest()},
            "bottlenecks": [f"{b.type} in {b.location}: {b.message}" for b in profiler.bottlenecks()][:MAX_LISTED],
            "suggestions": profiler.suggestions()[:MAX_LISTED],
        }

    def __str__(self) -> str:
        return "\n".join(_lines(self.summary()))

    def __repr__(self) -> str:
        where = f", {self.path}" if self.path is not None else ""
        return f"SessionReport({plural(self.num_steps, 'step')}{where}); print() shows all of it"


def _lines(body: dict[str, Any], indent: str = "") -> list[str]:
    out = []
    for key, value in body.items():
        name = key.replace("_", " ")
        if isinstance(value, dict):
            out += [f"{indent}{name}", *_lines(value, indent + "  ")]
        elif isinstance(value, list):
            out += [f"{indent}{name}" + ("" if value else ": none"), *(f"{indent}  {item}" for item in value)]
        else:
            shown = f"{value:.3g}" if isinstance(value, float) else "unknown" if value is None else value
            out.append(f"{indent}{name}: {shown}")
    return out
