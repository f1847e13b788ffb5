"""The fastest settings on this machine: measured once, kept in the cache folder.

measured       the file, and how choices are timed
readings       ways of reading memory
memory_trials   the present cost of these readings
prefetch       which of them is taken
token_counts   numbers of tokens that are chosen for each format
few_tokens     how steps of a few tokens are computed
many_tokens    how ternary layers of more are
matrix_tokens  and those with scales in groups, on a matrix unit
unit_check     whether kernels compute what they must

No choice changes a bit.
"""

from sterna.calibration.few_tokens import direct_tokens
from sterna.calibration.many_tokens import joint_tokens
from sterna.calibration.matrix_tokens import tile_tokens
from sterna.calibration.measured import LEAST_BYTES
from sterna.calibration.prefetch import prepare

__all__ = ["LEAST_BYTES", "direct_tokens", "joint_tokens", "prepare", "tile_tokens"]
