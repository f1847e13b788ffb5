"""Benchmark commands that end early, at a given step of their progress."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator

import pytest
from helpers import command

from sterna.cli import report


def ending(at: int, error: BaseException) -> Callable[[str], None]:
    """A progress that ends the run when it is told of its `at`-th step."""
    told = 0

    def progress(_: str) -> None:
        nonlocal told
        told += 1
        if told == at:
            raise error

    return progress


def end_at(monkeypatch: pytest.MonkeyPatch, at: int, error: BaseException | None = None) -> None:
    """Ends the commands that follow at their `at`-th step."""

    @contextlib.contextmanager
    def status(_: str) -> Iterator[Callable[[str], None]]:
        yield ending(at, error or KeyboardInterrupt())

    monkeypatch.setattr(report, "status", status)


def assert_known_rows_are_shown(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], at_least: int
) -> None:
    """Wherever `bench` is ended: more and more rows, of the fields of a whole run.

    `at_least` is how many numbers of rows must be seen.
    """
    counts, at, fields = [], 0, set()
    while True:
        at += 1
        end_at(monkeypatch, at)
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
    assert len(set(counts)) >= at_least
    assert len(fields) == 1


def assert_tables_are_drawn(monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    """Tables look like a whole run's: ended after a few steps, after many, and not at all."""
    for output in ("table", "markdown", "csv"):
        at, codes = 2, set()
        while codes != {0}:
            end_at(monkeypatch, at)
            result = command("bench", *arguments, "--output", output)
            assert result.exception is None or isinstance(result.exception, SystemExit)
            codes = {result.exit_code}
            assert codes <= {0, 130}
            at *= 3
