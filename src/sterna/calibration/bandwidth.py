"""The bandwidth of memory, and the most that these threads ever got on this machine."""

from __future__ import annotations

from sterna import _native
from sterna.calibration.measured import keep, kept, place
from sterna.runtime import Threads, available_bytes

__all__ = ["BYTES", "best_bandwidth", "measure_bandwidth"]

#: What is read; a quarter of the free memory, if that is less.
BYTES = 1 << 30
_WHAT = "bandwidth"


def measure_bandwidth(threads: Threads) -> float:
    """Measure five reads of `BYTES`, and keep the result if it is the best; 10^9 bytes/second."""
    speed = float(_native.bandwidth_gb_s(threads, min(BYTES, available_bytes() // 4)))
    if speed > best_bandwidth(threads):
        keep(_WHAT, place(threads), speed)
    return speed


def best_bandwidth(threads: Threads) -> float:
    """Return the greatest value that was measured here, in 10^9 bytes/second; 0 for none."""
    value = kept(_WHAT, place(threads))
    return float(value) if isinstance(value, (int, float)) else 0.0
