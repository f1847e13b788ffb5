"""Arguments of `pot.matmul` that numpy makes arrays of, or views too large to copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import failure

from sterna.errors import RequestError
from sterna_papers import pot

ARRAYS = (np.array("all"), np.array(["all", "all"]), np.array(7), np.arange(3), np.zeros((2, 2)))


@pytest.mark.parametrize("value", ARRAYS, ids=repr)
def test_words(value: Any) -> None:
    one = np.ones((1, 1), np.float32)
    failure(lambda: pot.matmul(one, one, 1, kernel=value), RequestError, "kernel")


def test_views_are_measured_before_they_are_copied() -> None:
    """2^31 rows of 512 take no memory as a broadcast view, and 4 TiB as floats."""
    words = np.broadcast_to(np.float32(1), (1 << 31, 512))
    one = np.ones((1, 512), np.float32)
    failure(lambda: pot.matmul(words, one, 512, kernel="f32"), RequestError, "2^31 rows")
    failure(lambda: pot.matmul(one, words, 512, kernel="f32"), RequestError, "2^31 rows")
