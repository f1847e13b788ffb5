"""Benchmarks that are ended early show the rows that are known, and say how far they are."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from helpers import command

from sterna.bench import machine
from sterna.bench.machine import Pace
from sterna.cli import options, report
from sterna.papers.figures import litespark, prompt
from sterna.papers.peers import PEERS, run
from sterna.papers.peers.case import Options
from sterna.papers.pot import tuning

pytestmark = pytest.mark.usefixtures("little_bandwidth")
GEMV = ("gemv", "--shapes", "64x512,32x512", "--formats", "i2,i8", "--repeat", "2",
        "--threads", "1", "--working-set", "1")  # fmt: skip
TERNARY = ("figure", "ternary", "--models", "tiny", "--scaling", "none", "--formats", "t5,i2",
           "--tokens", "2", "--repeat", "1", "--threads", "1")  # fmt: skip
E2E = ("figure", "e2e", "--models", "tiny", "--formats", "i2p,i1", "--tokens", "2", "--repeat",
       "1", "--threads", "1")  # fmt: skip
POT = ("figure", "pot", "--sizes", "32,48", "--rows", "16", "--repeat", "1", "--compilers", "none",
       "--formats", "none")  # fmt: skip


def ending(at: int, error: BaseException) -> Callable[[str], None]:
    """A progress that ends the run when it is told of its `at`-th step."""
    told = 0

    def progress(_: str) -> None:
        nonlocal told
        told += 1
        if told == at:
            raise error

    return progress


@pytest.fixture
def end_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Ends commands when they tell of a step."""
    monkeypatch.setattr(tuning, "SMALL_MACS", 1)  # the power-of-two figure's, of next to nothing

    def set_end(at: int, error: BaseException | None = None) -> None:
        @contextlib.contextmanager
        def status(_: str) -> Iterator[Callable[[str], None]]:
            yield ending(at, error or KeyboardInterrupt())

        monkeypatch.setattr(report, "status", status)

    return set_end


@pytest.mark.parametrize("arguments", [GEMV, TERNARY, E2E, POT], ids=lambda a: a[1] if a else a)
def test_rows_that_are_known(arguments: tuple[str, ...], end_at: Callable[..., None]) -> None:
    """Wherever it is ended: more and more rows, of the fields of a whole run."""
    counts, at, fields = [], 0, set()
    while True:
        at += 1
        end_at(at)
        result = command("bench", *arguments, "--json")
        rows = json.loads(result.stdout) if result.stdout else []
        counts.append(len(rows))
        fields |= {tuple(row) for row in rows}
        if result.exit_code == 0:
            break
        assert result.exit_code == 130
        assert ("ended early" in result.stderr) == bool(rows)
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert len(set(counts)) > 1 + (arguments[0] == "gemv")
    assert len(fields) == 1


def test_tables_of_what_is_known(end_at: Callable[..., None]) -> None:
    """Drawn like a whole run's, ended after a few steps, after many, and not at all."""
    for arguments in (GEMV, TERNARY, E2E, POT):
        for output in ("table", "markdown", "csv"):
            at, codes = 2, set()
            while codes != {0}:
                end_at(at)
                result = command("bench", *arguments, "--output", output)
                assert result.exception is None or isinstance(result.exception, SystemExit)
                codes = {result.exit_code}
                assert codes <= {0, 130}
                at *= 3


def test_a_signal_ends_it_as_ctrl_c_does(end_at: Callable[..., None]) -> None:
    end_at(10, SystemExit(128 + signal.SIGTERM))
    result = command("bench", *GEMV, "--json")
    assert result.exit_code == 143
    assert json.loads(result.stdout)


def known_by(measure: Callable[..., Any], step: str) -> list[dict[str, Any]]:
    """The rows that a run knows when it tells of a step with this text for the first time."""
    known: list[Callable[[], list[dict[str, Any]]]] = []

    def progress(text: str) -> None:
        if step in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(progress=progress, known=known.append)
    return known[-1]()


def test_peers_keep_whole_cases() -> None:
    given = Options(variant="", scratch="", shape="tiny", threads=1, pp=(8,), tg=(2,), n=())
    rows = known_by(
        lambda **told: run(["numpy"], given, formats=["i2", "i8"], repeat=1, table=PEERS, **told),
        "tg2: checking",
    )
    assert [(row["what"], row["format"], row["checked"]) for row in rows] == [
        ("pp8", "i2", True), ("pp8", "i8", True),
    ]  # fmt: skip


def test_litespark_and_prompt_keep_what_they_have() -> None:
    small: dict[str, Any] = {"pp": 8, "tg": 2, "threads": 1, "repeat": 1}
    rows = known_by(
        lambda **told: litespark.run(
            "tiny", format_names=["i2"], names=(), table={}, **small, **told
        ),
        "tg2: checking",
    )
    assert [tuple(row) for row in rows] == [litespark.FIELDS]
    rows = known_by(
        lambda **told: prompt.run(
            ["tiny"], format_names=["f32", "bf16"], table={}, **small, **told
        ),
        "tiny bf16",
    )
    assert [(row["format"], tuple(row)) for row in rows] == [("f32", prompt.FIELDS)]


def test_the_pace() -> None:
    """What is left takes as long as what is done took."""
    now = 100.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine.time, "monotonic", lambda: now)
        pace = Pace(4)
        assert pace.step("a") == "a"
        now += 20
        assert pace.step("b") == "b; about 60 s left"
        now += 580
        assert pace.step("c") == "c; about 10 min left"
        assert pace.step("d") == "d; about 3 min left"
        assert pace.step("e") == "e; about 0 s left"


def test_progress_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line at a time; how long it waits is patched, and the test waits for the line."""
    monkeypatch.setattr(options, "TOLD_S", 0.01)
    lines: list[str] = []
    monkeypatch.setattr(options.click, "echo", lambda text, err: lines.append(text))
    monkeypatch.setattr(options.sys.stderr, "isatty", lambda: False, raising=False)
    end = time.monotonic() + 60
    with options.status("starting") as say:
        say("round 1; about 5 s left")
        while not lines and time.monotonic() < end:
            time.sleep(0.01)
    assert lines[0].endswith("s: round 1; about 5 s left")


def test_nothing_is_said_of_what_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "TOLD_S", 1e6)
    result = command("bench", *GEMV, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
