"""Five faults in one script: each is a cause of its own, and what follows from one is told under it."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

import five_faults  # noqa: E402

import stethoscope  # noqa: E402

ROOTS = {
    "gradients_not_cleared": 1,
    "trainable_params_not_in_optimizer": 0,
    "dead_units": 0,
    "update_too_large": five_faults.JUMP,
    "unscaled_inputs": 0,
}
"""From each fault's code to the step at which it begins."""


@pytest.mark.parametrize("seed", [0, 1])
def test_each_of_five_is_a_cause_and_consequences_stand_below(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("DIR", str(tmp_path)), ("COMPANION", "off"), ("EVERY", "1")):
        monkeypatch.setenv(f"STETHOSCOPE_{name}", value)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        diagnosis = stethoscope.diagnose(five_faults.train(seed, quiet=True))
    finally:
        torch.set_num_threads(threads)
    causes = {cause.code: cause for cause in diagnosis.causes}
    assert set(causes) == set(ROOTS)
    for code, step in ROOTS.items():
        assert abs(causes[code].first_step - step) <= 2, code
    assert "second.weight" in causes["trainable_params_not_in_optimizer"].sites
    assert "side" in causes["dead_units"].sites
    after_the_jump = diagnosis.followed["update_too_large"]
    assert all(follower.first_step >= five_faults.JUMP for follower in after_the_jump)
    folded = [follower for group in diagnosis.followed.values() for follower in group]
    assert len(folded) + len(causes) == len([f for f in diagnosis.findings if f.severity != "Info"])
