"""What the fastest way is on this machine: tried once, kept in the cache folder.

measured: the file, and how choices are timed; reading: how memory is read; few_tokens: which way
steps of a few tokens take. No choice changes a bit.
"""

from sterna.calibration.few_tokens import direct_tokens
from sterna.calibration.measured import LEAST_BYTES
from sterna.calibration.prefetch import prepare

__all__ = ["LEAST_BYTES", "direct_tokens", "prepare"]
