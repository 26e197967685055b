"""Detectors are found by a scan, and a stranger's by an entry point or by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import ClassVar

import pytest

from stethoscope.analyse.span import Span, spans
from stethoscope.detect import Code, Detection, Detector
from stethoscope.detect.registry import builtin
from stethoscope.record import Finding
from tests.detect.written import write_run

TOP = Path(__file__).parents[2]


def test_the_import_contract_holds_every_detector() -> None:
    """Each by the folder's wildcard, and none of them among what the others may share."""
    contracts = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = [c for c in contracts if c["name"] == "detectors do not import each other"]
    assert contract["modules"] == ["stethoscope.detect.*"]
    shared = {line.split(" -> ")[1] for line in contract["ignore_imports"]}
    assert not shared & {detector.__module__ for detector in builtin().detectors}


def test_effects_are_codes_that_exist() -> None:
    known = builtin().codes
    assert {effect for code in known.values() for effect in code.leads_to} <= set(known)


class Twice(Detector):
    """Claims a code that is taken."""

    codes: ClassVar[tuple[Code, ...]] = (Code("dead_units"),)

    def observe(self, span: Span) -> None: ...

    def findings(self) -> list[Finding]:
        return []


class Refuses(Detector):
    """Cannot even be made."""

    codes: ClassVar[tuple[Code, ...]] = (Code("never"),)

    def __init__(self) -> None:
        raise RuntimeError("no licence")

    def observe(self, span: Span) -> None: ...

    def findings(self) -> list[Finding]:
        return []


def test_what_cannot_be_used_is_named_and_costs_itself_only(tmp_path: Path) -> None:
    given = [("mine:Twice", Twice), ("mine:Refuses", Refuses), ("mine:thing", object())]
    registry = builtin().with_more(given)
    detection = Detection(registry)
    detection.observe(spans(write_run(tmp_path, {"loss": dict.fromkeys(range(4), 1.0)})))
    assert detection.findings() == []
    assert "dead_units" in detection.errors["mine:Twice"]
    assert "no licence" in detection.errors["Refuses"]
    assert "not a subclass" in detection.errors["mine:thing"]
    assert len(detection.errors) == 3


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example package, installed into a folder of its own."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    subprocess.run(["cp", "-r", str(TOP / "examples/detector_plugin"), str(source)], check=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", str(target), str(source / "detector_plugin")], check=True)
    return target


def stethoscope(plugin: Path, *args: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(plugin), str(TOP / "src")])
    return subprocess.run(
        [sys.executable, "-m", "stethoscope", *args],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_an_installed_package_adds_a_detector(plugin: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "run", {"loss": {step: 1.0 + 0.1 * (step > 5) for step in range(40)}})
    found = stethoscope(plugin, "diagnose", str(tmp_path / "run"), "--json")
    assert "loss_above_start" in [f["code"] for f in json.loads(found.stdout)["findings"]], found.stderr
    why = stethoscope(plugin, "diagnose", str(tmp_path / "run"), "--why", "loss_above_start", "--json")
    assert json.loads(why.stdout)["outcome"] == "cause", why.stderr
    page = stethoscope(plugin, "explain", "loss_above_start")
    assert "higher than where training began" in page.stdout, page.stderr


def test_a_package_that_cannot_be_imported_is_named(plugin: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "run", {"loss": dict.fromkeys(range(10), 1.0)})
    broken = tmp_path / "broken"
    subprocess.run(["cp", "-r", str(plugin), str(broken)], check=True)
    (broken / "house_rules/__init__.py").write_text("raise OSError('half installed')")
    found = stethoscope(broken, "diagnose", str(tmp_path / "run"), "--json")
    assert "half installed" in str(json.loads(found.stdout)["looked_at"]["broken_detectors"]), found.stderr


RULES = """
from house_rules import LossAboveStart as Base
from stethoscope.detect import Code

class Mine(Base):
    codes = (Code("mine"),)
    def findings(self):
        import dataclasses
        return [dataclasses.replace(f, code="mine") for f in super().findings()]
"""
SCRIPT = """
import torch, stethoscope
{imports}
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, maximize=True)
session = stethoscope.watch(model, optimizer, detectors=[{given}], run="out")
x = torch.randn(32, 4)
for _ in range(40):
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
print(sorted(f.code for f in session.stop().diagnosis.findings))
"""


@pytest.mark.parametrize("where", ["class", "name", "script"])
def test_watch_takes_detectors(where: str, plugin: Path, tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text(RULES)
    imports, given = {
        "class": ("from rules import Mine", "Mine"),
        "name": ("", "'rules:Mine'"),
        "script": (RULES, "Mine"),
    }[where]
    (tmp_path / "train.py").write_text(SCRIPT.format(imports=imports, given=given))
    path = os.pathsep.join([str(plugin), str(TOP / "src")])
    found = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "'loss_above_start', 'mine'" in found.stdout, found.stdout + found.stderr
    if where != "script":
        codes: list[str] = []
        until = time.monotonic() + 60.0
        while "mine" not in codes and time.monotonic() < until:  # the companion ends its search alone
            later = stethoscope(plugin, "diagnose", str(tmp_path / ".stethoscope/out"), "--json")
            codes = [finding["code"] for finding in json.loads(later.stdout)["findings"]]
        assert "mine" in codes, "kept, though nobody here can find it again"
