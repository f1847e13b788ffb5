"""Figures and peers that are ended early show the rows that are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ended import assert_known_rows_are_shown, assert_tables_are_drawn

from sterna_papers.figures import litespark, prompt
from sterna_papers.peers import PEERS, run
from sterna_papers.peers.case import Options
from sterna_papers.pot import tuning

pytestmark = pytest.mark.usefixtures("little_bandwidth")
TERNARY = ("figure", "ternary", "--models", "tiny", "--scaling", "none", "--formats", "t5,i2",
           "--tokens", "2", "--repeat", "1", "--threads", "1")  # fmt: skip
E2E = ("figure", "e2e", "--models", "tiny", "--formats", "i2p,i1", "--tokens", "2", "--repeat",
       "1", "--threads", "1")  # fmt: skip
GEMV = ("figure", "gemv", "--shapes", "tiny", "--formats", "i1", "--threads", "1", "--repeat", "1")
POT = ("figure", "pot", "--sizes", "32,48", "--rows", "16", "--repeat", "1", "--compilers", "none",
       "--formats", "none")  # fmt: skip


@pytest.fixture(autouse=True)
def small_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "SMALL_MACS", 1)  # the power-of-two figure's, of next to nothing


@pytest.mark.parametrize("arguments", [TERNARY, E2E, GEMV, POT], ids=lambda a: a[1])
def test_rows_that_are_known(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    assert_known_rows_are_shown(monkeypatch, arguments, at_least=2)


@pytest.mark.parametrize("arguments", [TERNARY, E2E, GEMV, POT], ids=lambda a: a[1])
def test_tables_of_what_is_known(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_tables_are_drawn(monkeypatch, arguments)


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
