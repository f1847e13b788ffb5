"""`sterna bench peers`: the protocol with made-up peers, the checks, the dummy files."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from children import spawn
from click.testing import CliRunner
from waits import HANGS_S, wait_until

from sterna.cli.bench import command
from sterna.errors import RequestError
from sterna_papers.peers import Entry, Options, dummy_gguf, ik_llama, numpy_linear, run, sterna_self
from sterna_papers.peers.case import Case, Missing, distance, end_to_end, matrices, require
from sterna_papers.peers.end_to_end import LIMIT, EndToEnd
from sterna_papers.peers.process import Process
from sterna_papers.peers.products import Products
from sterna_papers.peers.sterna_self import SternaProducts

FAKE = """
import os, sys, time
from sterna_papers.peers.case import Case, require

class Fake:
    def __init__(self, options):
        self.how = options.variant
        self.cases = [Case("pp8", 8), Case("gemm", 1, 512, 256)]
        self.runs = 0

    def check(self, case):
        print("a library's chatter on stdout")
        if self.how == "hang":
            time.sleep(1e6)
        if self.how == "raise":
            raise ValueError("no kernel\\nfor this")
        return self.how != "wrong", "compared with nothing"

    def time(self, case):
        self.runs += 1
        if self.how == "crash" and case.what == "gemm":
            print("ggml.c:1: GGML_ASSERT failed", file=sys.stderr, flush=True)
            os._exit(134)
        return 0.25 * self.runs, not (self.how == "late" and self.runs == 2)

    def weight_bytes(self, case):
        return 1e6

def create(options):
    if options.variant == "missing":
        require("no_such_module", "no-such-package")
    return "1.2", options.variant, None, [Fake(options)]
"""


def options(**given: Any) -> Options:
    """Small ones."""
    base: dict[str, Any] = {"shape": "tiny", "variant": "i2", "threads": 1, "scratch": ""}
    return Options(**{**base, "pp": (8,), "tg": (3,), "n": (1, 3), **given})


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Entry, ...]]:
    """A table of peers that misbehave in their own ways, in processes as real ones are."""
    (tmp_path / "fake_peer.py").write_text(FAKE)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    monkeypatch.setenv("PYTHONPATH", path)
    names = ("ok", "wrong", "late", "raise", "crash", "hang", "missing")
    return {name: (Entry(name, "fake_peer", name),) for name in names}


def test_rows(fake: dict[str, tuple[Entry, ...]]) -> None:
    """One good peer and Sterna: all fields, medians, ratios."""
    rows = run(["ok"], options(n=(1,)), table=fake, repeat=3)
    assert len({tuple(row) for row in rows}) == 1, "all rows have the same fields"
    of_sterna = {(r["what"], r["shape"], r["n"]): r for r in rows if r["peer"] == "sterna"}
    assert all(row["checked"] and not row["skipped"] for row in of_sterna.values()), rows
    assert len(of_sterna) == 1 + 1 + 4
    assert of_sterna["tg3", None, 3]["gb_s"] > 0
    assert of_sterna["pp8", None, 8]["ratio_to_sterna"] == 1
    assert of_sterna["gemm", "512x256", 1]["gops"] > 0
    assert of_sterna["gemm", "512x256", 1]["gb_s"] > 0
    assert of_sterna["pp8", None, 8]["gb_s"] is None
    prompt, product = (r for r in rows if r["peer"] == "ok")
    assert (prompt["time_us_min"], prompt["time_us"], prompt["time_us_max"]) == (25e4, 5e5, 75e4)
    assert prompt["tok_s"] == 16
    assert prompt["repeat"] == 3
    assert prompt["version"] == "1.2"
    expected = of_sterna["pp8", None, 8]["time_us"] / 5e5
    assert prompt["ratio_to_sterna"] == pytest.approx(expected, abs=1e-4)
    assert product["shape"] == "512x256"
    assert product["gops"] == pytest.approx(2e-9 * 512 * 256 / 1.25, abs=0.01)


@pytest.mark.parametrize(
    ("formats", "variants"),
    [
        (["t5", "i2"], ["TQ2_0", "TQ1_0 -rtr 1"]),
        (["q4_0"], ["Q4_0", "Q4_0 -rtr 1"]),
        (["q8_0", "t5"], ["Q8_0", "TQ2_0", "Q8_0 -rtr 1", "TQ1_0 -rtr 1"]),
    ],
)
def test_types_of_formats(
    formats: list[str],
    variants: list[str],
    fake: dict[str, tuple[Entry, ...]],
) -> None:
    """A llama.cpp runs the formats' types, and for ternary formats its own ternary types, too."""
    table = {"ggml": tuple(Entry("ggml", "fake_peer", v) for v in ("TQ2_0", "TQ1_0 -rtr 1"))}
    small = options(shape="512x256", pp=(), tg=(), n=(1,))
    rows = run(["ggml"], small, formats=formats, table=table, repeat=1)
    asked = dict.fromkeys(row["format"] for row in rows if row["peer"] == "ggml")
    assert list(asked) == variants


