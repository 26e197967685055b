"""A detector of ours that fails says nothing, and that is said: silence is never mistaken for health."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stethoscope import cli
from stethoscope.detect.nonfinite import Nonfinite
from stethoscope.explain import diagnose
from tests.explain.test_thinned import make


@pytest.mark.parametrize("where", ["observe", "findings"])
def test_it_is_named(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path)
    whole = diagnose(tmp_path)

    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr(Nonfinite, where, broken)
    found = diagnose(tmp_path)
    own = {code.name for code in Nonfinite.codes}
    assert found.findings == tuple(f for f in whole.findings if f.code not in own), "the others look as before"
    (named,) = found.looked_at.broken_detectors
    assert named.startswith("Nonfinite: ")
    assert "a mistake of ours" in named
    assert found.looked_at.num_detectors == whole.looked_at.num_detectors - 1
    assert found.findings == ()
    assert "doctor" in found.verdict.text
    assert cli.main(["doctor", str(tmp_path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["recording"]
    assert {"what": "detector failed", "how": named, "fine": False} in facts
