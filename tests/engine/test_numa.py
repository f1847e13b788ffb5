"""Machines of several memory nodes, rehearsed: which threads belong where, and what they read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import assert_same_bits, command, failed, failure
from sysfs_tree import Tree
from test_pool import SHAPES, tiles_of

from sterna import _native, _testing, loading, runtime
from sterna.engine import Engine, numa
from sterna.errors import RequestError
from sterna.runtime import NodeThreads, Threads, on_nodes, resolve_threads


def machine(tree: Tree, *nodes: str, allowed: int = 16, siblings: bool = False) -> Any:
    """A topology of these lists of CPUs; siblings: cores of two, the second ones 8 CPUs later."""
    for cpu in range(allowed):
        tree.cpu(cpu, f"{cpu % 8},{cpu % 8 + 8}" if siblings else str(cpu))
    for i, cpus in enumerate(nodes):
        tree.write(f"sys/devices/system/node/node{i}/cpulist", cpus + "\n")
    return tree.read(list(range(allowed)))


def rehearsed(*threads: int, replicas: bool = False) -> Threads:
    """So many threads on each node, which all run anywhere."""
    return Threads(sum(threads), (), False, [NodeThreads(n) for n in threads], replicas)


# ----------------------------------------------------------------------- threads and their nodes


def test_threads_belong_to_nodes_by_their_cores(tree: Tree) -> None:
    """In proportion, neighbours together; siblings are no cores of their own."""
    topology = machine(tree, "0-3,8-11", "4-7,12-15", siblings=True)
    team = on_nodes(Threads(8), topology)
    first, second = (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)
    assert team.nodes == ((4, first), (4, second))
    assert (team, team.cpus, team.pinned) == (8, first + second, False)
    assert [node.threads for node in on_nodes(Threads(5), topology).nodes] == [2, 3]
    fewer = on_nodes(Threads(4, (0, 1, 2, 4)), topology)
    assert fewer.nodes == ((3, (0, 1, 2)), (1, (4,)))


def test_more_nodes_than_threads(tree: Tree) -> None:
    topology = machine(tree, "0-3", "4-7", "8-11", "12-15")
    assert on_nodes(Threads(2), topology).nodes == ((1, (4, 5, 6, 7)), (1, (8, 9, 10, 11)))
    assert on_nodes(Threads(1), topology).nodes == ()
    assert [n.threads for n in on_nodes(Threads(16), topology).nodes] == [4, 4, 4, 4]


def test_pinned_threads_are_sorted_by_node(tree: Tree) -> None:
    """Even CPUs on one node and odd ones on the other: a list has them in turn."""
    topology = machine(tree, "0,2,4,6", "1,3,5,7", allowed=8)
    team = on_nodes(Threads(5, (1, 2, 3, 4, 5), True), topology)
    assert (team.cpus, team.pinned) == ((2, 4, 1, 3, 5), True)
    assert team.nodes == ((2, (2, 4)), (3, (1, 3, 5)))


def test_a_single_node_is_the_plain_case(tree: Tree) -> None:
    """Of the machine, or of what the affinity mask or the set leaves of it."""
    topology = machine(tree, "0-7", "8-15")
    for plain in (Threads(4, (0, 1, 2, 3)), Threads(2, (8, 9), True)):
        assert on_nodes(plain, topology) is plain
    within = tree.read([0, 1, 2])
    assert on_nodes(Threads(3), within).nodes == ()


def test_the_setting(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = machine(tree, "0-7", "8-15")
    for name in ("STERNA_THREADS", "STERNA_CORES", "STERNA_NUMA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(runtime, "_topology", lambda _: topology)
    monkeypatch.setattr(runtime, "_nodes_online", lambda: "0-1")
    monkeypatch.setattr(_native, "topology", lambda: topology)
    assert [node.threads for node in resolve_threads().nodes] == [8, 8]
    assert [node.threads for node in resolve_threads(4).nodes] == [2, 2]
    assert resolve_threads(cores="0-3").nodes == ()
    assert not resolve_threads().replicas
    result = command("info", "--no-bandwidth", "--json")
    (row,) = json.loads(result.stdout)
    nodes = [{"id": i, "cpus": f"{8 * i}-{8 * i + 7}", "threads": 8} for i in (0, 1)]
    assert (row["weights_near"], row["nodes"]) == ("split", nodes)
    text = " ".join(command("info", "--no-bandwidth").stdout.split())
    assert "node 0: CPUs 0-7, 8 threads, node 1: CPUs 8-15, 8 threads" in text
    monkeypatch.setenv("STERNA_NUMA", "replicas")
    assert resolve_threads().replicas
    assert "a copy of all weights" in " ".join(command("info", "--no-bandwidth").stdout.split())
    monkeypatch.setenv("STERNA_NUMA", "off")
    assert (resolve_threads(), resolve_threads().nodes) == (16, ())
    assert "STERNA_NUMA=off" in " ".join(command("info", "--no-bandwidth").stdout.split())
    monkeypatch.setenv("STERNA_NUMA", "near")
    failure(resolve_threads, RequestError, "STERNA_NUMA", "split, replicas, off", "'near'")
    failed(command("info", "--no-bandwidth"), "STERNA_NUMA", "near")


def test_threads_stay_on_their_node() -> None:
    cpus = _native.topology()["cpus"]
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    a, b = cpus[:2]
    nodes = [NodeThreads(1, (a,)), NodeThreads(2, (b,))]
    assert _testing.pool_cpus(Threads(3, (a, b), False, nodes)) == [[a], [b], [b]]


def test_bad_nodes() -> None:
    for threads in (rehearsed(2, 2), Threads(3, (), False, [NodeThreads(3), NodeThreads(0)])):
        wrong = Threads(3, (), False, threads.nodes)
        with pytest.raises(ValueError, match="nodes"):
            _testing.pool_cpus(wrong)


# ------------------------------------------------------------------------------------ what is read


@pytest.mark.parametrize("tokens", [1, 512])
@pytest.mark.parametrize("nodes", [(2, 2), (8, 8), (4, 4, 4, 4), (16, 16, 16, 16), (3, 5)], ids=str)
def test_threads_read_what_lies_near(nodes: tuple[int, ...], tokens: int) -> None:
    """Over the matrices of a model, by bytes: at most 2 % of other nodes with threads alike.

    It is what a node has too many tiles where these are few: of 40, 64 threads have one or none.
    """
    read = remote = 0
    for shape in SHAPES.values():
        tiles, tile_bytes = tiles_of(shape)
        shares = _testing.rehearse_nodes(tiles, tokens, [1] * sum(nodes), rehearsed(*nodes))
        assert sum(taken for taken, _ in shares) == tiles
        read += tiles * tile_bytes
        remote += sum(far for _, far in shares) * tile_bytes
    assert remote <= 0.02 * read, remote / read


@pytest.mark.parametrize("nodes", [(2, 2), (4, 4, 4, 4)], ids=str)
def test_help_from_another_node_comes_last(nodes: tuple[int, ...]) -> None:
    """A thread at half speed is helped by its neighbours: what others take of its node is less
    than it leaves behind, and with replicas nothing is far."""
    n, (tiles, _) = sum(nodes), tiles_of(SHAPES["head, int8"])
    slowdown = [2] + [1] * (n - 1)
    shares = _testing.rehearse_nodes(tiles, 1, slowdown, rehearsed(*nodes))
    far = sum(remote for _, remote in shares)
    assert 0 < far <= tiles / n / 2
    assert sum(remote for _, remote in shares[: nodes[0]]) == 0  # the slow thread's own node
    team = rehearsed(*nodes, replicas=True)
    assert [far for _, far in _testing.rehearse_nodes(tiles, 1, slowdown, team, True)] == [0] * n


def test_the_rehearsal_counts_what_is_far() -> None:
    """A node whose threads hardly run is read by the other's, which is better than to wait."""
    slowdown = [50, 50, 50, 1, 1, 1]
    shares = _testing.rehearse_nodes(600, 1, slowdown, rehearsed(3, 3))
    assert sum(far for _, far in shares) > 200


