"""`sterna bench figure`: what the rows are made of, on tiny shapes; what is skipped and why."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from helpers import command, failed, failure
from sysfs_tree import Tree

from sterna import formats
from sterna.bench import machine
from sterna.bench.random_models import random_model
from sterna.bench.shapes import SHAPES
from sterna.bench.timed_runs import PROMPT_OF_TG, generate
from sterna.engine import Engine, Sequence
from sterna.errors import RequestError
from sterna_papers import lookup
from sterna_papers.energy import NOT_AVAILABLE, Rapl
from sterna_papers.figures import decoding, e2e, gemv, litespark, prompt, ternary
from sterna_papers.figures.decoding import Plan, plans, together
from sterna_papers.peers import Entry
from sterna_papers.peers.case import Case, Options
from sterna_papers.peers.torch_model import TorchModel, model_bytes

pytestmark = pytest.mark.usefixtures("little_bandwidth")
PNG = b"\x89PNG\r\n\x1a\n"
SMALL: dict[str, Any] = {"tokens": 4, "threads": 1, "repeat": 2}


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the free memory, in GB, that all look at."""

    def free(gigabytes: float) -> None:
        for module in (machine, decoding, prompt):
            monkeypatch.setattr(module, "available_bytes", lambda: int(gigabytes * 1e9))

    return free


def run(*args: str) -> Result:
    """The result of `sterna bench figure`."""
    return command("bench", "figure", *args)


# ------------------------------------------------------------------------------------- memory


def test_groups_fit_together() -> None:
    """In order, as many as fit; what never fits is in none."""
    assert together([4, 4, 4, 20, 1, 9], 10) == ([[0, 1], [2, 4], [5]], [3])
    assert together([], 10) == ([], [])
    assert together([11], 10) == ([], [0])


def test_a_plan_foresees_its_bytes() -> None:
    """Weights as the model has them, and a cache of whole pages."""
    plan = Plan("tiny", "i2", "bf16", 40)
    assert plan.positions == 128
    model = random_model("tiny", format="i2", head="bf16")
    weights = sum(w.nbytes for w in model.graph.weights())
    assert plan.nbytes == weights + 128 * SHAPES["tiny"].kv_bytes("i16")
    head = model.graph.head.weight
    assert head is not None
    assert plan.layer_bytes == weights - head.nbytes


def test_plans_are_checked() -> None:
    assert len(plans(["tiny", "tiny"], ["i2", "bf16", "i2"], "bf16", 4)) == 2
    failure(lambda: plans([], ["i2"], "bf16", 4), RequestError, "model")
    failure(lambda: plans(["tiny"], ["i2"], "bf16", 0), RequestError, "at least 1")
    failure(lambda: plans(["tiny"], ["q9"], "bf16", 4), RequestError, "q9")
    failure(lambda: plans(["huge"], ["i2"], "bf16", 4), RequestError, "huge")
    failure(lambda: plans(["tiny"], ["i2"], "q9", 4), RequestError, "head")
    limit = SHAPES["tiny"].context - PROMPT_OF_TG
    failure(lambda: plans(["tiny"], ["i2"], "bf16", limit + 1), RequestError, str(limit), "tokens")


# ------------------------------------------------------------------------------------- e2e


def test_amdahl_is_the_papers() -> None:
    """Equation 4 with the paper's alpha and x, which it prints with two digits."""
    assert e2e.amdahl(0.87, 8) == pytest.approx(4.3, rel=0.03)
    assert e2e.amdahl(0.87, 16) == pytest.approx(5.5, rel=0.03)
    assert e2e.amdahl(0.96, 8) == pytest.approx(6.1, rel=0.03)
    assert e2e.amdahl(0.96, 16) == pytest.approx(9.6, rel=0.05)
    assert e2e.amdahl(0, 7) == 1
    assert e2e.amdahl(1, 7) == pytest.approx(7)
    for alpha, x in ((-0.1, 2.0), (1.1, 2.0), (0.5, 0.0), (float("nan"), 2.0)):
        failure(lambda a=alpha, b=x: e2e.amdahl(a, b), RequestError, "amdahl")


