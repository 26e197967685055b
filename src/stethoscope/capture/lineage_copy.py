"""Following a model that torch.compile runs: its forward in Python, on a copy without data.

The copy's tensors are fake: they have shapes and no memory, random operations on them do not touch the RNG, and what
the forward stores on the copy never reaches the model. Forward hooks are left off the copy.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import random
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from stethoscope.capture.lineage_trace import Trace
from stethoscope.capture.nested_tensors import tensors_in


def follow(root: torch.nn.Module, args: Any, kwargs: Any) -> Trace:
    """The trace of one forward pass on fakes of these arguments; raises where the forward needs real numbers."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)

    def as_fake(value: Any) -> Any:
        return fake.from_tensor(value) if isinstance(value, torch.Tensor) else value

    with _undisturbed():
        twin = _twin(root, fake)
        args, kwargs = tree_map(as_fake, (args, dict(kwargs)))
        trace = Trace(twin)
        # Hooks of the user's own on what autograd saves (checkpointing counts it) must not see the copy's.
        unseen = torch.autograd.graph.saved_tensors_hooks(_as_it_is, _as_it_is)
        with fake, unseen, torch.compiler.set_stance("force_eager"):
            try:
                trace.begin(args, kwargs)
                output = twin(*args, **kwargs)
                trace.close(output)
            finally:
                trace.end()
    if trace.error is not None:
        raise trace.error
    return trace


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _twin(root: torch.nn.Module, fake: FakeTensorMode) -> torch.nn.Module:
    """The model with fakes in place of all its tensors, and without hooks."""
    memo: dict[int, Any] = {}
    for module in root.modules():
        # What lies in `__dict__` is parameters, buffers and tensors that a forward left there.
        for tensor in tensors_in(vars(module)):
            memo[id(tensor)] = fake.from_tensor(tensor)
    twin: torch.nn.Module = copy.deepcopy(root, memo)
    for module in twin.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
        module._compiled_call_impl = None
    return twin


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Python's and NumPy's random states as they were, and no complaints of the fakes on the user's screen."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.disabled = was_disabled
        random.setstate(python_state)
        np.random.set_state(numpy_state)
