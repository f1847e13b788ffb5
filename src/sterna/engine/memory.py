"""The memory of an engine: how much keys and values may take, and what its sequences have of it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence as SequenceOf

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.checks import checked_whole
from sterna.engine.pages import PagePool, PagesMissing
from sterna.engine.sequence import PAGE, Sequence, are_whole, pages_of
from sterna.engine.step_io import StepInput
from sterna.engine.windows import PageShape, way_back
from sterna.errors import ContextError, RequestError
from sterna.graph import Graph
from sterna.runtime import available_bytes

__all__ = ["Memory", "page_counts"]

#: Sequences of full context that a pool holds at least, where no budget is set.
LEAST_CONTEXTS = 8
#: Share of the available memory that pages may fill, where no budget is set and that is more.
SHARE = 4
#: Pages beyond which a pool does not grow by itself: to count who holds which takes about 1 ns for
#: each page, and a step of a batch counts once.
MOST_PAGES = 1 << 14


def page_counts(
    context: int, page_bytes: int, budget: int | None, state_pages: int = 0
) -> tuple[int, ...]:
    """Pages for sequences of `context` positions: as a budget in bytes has them, or by themselves.

    A page takes address space at once and memory when it is first written. So a pool without a
    budget may be large: it has room for LEAST_CONTEXTS full contexts whatever the memory, as short
    sequences never fill theirs, and for more where a share of the memory that is available now
    holds more. Several counts are to be tried in turn, as a system may grant less address space.
    state_pages: as many more for each sequence, whose recurrent state takes as much. RequestError
    for a budget that holds no sequence of one page.
    """
    if budget is not None:
        most = page_bytes * np.iinfo(np.int32).max
        checked_whole("kv_bytes", budget, page_bytes * (1 + state_pages), most, " for this model")
        return (budget // page_bytes,)
    least = LEAST_CONTEXTS * (pages_of(context) + state_pages)
    share = min(available_bytes() // SHARE // page_bytes, MOST_PAGES)
    return (share, least) if share > least else (least,)


class Memory:
    """Keys and values of all sequences, in pages, and the states of their recurrent layers."""

    def __init__(
        self, graph: Graph, state_bytes: int, context: int, kv_dtype: str, kv_bytes: int | None,
        step: int,
    ) -> None:  # fmt: skip
        """context, kv_dtype, kv_bytes: as of `Engine`; state_bytes: of a sequence's recurrent
        layers; step: tokens of a sequence that are computed at once, at most."""
        self._graph, self.context, self.kv_dtype = graph, context, kv_dtype
        #: Bytes that recurrent layers keep of a sequence, however long; 0 where there are none.
        self.state_bytes = state_bytes
        state_pages = -(-self.state_bytes // (self.kv_bytes_per_position * PAGE))
        self._shape = self._page_shape(step)
        self._cache, count = self._make_cache(kv_bytes, state_pages)
        #: Pages that a cache of earlier sequences should keep at most.
        self.cache_pages = count
        if kv_bytes is None:
            share = available_bytes() // SHARE // self.page_bytes
            self.cache_pages = min(self.cache_pages, share)
        self.pool = PagePool(
            count, self._cache.copy_page, self.state_bytes, state_pages, self._shape,
            self._cache.pages, self._cache.release,
        )  # fmt: skip

    def _page_shape(self, step: int) -> PageShape:
        """What pages take, where a step is so many tokens; as if there were no windows where these
        hold all of the context."""
        graph, whole = self._graph, self.kv_bytes_per_position * PAGE
        seen = [window for window in graph.kv_windows if window is not None]
        window = max(seen, default=self.context)
        if window + way_back(window) > self.context:
            return PageShape(whole)
        parts = PAGE * graph.kv_bytes(self.kv_dtype, windowed=True)
        return PageShape(whole - parts, parts, window, way_back(window), step)

    def _make_cache(self, kv_bytes: int | None, state_pages: int) -> tuple[_native.KvCache, int]:
        """The memory, and how many whole pages it may take."""
        graph, shape = self._graph, self._shape
        layers = [(heads.n_kv_heads, heads.head_dim) for heads in graph.kv_heads]
        windowed = [window is not None for window in graph.kv_windows] if shape.is_split else []
        for pages in page_counts(self.context, shape.page_bytes, kv_bytes, state_pages):
            for ids in (shape.ids(pages), pages):
                with contextlib.suppress(MemoryError):
                    return _native.KvCache(layers, ids, self.kv_dtype, windowed), pages
        need = pages * shape.page_bytes / 1e9
        raise RequestError(
            f"KV cache: address space for {pages * PAGE} positions, {need:.2f} GB, is needed, but "
            "the system refuses it; lower the context or kv_bytes"
        )

    @property
    def kv_bytes_per_position(self) -> int:
        """Bytes of keys and values that one position adds, over all layers."""
        return self._graph.kv_bytes(self.kv_dtype)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, all layers'."""
        return self._shape.page_bytes

    @property
    def bare_page_bytes(self) -> int:
        """Bytes of a page without its part of layers with windows, where that is given back alone;
        else those of a whole one."""
        return self._shape.rest_bytes if self._shape.is_split else self._shape.page_bytes

    def read_page(self, page: int, whole: bool = True) -> npt.NDArray[np.uint8]:
        """What a page holds, uint8 [page_bytes], the same on every machine; or not whole:
        [bare_page_bytes]."""
        data = np.empty(self.page_bytes if whole else self.bare_page_bytes, np.uint8)
        self._cache.read_page(page, data, whole)
        return data

    def write_page(self, page: int, data: npt.NDArray[np.uint8]) -> None:
        """Gives a page what `read_page` has read of one."""
        self._cache.write_page(page, data, len(data) == self.page_bytes)

    @property
    def forgets(self) -> bool:
        """Whether `rewind` may need a `snapshot` for a length: where layers are recurrent, or have
        windows, behind which pages are given back."""
        return self.state_bytes > 0 or self._shape.window is not None

    def may_draft(self, sequence: Sequence) -> bool:
        """Whether a sequence's next step may have drafts: not where a recurrent state for them has
        no room."""
        return self.pool.may_draft(sequence)

    def release(self, sequence: Sequence) -> None:
        """Give a sequence's pages back; it is empty again."""
        self.rewind(sequence, 0)

    def rewind(self, sequence: Sequence, length: int) -> int:
        """Forget a sequence's tokens from `length` on; their pages are free again.

        Returns how many it has then: fewer, and possibly none, where recurrent layers have neither
        a `snapshot` nor their present state at `length`, or where layers have windows whose pages
        are no longer there. RequestError unless the sequence is that long.
        """
        if not 0 <= length <= sequence.length:
            raise RequestError(f"rewind: must lie in 0..{sequence.length}, but got {length}")
        return self.pool.cut(sequence, length)

    def snapshot(self, sequence: Sequence, keep: int = 1) -> bool:
        """Keep what `rewind` needs to come back to the sequence's present length.

        With recurrent layers that is a copy of their state, of `state_bytes`, and where layers have
        windows the pages in these; else it is nothing. The latest `keep` of a sequence are kept;
        pages in windows, until its own next step lacks some. False where the pool has no room.
        """
        return self.pool.snapshot(sequence, keep)

    def _make_room(self, wanted: SequenceOf[tuple[Sequence, int]]) -> None:
        for sequence, count in wanted:
            end = sequence.length + count
            if end > self.context:
                raise ContextError(
                    f"context: holds {self.context} tokens, but the sequence would have {end}; "
                    "shorten the prompt or raise --context"
                )
        self.pool.reserve(wanted)

    def repeated(self, sequence: Sequence, length: int) -> Sequence:
        """A sequence of `length` positions whose pages are copies of the given one's, in turn.

        What it answers means nothing; it takes memory and time as any sequence of that length does,
        and is there at once. `length` and that of `sequence` must be whole pages; RequestError
        where the context or the pool has no room.
        """
        if length % PAGE or sequence.length % PAGE or not sequence.length:
            raise RequestError(
                f"repeated: lengths must be multiples of {PAGE}, but got {length} of a sequence "
                f"of {sequence.length}"
            )
        copy = Sequence()
        self._make_room([(copy, length)])
        there = sequence.pages[are_whole(sequence.pages)]
        for i, page in enumerate(copy.pages):
            self._cache.copy_page(int(there[i % len(there)]), int(page))
        if copy.state and sequence.state:
            copy.state.copy_from(sequence.state, length)
        copy.length = length
        self.pool.give_back(copy)
        return copy

    def _states_ahead(self, inputs: SequenceOf[StepInput]) -> list[tuple[int, int, _native.State]]:
        """Of each sequence that has drafts, the state in which they go on."""
        ahead = []
        for i, step_input in enumerate(inputs):
            if step_input.drafts:
                if not self.may_draft(step_input.sequence) or step_input.sequence.ahead is None:
                    raise PagesMissing(
                        f"KV cache: a recurrent state takes {self.pool.state_pages} of "
                        f"{self.pool.count} pages, but fewer are free; run without drafts"
                    )
                ahead.append((i, step_input.drafts, step_input.sequence.ahead))
        return ahead