def test_e2e_rows() -> None:
    """Fields, and how they hang together."""
    rows = e2e.run(["tiny"], **SMALL)
    assert [row["format"] for row in rows] == list(e2e.FORMATS)
    base = rows[0]
    assert base["speedup"] == base["x"] == base["amdahl"] == 1
    for row in rows:
        assert tuple(row) == e2e.FIELDS
        assert row["skipped"] is None
        assert row["repeat"] == 2
        assert row["tok_s_min"] <= row["tok_s"] <= row["tok_s_max"]
        assert row["gb_s"] == pytest.approx(row["tok_s"] * row["bytes_per_token"] / 1e9, rel=0.01)
        assert row["speedup"] == pytest.approx(row["tok_s"] / base["tok_s"], rel=0.01)
        assert 0 < row["layer_share"] <= 1
        assert row["alpha"] == base["layer_share"]
        assert row["amdahl"] == pytest.approx(e2e.amdahl(row["alpha"], row["x"]), rel=0.01)
        expected = e2e.amdahl(row["alpha"], row["x_bytes"])
        assert row["amdahl_bytes"] == pytest.approx(expected, rel=0.01)
    # 32 k of 16 bits, of 4 and a byte of exponent, of 2 and of 1, and a float for each row.
    wanted = {"bf16": 1, "mxfp4": 512 / 136, "i2p": 8, "i1": 16}
    for row in rows:
        assert row["x_bytes"] == pytest.approx(wanted[row["format"]], rel=0.15)


def test_e2e_has_its_baseline_always() -> None:
    rows = e2e.run(["tiny"], format_names=["i2", "i2"], head="int8", **SMALL)
    assert [(row["format"], row["head"]) for row in rows] == [("bf16", "int8"), ("i2", "int8")]


@pytest.mark.parametrize("head", ["bf16", "int8", "exact"])
def test_layers_are_timed_without_the_head(head: str) -> None:
    """The kinds of operations add up, the head's is its own, and decoding reports the layers'."""
    engine = Engine(random_model("tiny", head=head), threads=1)
    assert set(engine.seconds) == {
        "adapt", "attention", "embed", "head", "linear", "rope", "rowwise", "select",
    }  # fmt: skip
    assert engine.seconds["head"] == 0
    made = generate(engine, 4, 1)
    after = engine.seconds
    assert all(seconds >= 0 for seconds in after.values())
    assert after["head"] > 0
    assert 0 < made.layers_s < after["linear"]  # the prompt's are not among them
    assert made.layers_s < made.seconds
    sequence = Sequence()
    engine.step([(sequence, [1, 2], 0)])
    assert engine.seconds["linear"] > after["linear"]


def test_what_does_not_fit_is_said(memory: Callable[[float], None]) -> None:
    """No room for anything; room for the small formats, but not for the baseline."""
    memory(0.1)
    rows = e2e.run(["tiny"], **SMALL)
    assert all(tuple(row) == e2e.FIELDS for row in rows)
    assert all("GB of memory" in row["skipped"] and row["tok_s"] is None for row in rows)
    need = Plan("tiny", "mxfp4", "bf16", 4).nbytes
    assert need < Plan("tiny", "bf16", "bf16", 4).nbytes
    memory((need + (1 << 20) + (512 << 20)) / 0.9e9 + 0.001)
    rows = e2e.run(["tiny"], **SMALL)
    assert [row["skipped"] is None for row in rows] == [False, True, True, True]
    assert all(row["speedup"] is None and row["alpha"] is None for row in rows)
    assert all(row["layer_share"] for row in rows[1:])


# ------------------------------------------------------------------------------------- gemv


def test_gemv_rows() -> None:
    """Each matrix in each format, under the roof of its memory and its cores."""
    rows = gemv.run(["tiny", "64x96"], format_names=["i1"], threads=[1, 2], repeat=1)
    shapes = [f"{M}x{K}" for M, K in dict.fromkeys(SHAPES["tiny"].matrices().values())]
    assert [(row["shape"], row["format"], row["threads"]) for row in rows] == [
        (shape, name, threads)
        for shape in (*shapes, "64x96")
        for name in ("i8", "i1")
        for threads in (1, 2)
    ]
    speed = {(row["shape"], row["format"], row["threads"]): row["gb_s"] for row in rows}
    for row in rows:
        assert tuple(row) == gemv.FIELDS
        roof = min(row["core_gb_s"], row["bandwidth_gb_s"])
        assert row["roof_gb_s"] == roof
        assert row["bound"] == ("memory" if roof == row["bandwidth_gb_s"] else "core")
        assert row["fraction_of_roof"] == pytest.approx(row["gb_s"] / roof, rel=1e-3)
        int8 = speed[row["shape"], "i8", row["threads"]]
        assert row["int8_ratio"] == pytest.approx(row["gb_s"] / int8, rel=1e-3)
    assert [row["model"] for row in rows[-4:]] == [None] * 4


