"""`KVCacheManager`: keys and values of all sequences in pages, and states of recurrent layers."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence as SequenceOf

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.checks import checked_whole
from sterna.engine.kv_cache.page_pool import PagePool
from sterna.engine.kv_cache.sequence import PAGE, Sequence, are_whole, pages_of
from sterna.engine.kv_cache.sliding_windows import PageShape, rewind_margin
from sterna.errors import ContextError, RequestError
from sterna.graph import Graph
from sterna.runtime import available_bytes

__all__ = ["KVCacheManager", "page_counts"]

#: Without a budget, sequences of full context for which there is room, if the system refuses the
#: address space for more.
SOME_CONTEXTS = 8
#: Without a budget, pages may fill this fraction (1 / n) of the available memory.
SHARE = 4
#: Without a budget, most pages of a pool: counting their holders takes about 1 ns a page, once a
#: step.
MOST_PAGES = 1 << 14
#: Where no layer keeps keys and values, pages are empty, and this many count as a state: tokens of
#: full context then count as some states, those of a chat as less than one.
PAGES_OF_A_STATE = 256


def page_counts(
    context: int, page_bytes: int, budget: int | None, state_pages: int = 0
) -> tuple[int, ...]:
    """Return how many pages a pool should have: counts to try in turn, the largest first.

    A budget in bytes decides if there is one. Otherwise it is a share of the available memory, or
    a sequence of full context if that is more: a page takes address space at once but memory only
    when it is first written. There are several counts since the system may refuse so much address
    space. state_pages: pages that the recurrent state of each sequence takes. Raises RequestError
    for a budget too small for a one-page sequence.
    """
    if budget is not None:
        most = page_bytes * np.iinfo(np.int32).max
        checked_whole("kv_bytes", budget, page_bytes * (1 + state_pages), most, " for this model")
        return (budget // page_bytes,)
    least = pages_of(context) + state_pages
    share = min(available_bytes() // SHARE // page_bytes, MOST_PAGES)
    counts = (share, min(share, SOME_CONTEXTS * least), least)
    return tuple(sorted({max(count, least) for count in counts}, reverse=True))


class KVCacheManager:
    """The KV cache of an engine: its memory, and the pages of it that sequences have.

    pool: the owners of pages; native: the memory itself, for programs; context: most positions of a
    sequence; kv_dtype: how keys and values are stored; state_bytes: bytes that recurrent layers
    keep of a sequence, however long, or 0; prefix_cache_pages: most pages that a prefix cache
    should keep.
    """

    def __init__(
        self,
        graph: Graph,
        state_bytes: int,
        context: int,
        kv_dtype: str,
        kv_bytes: int | None,
        step: int,
    ) -> None:
        """context, kv_dtype, kv_bytes: as in `Engine`; step: most tokens of a sequence in a step.

        Raises RequestError if `kv_bytes` is out of range, or the system refuses the address space.
        """
        self._graph = graph
        self.context = context
        self.kv_dtype = kv_dtype
        self.state_bytes = state_bytes
        self._shape = self._page_shape(step)
        state_pages = -(-state_bytes // self._shape.page_bytes)
        self.native: _native.KvCache
        self.native, count = self._make_cache(kv_bytes, state_pages)
        self.prefix_cache_pages: int = count
        if kv_bytes is None:
            share = available_bytes() // SHARE // self.page_bytes
            self.prefix_cache_pages = min(count, share)
        self.pool: PagePool = PagePool(
            count,
            self.native.copy_page,
            state_bytes,
            state_pages,
            self._shape,
            self.native.pages,
            self.native.release,
        )

    def _page_shape(self, step: int) -> PageShape:
        """Return the sizes of pages; windows that cover the whole context count as none."""
        graph, whole = self._graph, self.bytes_per_position * PAGE
        if not graph.kv_heads:
            return PageShape(-(-self.state_bytes // PAGES_OF_A_STATE))
        seen = [window for window in graph.kv_windows if window is not None]
        window = max(seen, default=self.context)
        if window + rewind_margin(window) > self.context:
            return PageShape(whole)
        parts = PAGE * graph.kv_bytes(self.kv_dtype, windowed=True)
        return PageShape(whole - parts, parts, window, rewind_margin(window), step)

    def _make_cache(self, kv_bytes: int | None, state_pages: int) -> tuple[_native.KvCache, int]:
        """Return the memory and how many whole pages it may take."""
        shape = self._shape
        windowed = [w is not None for w in self._graph.kv_windows] if shape.is_split else []
        keys_only = [heads.stored == 1 for heads in self._graph.kv_heads]
        for pages in page_counts(self.context, shape.page_bytes, kv_bytes, state_pages):
            for ids in (shape.ids(pages), pages):
                with contextlib.suppress(MemoryError):
                    return (
                        _native.KvCache(self.kv_heads, ids, self.kv_dtype, windowed, keys_only),
                        pages,
                    )
        need = pages * shape.page_bytes / 1e9
        raise RequestError(
            f"KV cache: address space for {pages * PAGE} positions, {need:.2f} GB, is needed, but "
            "the system refuses it; lower the context or kv_bytes"
        )

    @property
    def kv_heads(self) -> list[tuple[int, int]]:
        """(KV heads, head_dim) of each layer."""
        return [(heads.n_kv_heads, heads.head_dim) for heads in self._graph.kv_heads]

    @property
    def bytes_per_position(self) -> int:
        """Bytes of keys and values that one position adds, over all layers."""
        return self._graph.kv_bytes(self.kv_dtype)

    @property
    def page_bytes(self) -> int:
        """Bytes that a page counts as: those of all layers."""
        return self._shape.page_bytes

    def held_bytes(self, whole: bool = True) -> int:
        """Count the bytes that a page holds: if not whole, without its sliding-window layers, if
        these are freed separately. 0 where no layer keeps keys and values."""
        if not self._graph.kv_heads:
            return 0
        bare = self._shape.is_split and not whole
        return self._shape.rest_bytes if bare else self._shape.page_bytes

    def read_page(self, page: int, whole: bool = True) -> npt.NDArray[np.uint8]:
        """Return the bytes of a page, the same on every machine: uint8 [held_bytes(whole)]."""
        data = np.empty(self.held_bytes(whole), np.uint8)
        self.native.read_page(page, data, whole)
        return data

    def write_page(self, page: int, data: npt.NDArray[np.uint8]) -> None:
        """Fill a page with what `read_page` returned."""
        self.native.write_page(page, data, len(data) == self.held_bytes())

    @property
    def needs_snapshots(self) -> bool:
        """Whether `rewind` may need a `snapshot`: with recurrent layers, or with windows before
        which pages are freed."""
        return self.state_bytes > 0 or self._shape.window is not None

    @property
    def has_windows(self) -> bool:
        """Whether pages before windows are freed."""
        return self._shape.window is not None

    def may_draft(self, sequence: Sequence) -> bool:
        """Whether a sequence's next step may have drafts: not if a recurrent state for them has no
        room."""
        return self.pool.may_draft(sequence)

    def release(self, sequence: Sequence) -> None:
        """Free a sequence's pages; it is empty again."""
        self.rewind(sequence, 0)

    def rewind(self, sequence: Sequence, length: int) -> int:
        """Drop a sequence's tokens from `length` on, free their pages, and return the new length.

        The new length is the longest one up to `length` that can be reached: with recurrent layers
        that needs a `snapshot` or the present state, with windows their pages. It may be 0. Raises
        RequestError if the sequence is shorter than `length`.
        """
        if not 0 <= length <= sequence.length:
            raise RequestError(f"rewind: must lie in 0..{sequence.length}, but got {length}")
        return self.pool.truncate(sequence, length)

    def snapshot(self, sequence: Sequence, keep: int = 1) -> bool:
        """Keep the memory that `rewind` needs to return to the present length; False without room.

        That is a copy of the state of recurrent layers (`state_bytes`), the pages in windows, or
        nothing. A sequence's latest `keep` snapshots are kept; pages in windows only until its own
        next step lacks pages.
        """
        return self.pool.snapshot(sequence, keep)

    def reserve(self, wanted: SequenceOf[tuple[Sequence, int]]) -> None:
        """Give all sequences the pages for this many new positions each, or none of them any.

        Raises ContextError if a sequence would exceed the context, RequestError (`PagesMissing`) if
        too few pages are free.
        """
        for sequence, count in wanted:
            end = sequence.length + count
            if end > self.context:
                raise ContextError(
                    f"context: holds {self.context} tokens, but the sequence would have {end}; "
                    "shorten the prompt or raise --context"
                )
        self.pool.reserve(wanted)

    def repeated(self, sequence: Sequence, length: int) -> Sequence:
        """Return a sequence of `length` positions whose pages are copies of the given one's, in
        turn, without computing anything.

        For benchmarks: its answers mean nothing, its memory and time are those of any such
        sequence. Both lengths must be whole pages; raises RequestError if they are not, or if the
        context or the pool has no room.
        """
        if length % PAGE or sequence.length % PAGE or not sequence.length:
            raise RequestError(
                f"repeated: lengths must be multiples of {PAGE}, but got {length} of a sequence "
                f"of {sequence.length}"
            )
        copy = Sequence()
        self.reserve([(copy, length)])
        there = sequence.pages[are_whole(sequence.pages)]
        for i, page in enumerate(copy.pages):
            self.native.copy_page(int(there[i % len(there)]), int(page))
        if copy.state and sequence.state:
            copy.state.copy_from(sequence.state, length)
        copy.length = length
        self.pool.free_unseen(copy)
        return copy
