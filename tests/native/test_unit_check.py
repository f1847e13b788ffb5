"""The check of this machine's kernels: its table, wrong units, and what is remembered."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest
from click.testing import CliRunner
from helpers import command
from waits import HANGS_S

from sterna import _native
from sterna.calibration import measured, unit_check
from sterna.cli import main
from sterna.errors import UnsupportedCPUError

#: Of these, as `scalar` is always right.
UNITS = [isa for isa in _native.isas() if isa != "scalar"]
needs_unit = pytest.mark.skipif(not UNITS, reason="needs a unit next to scalar")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of its own, and nothing known of any unit."""
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path))
    monkeypatch.delenv("STERNA_ISA", raising=False)
    unit_check._wrong.cache_clear()
    yield tmp_path
    unit_check._wrong.cache_clear()


#: What each unit computes. Of `scalar` it takes ten seconds.
unit_digests = lru_cache(_native.unit_digests)


@pytest.mark.parametrize("isa", _native.isas())
def test_every_unit_has_the_table(isa: str) -> None:
    """Also `scalar`, which the table was made by; a group is missing from no unit but the fast
    ones."""
    digests, signal = unit_digests(isa)
    assert signal == 0
    table = unit_check.expected()
    fast = tuple(
        f"fast {'' if tiles else 'pairs '}{layout} "
        for layout, (_, tiles) in _native.fast_layouts(isa).items()
    )
    for group in table.keys() | digests.keys():
        if not group.startswith("fast ") or group.startswith(fast):
            assert digests.get(group) == table.get(group), group


def test_every_layout_is_checked() -> None:
    """A layout that is added to the core, but not to the check, fails here."""
    named = {group.split()[0] for group in unit_check.expected()}
    assert named >= set(LAYOUTS)


#: The files of native/layouts, each of which defines the layout of its name.
LAYOUTS = sorted(path.stem for path in (Path(__file__).parents[2] / "native/layouts").glob("*/*.h"))


@needs_unit
def test_a_check_is_remembered(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second start reads the file, and another installation checks again."""
    runs: list[str] = []
    digests = _native.unit_digests

    def counted(isa: str) -> tuple[dict[str, int], int]:
        runs.append(isa)
        return digests(isa)

    monkeypatch.setattr(_native, "unit_digests", counted)
    for _ in range(2):
        unit_check._wrong.cache_clear()  # as in a new process
        assert unit_check.checked_isa() == UNITS[-1]
        assert runs == [UNITS[-1]]
    monkeypatch.setattr(unit_check, "_installation", lambda: "another")
    unit_check._wrong.cache_clear()
    unit_check.checked_isa()
    assert runs == [UNITS[-1]] * 2


@needs_unit
def test_a_wrong_unit_that_is_asked_for(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused by name, and the error says what is wrong and what is right."""
    right = unit_check.expected()
    table = {group: right[group] ^ group.startswith("b4 16") for group in right}
    monkeypatch.setattr(unit_check, "expected", lambda: table)
    with pytest.raises(
        UnsupportedCPUError, match=r"isa: .*wrong results .*b4 16 rows.*choose"
    ) as e:
        unit_check.checked_isa(UNITS[-1])
    assert "scalar" in str(e.value)
    monkeypatch.setenv("STERNA_ISA", UNITS[-1])
    with pytest.raises(UnsupportedCPUError, match="STERNA_ISA: "):
        unit_check.checked_isa()


PROGRAM = """
import json, sys, warnings
from sterna import _native
from sterna.calibration import unit_check

wrong = sys.argv[1]
digests = _native.unit_digests
_native.unit_digests = lambda isa: ({}, 4) if isa == wrong else digests(isa)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    chosen = unit_check.checked_isa()
    from sterna import LLM
    text = LLM("nano").generate("def", max_tokens=4).text
print(json.dumps([chosen, _native.isas(), [str(w.message) for w in caught], text]))
"""


def tried(wrong: str, cache: Path) -> tuple[str, list[str], list[str], str]:
    """What a process chooses if a unit's check ends by SIGILL."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, wrong],
        capture_output=True,
        text=True,
        check=True,
        timeout=HANGS_S,
    )
    return tuple(json.loads(done.stdout))


@needs_unit
def test_a_wrong_unit_is_not_used(cache: Path) -> None:
    """The next best one takes its place for everything, with a warning, now and at later starts."""
    for wrong in (UNITS[-1], "none"):  # the second process knows it from the file
        chosen, isas, said, text = tried(wrong, cache)
        assert UNITS[-1] not in isas
        assert chosen == isas[-1]
        assert [s for s in said if "SIGILL" in s and UNITS[-1] in s and chosen in s] != []
        assert text
    assert unit_check._wrong(UNITS[-1]) == ("it ended by SIGILL",)


def test_scalar_stays() -> None:
    """There is always a unit."""
    done = subprocess.run(
        [sys.executable, "-c",
         "from sterna import _native\n"
         "for isa in _native.isas(): _native.exclude_isa(isa)\n"
         "print(*_native.isas())"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["scalar"]


def test_without_a_cache_nothing_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing could be kept, so that each start would check again."""
    unit_check._wrong.cache_clear()
    monkeypatch.setattr(_native, "unit_digests", None)
    unit_check.checked_isa()


@pytest.mark.parametrize("content", ["[]", '{"wrong": 3}', "garbage"])
@needs_unit
def test_a_damaged_file_is_no_result(content: str, cache: Path) -> None:
    """It is checked again then."""
    what = {f"check of {UNITS[-1]}": content}
    (cache / "measured.json").write_text(json.dumps({measured.cpu(): what}))
    assert unit_check.checked_isa() == UNITS[-1]
    kept = json.loads((cache / "measured.json").read_text())[measured.cpu()]
    assert kept[f"check of {UNITS[-1]}"]["wrong"] == []


def test_info_check(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command says which units are right; the exit code, whether all are."""
    monkeypatch.setattr(_native, "unit_digests", unit_digests)
    asked = ("info", "--check", "--json")
    rows = json.loads(command(*asked).stdout)
    assert [row["isa"] for row in rows] == _native.isas()
    assert all(row["right"] and row["wrong"] == [] for row in rows)
    monkeypatch.setattr(_native, "unit_digests", lambda isa: ({}, 4))
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 1
    assert {row["wrong"][0] for row in json.loads(done.stdout)} == {"it ended by SIGILL"}