def test_a_roof_is_of_cores_or_memory() -> None:
    """Equation 3: of two cores with 2 GHz that take 4 bytes a cycle, 16 GB/s."""
    kernel = {"core_bytes_per_cycle": 4.0, "clock_ghz": 2.0, "gamma_cycles": 1.0}
    for memory, bound, roof in ((10.0, "memory", 10.0), (20.0, "core", 16.0)):
        row = {"threads": 2, "gb_s": 8.0, "bandwidth_gb_s": memory}
        under = gemv.under(row, kernel)
        assert (under["bound"], under["roof_gb_s"]) == (bound, roof)
        assert (under["core_gb_s"], under["fraction_of_roof"]) == (16.0, 8 / roof)


# ------------------------------------------------------------------------------------- ternary


def test_ternary_rows() -> None:
    """Each model in each format on the most threads; those of the scaling figures on all."""
    rows = ternary.run(
        ["tiny"], scaling=["tiny"], threads=[1, 2], format_names=["i2", "t5"], tokens=2, repeat=1
    )
    assert [(row["format"], row["threads"]) for row in rows] == [
        ("i2", 1), ("i2", 2), ("t5", 1), ("t5", 2),
    ]  # fmt: skip
    rows = ternary.run(["tiny"], scaling=[], threads=[1, 2], tokens=2, repeat=1)
    assert [row["format"] for row in rows] == list(ternary.FORMATS)
    assert {row["threads"] for row in rows} == {2}
    for row in rows:
        assert tuple(row) == ternary.FIELDS
        assert row["bandwidth_gb_s"] > 0
    bytes_of = {row["format"]: row["bytes_per_token"] for row in rows}
    assert bytes_of["t5"] < bytes_of["i2"] < bytes_of["q4_0"] < bytes_of["f16"]


def test_table_7_names_every_kernel() -> None:
    """The paper's own figures are in the table."""
    lookup.register()
    assert {"f16", "q4_0", "tmac2_0", "tl1_0", "tl2_0", "i2"} <= set(ternary.FORMATS)
    assert set(ternary.FORMATS) <= set(formats.names())
    assert list(ternary.MODELS) == [name for name in SHAPES if name in ternary.MODELS]


def test_100b_is_refused_with_its_size(memory: Callable[[float], None]) -> None:
    memory(16)
    rows = ternary.run(["100b"], scaling=[], format_names=["i2"], tokens=2, repeat=1)
    assert "GB of memory" in rows[0]["skipped"]
    assert rows[0]["threads"] == max(machine.teams(None))


# ------------------------------------------------------------------------------------- prompt

FAKE = """
import os
from sterna_papers.peers.case import end_to_end, require

class Fake:
    def __init__(self, options):
        self.how = options.variant
        self.cases = end_to_end(options)
        self.joules = 40.0 if self.how == "metered" else None

    def check(self, case):
        if self.how == "crash":
            os.kill(os.getpid(), 4)
        return self.how != "wrong", "compared with nothing"

    def time(self, case):
        return (0.5 if case.what.startswith("pp") else 2.0), True

    def weight_bytes(self, case):
        return 1e9

def create(options):
    if options.variant == "missing":
        require("no_such_module", "no-such-package")
    return "1.2", options.variant, "Q6_K", [Fake(options)]
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Entry, ...]]:
    """Made-up peers, in processes as real ones are."""
    (tmp_path / "fake_figure.py").write_text(FAKE)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    monkeypatch.setenv("PYTHONPATH", path)
    return lambda *names: tuple(Entry("llama.cpp", "fake_figure", name) for name in names)


PROMPT: dict[str, Any] = {"pp": 8, "tg": 4, "threads": 1, "repeat": 2}


def test_prompt_rows(fake: Callable[..., tuple[Entry, ...]]) -> None:
    """Both sides' speeds, the ratios; a peer that dies is tried in its other form."""
    table = {"q8_0": fake("crash", "plain"), "f32": fake("plain", "crash"), "bf16": fake("wrong")}
    rows = prompt.run(["tiny"], format_names=["f32", "bf16", "q8_0", "i2"], table=table, **PROMPT)
    assert [row["format"] for row in rows] == ["f32", "bf16", "q8_0", "i2"]
    at = {row["format"]: row for row in rows}
    for row in rows:
        assert tuple(row) == prompt.FIELDS
        assert row["checked"]
        assert row["skipped"] is None
        assert row["prompt_tok_s_min"] <= row["prompt_tok_s"] <= row["prompt_tok_s_max"]
        assert row["eval_gb_s"] > 0
    for name in ("f32", "q8_0"):
        row = at[name]
        assert row["peer_format"] == "plain"
        assert (row["peer_prompt_tok_s"], row["peer_eval_tok_s"]) == (16.0, 2.0)
        assert row["prompt_ratio"] == pytest.approx(row["prompt_tok_s"] / 16, rel=1e-3)
        assert row["eval_ratio"] == pytest.approx(row["eval_tok_s"] / 2, rel=1e-3)
        assert row["peer_skipped"] is None
    assert at["bf16"]["peer_checked"] is False
    assert at["bf16"]["prompt_ratio"] is None
    assert at["i2"]["peer"] is None
    assert [at[name]["head"] for name in ("f32", "bf16", "q8_0", "i2")] == [
        "f32", "bf16", "int8", "int8",
    ]  # fmt: skip


