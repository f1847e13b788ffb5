"""Ternary layers of several tokens: by dot products, or by lookups in tables of sums as well.

Where a CPU has ports for both (Zen 4), the two together are faster than only its dot products;
where they share ports (Intel), slower. So units that have such kernels (`linear/joint_panel.h`)
use them from a number of tokens on that is measured, once for a machine. No choice changes a bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sterna import _native
from sterna.calibration.measured import LEAST_BYTES
from sterna.calibration.token_counts import TokenCount, crossing, samples_of, step_seconds
from sterna.formats import PackedWeight
from sterna.formats.codebook import TERNARY
from sterna.formats.scales import RowScales
from sterna.runtime import Threads

__all__ = ["COUNTS", "fewest_joint", "joint_tokens", "known"]

#: Tokens of the steps that are timed.
COUNTS = (_native.fewest_joint_tokens, 16, 32, 128)
_NEVER = 0
_COUNT = TokenCount(
    "joint tokens", "STERNA_JOINT_TOKENS", range(COUNTS[0], 1 << 16), COUNTS, budget_s=0.25
)


def joint_tokens(
    weights: Iterable[PackedWeight], threads: Threads, isa: str, weight_bytes: int
) -> dict[str, int]:
    """Find the fewest tokens to multiply by lookups, too, for each format that gains by them.

    The number comes from `STERNA_JOINT_TOKENS` (from 8 on, for all formats), or from an earlier
    measurement on this machine, or from a measurement now with some of the weights, if a token
    reads more bytes (`weight_bytes`) than any cache has. Raises RequestError for another
    STERNA_JOINT_TOKENS.
    """
    layouts = _native.joint_layouts(isa)
    ternary = [w for w in weights if w.format.layout.name in layouts and _is_ternary(w)]
    samples = samples_of(ternary)
    return _COUNT.choose(samples, _measured, threads, isa, weight_bytes >= LEAST_BYTES)


def known(threads: Threads, isa: str) -> dict[str, int]:
    """Return what was measured so far on this machine, for each format; 0: never."""
    return _COUNT.known(threads, isa)


def fewest_joint(seconds: Mapping[tuple[int, int], float]) -> int:
    """Return the number that costs least over all steps; 0 unless that gains.

    seconds: the time of a step by its number of tokens (COUNTS) and the number from which layers
    are joint: 0, never; or 8, in all of them. Each step weighs the same.
    """
    return crossing(seconds, COUNTS, before=_NEVER, after=COUNTS[0], usual=_NEVER)


def _is_ternary(weight: PackedWeight) -> bool:
    return weight.format.codebook == TERNARY and isinstance(weight.format.scales, RowScales)


def _measured(
    packed: Sequence[PackedWeight], threads: Threads, isa: str, budget_s: float
) -> int | None:
    """Measure `fewest_joint` for these weights; None if the machine is too busy to tell."""
    ways = [(n, fewest) for n in COUNTS for fewest in (_NEVER, COUNTS[0])]
    seconds = step_seconds(packed, "joint_tokens", ways, threads, isa, budget_s)
    return None if seconds is None else fewest_joint(seconds)
