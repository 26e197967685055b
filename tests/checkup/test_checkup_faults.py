"""Each fault found on each architecture; right models silent; nothing of the user's changed by either."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pytest
import torch

import stethoscope
from stethoscope.record import Severity
from tests.checkup.right_models import RIGHT, Case
from tests.checkup.wrong_models import WRONG, Wrong


def fingerprint(case: Case) -> list[Any]:
    """Everything of the user's that an experiment could change."""
    modules = list(case.model.modules())
    optimizers = [] if case.optimizer is None else [case.optimizer]
    return [
        copy.deepcopy(case.model.state_dict()),
        [m.training for m in modules],
        [
            (id(p), p.requires_grad, None if p.grad is None else p.grad.clone(), p._version)
            for p in case.model.parameters()
        ],
        [(len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks)) for m in modules],
        [sorted(vars(m)) for m in modules],
        [copy.deepcopy(o.state_dict()) for o in optimizers],
        random.getstate(),
        np.random.get_state(),
        torch.get_rng_state(),
        torch.is_grad_enabled(),
        copy.deepcopy(case.batch),
    ]


def same(a: Any, b: Any) -> bool:
    """Equal to the bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)))
    if isinstance(a, np.ndarray):
        return bool(np.array_equal(a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def examined(case: Case) -> Any:
    """The diagnosis, with proof that nothing was touched."""
    case.model.train()
    before = fingerprint(case)
    diagnosis = stethoscope.checkup(case.model, case.batch, case.loss_fn, case.optimizer, **case.options)
    for number, (was, now) in enumerate(zip(before, fingerprint(case), strict=True)):
        assert same(was, now), f"part {number} of the fingerprint changed"
    return diagnosis


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("make", RIGHT, ids=lambda make: make.__name__)
def test_right_model_is_silent(make: Callable[[], Case], seed: int) -> None:
    torch.manual_seed(seed)
    diagnosis = examined(make())
    assert [(f.code, f.message) for f in diagnosis.causes] == []
    assert [note for note in diagnosis.looked_at.unmet_needs if "could not be examined" in note] == []


@pytest.mark.parametrize("fault", WRONG, ids=lambda fault: f"{fault.code}-{fault.make.__name__}")
def test_fault_is_found_and_placed(fault: Wrong) -> None:
    torch.manual_seed(0)
    diagnosis = examined(fault.make())
    found = [f for f in diagnosis.causes[:2] if f.code == fault.code]
    assert found, [f.code for f in diagnosis.causes]
    assert any(fnmatchcase(site, fault.site) for site in found[0].sites) or fault.site == "*", found[0].sites
    assert found[0].severity is not Severity.INFO
    assert found[0].evidence or fault.code == "nondeterministic_eval"
    assert found[0].remedy
    assert found[0].message.endswith((".", "?"))


def test_every_code_has_two_architectures() -> None:
    codes = [fault.code for fault in WRONG]
    single = {code for code in codes if codes.count(code) < 2}
    assert single == {"nonfinite_batch"}


def test_codes_of_the_catalogue_are_covered() -> None:
    catalogue = {
        "optimizer_params_not_in_model",
        "trainable_params_not_in_optimizer",
        "unregistered_module",
        "frozen_params",
        "detached_graph",
        "double_softmax",
        "double_sigmoid",
        "batch_dependence",
        "loss_broadcast",
        "output_clipped",
        "loss_scales_with_batch",
        "constant_feature",
        "fully_masked_attention",
        "symmetric_units",
        "bad_init_scale",
        "dead_units",
        "saturated_units",
        "linear_collapse",
        "nondeterministic_eval",
        "tied_weights_split",
        "future_leak",
        "padding_leak",
        "unscaled_inputs",
        "inputs_ignored",
        "label_leak",
        "inputs_too_small",
        "zero_lr_group",
        "bad_initial_loss",
    }
    assert catalogue <= {fault.code for fault in WRONG}