def test_a_missing_peer_leaves_sternas_figures(fake: Callable[..., tuple[Entry, ...]]) -> None:
    table = {"q4_0": fake("missing")}
    (row,) = prompt.run(["tiny"], format_names=["q4_0"], table=table, **PROMPT)
    assert row["prompt_tok_s"] > 0
    assert "no-such-package" in row["peer_skipped"]
    assert row["prompt_ratio"] is None


def test_prompt_memory(
    fake: Callable[..., tuple[Entry, ...]],
    memory: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """29 GB of f32 are refused by name; a model that fits alone runs alone."""
    memory(20)
    (row,) = prompt.run(["mistral-7b"], format_names=["f32"], table={"f32": fake("plain")})
    assert "needs 29." in row["skipped"]
    assert row["peer_skipped"]
    memory(0.9)
    table = {"q4_0": fake("plain")}
    (row,) = prompt.run(["tiny"], format_names=["q4_0"], table=table, **PROMPT)
    assert row["prompt_tok_s"] > 0
    assert "both need" in row["peer_skipped"]
    odd = replace(SHAPES["tiny"], hidden=192)
    monkeypatch.setitem(SHAPES, "odd", odd)
    memory(16)
    (row,) = prompt.run(["odd"], format_names=["q4_0"], table=table, **PROMPT)
    assert "Q6_K: K must be a multiple of 256" in row["peer_skipped"]
    failure(lambda: prompt.run(["tiny"], pp=5000), RequestError, "4096")
    failure(lambda: prompt.run(["tiny"], tg=0), RequestError, "at least 1")


# ----------------------------------------------------------------------------------- litespark


@pytest.mark.parametrize("shape", ["tiny", "bitnet-tiny"])
def test_torch_is_a_model(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens at once or one by one give the same logits, other prompts other ones."""
    torch = pytest.importorskip("torch", reason="needs torch")
    tiny = SHAPES["tiny"]
    made = (
        tiny if shape == "tiny" else type(tiny)("BitNetForCausalLM", 128, 192, 2, 4, 2, 512, True)
    )
    monkeypatch.setitem(SHAPES, shape, made)
    options = Options(shape=shape, variant="f32", threads=1, pp=(9,), tg=(3,), n=(), scratch="")
    part = TorchModel(options, torch)
    for case in part.cases:
        ok, how = part.check(case)
        assert ok, how
        seconds, right = part.time(case)
        assert seconds > 0
        assert right
    held = sum(w.nbytes for layer in part.layers for w in layer.values()) + part.table.nbytes
    assert held == part.bytes == model_bytes(options) == part.weight_bytes(Case("tg3", 3))


def test_litespark_rows(fake: Callable[..., tuple[Entry, ...]], tree: Tree) -> None:
    """Ratios are improvements over torch; energy is that of the tokens."""
    (metered,) = fake("metered")
    (crash,) = fake("crash")
    table = {
        "torch": (Entry("torch", metered.module, "metered"),),
        "litespark": (Entry("litespark", crash.module, "crash"),),
    }
    rows = litespark.run(
        "tiny", format_names=["i8", "i2"], pp=8, tg=4, threads=1, repeat=2, table=table,
        rapl=Rapl(tree.root / "none"),
    )  # fmt: skip
    assert all(tuple(row) == litespark.FIELDS for row in rows)
    assert [(row["peer"], row["format"]) for row in rows] == [
        ("sterna", "i8"), ("sterna", "i2"), ("torch", "metered"), ("litespark", "crash"),
    ]  # fmt: skip
    sterna_row, _, torch, gone = rows
    assert {row["energy"] for row in rows} == {NOT_AVAILABLE}
    assert (torch["ttft_ms"], torch["tok_s"]) == (500.0, 2.0)
    assert (torch["joules_per_token"], torch["prompt_joules"]) == (10.0, 40.0)
    assert torch["memory_ratio"] == torch["ttft_ratio"] == torch["tok_s_ratio"] == 1
    assert sterna_row["rss_mb"] > 10
    assert sterna_row["memory_ratio"] == pytest.approx(
        torch["rss_mb"] / sterna_row["rss_mb"], rel=1e-3
    )
    assert sterna_row["ttft_ratio"] == pytest.approx(500 / sterna_row["ttft_ms"], rel=0.01)
    assert sterna_row["tok_s_ratio"] == pytest.approx(sterna_row["tok_s"] / 2, rel=0.01)
    assert "signal 4" in gone["skipped"] or os.name == "nt"
    assert gone["tok_s"] is None
    failure(lambda: litespark.run("tiny", pp=0), RequestError, "at least 1")
    failure(lambda: litespark.run("tiny", pp=9000), RequestError, "4096")
    failure(lambda: litespark.run("huge"), RequestError, "huge")


# ---------------------------------------------------------------------------------- the command

COMMANDS = {
    "e2e": "e2e --models tiny --formats i2 --tokens 2 --threads 1 --repeat 1",
    "gemv": "gemv --shapes tiny --formats i1 --threads 1,2 --repeat 1",
    "ternary": "ternary --models tiny --scaling tiny --formats i2,t5 --tokens 2 --threads 1,2 "
    "--repeat 1",
    "prompt": "prompt --models tiny --formats q4_0 --pp 8 --tg 2 --threads 1 --repeat 1 --no-peer",
    "litespark": "litespark --model tiny --formats i2 --pp 8 --tg 2 --threads 1 --repeat 1 "
    "--peers torch",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_outputs(name: str, tmp_path: Path) -> None:
    """JSON and CSV have all fields of all rows; a table and a picture are there."""
    picture = tmp_path / "figure.png"
    result = run(*COMMANDS[name].split(), "--json", "--plot", str(picture))
    rows = json.loads(result.stdout)
    assert rows
    assert len({tuple(row) for row in rows}) == 1
    data = picture.read_bytes()
    assert data.startswith(PNG)
    assert len(data) > 10_000
    if name == "litespark":  # starts processes: once is enough
        return
    lines = list(csv.DictReader(io.StringIO(run(*COMMANDS[name].split(), "--csv").stdout)))
    assert [list(line) for line in lines] == [list(row) for row in rows]
    markdown = run(*COMMANDS[name].split(), "--markdown").stdout
    assert markdown.count("| ---") + markdown.count("| --:") >= 1
    assert "tiny" in markdown
    assert any(unit in markdown for unit in ("tok/s", "Tokens per second", "of roof"))
    assert "tiny" in run(*COMMANDS[name].split()).stdout


def test_skips_are_printed(memory: Callable[[float], None], tmp_path: Path) -> None:
    """Below the table, in Markdown too; the picture says that there is nothing."""
    memory(0.1)
    for name in ("e2e", "ternary", "prompt"):
        picture = tmp_path / f"{name}.png"
        result = run(*COMMANDS[name].split(), "--plot", str(picture))
        assert result.exit_code == 0, result.output
        assert "skipped: tiny" in result.stdout
        assert picture.read_bytes().startswith(PNG)
        assert "skipped: tiny" in run(*COMMANDS[name].split(), "--markdown").stdout


def test_no_scaling() -> None:
    arguments = COMMANDS["ternary"].replace("--scaling tiny", "--scaling none").split()
    rows = json.loads(run(*arguments, "--json").stdout)
    assert [(row["format"], row["threads"]) for row in rows] == [("i2", 2), ("t5", 2)]


def test_errors_are_one_line(tmp_path: Path) -> None:
    for arguments, words in (
        (["e2e", "--models", "huge"], ("huge", "llama3-8b")),
        (["e2e", "--models", "tiny", "--repeat", "0"], ("repeat",)),
        (["gemv", "--shapes", "12"], ("shapes", "MxK", "'12'")),
        (["gemv", "--shapes", "tiny", "--repeat", "0"], ("repeat",)),
        (["gemv", "--shapes", "tiny", "--threads", "0"], ("threads", "1..1024")),
        (["gemv", "--shapes", "8x100", "--formats", "q4_0"], ("q4_0", "8x100", "K=100")),
        (["ternary", "--models", "tiny", "--threads", "0"], ("threads", "1..1024")),
        (["prompt", "--models", "tiny", "--formats", "q9"], ("q9",)),
        (["litespark", "--model", "tiny", "--peers", "nobody"], ("nobody", "torch")),
        (["e2e", "--plot", str(tmp_path / "a.pdf")], (".png",)),
    ):
        failed(run(*arguments), *words)
