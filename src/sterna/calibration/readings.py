"""How memory is read, as kernels take it and as text."""

from __future__ import annotations

from typing import NamedTuple

from sterna import _native
from sterna.errors import RequestError, shown

__all__ = ["Reading", "Readings", "current", "pin"]


class Reading(NamedTuple):
    """How weights are read while tokens are few.

    streams: tiles read side by side. turn_bytes: bytes of one tile before the next has its turn.
    prefetch_bytes: how far ahead. into_l2: prefetched into L2, else into L1.
    """

    streams: int
    turn_bytes: int
    prefetch_bytes: int
    into_l2: bool = False

    def __str__(self) -> str:
        level = "L2" if self.into_l2 else ""
        return f"{self.streams},{self.turn_bytes},{self.prefetch_bytes}{level}"

    @classmethod
    def parse(cls, text: str) -> Reading:
        """Return the reading that a text of `str` names; ValueError for another text."""
        streams, turn_bytes, ahead = text.split(",")
        into_l2 = ahead.endswith("L2")
        return cls(int(streams), int(turn_bytes), int(ahead.removesuffix("L2")), into_l2)


class Readings(NamedTuple):
    """How a team of threads reads memory.

    few_bits, many_bits: weights of less than four bits, and wider ones. next_page: whether
    attention prefetches the next pages of keys and values.
    """

    few_bits: Reading
    many_bits: Reading
    next_page: bool = True

    def set(self, threads: int) -> None:
        """Set the readings of these threads; ValueError for values that no kernel supports."""
        _native.set_readings(threads, *self)


def current(threads: int) -> Readings:
    """Return how these threads read memory now."""
    few_bits, many_bits, next_page = _native.readings(threads)
    return Readings(Reading(*few_bits), Reading(*many_bits), next_page)


def pin(threads: int, text: str) -> None:
    """Have threads read as `STERNA_READING` says; RequestError for a malformed text.

    It is one reading for all weights, or two with a semicolon between: of less than four bits, and
    of more. ",0" after the last: attention prefetches no page.
    """
    *firsts, last = (part.split(",") for part in text.split(";"))
    next_page = last.pop() if len(last) == 4 else "1"
    try:
        few_bits, *more = (Reading.parse(",".join(fields)) for fields in (*firsts, last))
        if len(more) > 1 or next_page not in ("0", "1"):
            raise ValueError("more than two readings, or next_page is neither 0 nor 1")
        Readings(few_bits, more[0] if more else few_bits, next_page == "1").set(threads)
    except (TypeError, ValueError) as error:
        raise RequestError(
            "STERNA_READING: must be streams,turn_bytes,prefetch_bytes such as 1,4096,4096, "
            "and a fourth value 0 if attention prefetches no page, "
            f"but got {shown(text)} ({error})"
        ) from None
