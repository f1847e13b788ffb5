"""The time of a token on many threads and memory nodes, by arithmetic.

docs/measurements/expected.md has its assumptions and a table. Nothing here is measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sterna import formats
from sterna.bench.random_codes import packed_bytes
from sterna.bench.shapes import Shape, shape_named
from sterna.errors import RequestError, shown

__all__ = ["EPYC_9R14", "XEON_8488C", "Machine", "Token", "token"]

#: Seconds from one thread's arrival at a barrier to the next one's, whose core fetches the line:
#: half of a barrier of two cores, 170 ns (native/runtime/pool.h). Between nodes 2.5 times as much.
LINE_S, BETWEEN_NODES = 85e-9, 2.5
#: Operations of a layer, each with a barrier, and of embedding, selection and head.
OPERATIONS, OTHERS = 10, 4
#: Seconds that one thread computes alone: norms, rotations and rounding of one layer, and the
#: engine's own work for a step. Zen 3, 2.9 GHz, the least of 110 tokens of bitnet-2b.
LAYER_S, STEP_S = 1.1e-3 / 30, 0.4e-3


@dataclass(frozen=True)
class Machine:
    """A machine of equal memory nodes.

    cores: of a node. ways: hardware threads of a core, which share its arithmetic. node_gb_s: what
    a node's memory gives all its cores, core_gb_s: what one core can ask for, 10^9 bytes/s.
    cycle_bytes: bytes of weights that a core's loop takes a cycle, by format (B / gamma).
    """

    cores: int
    ways: int
    node_gb_s: float
    core_gb_s: float
    ghz: float
    cycle_bytes: Mapping[str, float]

    def gb_s(self, threads: float, nodes: int) -> float:
        """Return what memory gives this many threads, evenly on the nodes."""
        return min(nodes * self.node_gb_s, threads * self.core_gb_s)


@dataclass(frozen=True)
class Token:
    """Seconds of a token: reading and multiplying, what one thread does alone, and barriers."""

    read_s: float
    alone_s: float
    barriers_s: float

    @property
    def tok_s(self) -> float:
        """Tokens per second."""
        return 1 / (self.read_s + self.alone_s + self.barriers_s)


#: Intel Xeon Platinum 8488C: 8 channels of DDR5-4800 a socket, of which 0.8 is assumed to be read.
#: core_gb_s and cycle_bytes are those of two cores of its family (docs/measurements).
XEON_8488C = Machine(48, 2, 246, 16, 3.0, {"i2": 8 / 0.68, "t5": 6.67 / 0.86, "i8": 32 / 2.77})
#: AMD EPYC 9R14: 12 channels of DDR5-4800, likewise. Its loops are assumed to take what AVX2 takes
#: on Zen 3.
EPYC_9R14 = Machine(96, 1, 369, 20, 3.7, {"i2": 8 / 1.56, "t5": 6.67 / 1.77, "i8": 32 / 2.77})


def token(
    machine: Machine, shape: str, format: str, threads: int, nodes: int = 1, positions: int = 128
) -> Token:
    """Compute the time of one token, after `positions` tokens, with an exact head.

    A matrix takes what memory needs for all of it, or the busiest thread for its tiles, whichever
    is longer. Raises RequestError for counts that the machine does not have.
    """
    most = nodes * machine.cores * machine.ways
    if nodes < 1 or not nodes <= threads <= most:
        raise RequestError(
            f"threads: must lie in {nodes}..{most}, one for each node at least, but got {threads}"
        )
    if format not in machine.cycle_bytes:
        known = ", ".join(machine.cycle_bytes)
        raise RequestError(f"format: must be one of {known}, but got {shown(format)}")
    sizes = shape_named(shape)
    read = sum(_matrix_s(machine, format, M, K, threads, nodes) for M, K in sizes.all_matrices())
    read += _matrix_s(machine, "i8", sizes.vocab, sizes.hidden, threads, nodes)  # the shadow
    read += positions * sizes.kv_bytes("i16") / machine.gb_s(threads, nodes) / 1e9
    return Token(read, sizes.layers * LAYER_S + STEP_S, _barriers_s(sizes, threads, nodes))


def _matrix_s(machine: Machine, name: str, M: int, K: int, threads: int, nodes: int) -> float:
    format = formats.get(name)
    nbytes, tiles = packed_bytes(format, M, K), format.n_tiles(M)
    busy = min(threads, tiles)
    per_core = math.ceil(busy / (nodes * machine.cores))  # threads that share a core
    one = machine.ghz * machine.cycle_bytes[name] / per_core
    memory_s = nbytes / machine.gb_s(busy, nodes)
    core_s = math.ceil(tiles / threads) * nbytes / tiles / min(one, machine.core_gb_s / per_core)
    return max(memory_s, core_s) / 1e9


def _barriers_s(sizes: Shape, threads: int, nodes: int) -> float:
    if threads == 1:
        return 0.0
    line = LINE_S * (1 + (BETWEEN_NODES - 1) * (nodes - 1) / nodes)
    return (sizes.layers * OPERATIONS + OTHERS) * line * threads
