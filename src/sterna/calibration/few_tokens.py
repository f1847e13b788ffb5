"""Steps of a few tokens: straight from the decoder, or from a decoded panel.

A kernel decodes a line of weights into registers and multiplies it with every token, a block of
tokens after the other; or it first writes a tile's weights to a panel, which costs once and suits
more tokens (or a matrix unit). From how many tokens on the panel is faster differs between formats,
units and CPUs. Each unit has a guess; for a large model it is measured, once for a machine, with
weights that come from memory as in a step: each is timed long after its last time. No choice
changes a bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sterna import _native
from sterna.calibration.measured import GAIN, LEAST_BYTES
from sterna.calibration.token_counts import TokenCount, samples_of, step_seconds
from sterna.formats import PackedWeight
from sterna.runtime import Threads

__all__ = ["COUNTS", "direct_tokens", "known", "most_direct"]

#: Tokens of the steps that are timed.
COUNTS = (2, 4, 6, 8, 12, 16)
# Values of "most direct tokens": the unit's guess, a panel for every step (of integers from four
# tokens on), and for none.
_GUESS, _PANEL, _DIRECT = 0, 1, _native.few_tokens
_COUNT = TokenCount(
    "direct tokens of memory",
    "STERNA_DIRECT_TOKENS",
    range(1, _native.few_tokens + 1),
    (_PANEL, *COUNTS),
    budget_s=0.25,
)


def direct_tokens(
    weights: Iterable[PackedWeight], threads: Threads, isa: str, weight_bytes: int
) -> dict[str, int]:
    """Find the most tokens to multiply straight from the decoder, for each format.

    The limit comes from `STERNA_DIRECT_TOKENS` (1..16, for all formats), or from an earlier
    measurement on this machine, or from a measurement now with some of the weights, if a token
    reads more bytes (`weight_bytes`) than any cache has. For a format that is not in the result,
    the kernels guess. Raises RequestError for another STERNA_DIRECT_TOKENS.
    """
    samples = samples_of(weights)
    return _COUNT.choose(samples, _measured, threads, isa, weight_bytes >= LEAST_BYTES)


def known(threads: Threads, isa: str) -> dict[str, int]:
    """Return the measurements of this machine, for each format; 0: the default is best."""
    return _COUNT.known(threads, isa)


def most_direct(seconds: Mapping[tuple[int, int], float]) -> int:
    """Return the limit that costs least over all steps; 0 if the unit's guess is as good.

    seconds: the time of a step by its number of tokens (COUNTS) and the limit: 0, the guess; 1, a
    panel; or 16, straight from the decoder. Each step weighs the same.
    """

    def cost(way_of: Mapping[int, int]) -> float:
        least = {n: min(seconds[n, _PANEL], seconds[n, _DIRECT]) for n in COUNTS}
        return sum(seconds[n, way_of[n]] / least[n] for n in COUNTS)

    costs = {
        most: cost({n: _DIRECT if n <= most else _PANEL for n in COUNTS})
        for most in (_PANEL, *COUNTS)
    }
    best = min(costs, key=lambda most: costs[most])
    return best if costs[best] * GAIN < cost(dict.fromkeys(COUNTS, _GUESS)) else _GUESS


def _measured(
    packed: Sequence[PackedWeight], threads: Threads, isa: str, budget_s: float
) -> int | None:
    """Measure `most_direct` for these weights; None if the machine is too busy to tell."""
    ways = [(n, most) for n in COUNTS for most in (_GUESS, _PANEL, _DIRECT)]
    seconds = step_seconds(packed, "direct_tokens", ways, threads, isa, budget_s)
    return most_direct(seconds) if seconds else None
