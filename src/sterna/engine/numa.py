"""Weights near the threads that read them, on machines of several NUMA nodes."""

from __future__ import annotations

from sterna import _native
from sterna.errors import RequestError
from sterna.graph import Graph
from sterna.runtime import Threads, available_bytes

__all__ = ["place_weights"]


def place_weights(program: _native.Program, graph: Graph, threads: Threads) -> None:
    """Copy the weights of a program's linear layers to the NUMA nodes of the threads that read
    them; nothing to do for threads of one node.

    Raises RequestError if there is too little memory.
    """
    if not threads.nodes:
        return
    read = {id(op.streamed): op.streamed.nbytes for op in graph.linears}
    nbytes = sum(read.values()) * (len(threads.nodes) if threads.replicas else 1)
    error = RequestError(
        f"STERNA_NUMA: {nbytes / 1e9:.2f} GB of weights near {len(threads.nodes)} memory nodes "
        f"must fit into memory next to those that were loaded, but {available_bytes() / 1e9:.2f} "
        f"GB are available; set it to {'split or ' if threads.replicas else ''}off"
    )
    if nbytes > available_bytes():
        raise error
    try:
        program.place(threads, threads.replicas)
    except MemoryError:
        raise error from None
