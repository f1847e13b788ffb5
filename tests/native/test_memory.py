"""Arrays that share huge pages: zeros, apart from each other, and given back."""

from __future__ import annotations

import numpy as np

from sterna import _native
from sterna.checkpoints.buffers import huge_page_share
from sterna.runtime import resident_bytes

MIB = 1 << 20


def test_arrays_are_zeros_and_apart_however_they_come_and_go() -> None:
    rng = np.random.default_rng(3)
    held: dict[int, np.ndarray] = {}
    for i in range(400):
        if held and rng.random() < 0.45:
            key = int(rng.choice(list(held)))
            assert (held.pop(key) == key % 251 + 1).all()
            continue
        nbytes = int(2 ** rng.uniform(0, 24))
        array = _native.alloc(nbytes)
        assert array.size == nbytes
        assert array.ctypes.data % (4096 if nbytes >= 64 << 10 else 64) == 0
        assert not array.any()
        array.fill(i % 251 + 1)
        held[i] = array
    for key, array in held.items():
        assert (array == key % 251 + 1).all()


def test_memory_goes_back() -> None:
    """Of small arrays, of some between others, and of one beyond a mapping's usual size."""
    before = resident_bytes()
    arrays = [_native.alloc(nbytes) for nbytes in (300 << 10, 100 * MIB, 3 * MIB) * 5]
    for array in arrays:
        array.fill(1)
    assert resident_bytes() - before > 500 * MIB
    kept = arrays[0::3]
    del arrays, array
    assert resident_bytes() - before < 20 * MIB
    assert all((array == 1).all() for array in kept)


def test_the_share_of_huge_pages_is_a_share() -> None:
    share = huge_page_share()
    assert share is None or 0 <= share <= 1
