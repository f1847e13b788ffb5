"""ALiBi's slopes, by the authors' rule for any number of heads."""

from __future__ import annotations

import jina_models
import numpy as np
import pytest

from sterna.models import alibi


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 7, 8, 12, 16, 20, 32, 40, 71, 112])
def test_slopes(heads: int) -> None:
    """The nearest floats; those of eight heads are powers of two."""
    expected = np.array(jina_models.slopes(heads), np.float32)
    np.testing.assert_array_equal(alibi.slopes(heads), expected)
    if heads == 8:
        assert alibi.slopes(8) == tuple(2.0**-i for i in range(1, 9))


def test_another_largest_bias_and_a_factor() -> None:
    """The last slope of a power of two of heads is 2^-most; the factor multiplies all."""
    assert alibi.slopes(4, 6.0, 0.25) == tuple(0.25 * np.float32(2**-x) for x in (1.5, 3, 4.5, 6))
