"""`PrefixCache`: pages of earlier requests, for those that begin with the same tokens.

It is a trie whose nodes are pages. Tokens are compared with tokens, so nothing can be taken for
something else; and since no split of a prompt changes a bit, neither does what is found here.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.engine.pages import PagePool
from sterna.engine.sequence import BARE, GONE, PAGE, Sequence, pages_of
from sterna.engine.store import PrefixStore
from sterna.engine.windows import Held
from sterna.errors import RequestError

__all__ = ["PrefixCache", "in_common"]

I32 = npt.NDArray[np.int32]
_BYTES = 4  # of a token in a key


class _Node:
    """A page below those before it: of up to 64 tokens, fewer only where nothing follows.

    key: its tokens, int32; page: BARE or GONE where no window needed it; states: snapshots of
    recurrent layers at positions in it.
    """

    __slots__ = ("children", "key", "keys", "name", "page", "parent", "states", "stored")

    def __init__(self, parent: _Node | None, key: bytes, page: int) -> None:
        self.parent, self.key, self.page = parent, key, page
        self.states: tuple[_native.State, ...] = ()
        self.name: bytes | None = None  # on disk
        self.stored = 0  # bytes of what is there
        self.children: dict[bytes, _Node] = {}
        self.keys: list[bytes] = []  # of the children, sorted: what begins alike is side by side

    def nearest(self, key: bytes) -> tuple[_Node | None, int]:
        """The child that has most first tokens in common with the key, and how many."""
        at, best, most = bisect_left(self.keys, key), None, 0
        for near in self.keys[max(0, at - 1) : at + 1]:
            common = in_common(np.frombuffer(near, np.int32), np.frombuffer(key, np.int32))
            child = self.children.get(near)
            if child is not None and common > most:
                best, most = child, common
        return best, most

    def link(self, child: _Node) -> None:
        """Makes it a child."""
        insort(self.keys, child.key)
        self.children[child.key] = child

    def unlink(self, child: _Node) -> None:
        """Makes it one no more."""
        if self.children.get(child.key) is child:
            del self.children[child.key]
        at = bisect_left(self.keys, child.key)
        if at < len(self.keys) and self.keys[at] == child.key:
            del self.keys[at]


def _pages(chain: Iterable[_Node]) -> I32:
    """Those of nodes, as a sequence has them."""
    return np.array([node.page for node in chain], np.int32)


def _layers(page: int) -> int:
    """0 where it is there for none, 1 for some, 2 for all."""
    return 0 if page == GONE else 1 if page >= BARE else 2


def in_common(a: I32, b: I32) -> int:
    """How many first tokens two texts have in common."""
    size = min(len(a), len(b))
    other = np.flatnonzero(a[:size] != b[:size])
    return int(other[0]) if len(other) else size


class PrefixCache:
    """The pages that a pool keeps of earlier sequences, the latest used ones.

    Who is about to write a page that is in here gets a copy first, as of any shared page
    (`PagePool`). All of its pages are free to be had: where sequences need some, the longest unused
    go. Calls may come from any thread.

    most: pages that it keeps at most, states of recurrent layers counted as the pages of their
    size. store: where full pages are kept on disk, too, and looked for.
    """

    def __init__(self, pool: PagePool, most: int, store: PrefixStore | None = None) -> None:
        if pool.cache is not None:
            raise RequestError("prefix cache: a pool must have one at most, but has one; use it")
        self._pool, self.most = pool, min(most, pool.count)
        self._store = store
        self._roots: dict[str, _Node] = {}
        # What is kept is what is in here, the longest unused first. A node is always used after
        # those below it, so the first has none below.
        self._nodes: OrderedDict[int, _Node] = OrderedDict()
        self.asked = self.found = 0  # tokens
        pool.cache = self

    # ------------------------------------------------------------------------------ for requests

    def find(self, tokens: I32, salt: str = "") -> tuple[Sequence | None, int]:
        """A sequence that has the longest known beginning of these tokens, and where they part.

        At least the last token is left to be computed. Sequences of other salts are not seen. The
        second number is how many tokens were seen before: more than the sequence has where a
        recurrent layer has no snapshot there, or pages behind windows are gone.
        """
        tokens = tokens[:-1]
        if self._store is not None:
            self._load(self._store, tokens, salt)
        with self._pool._lock:
            chain, same = self._walk(tokens, salt)
            self._touch(chain)
            length, snapshot = self._reachable(chain, same)
            self.asked += len(tokens) + 1
            self.found += length
            return (self._sequence(chain, length, snapshot) if length else None), same

    def keep(
        self,
        tokens: I32,
        sequence: Sequence,
        salt: str = "",
        final: bool = False,
        idle: bool = True,
    ) -> None:
        """Keeps a sequence's pages, with its first tokens.

        final: also the last page that is not full, and its recurrent state; nobody writes either
        any more. idle: whether no step changes that state just now.
        """
        with self._pool._lock:
            length = min(sequence.length, len(tokens))
            states = {s.position: s for s in sequence.snapshots}
            if final and idle and sequence.state is not None and sequence.state.position == length:
                states.setdefault(length, sequence.state)
            if self._pool.state_bytes:
                length = max((p for p in states if p <= length), default=0)
            elif not final:
                length = length // PAGE * PAGE
            sequence.shared = max(sequence.shared, pages_of(length))
            chain = self._grow(tokens[:length], sequence.pages, salt)
            for position, state in states.items():
                if 0 < position <= length:
                    node = chain[(position - 1) // PAGE]
                    if all(s.position != position for s in node.states):
                        node.states = (*node.states, state)
            self._touch(chain)
            if self._store is not None:
                self._save(self._store, chain, salt)
            self._shrink()

    def clear(self) -> None:
        """Forgets everything."""
        with self._pool._lock:
            self._roots = {}
            self._nodes = OrderedDict()

    @property
    def on_disk(self) -> bool:
        """Whether full pages are kept on disk, too."""
        return self._store is not None

    @property
    def pages(self) -> int:
        """Whole pages that what it keeps takes, states counted."""
        with self._pool._lock:
            return -(-self._nbytes() // self._pool.shape.page_bytes)

    # -------------------------------------------------------- for the pool, which has its lock

    def held(self) -> I32:
        """The pages that it keeps."""
        nodes = self._nodes.values()
        pages = np.fromiter((node.page for node in nodes), np.int32, len(nodes))
        return np.asarray(pages[pages != GONE])

    def states(self) -> Iterable[_native.State]:
        """The states that it keeps."""
        return (state for node in self._nodes.values() for state in node.states)

    def give_way(self, missing: int, held: Held) -> None:
        """Forgets what frees so many pages, the longest unused first.

        held: how many sequences have each page; those that some have would free nothing.
        """
        shape = self._pool.shape
        missing *= shape.page_bytes
        for node in list(self._nodes.values()):
            if missing <= 0:
                break
            frees = len(node.states) * self._pool.state_pages * shape.page_bytes
            if node.page != GONE:
                page, bare = node.page & ~BARE, node.page >= BARE
                frees += shape.rest_bytes * int(held.pages[page] == 0)
                frees += shape.windowed_bytes * int(held.parts[page] == 0 and not bare)
            if not node.children and frees:
                self._drop(node)
                missing -= frees
        if missing > 0:  # then sequences need not even copy what they share with it
            self.clear()

    # ----------------------------------------------------------------------------------- the trie

    def _walk(self, tokens: I32, salt: str) -> tuple[list[_Node], int]:
        """The nodes of the longest known beginning, and how many tokens that has."""
        chain, node = list[_Node](), self._roots.get(salt)
        same = 0
        while node is not None and same < len(tokens):
            key = tokens[same : same + PAGE].tobytes()
            node, common = node.nearest(key)
            if node is not None:
                chain.append(node)
                same += common
            if common < PAGE:
                break
        return chain, same

    def _grow(self, tokens: I32, pages: I32, salt: str) -> list[_Node]:
        """The nodes of all these tokens; those that are new have the given pages."""
        chain, node = list[_Node](), self._root(salt)
        for i, page in zip(range(0, len(tokens), PAGE), pages.tolist(), strict=False):
            key = tokens[i : i + PAGE].tobytes()
            node = self._child(node, key, page)
            chain.append(node)
        return chain

    def _child(self, node: _Node, key: bytes, page: int) -> _Node:
        """The child that has these tokens; a new one has the page."""
        child, common = node.nearest(key)
        if child is None or _BYTES * common < min(len(key), len(child.key)):
            child = _Node(node, key, page)
            self._nodes[id(child)] = child
            node.link(child)
        elif len(child.key) < len(key):  # it ended in the middle of what is known now
            node.unlink(child)
            child.key, child.page, child.name = key, page, None
            node.link(child)
        elif len(child.key) == len(key) and _layers(page) > _layers(child.page):
            child.page = page  # what windows no longer needed then is there now
        return child

    def _reachable(self, chain: list[_Node], same: int) -> tuple[int, _native.State | None]:
        """How many of the tokens a sequence can begin with, and the snapshot that it needs."""
        pages, reach = _pages(chain), self._pool.shape.reach
        if not self._pool.state_bytes:
            return reach(pages, same), None
        states = {s.position: s for node in chain for s in node.states if s.position <= same}
        lengths = (length for length in states if reach(pages, length) == length)
        length = max(lengths, default=0)
        return length, states.get(length)

    def _sequence(
        self, chain: list[_Node], length: int, snapshot: _native.State | None
    ) -> Sequence:
        pages = self._pool.shape.stripped(_pages(chain[: pages_of(length)]), (length,))
        sequence = Sequence(shared=len(pages))
        if snapshot is not None:
            sequence.snapshots = (snapshot,)
        self._pool.adopt(sequence, pages, length)
        return sequence

    # ------------------------------------------------------------------------------------- the disk

    def _name(self, store: PrefixStore, node: _Node, salt: str) -> bytes:
        """A node's name on disk."""
        if node.name is None:
            above = self._name(store, node.parent, salt) if node.parent else None
            node.name = store.name(above, node.key) if above else store.root_of(salt)
        return node.name

    def _save(self, store: PrefixStore, chain: list[_Node], salt: str) -> None:
        """Keeps full pages on disk, but for those that are there."""
        for i, node in enumerate(chain):
            if len(node.key) < PAGE * _BYTES or node.page == GONE:
                break
            name = self._name(store, node, salt)
            state = next((s for s in node.states if s.position == (i + 1) * PAGE), None)
            size = store.size(bare=node.page >= BARE, with_state=state is not None)
            new = node.stored < size and store.has(name) < size
            if new and not store.put(name, node.key, node.page, state):
                break  # what stands behind it would not be found
            node.stored = max(node.stored, size)

    def _load(self, store: PrefixStore, tokens: I32, salt: str) -> None:
        """Takes the full pages behind those that are known from the disk.

        Files are read without the pool's lock: others would wait for the disk.
        """
        with self._pool._lock:
            chain, same = self._walk(tokens, salt)
            self._touch(chain)
            full = same // PAGE
            node = chain[full - 1] if full else self._root(salt)
        above, names = self._name(store, node, salt), list[tuple[bytes, bytes]]()
        for i in range(full * PAGE, len(tokens) - PAGE + 1, PAGE):
            key = tokens[i : i + PAGE].tobytes()
            above = store.name(above, key)
            names.append((above, key))
        for i, (stored, (name, key)) in enumerate(zip(store.get_all(names), names, strict=False)):
            if stored is None:
                return
            with self._pool._lock:
                there = id(node) in self._nodes or self._roots.get(salt) is node
                page = self._pool.spare_page() if there else None
                if page is None:
                    return
                state = store.place(stored, page, (full + i + 1) * PAGE)
                node = self._child(node, key, page | BARE if stored.bare else page)
                self._touch([node])
                node.name, node.stored = name, stored.nbytes
                if state is not None and all(s.position != state.position for s in node.states):
                    node.states = (*node.states, state)
                self._shrink()

    def _root(self, salt: str) -> _Node:
        if salt not in self._roots:
            self._roots[salt] = _Node(None, b"", int(GONE))
        return self._roots[salt]

    def _touch(self, chain: list[_Node]) -> None:
        """They are used now: each after those below it."""
        for node in reversed(chain):
            if id(node) in self._nodes:
                self._nodes.move_to_end(id(node))

    def _nbytes(self) -> int:
        """What it keeps; a place whose page is gone counts as if it were there, or there would be
        no end of them."""
        pool = self._pool
        states = sum(1 for _ in self.states()) if pool.state_bytes else 0
        total = (len(self._nodes) + states * pool.state_pages) * pool.shape.page_bytes
        if pool.shape.is_split:
            total -= int(np.count_nonzero(self.held() >= BARE)) * pool.shape.windowed_bytes
        return total

    def _shrink(self) -> None:
        """To what it may keep."""
        shape = self._pool.shape
        over = self._nbytes() - self.most * shape.page_bytes
        for node in list(self._nodes.values()) if over > 0 else ():
            if over <= 0:
                break
            if not node.children:
                self._drop(node)
                over -= (1 + len(node.states) * self._pool.state_pages) * shape.page_bytes
                over += shape.windowed_bytes * int(node.page >= BARE)

    def _drop(self, node: _Node) -> None:
        if node.parent is not None:
            node.parent.unlink(node)
        self._nodes.pop(id(node), None)

    # ----------------------------------------------------------------------------------- for tests

    def __iter__(self) -> Iterator[tuple[str, I32, int]]:
        """(salt, tokens, page) of each page that it keeps: all tokens from the beginning on."""
        for salt, root in list(self._roots.items()):
            stack = [(node, root.key) for node in root.children.values()]
            while stack:
                node, before = stack.pop()
                tokens = before + node.key
                yield salt, np.frombuffer(tokens, np.int32), node.page
                stack += [(child, tokens) for child in node.children.values()]
