"""Runs to try the commands on; the store is real, the diagnosis is given."""

from __future__ import annotations

import pytest

from stethoscope.cli import main
from stethoscope.explain.diagnosis import Diagnosis, LookedAt
from tests.views import synthetic


@pytest.fixture
def base(tmp_path, monkeypatch):
    """An empty folder of runs, 80 columns, no color."""
    folder = tmp_path / "runs"
    monkeypatch.setenv("STETHOSCOPE_DIR", str(folder))
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("NO_COLOR", "FORCE_COLOR", "STETHOSCOPE_MODE"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def healthy(base):
    return synthetic.write_run(base / "20261116-120000-gpt-small-aaaaaa")


@pytest.fixture
def sick(base):
    return synthetic.write_run(
        base / "20261116-130000-gpt-fp16-3f9a01",
        synthetic.exploding,
        name="gpt-fp16",
        metrics=synthetic.exploding_metrics,
        ended="exception",
        body={"exception": "FloatingPointError"},
    )


@pytest.fixture
def given_diagnosis(monkeypatch):
    """Every run named after fp16 has the one cause of the synthetic story, the others none."""

    def diagnose(run):
        looked = LookedAt(len(run.sites), len(run.sites), len(run.steps), 1, run.last_step, 0, 12, ("One more line.",))
        if "fp16" not in run.name:
            return Diagnosis(looked_at=looked)
        causes, followed = (synthetic.CAUSE,), synthetic.FOLLOWED
        return Diagnosis(causes, (*causes, *followed), {synthetic.CAUSE.code: followed}, looked)

    import stethoscope.explain

    monkeypatch.setattr(stethoscope.explain, "diagnose", diagnose, raising=False)


@pytest.fixture
def cli(capsys):
    """Runs a command; gives exit code, stdout, stderr."""

    def call(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return call