def test_depth() -> None:
    """Generation at a depth is checked and timed there; prompts begin at depth 0."""
    given = options(n=(), tg=(3, 2), depth=(0, 700))
    rows = run([], given, formats=["i2"], repeat=1)
    assert [row["what"] for row in rows] == ["pp8", "tg3", "tg2", "tg3@700", "tg2@700"]
    assert all(row["checked"] and not row["skipped"] for row in rows), rows


def test_misbehaviour(fake: dict[str, tuple[Entry, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing, wrong, crashing and hanging peers become rows with reasons; the rest goes on."""
    check = Process.check

    def impatient_of_who_hangs(self: Process, case: Case) -> Any:
        hangs = self.format == "hang" and case.what == "pp8"
        self._limit_s = 0.5 if hangs else HANGS_S
        return check(self, case)

    monkeypatch.setattr(Process, "check", impatient_of_who_hangs)
    rows = run(list(fake), options(pp=(), tg=(), n=(1,)), table=fake, repeat=2, limit_s=HANGS_S)
    at = {(row["peer"], row["what"]): row for row in rows}
    assert at["ok", "pp8"]["checked"]
    assert at["ok", "gemm"]["ratio_to_sterna"] is not None
    for name in ("wrong", "late"):
        assert not at[name, "pp8"]["checked"]
        assert at[name, "pp8"]["ratio_to_sterna"] is None
        assert not at[name, "pp8"]["skipped"]
    assert "another output" in at["late", "pp8"]["check"]
    assert at["raise", "pp8"]["skipped"] == "ValueError: no kernel for this"
    assert at["crash", "pp8"]["checked"], "what was measured before a crash stays"
    assert "exit code 134: ggml.c:1: GGML_ASSERT" in at["crash", "gemm"]["skipped"]
    assert at["crash", "gemm"]["time_us"] is None
    assert at["hang", "pp8"]["skipped"] == "no answer within 0.5 s"
    assert "signal 9" in at["hang", "gemm"]["skipped"] or os.name == "nt"
    assert "pip install './papers[peers]'" in at["missing", None]["skipped"]


@pytest.mark.parametrize(
    ("peers", "given", "says"),
    [
        (["nobody"], {}, "peers: must be of"),
        ([], {"shape": "nano"}, "shapes: each must be MxK"),
        ([], {"shape": "0x5"}, "'0x5'"),
        ([], {"pp": (0,)}, "at least 1"),
        ([], {"threads": 0}, "at least 1"),
        ([], {"depth": (-1,)}, "depth must not be negative"),
        ([], {"shape": "maple", "n": ()}, "needs n, or pp or tg of a shape without recurrent"),
    ],
)
def test_wrong_arguments(peers: list[str], given: dict[str, Any], says: str) -> None:
    """An error at once, not a skipped row for everybody."""
    with pytest.raises(RequestError, match=says):
        run(peers, options(**given))


class Toy(EndToEnd):
    """Logits that depend on all tokens; more than `most` at once leave the buffers as they were."""

    most = 100

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.seen: list[int] = []

    def keep(self, length: int) -> int:
        del self.seen[length:]
        return length

    def feed(self, tokens: Sequence[int]) -> None:
        self.seen += tokens
        if len(tokens) <= self.most:
            self.out = np.random.default_rng(self.seen).standard_normal(16).astype(np.float32)

    def logits(self) -> Any:
        return self.out.copy()

    def weight_bytes(self, case: Case) -> float | None:
        return None


class Recurrent(Toy):
    """Nothing can be taken back, but all of it."""

    def keep(self, length: int) -> int:
        del self.seen[0 if length < len(self.seen) else length :]
        return len(self.seen)


def test_a_state_is_computed_again_after_each_run() -> None:
    """Its context, which the next run needs."""
    model = Recurrent(options(pp=(), tg=(8,), depth=(5,)))
    [case] = model.cases
    assert model.check(case)[0]
    assert model.time(case)[1]
    assert len(model.seen) == 5 + 8


def test_a_model_that_computes_nothing_is_noticed() -> None:
    """A peer like a kernel that returns at once for more tokens than it was made for."""
    case = Case("pp8", 8)
    good, bad = Toy(options()), Toy(options())
    bad.most = 4
    assert good.check(case)[0]
    assert good.time(case)[1]
    assert not bad.check(case)[0]
    assert not bad.time(case)[1]


def test_pieces_reach_every_length() -> None:
    """One at a time, then some at a time, and the last of each length alone."""
    toy = Toy(options(pp=(128, 70), tg=(64,)))
    toy.most = 128
    sizes: list[int] = []
    feed = toy.feed
    toy.feed = lambda tokens: (sizes.append(len(tokens)), feed(tokens))[1]  # type: ignore[method-assign]
    for n in (64, 70, 128):
        toy.keep(0)
        feed(toy._prompt(n))
        whole = toy.logits()
        assert distance(toy._stepwise(Case(f"pp{n}", n)), whole) == 0
    assert sizes == [1] * 64 + [5, 1] + [8] * 7 + [1, 1]
    assert sum(sizes) == 128


def test_a_context_is_computed_once() -> None:
    """Checks and runs at one depth share it; another depth has its own."""
    toy = Toy(options(pp=(), tg=(4,), depth=(1024, 2048)))
    toy.most = 2048
    fed: list[int] = []
    feed = toy.feed
    toy.feed = lambda tokens: (fed.append(len(tokens)), feed(tokens))[1]  # type: ignore[method-assign]
    for case in toy.cases:
        fed.clear()
        for _ in range(2):
            assert toy.check(case)[0]
            assert toy.time(case)[1]
        assert sum(n for n in fed if n > 4) == case.depth
        assert len(toy.seen) == case.depth + case.n


def test_a_model_that_ignores_its_prompt_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constant and non-finite logits do not pass either."""
    for value in (np.ones(16), np.arange(16.0), np.full(16, np.nan)):
        toy = Toy(options())
        monkeypatch.setattr(toy, "logits", lambda value=value: value.astype(np.float32))
        assert not toy.check(Case("pp8", 8))[0]


def test_distance() -> None:
    """Relative, and infinite for what is not finite."""
    a = np.array([3.0, 4.0], np.float32)
    assert distance(a, a) == 0
    assert distance(0 * a, a) == 1 > LIMIT
    assert distance(a * np.float32("nan"), a) == np.inf


class Kernel(Products):
    """The exact product, with one output off by a relative `error`."""

    error = 0.0

    def pack(self, weight: Any, n: int) -> int:
        self.w = weight.T.astype(np.float32)
        return 1 << 28

    def copy(self, count: int) -> None:
        self.copies = count

    def input(self, x: Any) -> None:
        self.x = x.astype(np.float32)

    def multiply(self, copy: int) -> object:
        y = self.x @ self.w
        y[-1, np.abs(y[-1]).argmax()] *= 1 + self.error
        return y

    def result(self, y: Any) -> Any:
        return y

    def release(self) -> None:
        pass


def test_products_are_compared_with_integers() -> None:
    """One wrong output of all is enough; rounding within the tolerance is not wrong."""
    kernel = Kernel(options())
    case = kernel.cases[1]
    assert kernel.check(case)[0]
    assert kernel.copies == 3
    assert kernel.time(case)[1]
    kernel.error = 0.01
    ok, how = kernel.check(case)
    assert not ok
    assert how.startswith("1 of ")
    kernel.tolerance = 0.02
    assert kernel.check(case)[0]
    kernel.error = float("nan")
    assert not kernel.check(case)[0]


@pytest.mark.parametrize(
    "variant", ["i2", "t5", "i8", "bf16", "q4_0", "q8_0", "i2:g64", "mxfp4", "tq2_0"]
)
def test_sternas_own_products_are_exact(variant: str) -> None:
    """Whole numbers and ternary weights leave nothing to round."""
    part = SternaProducts(options(variant=variant))
    for case in part.cases[:2]:
        ok, how = part.check(case)
        assert ok, how


@pytest.mark.parametrize(
    ("variant", "parts"), [("i2", 1), ("q4_0", 1), ("bf16", 1), ("i1", 0), ("q4_k", 0), ("q4_1", 0)]
)
def test_products_need_ternary_levels(variant: str, parts: int) -> None:
    """Formats without -1, 0 or 1 take part in whole models alone."""
    assert len(sterna_self.create(options(variant=variant, shape="96x256"))[3]) == parts


def test_cases() -> None:
    """The matrices of the published shape."""
    given = options(shape="bitnet-2b", n=(1,), pp=(128,), tg=(64,))
    assert [case.shape for case in matrices(given)] == [
        "3840x2560", "2560x2560", "13824x2560", "2560x6912",
    ]  # fmt: skip
    assert [case.what for case in end_to_end(given)] == ["pp128", "tg64"]
    one = options(shape="96x64", n=(1, 7))
    assert [(case.M, case.K, case.n) for case in matrices(one)] == [(96, 64, 1), (96, 64, 7)]
    assert end_to_end(one) == []


def test_numpy_beside_one_matrix() -> None:
    """Its sums of whole numbers are exact, and Sterna's in both arithmetics of floats."""
    _, _, _, (part,) = numpy_linear.create(options(variant="f32"))
    ok, how = part.check(part.cases[1])
    assert ok, how
    for deterministic in (True, False):
        given = options(shape="96x64", n=(1, 40), deterministic=deterministic)
        rows = run(["numpy"], given, formats=["f32"], repeat=1)
        assert [(row["peer"], row["n"]) for row in rows] == [
            ("sterna", 1), ("numpy", 1), ("sterna", 40), ("numpy", 40),
        ]  # fmt: skip
        assert all(row["checked"] and row["shape"] == "96x64" for row in rows), rows


BENCH = """#!{python}
import json, sys
n = max(int(sys.argv[sys.argv.index(flag) + 1]) for flag in ("-p", "-n"))
print("load_tensors: ...")
print(json.dumps([{{"build_commit": "abc1234", "avg_ns": n * 1000000, "args": sys.argv[1:]}}]))
"""


@pytest.mark.skipif(os.name == "nt", reason="makes a script of its own into a program")
def test_llama_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is run and its output is read; without a library next to it, its check fails."""
    program = tmp_path / "llama-bench"
    program.write_text(BENCH.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(dummy_gguf, "write", lambda *_: 1000)
    given = options(variant="IQ2_BN -rtr 1", scratch=str(tmp_path), llama_bench=str(program))
    version, _, _, (part,) = ik_llama.create(given)
    assert version == "abc1234"
    assert part.time(Case("pp8", 8)) == (0.008, True)
    assert part.time(Case("tg3", 3)) == (0.003, True)
    ok, how = part.check(Case("pp8", 8))
    assert not ok
    assert "no libllama" in how


def test_llama_bench_must_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An option or a variable names it, and it must be there."""
    monkeypatch.delenv(ik_llama.VARIABLE, raising=False)
    with pytest.raises(Missing, match="--ik-llama-bench"):
        ik_llama.create(options())
    with pytest.raises(Missing, match="no program"):
        ik_llama.create(options(llama_bench=str(tmp_path / "nothing")))


def test_require() -> None:
    """The reason says what to install."""
    assert require("json", "json") is json
    with pytest.raises(Missing, match=r"some-package cannot be imported .*papers\[peers\]"):
        require("no_such_module", "some-package")


def test_command(fake: dict[str, tuple[Entry, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The table says what was skipped and what does not count; --json has it all."""
    monkeypatch.setattr("sterna_papers.peers.PEERS", fake)
    monkeypatch.setitem(run.__kwdefaults__, "table", fake)
    args = ["peers", "--shape", "tiny", "--pp", "0", "--tg", "", "--n", "1", "--threads", "1"]
    args += ["--repeat", "1", "--peers"]
    result = CliRunner().invoke(command, [*args, "ok, wrong,missing"])
    assert result.exit_code == 0, result.output
    assert "512x256" in result.output
    assert "not counted: wrong wrong pp8: compared with nothing" in result.output
    assert "skipped: missing missing: no-such-package" in result.output
    rows = json.loads(CliRunner().invoke(command, [*args, "missing", "--json"]).stdout)
    assert rows[0]["skipped"]
    assert rows[1]["peer"] == "sterna"
    assert rows[1]["checked"]
    result = CliRunner().invoke(command, [*args, "ok", "--n", "x"])
    assert "whole numbers" in result.output


def test_an_interrupted_start_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that converts gigabytes while it starts does not get the terminal's Ctrl-C."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    before = psutil.Process().children()
    monkeypatch.setattr(Process, "_ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Process("sterna_papers.peers.numpy_linear", options(), 60)
    assert psutil.Process().children() == before


def test_a_terminated_run_leaves_nothing(tmp_path: Path) -> None:
    """Neither processes nor the folder of the models that they were given."""
    given = "--peers numpy --format f32 --shape 64x64 --n 8 --threads 1 --repeat 100000 --json"
    process = spawn(
        [sys.executable, "-m", "sterna", "bench", "peers", *given.split()],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    children: list[psutil.Process] = []  # Sterna and numpy, which import it before they work

    def work() -> bool:
        children[:] = psutil.Process(process.pid).children()
        return len(children) == 2 and all(
            child.memory_info().rss > 30_000_000 for child in children
        )

    wait_until(work)
    assert list(tmp_path.iterdir())
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=HANGS_S)
    assert process.returncode == 143
    assert all(line.startswith(b"sterna: ") for line in stderr.splitlines()), stderr
    assert not list(tmp_path.iterdir())
    _, alive = psutil.wait_procs(children, timeout=HANGS_S)
    assert not alive
