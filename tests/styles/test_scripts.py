"""`stethoscope run` on ten unchanged scripts: the right models, the same output, silence when healthy, the planted fault found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import stethoscope
from stethoscope.store import find_runs

SCRIPTS = Path(__file__).parents[2] / "examples" / "scripts"
SOURCE = Path(stethoscope.__file__).parents[1]

KNOWN: dict[str, tuple[str, list[str], str]] = {
    "mnist_conv": ("Net", ["Adam"], "gradients_not_cleared"),
    "word_language_model": ("RNNModel", ["Adam"], "gradients_cleared_before_step"),
    "vae": ("VAE", ["Adam"], "nonfinite_batch"),
    "dcgan": ("netG,netD", ["Adam", "Adam"], "optimizer_params_not_in_model"),
    "reinforce": ("Policy", ["Adam"], "optimizer_never_steps"),
    "actor_critic": ("Policy", ["Adam"], "trainable_params_not_in_optimizer"),
    "siamese": ("SiameseNetwork", ["AdamW"], "zero_lr_group"),
    "time_series": ("Sequence", ["LBFGS"], "gradients_not_cleared"),
    "super_resolution": ("Net", ["Adam"], "vanishing_gradients"),
    "gpt": ("GPT", ["AdamW"], "clip_before_unscale"),
}
"""Script, its model (or the names of its models), its optimizers, what its --fault is."""


def start(*words: str) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
    return subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", list(KNOWN))
def test_script(name: str, tmp_path: Path) -> None:
    script = str(SCRIPTS / f"{name}.py")
    watch = ["-m", "stethoscope", "run", "--set", "companion=off", "--dir"]
    plain = start(script)
    healthy = start(*watch, str(tmp_path / "healthy"), script)
    # Every step is looked at: which ones the governor leaves out depends on how fast the machine is just now.
    sick = start(*watch, str(tmp_path / "sick"), "--every", "1", script, "--fault")
    out, err = plain.communicate(timeout=300)
    watched_out, watched_err = healthy.communicate(timeout=300)
    sick_err = sick.communicate(timeout=300)[1]
    assert plain.returncode == healthy.returncode == 0, err + watched_err
    assert watched_out == out
    assert err == ""
    assert all(line.startswith("stethoscope: ") for line in watched_err.splitlines())
    model, optimizers, fault = KNOWN[name]
    (folder,) = find_runs(tmp_path / "healthy")
    run = stethoscope.open_run(folder)
    paths = [m["path"] for m in run.info["model"]["modules"]]
    if "," in model:
        assert set(model.split(",")) <= set(paths)
    else:
        assert run.info["model"]["type"] == model
    assert run.info["optimizers"] == optimizers
    assert run.state == "finished"
    assert run.events("totals")[-1].body["num_errors"] == 0
    assert stethoscope.diagnose(run).causes == ()
    (folder,) = find_runs(tmp_path / "sick")
    assert stethoscope.diagnose(folder).causes[0].code == fault
    assert f"[{fault}]" in sick_err