# -------------------------------------------------------------------------------------- the bits

#: Layers of two bits with an exact head; groups; super-blocks; experts, and of more than one
#: format; floats; bf16 with an exact head; recurrent layers.
MODELS = [
    ("bitnet-multiply", None, None),
    ("llama-96", "q4_1", "int8"),
    ("llama-256", "q4_k", "int8"),
    ("qwen3_moe", "i8", "int8"),
    ("qwen3_moe-mixed", "q4_1", "int8"),
    ("gpt_oss", "mxfp4", "int8"),
    ("llama-bf16", None, None),
    ("qwen3_5", "i4", "int8"),
]
TEAMS = [
    rehearsed(1, 1),
    rehearsed(1, 2),
    rehearsed(2, 1, 1, 1),
    rehearsed(1, 1, 1, replicas=True),
]


@pytest.mark.parametrize("case", MODELS, ids=lambda case: "-".join(map(str, case)))
def test_the_same_bits(case: tuple[str, str, str], checkpoint: Callable[[str], Path]) -> None:
    """Also for teams whose parts the weights are not in; and nothing is read from where the
    weights were loaded to, which may hold anything by then."""
    name, format_, head = case
    rng = np.random.default_rng(3)
    fed = [rng.integers(0, 256, n).tolist() for n in (70, 1, 9)]
    model = loading.load(checkpoint(name), format=format_, head=head, cached=False)
    plain = Engine(model, threads=2)
    expected = [plain.logits(fed), *(plain.logits([fed[2]], chunk=1) for _ in range(1))]
    placed = [Engine(model, threads=team) for team in TEAMS]
    placed[0].threads = Threads(3)
    placed[1].threads = rehearsed(2, 3)
    for weight in model.graph.linear_weights():
        embedded = weight is model.graph.table
        if not embedded and weight is not model.graph.head.weight:
            weight.codes[...] = 0
    for engine in placed:
        got = [engine.logits(fed), engine.logits([fed[2]], chunk=1)]
        for rows, others in zip(got, expected, strict=True):
            for a, b in zip(rows, others, strict=True):
                assert_same_bits(a, b)
    assert any(
        not np.array_equal(a, b) for a, b in zip(plain.logits(fed), expected[0], strict=True)
    )


def test_zeros_left_out(checkpoint: Callable[[str], Path]) -> None:
    """Copies of layers that leave out zeros are not placed, and not made unless asked for."""
    model = loading.load(checkpoint("bitnet-multiply"))
    expected = Engine(model, threads=2, skip_zeros=True).logits([[1, 2, 3, 4]], chunk=1)[0]
    for team in TEAMS:
        engine = Engine(model, threads=team, skip_zeros=True)
        assert_same_bits(engine.logits([[1, 2, 3, 4]], chunk=1)[0], expected)
        assert engine.skipped_bytes > 0


def test_no_memory_for_it(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loading.load(checkpoint("bitnet-multiply"))
    monkeypatch.setattr(numa, "available_bytes", lambda: 1000)
    words = ("STERNA_NUMA", "2 memory nodes", "0.00 GB are available", "off")
    failure(lambda: Engine(model, threads=rehearsed(1, 1)), RequestError, *words)
    with pytest.raises(ValueError, match="several nodes"):
        model.graph.compile().place(Threads(2), False)
