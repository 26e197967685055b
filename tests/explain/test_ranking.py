"""Causes and consequences: chains end at their root, the nearest cause is taken, and a finding with its own root stays one."""

from __future__ import annotations

import pytest

from stethoscope.analyse.graph import Edge, Graph, Node
from stethoscope.detect.registry import builtin
from stethoscope.explain.ranking import effects_of, rank_causes
from stethoscope.explain.run_context import RunContext
from stethoscope.record import Finding, Severity


def finding(code: str, step: int, *sites: str, severity: Severity = Severity.CRITICAL) -> Finding:
    return Finding(code, severity, f"{code}.", step, step + 50, tuple(sites))


def told(*findings: Finding, around: RunContext | None = None) -> tuple[list[str], dict[str, list[str]]]:
    causes, followed = rank_causes(findings, around)
    return [c.code for c in causes], {code: [f.code for f in group] for code, group in followed.items()}


def test_a_consequence_of_a_consequence_is_told_under_the_root() -> None:
    # Weights that update too far explode; what explodes ends in NaN. Nothing in between may get lost.
    chain = (finding("clip_before_unscale", 0), finding("clipping_always_on", 3), finding("update_too_small", 5))
    assert told(*chain) == (
        ["clip_before_unscale"],
        {"clip_before_unscale": ["clipping_always_on", "update_too_small"]},
    )


def test_of_two_possible_causes_the_nearer_one_is_taken() -> None:
    found = (finding("gradients_not_cleared", 0), finding("update_too_large", 150), finding("nonfinite_origin", 160))
    jumped = RunContext(first_step=0, rate_jumps=(150,))
    causes, followed = told(*found, around=jumped)
    assert causes == ["gradients_not_cleared", "update_too_large"]
    assert followed == {"update_too_large": ["nonfinite_origin"]}


def test_without_a_jump_large_steps_follow_from_gradients_that_pile_up() -> None:
    found = (finding("gradients_not_cleared", 0), finding("update_too_large", 150))
    assert told(*found, around=RunContext(first_step=0)) == (
        ["gradients_not_cleared"],
        {"gradients_not_cleared": ["update_too_large"]},
    )
    # A jump long before explains nothing.
    early = RunContext(first_step=0, rate_jumps=(40,))
    assert told(*found, around=early)[0] == ["gradients_not_cleared"]


@pytest.mark.parametrize(("step", "is_own"), [(0, True), (8, False)])
def test_units_that_were_dead_at_the_first_look_are_nobodys_consequence(step: int, is_own: bool) -> None:
    found = (finding("gradients_not_cleared", 1), finding("dead_units", step, "fc"))
    causes, _ = told(*found, around=RunContext(first_step=0))
    assert ("dead_units" in causes) is is_own


def _graph(*edges: tuple[str, str], types: dict[str, str]) -> Graph:
    names = dict.fromkeys(name for edge in edges for name in edge)
    nodes = {
        name: Node(
            path=name, type=types.get(name, "Linear"), role="input" if name == "(input)" else "module", order=place
        )
        for place, name in enumerate(names)
    }
    return Graph(nodes=nodes, edges=tuple(Edge(source=a, target=b) for a, b in edges))


@pytest.mark.parametrize("bypass", [False, True])
def test_a_normalization_keeps_the_size_of_the_inputs_out(bypass: bool) -> None:
    edges = [("(input)", "first"), ("first", "norm"), ("norm", "side")]
    graph = _graph(*edges, *([("first", "side")] if bypass else []), types={"norm": "LayerNorm"})
    found = (finding("unscaled_inputs", 0, "batch"), finding("dead_units", 0, "side"))
    causes, _ = told(*found, around=RunContext(first_step=0, graph=graph))
    assert ("dead_units" in causes) is not bypass


def test_some_cause_is_always_left() -> None:
    # Whatever can lead to whatever, at one and the same step: a circle has a first finding too.
    for code in builtin().codes:
        for effect in effects_of(code):
            found = [finding(code, 3), finding(effect, 3), *(finding(e, 3) for e in effects_of(effect))]
            causes, followed = rank_causes(found)
            assert causes
            assert len(causes) + sum(map(len, followed.values())) == len(found)


def test_info_is_never_a_cause() -> None:
    assert told(finding("plateau", 0, severity=Severity.INFO)) == ([], {})
