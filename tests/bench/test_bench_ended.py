"""Benchmarks that are ended early show the rows that are known, and say how far they are."""

from __future__ import annotations

import json
import signal

import pytest
from ended import assert_known_rows_are_shown, assert_tables_are_drawn, end_at
from helpers import command
from waits import wait_until

from sterna.bench import machine
from sterna.bench.machine import Pace
from sterna.cli import terminal

pytestmark = pytest.mark.usefixtures("little_bandwidth")
GEMV = ("gemv", "--shapes", "64x512,32x512", "--formats", "i2,i8", "--repeat", "2",
        "--threads", "1", "--working-set", "1")  # fmt: skip


def test_rows_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_known_rows_are_shown(monkeypatch, GEMV, at_least=3)


def test_tables_of_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_tables_are_drawn(monkeypatch, GEMV)


def test_a_signal_ends_it_as_ctrl_c_does(monkeypatch: pytest.MonkeyPatch) -> None:
    end_at(monkeypatch, 10, SystemExit(128 + signal.SIGTERM))
    result = command("bench", *GEMV, "--json")
    assert result.exit_code == 143
    assert json.loads(result.stdout)


def test_the_pace() -> None:
    """The rest is predicted to take as long as the part that is done."""
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
    monkeypatch.setattr(terminal, "PROGRESS_S", 0.01)
    lines: list[str] = []
    monkeypatch.setattr(terminal.click, "echo", lambda text, err: lines.append(text))
    monkeypatch.setattr(terminal.sys.stderr, "isatty", lambda: False, raising=False)
    with terminal.status("starting") as say:
        say("round 1; about 5 s left")
        wait_until(lambda: lines)
    assert lines[0].endswith("s: round 1; about 5 s left")


def test_nothing_is_said_of_what_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "PROGRESS_S", 1e6)
    result = command("bench", *GEMV, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
