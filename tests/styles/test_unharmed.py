"""A few of the kinds that `benchmarks/unharmed.py` compares, each plain and watched in processes of its own."""

from __future__ import annotations

import pytest

from stethoscope.kernels.frameless import call_and_show
from tests.styles.unharmed import compare_kind


@pytest.mark.parametrize("name", ["nested jagged tensors", "warnings of every kind"])
def test_a_training_is_as_without_us(name: str) -> None:
    if name.startswith("warnings") and call_and_show(object()) is None:
        pytest.skip("the C library is missing or older than its source: python build_kernels.py")
    found = compare_kind(name)
    assert not found.differs, f"{found.differs}: {found.words}"
