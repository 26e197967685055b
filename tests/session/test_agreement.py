"""An instrument and the diagnosis may differ about one run, and then it is said why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stethoscope import Finding, GradientDebugger, ModelDiagnostics, ModelPerformanceMetrics, Severity
from stethoscope.explain import Diagnosis
from stethoscope.explain.diagnosis import LookedAt
from stethoscope.explain.pages import codes
from stethoscope.session.agreement import TOPICS, differences
from tests.session.training import begin, go_on


def gradients(size: float) -> Any:
    debugger = GradientDebugger()
    for step in range(12):
        debugger.record_gradient_flow("body.weight", np.full(4, size), step=step)
    return debugger.analyze_gradient_flow()


def training(losses: list[float]) -> Any:
    diagnostics = ModelDiagnostics()
    for step, loss in enumerate(losses):
        diagnostics.record_performance(ModelPerformanceMetrics(step, loss))
    return diagnostics.generate_report()


def diagnosis(*found: str) -> Diagnosis:
    findings = tuple(
        Finding(code=code, severity=Severity.WARNING, message=f"It is {code}.", first_step=3, last_step=9)
        for code in found
    )
    return Diagnosis(findings, findings, looked_at=LookedAt(num_steps=12))


def test_both_that_say_the_same_need_no_words() -> None:
    assert differences(diagnosis(), gradients(0.5), training([])) == []
    assert differences(diagnosis("exploding_gradients"), gradients(50.0), training([])) == []


def test_an_instrument_alone_is_told_with_where_and_why() -> None:
    (text,) = differences(diagnosis(), gradients(50.0), training([]))
    assert text.startswith(
        "Gradient debugger: exploding gradients (body.weight); diagnosis: none. The gradient debugger goes by "
    )
    assert "over a fixed size" in text
    assert "with depth and over the run's own steps" in text


def test_the_diagnosis_alone_is_told_with_its_message() -> None:
    (text,) = differences(diagnosis("vanishing_gradients"), gradients(0.5), training([]))
    assert text.startswith("Diagnosis: It is vanishing_gradients; gradient debugger: no vanishing gradients. ")


def test_healthy_gradients_are_never_taken_for_a_healthy_run() -> None:
    (text,) = differences(diagnosis("label_leak"), gradients(0.5), training([]))
    assert text == "Gradient debugger: Healthy, of gradients alone; diagnosis: It is label_leak."


def test_losses_that_stand_still(tmp_path: Path) -> None:
    flat = [2.0 + 0.01 * (step % 3) for step in range(200)]
    told = differences(diagnosis(), gradients(0.5), training(flat))
    assert [text.partition(" (")[0] for text in told] == ["Model diagnostics: a plateau"]
    told = differences(diagnosis("plateau"), gradients(0.5), training(flat))
    assert not any("Model diagnostics" in text for text in told)


def test_who_has_seen_nothing_contradicts_nobody() -> None:
    assert differences(Diagnosis(), gradients(50.0), training([])) == []
    nothing = GradientDebugger().analyze_gradient_flow()
    assert differences(diagnosis("exploding_gradients"), nothing, training([])) == []


@pytest.mark.parametrize("topic", TOPICS.values(), ids=list(TOPICS))
def test_every_code_of_a_topic_is_known(topic: Any) -> None:
    symptoms = {"not_a_number", "does_not_learn", "swings", "diverges", "parts_from_training"}
    assert topic.codes - symptoms <= set(codes())
    assert topic.codes - symptoms


def test_the_report_of_a_session_tells(tmp_path: Path) -> None:
    trained = begin(tmp_path)
    trained.optimizer.param_groups[0]["lr"] = 1e-7
    trained.model.fc2.weight.register_hook(lambda gradient: gradient * 1e4)
    go_on(trained, 12)
    report = trained.session.stop()
    assert any("exploding gradients (fc2.weight" in text for text in report.differences)
    assert "By limits of the gradient debugger's own" in report.summary()["gradients"]["limits"]
    assert "differences" in str(report)
