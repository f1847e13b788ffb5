"""`PrefixTrie`: a trie of pages by their tokens, in order of use.

Tokens are compared with tokens, not by hashes, so no page can be taken for another.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.engine.kv_cache.sequence import BARE, GONE, PAGE

__all__ = ["TOKEN_BYTES", "PrefixTrie", "TrieNode", "common_prefix_length", "pages_of_chain"]

I32 = npt.NDArray[np.int32]
TOKEN_BYTES = 4  #: of a token in a key


@dataclass(slots=True, eq=False, repr=False)
class TrieNode:
    """A page below those before it: of 64 tokens, or fewer if nothing follows.

    key: its tokens, int32; page: as in a sequence's table, BARE or GONE if no window needed it;
    states: snapshots of recurrent layers at positions in it; name, stored: on disk, its name and
    bytes.
    """

    parent: TrieNode | None
    key: bytes
    page: int
    states: tuple[_native.State, ...] = ()
    name: bytes | None = None
    stored: int = 0
    children: dict[bytes, TrieNode] = field(default_factory=dict)
    #: Keys of the children, sorted, so that equal prefixes are adjacent.
    keys: list[bytes] = field(default_factory=list)

    def nearest(self, key: bytes) -> tuple[TrieNode | None, int]:
        """Return the child with the longest common prefix of tokens, and that length."""
        if same := self.children.get(key):  # most often: pages of a context that many share
            return same, len(key) // TOKEN_BYTES
        at, best, most = bisect_left(self.keys, key), None, 0
        for near in self.keys[max(0, at - 1) : at + 1]:
            common = common_prefix_length(
                np.frombuffer(near, np.int32), np.frombuffer(key, np.int32)
            )
            child = self.children.get(near)
            if child is not None and common > most:
                best, most = child, common
        return best, most

    def link(self, child: TrieNode) -> None:
        """Add a child."""
        insort(self.keys, child.key)
        self.children[child.key] = child

    def unlink(self, child: TrieNode) -> None:
        """Remove a child."""
        if self.children.get(child.key) is child:
            del self.children[child.key]
        at = bisect_left(self.keys, child.key)
        if at < len(self.keys) and self.keys[at] == child.key:
            del self.keys[at]

    def add_state(self, state: _native.State) -> None:
        """Add a snapshot, unless there is one of its position."""
        if all(s.position != state.position for s in self.states):
            self.states = (*self.states, state)


class PrefixTrie:
    """Pages by salt and tokens, the longest unused first (`nodes`).

    A node counts as used after its children, so the first of `nodes` has none.
    """

    def __init__(self) -> None:
        self._roots: dict[str, TrieNode] = {}
        self._nodes: OrderedDict[int, TrieNode] = OrderedDict()

    @property
    def nodes(self) -> list[TrieNode]:
        """All nodes, the longest unused first."""
        return list(self._nodes.values())

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, node: TrieNode) -> bool:
        return id(node) in self._nodes or node in self._roots.values()

    def root(self, salt: str) -> TrieNode:
        """Return the root of all pages of a salt."""
        if salt not in self._roots:
            self._roots[salt] = TrieNode(None, b"", int(GONE))
        return self._roots[salt]

    def walk(self, tokens: I32, salt: str) -> tuple[list[TrieNode], int]:
        """Return the nodes of the longest known prefix, and how many tokens it has."""
        chain, node = list[TrieNode](), self._roots.get(salt)
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

    def grow(self, tokens: I32, pages: I32, salt: str) -> list[TrieNode]:
        """Return the nodes of all these tokens; new ones get the given pages."""
        chain, node = list[TrieNode](), self.root(salt)
        for i, page in zip(range(0, len(tokens), PAGE), pages.tolist(), strict=False):
            node = self.child(node, tokens[i : i + PAGE].tobytes(), page)
            chain.append(node)
        return chain

    def child(self, node: TrieNode, key: bytes, page: int) -> TrieNode:
        """Return the child that has these tokens; a new one gets the page."""
        child, common = node.nearest(key)
        if child is None or TOKEN_BYTES * common < min(len(key), len(child.key)):
            child = TrieNode(node, key, page)
            self._nodes[id(child)] = child
            node.link(child)
        elif len(child.key) < len(key):  # the new page continues it
            node.unlink(child)
            child.key, child.page, child.name = key, page, None
            node.link(child)
        elif len(child.key) == len(key) and _layers(page) > _layers(child.page):
            child.page = page  # it now has the parts that windows had freed
        return child

    def touch(self, chain: list[TrieNode]) -> None:
        """Mark nodes as used now, each after those below it."""
        for node in reversed(chain):
            if id(node) in self._nodes:
                self._nodes.move_to_end(id(node))

    def drop(self, node: TrieNode) -> None:
        """Remove a node."""
        if node.parent is not None:
            node.parent.unlink(node)
        self._nodes.pop(id(node), None)

    def __iter__(self) -> Iterator[tuple[str, I32, int]]:
        """Yield (salt, all tokens from the beginning on, page) of each node, for tests."""
        for salt, root in list(self._roots.items()):
            stack = [(node, root.key) for node in root.children.values()]
            while stack:
                node, before = stack.pop()
                tokens = before + node.key
                yield salt, np.frombuffer(tokens, np.int32), node.page
                stack += [(child, tokens) for child in node.children.values()]


def pages_of_chain(chain: Iterable[TrieNode]) -> I32:
    """Return the pages of nodes, as a sequence's table has them."""
    return np.array([node.page for node in chain], np.int32)


def common_prefix_length(a: I32, b: I32) -> int:
    """Return how many first tokens two texts have in common."""
    size = min(len(a), len(b))
    other = np.flatnonzero(a[:size] != b[:size])
    return int(other[0]) if len(other) else size


def _layers(page: int) -> int:
    """Return 0 for a page that no layer has, 1 for some layers, 2 for all."""
    return 0 if page == GONE else 1 if page >= BARE else 2
