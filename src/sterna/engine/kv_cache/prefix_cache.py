"""`PrefixCache`: pages of earlier requests, for requests that begin with the same tokens.

No split of a prompt changes a bit, so pages that are found have the bits that computing them would.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain as in_turn
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.engine.kv_cache.disk_cache import PrefixDiskCache
from sterna.engine.kv_cache.page_file import StoredPage
from sterna.engine.kv_cache.page_pool import PagePool
from sterna.engine.kv_cache.prefix_pack import PrefixPack, chain_names
from sterna.engine.kv_cache.prefix_trie import (
    TOKEN_BYTES,
    PrefixTrie,
    TrieNode,
    common_prefix_length,
    pages_of_chain,
)
from sterna.engine.kv_cache.sequence import BARE, GONE, PAGE, Sequence, pages_of
from sterna.engine.kv_cache.sliding_windows import RefCounts
from sterna.errors import RequestError

__all__ = ["PrefixCache", "common_prefix_length"]

I32 = npt.NDArray[np.int32]


class PrefixCache:
    """The pages that a pool keeps of earlier sequences, those that were used last.

    A sequence that is about to write to a cached page gets a copy first, as of any shared page
    (`PagePool`). When sequences need pages, the longest unused ones are evicted. Any thread may
    call.

    most: most pages to keep, where recurrent states count as pages of their size. disk: keeps full
    pages on disk as well, and is searched for them.
    """

    def __init__(self, pool: PagePool, most: int, disk: PrefixDiskCache | None = None) -> None:
        if pool.cache is not None:
            raise RequestError("prefix cache: a pool must have one at most, but has one; use it")
        self._pool = pool
        self.most: int = min(most, pool.count)
        self._disk = disk
        #: Searched after the disk.
        self.packs: tuple[PrefixPack, ...] = ()
        self._trie = PrefixTrie()
        pool.cache = self

    # ------------------------------------------------------------------------------ for requests

    def match(self, tokens: I32, salt: str = "") -> tuple[Sequence | None, int]:
        """Return a sequence with the longest cached prefix of these tokens, and its known length.

        At least the last token is left to compute; other salts are not searched. The second number
        is how many tokens were seen before. It exceeds the sequence's length if recurrent layers
        have no snapshot there, or pages before windows were freed.
        """
        tokens = tokens[:-1]
        for store in (self._disk, *self.packs):
            if store is not None:
                self._load(store, tokens, salt)
        with self._pool.lock:
            chain, same = self._trie.walk(tokens, salt)
            self._trie.touch(chain)
            length, snapshot = self._reachable(chain, same)
            return (self._sequence(chain, length, snapshot) if length else None), same

    def known(self, tokens: I32, salt: str = "") -> int:
        """Return how many of these tokens `match` would find in memory; uses none of them."""
        with self._pool.lock:
            return self._reachable(*self._trie.walk(tokens[:-1], salt))[0]

    def insert(
        self,
        tokens: I32,
        sequence: Sequence,
        salt: str = "",
        final: bool = False,
        idle: bool = True,
    ) -> None:
        """Keep a sequence's pages, which hold its first tokens.

        final: keep the last, partial page and the recurrent state as well, since nothing writes to
        them any more. idle: no step is changing that state now.
        """
        with self._pool.lock:
            length = min(sequence.length, len(tokens))
            states = {s.position: s for s in sequence.snapshots}
            if final and idle and sequence.state is not None and sequence.state.position == length:
                states.setdefault(length, sequence.state)
            if self._pool.state_bytes:
                length = max((p for p in states if p <= length), default=0)
            elif not final:
                length = length // PAGE * PAGE
            sequence.shared = max(sequence.shared, pages_of(length))
            chain = self._trie.grow(tokens[:length], sequence.pages, salt)
            for position, state in states.items():
                if 0 < position <= length:
                    chain[(position - 1) // PAGE].add_state(state)
            self._trie.touch(chain)
            if self._disk is not None:
                self._save(self._disk, chain, salt)
            self._shrink()

    def save(self, tokens: I32, salt: str = "") -> tuple[int, int]:
        """Write a prefix's pages to disk now; returns how many of its tokens the disk then has, and
        the bytes of their files. Others may wait meanwhile for the disk, but not for all pages."""
        disk = self.disk
        with self._pool.lock:
            chain, same = self._trie.walk(tokens, salt)
            for node in chain:  # what was known of files may be out of date
                node.stored = 0
                disk.look_again(self._name(disk, node, salt))
            self._save(disk, chain, salt)
        disk.flush()
        with self._pool.lock:
            nodes = self._kept(disk, chain, salt)
            length = self._reachable(nodes, min(same, PAGE * len(nodes)), PAGE)[0]
            return length, sum(node.stored for node in nodes[: length // PAGE])

    def load(self, tokens: I32, salt: str = "") -> tuple[int, int]:
        """Read a prefix's pages from disk, but for those in memory; returns how many of its tokens
        are in memory then, and the bytes of their files."""
        self._load(self.disk, tokens, salt)
        with self._pool.lock:
            chain, same = self._trie.walk(tokens, salt)
            self._trie.touch(chain)
            length = self._reachable(chain, same)[0]
            return length, sum(node.stored for node in chain[: pages_of(length)])

    def forget(self, tokens: I32, salt: str = "") -> int:
        """Forget a prefix's pages in memory, except those that other prefixes share; returns
        how many of its tokens these pages had."""
        with self._pool.lock:
            chain, _ = self._trie.walk(tokens, salt)
            count = 0
            for i, node in reversed(list(enumerate(chain))):
                own = tokens[i * PAGE : (i + 1) * PAGE].tobytes().startswith(node.key)
                if node.children or not own:
                    break
                self._trie.drop(node)
                count += len(node.key) // TOKEN_BYTES
            return count

    def clear(self) -> None:
        """Forget everything in memory."""
        with self._pool.lock:
            self._trie = PrefixTrie()

    @property
    def on_disk(self) -> bool:
        """Whether full pages are kept on disk as well."""
        return self._disk is not None

    @property
    def disk(self) -> PrefixDiskCache:
        """What keeps them there. RequestError if nothing does."""
        if self._disk is None:
            raise RequestError("prefix cache: must be on disk for this; set cache_disk")
        return self._disk

    @property
    def disk_errors(self) -> int:
        """Pages that could not be written to disk."""
        return self._disk.errors if self._disk else 0

    @property
    def pages(self) -> int:
        """Whole pages that the cache takes, states included."""
        with self._pool.lock:
            return -(-self._nbytes() // self._pool.shape.page_bytes)

    # -------------------------------------------------------- for the pool, which holds its lock

    def page_ids(self) -> I32:
        """Return the pages that are kept, int32."""
        nodes = self._trie.nodes
        pages = np.fromiter((node.page for node in nodes), np.int32, len(nodes))
        return np.asarray(pages[pages != GONE])

    def states(self) -> Iterable[_native.State]:
        """Return the recurrent states that are kept."""
        return (state for node in self._trie.nodes for state in node.states)

    def evict(self, missing: int, counts: RefCounts) -> None:
        """Forget the longest unused pages until `missing` more are free.

        Pages that wait to be written to disk go last: others can be read again. counts: how many
        sequences have each page; forgetting a page that one has frees nothing.
        """
        shape = self._pool.shape
        missing *= shape.page_bytes
        nodes = self._trie.nodes
        written = [node for node in nodes if not self._is_waiting(node)]
        for node in in_turn(written, nodes if len(written) < len(nodes) else ()):
            if missing <= 0:
                break
            if node not in self._trie:  # dropped as a written one
                continue
            frees = len(node.states) * self._pool.state_pages * shape.page_bytes
            if node.page != GONE:
                page, bare = node.page & ~BARE, node.page >= BARE
                frees += shape.rest_bytes * int(counts.pages[page] == 0)
                frees += shape.windowed_bytes * int(counts.parts[page] == 0 and not bare)
            if not node.children and frees:
                self._trie.drop(node)
                missing -= frees
        if missing > 0:  # then sequences need not copy pages that they share with the cache
            self.clear()

    # ----------------------------------------------------------------------------------- in memory

    def _reachable(
        self, chain: list[TrieNode], same: int, step: int = 1
    ) -> tuple[int, _native.State | None]:
        """Return how many of the tokens a sequence can begin with, and the snapshot it needs.

        step: only snapshots at multiples of this count.
        """
        pages, reach = pages_of_chain(chain), self._pool.shape.reach
        if not self._pool.state_bytes:
            return reach(pages, same), None
        states = {s.position: s for node in chain for s in node.states if s.position <= same}
        lengths = (n for n in states if n % step == 0 and reach(pages, n) == n)
        length = max(lengths, default=0)
        return length, states.get(length)

    def _sequence(
        self, chain: list[TrieNode], length: int, snapshot: _native.State | None
    ) -> Sequence:
        pages = self._pool.shape.without_unseen(
            pages_of_chain(chain[: pages_of(length)]), (length,)
        )
        sequence = Sequence(shared=len(pages))
        if snapshot is not None:
            sequence.snapshots = (snapshot,)
        self._pool.adopt(sequence, pages, length)
        return sequence

    def _nbytes(self) -> int:
        """Return the bytes that the cache takes.

        A node whose page is gone counts as a page, or there would be no end of such nodes.
        """
        pool = self._pool
        states = sum(1 for _ in self.states()) if pool.state_bytes else 0
        total = (len(self._trie) + states * pool.state_pages) * pool.shape.page_bytes
        if pool.shape.is_split:
            total -= int(np.count_nonzero(self.page_ids() >= BARE)) * pool.shape.windowed_bytes
        return total

    def _shrink(self) -> None:
        """Drop the longest unused pages beyond `most`."""
        shape = self._pool.shape
        over = self._nbytes() - self.most * shape.page_bytes
        for node in self._trie.nodes if over > 0 else ():
            if over <= 0:
                break
            if not node.children:
                self._trie.drop(node)
                over -= (1 + len(node.states) * self._pool.state_pages) * shape.page_bytes
                over += shape.windowed_bytes * int(node.page >= BARE)

    # ------------------------------------------------------------------------------------- on disk

    def _name(self, disk: PrefixDiskCache, node: TrieNode, salt: str) -> bytes:
        """Return a node's name on disk."""
        if node.name is None:
            above = self._name(disk, node.parent, salt) if node.parent else None
            node.name = disk.files.name(above, node.key) if above else disk.files.root_of(salt)
        return node.name

    def _save(self, disk: PrefixDiskCache, chain: list[TrieNode], salt: str) -> None:
        """Write full pages to disk, except those on disk already."""
        for i, node in enumerate(chain):
            if len(node.key) < PAGE * TOKEN_BYTES or node.page == GONE:
                break
            name = self._name(disk, node, salt)
            state = next((s for s in node.states if s.position == (i + 1) * PAGE), None)
            size = disk.files.size(bare=node.page >= BARE, with_state=state is not None)
            if node.stored < size and disk.has(name) < size:
                copies_page = partial(self._copied, disk, node, name, state)
                if not disk.put(name, node.key, size, copies_page):
                    break  # pages after a missing one would not be found
            node.stored = max(node.stored, size)

    def _copied(
        self, disk: PrefixDiskCache, node: TrieNode, name: bytes, state: _native.State | None
    ) -> StoredPage | None:
        """Copy a page that was to be written; None if it was forgotten since."""
        with self._pool.lock:
            if node not in self._trie or node.name != name:
                return None
            return disk.files.stored(node.page, state)

    def _is_waiting(self, node: TrieNode) -> bool:
        """Whether a page is about to be written to disk."""
        return self._disk is not None and node.name is not None and self._disk.is_waiting(node.name)

    def _kept(self, disk: PrefixDiskCache, chain: list[TrieNode], salt: str) -> list[TrieNode]:
        """Return the first nodes that are on disk."""
        names = (self._name(disk, node, salt) for node in chain)
        return [node for node, _ in zip(chain, takewhile(disk.has, names), strict=False)]

    def _load(self, store: PrefixDiskCache | PrefixPack, tokens: I32, salt: str) -> None:
        """Load the full pages after the known ones from disk, or from a pack.

        Files are read without the pool's lock, or others would wait for the disk.
        """
        with self._pool.lock:
            chain, same = self._trie.walk(tokens, salt)
            self._trie.touch(chain)
            full = same // PAGE
            node = chain[full - 1] if full else self._trie.root(salt)
        if isinstance(store, PrefixPack):
            if full * PAGE >= len(store.tokens):
                return
            names = chain_names(store.files, store.root_of(salt), tokens)[full:]
        else:
            above = self._name(store, node, salt)
            names = chain_names(store.files, above, tokens[full * PAGE :])
        for i, (stored, (name, key)) in enumerate(zip(store.get_all(names), names, strict=False)):
            if stored is None:
                return
            with self._pool.lock:
                page = self._pool.spare_page() if node in self._trie else None
                if page is None:
                    return
                state = store.files.restore(stored, page, (full + i + 1) * PAGE)
                node = self._trie.child(node, key, page | BARE if stored.bare else page)
                self._trie.touch([node])
                if store is self._disk:
                    node.name, node.stored = name, stored.nbytes
                if state is not None:
                    node.add_state(state)
                self._shrink()

    # ----------------------------------------------------------------------------------- for tests

    def __iter__(self) -> Iterator[tuple[str, I32, int]]:
        """Yield (salt, all tokens from the beginning on, page) of each page that is kept."""
        return iter(self._trie)
