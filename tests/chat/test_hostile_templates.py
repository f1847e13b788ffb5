"""Hostile chat templates: a typed error in bounded time and memory, and no code has run.

They run in one process, `template_worker.py`, that measures itself. STERNA_TEMPLATE_SECONDS is the
sandbox's limit there: with the product's limit, 2 s, the whole table takes two minutes.
STERNA_TEMPLATES is the number of random templates.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile_templates import ATTACKS, HARMLESS
from jinja2.sandbox import ImmutableSandboxedEnvironment
from random_templates import template

from sterna.chat import budget

RANDOM = int(os.environ.get("STERNA_TEMPLATES", "30"))  # random ones in addition to the table
SECONDS = float(os.environ.get("STERNA_TEMPLATE_SECONDS", "0.1"))
#: Beyond the limit: the longest single step (parsing, a sort), in the worker's units. It takes 12.
STEP_UNITS = 100
MAX_MB = 256


Render = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def rendered() -> Iterator[Render]:
    """The worker's report on a template's source; one process renders those of all tests."""
    worker = Path(__file__).with_name("template_worker.py")
    with subprocess.Popen(
        [sys.executable, str(worker), str(SECONDS)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin
        assert process.stdout

        def render(source: str) -> dict[str, Any]:
            print(json.dumps({"source": source}), file=process.stdin, flush=True)
            line = process.stdout.readline()
            assert line, f"the worker ended with {process.wait()}"
            row: dict[str, Any] = json.loads(line)
            return row

        yield render
        process.stdin.close()


def test_random_templates_stay_within_the_limits(rendered: Render) -> None:
    """Each ends as text or as a typed error, whatever the calls are and their order."""
    for seed in range(RANDOM):
        row = rendered(template(seed))
        assert row["kind"] in ("text", "ModelFormatError", "RequestError"), (seed, row)
        assert row["events"] == [], (seed, row)
        assert row["cpu"] < SECONDS + STEP_UNITS * row["unit"], (seed, row)
        assert row["peak_mb"] < MAX_MB, (seed, row)


def test_there_are_enough_of_them() -> None:
    assert len(ATTACKS) >= 60
    assert budget.MAX_SECONDS == 2


def test_a_busy_machine_makes_no_template_a_bad_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is of the thread's own seconds, not of those that others had the processor."""
    monkeypatch.setattr(budget, "MAX_SECONDS", 0.05)
    waited = budget.Budget()
    time.sleep(0.1)
    waited.step()
    started = time.thread_time()
    while time.thread_time() < started + 0.06:
        pass
    with pytest.raises(budget.OverBudget, match="seconds"):
        waited.step()


@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_template_is_refused(rendered: Render, name: str) -> None:
    row = rendered(ATTACKS[name])
    assert row["kind"] in ("ModelFormatError", "RequestError"), row
    assert "\n" not in row["text"]
    assert len(row["text"]) < 1000
    assert row["events"] == []
    assert row["cpu"] < SECONDS + STEP_UNITS * row["unit"]
    assert row["peak_mb"] < MAX_MB


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_not_there_prints_as_nothing(rendered: Render, name: str) -> None:
    row = rendered(HARMLESS[name])
    assert row["kind"] == "text"
    assert "class" not in row["text"]
    assert "<" not in row["text"]  # as every object of Python's would print
    assert row["events"] == []


def test_an_attack_burns_in_a_plain_sandbox() -> None:
    """The table tests something: the constant product is folded when it is compiled."""
    plain = ImmutableSandboxedEnvironment()
    tracemalloc.start()
    plain.from_string("{{ 'x' * 10**6 }}")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak > 1e6
