"""`sterna tune`: what is chosen, how it is kept, and that products run with it."""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import command, failed, failure

from sterna.errors import RequestError
from sterna_papers import _kernels, pot
from sterna_papers.pot import tuning
from sterna_papers.pot.tuning import Choice, Unroll

ISA = pot.resolve("f32")[1]
UNROLLS = _kernels.unrolls("pot8", ISA)
SMALL = ("--shape", "4,5,33", "--repeat", "1", "--threads", "1")


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of the choices, in an empty cache."""
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / tuning.TUNING_FILE


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> dict[Unroll, float]:
    """Times that measurements give; those not named take a second."""
    times: dict[Unroll, float] = {}

    def timer(kernel: str, a: Any, b: Any, K: int, isa: str, threads: int, unroll: Unroll) -> Any:
        return lambda: times.get(unroll, 1.0)

    monkeypatch.setattr(tuning, "_timer", timer)
    return times


def choice(N: int = 8, M: int = 8, K: int = 8, **changes: Any) -> Choice:
    """A choice of this CPU."""
    made = Choice(
        tuning.cpu_name(), tuning.KERNELS_VERSION, "pot8", ISA, 1, N, M, K, UNROLLS[0], 0.5, 1.0
    )
    return replace(made, **changes)


def best(N: int, M: int = 8, K: int = 8, threads: int = 1) -> Unroll | None:
    return tuning.best("pot8", ISA, N, M, K, threads)


# ------------------------------------------------------------------------------------- choosing


def test_the_fastest_wins_and_of_equals_the_smaller() -> None:
    assert tuning.fastest({(1, 1, 1): 2.0, (4, 1, 1): 1.0}) == (4, 1, 1)
    assert tuning.fastest({(4, 2, 1): 1.0, (2, 2, 1): 1.0, (1, 4, 1): 1.0}) == (1, 4, 1)
    close = 1 + tuning.TIE / 2
    assert tuning.fastest({(4, 4, 1): 1.0, (1, 1, 1): close}) == (1, 1, 1)
    assert tuning.fastest({(4, 4, 1): 1.0, (1, 1, 1): 1 + 2 * tuning.TIE}) == (4, 4, 1)


def test_a_sweep_interleaves_and_takes_medians() -> None:
    """One round after another, so that a slow moment meets all alike."""
    order: list[str] = []
    values = {"a": iter([9.0, 1.0, 2.0]), "b": iter([3.0, 8.0, 3.0])}

    def timer(name: str) -> Any:
        def run() -> float:
            order.append(name)
            return next(values[name])

        return run

    ticks = itertools.count()
    timers = {(1, 1, 1): timer("a"), (2, 1, 1): timer("b")}
    assert tuning.sweep(timers, 3, lambda: next(ticks)) == {(1, 1, 1): 2.0, (2, 1, 1): 3.0}
    assert order == ["a", "b"] * 3
    assert next(ticks) == 6


def test_tune_measures_every_unroll(quick: dict[Unroll, float]) -> None:
    quick[UNROLLS[0]] = 0.25
    seen: list[tuple[float, float]] = []
    choices = tuning.tune(
        ["pot8"], ISA, [(2, 3, 5), (4, 3, 5)], threads=1, repeat=2,
        progress=lambda done, of: seen.append((done, of)),
    )  # fmt: skip
    assert [(c.N, c.M, c.K, c.unroll, c.time_s) for c in choices] == [
        (2, 3, 5, UNROLLS[0], 0.25),
        (4, 3, 5, UNROLLS[0], 0.25),
    ]
    assert all(c.gain == 4 for c in choices)
    total = 2 * 2 * len(UNROLLS)
    assert seen == [(i + 1, total) for i in range(total)]


def test_what_cannot_be_tuned_is_refused() -> None:
    def call(**changes: Any) -> Any:
        given: dict[str, Any] = {"kernels": ["pot8"], "isa": ISA, "shapes": [(1, 1, 1)]} | changes
        return lambda: tuning.tune(given.pop("kernels"), given.pop("isa"), **given)

    failure(call(kernels=["pot9"]), RequestError, "pot9", "pot8")
    failure(call(repeat=0), RequestError, "repeat")
    failure(call(shapes=[]), RequestError, "shape")
    failure(call(shapes=[(0, 1, 1)]), RequestError, "0,1,1")
    failure(call(shapes=[(1, 1 << 20, 1 << 20)]), RequestError, "elements")


@pytest.mark.parametrize("kernel", ["pot8", "pot16", "pot4", "fxpot", "f32", "i32"])
def test_operands_are_the_same_each_time_and_sound(kernel: str) -> None:
    a, b = tuning.operands(kernel, 3, 4, 33)
    second = tuning.operands(kernel, 3, 4, 33)
    np.testing.assert_array_equal(a, second[0])
    np.testing.assert_array_equal(b, second[1])
    out = _kernels.matmul(kernel, a, b, 33, ISA, 1, UNROLLS[-1], True)
    assert out.shape == (3, 4)
    assert np.isfinite(out).all()
    assert np.count_nonzero(out)


# -------------------------------------------------------------------------------------- keeping


def test_nothing_is_tuned_at_first(cache: Path) -> None:
    assert tuning.load() == []
    assert best(8) is None
    assert not cache.exists()


def test_choices_are_kept_and_replaced(cache: Path) -> None:
    first, other = choice(), choice(16)
    assert tuning.store([first]) == cache
    assert tuning.store([other]) == cache
    assert sorted(tuning.load(), key=lambda c: c.N) == [first, other]
    newer = replace(first, unroll=UNROLLS[-1])
    tuning.store([newer])
    assert sorted(tuning.load(), key=lambda c: c.N) == [newer, other]
    assert [p.name for p in cache.parent.iterdir()] == [cache.name], "a temporary file stayed"


def test_the_nearest_shape_counts_by_logarithm(cache: Path) -> None:
    tuning.store([choice(1, unroll=UNROLLS[-1]), choice(64, unroll=UNROLLS[1])])
    assert best(1) == best(7) == UNROLLS[-1]
    assert best(9) == best(1000) == UNROLLS[1]
    assert best(8) == UNROLLS[-1], "of two as near, the smaller"
    assert best(1, threads=2) is None
    assert tuning.best("pot4", ISA, 1, 8, 8, 1) is None


def test_choices_of_other_cpus_and_kernels_do_not_count(cache: Path) -> None:
    """An unrolling that is not compiled is not used either; but they stay in the file."""
    strangers = [choice(cpu="another"), choice(kernels=tuning.KERNELS_VERSION + 1)]
    tuning.store(strangers)
    assert tuning.load() == []
    assert len(json.loads(cache.read_text())["choices"]) == 2
    tuning.store([choice(unroll=(3, 3, 3))])
    assert best(8) is None


def test_deleting_leaves_other_cpus(cache: Path) -> None:
    mine = [choice(), choice(kernel="pot4")]
    tuning.store([*mine, choice(cpu="another")])
    assert tuning.delete(["pot4"]) == 1
    assert tuning.load() == mine[:1]
    assert tuning.delete() == 1
    assert tuning.load() == []
    assert "another" in cache.read_text()
    cache.write_text("damaged")
    with pytest.warns(RuntimeWarning, match="tun"):
        assert tuning.delete() == 0
    assert not cache.exists()
    assert tuning.delete() == 0


def damages() -> Iterator[tuple[str, str]]:
    """Texts that are no file of choices."""
    yield "empty", ""
    yield "cut", '{"version": 1, "choices": ['
    yield "no array", '{"version": 1, "choices": 3}'
    yield "no object", "[1]"
    row = {**vars(choice()), "unroll": [1, 1, 1]}
    for name, value in (
        ("threads", 0), ("N", "8"), ("time_s", -1.0), ("unroll", [1, 1]), ("unroll", [1, 1, "1"]),
        ("kernel", None), ("K", True),
    ):  # fmt: skip
        yield f"{name} {value}", json.dumps({"version": 1, "choices": [{**row, name: value}]})
    yield "a field less", json.dumps({"version": 1, "choices": [{"kernel": "pot8"}]})


@pytest.mark.parametrize("text", [pytest.param(t, id=name) for name, t in damages()])
def test_a_damaged_file_is_ignored_with_a_warning(cache: Path, text: str) -> None:
    cache.parent.mkdir()
    cache.write_text(text)
    with pytest.warns(RuntimeWarning, match=f"{cache.name}.*sterna tune"):
        assert best(8) is None
    with warnings.catch_warnings():  # once is enough
        warnings.simplefilter("error")
        assert best(8) is None
    tuning.store([choice()])
    assert best(8) == UNROLLS[0]


def test_another_versions_file_is_no_damage(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text('{"version": 2, "else": []}')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tuning.load() == []


def test_the_cache_may_be_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STERNA_CACHE", "off")
    assert tuning.store([choice()]) is None
    assert tuning.load() == []
    assert tuning.delete() == 0


def test_a_cache_that_cannot_be_written_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path / "file"))
    failure(lambda: tuning.store([choice()]), RequestError, "file", "STERNA_CACHE")


# ------------------------------------------------------------------------------------- dispatch


def test_products_run_with_the_tuned_unroll(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs with the default where nothing is tuned, and with what is asked for."""
    used: list[Any] = []
    native = _kernels.matmul

    def spy(*arguments: Any) -> Any:
        _kernel, _a, _b, _K, _isa, _threads, unroll, *_ = arguments
        used.append(tuple(unroll))
        return native(*arguments)

    monkeypatch.setattr(_kernels, "matmul", spy)
    a, b = tuning.operands("pot8", 8, 8, 8)

    def multiply(**how: Any) -> Any:
        return pot.matmul(a, b, 8, kernel="pot8", isa=ISA, threads=1, **how)

    plain = multiply()
    tuning.store([choice()])
    np.testing.assert_allclose(multiply(), plain, rtol=1e-5)
    multiply(unroll=UNROLLS[1])
    tuning.delete()
    multiply()
    default = tuning.default_unroll(UNROLLS, 8)
    assert used == [default, UNROLLS[0], UNROLLS[1], default]


# ----------------------------------------------------------------------------------------- CLI


def test_the_command_tunes_and_lists(cache: Path) -> None:
    """The real kernels, at a size that takes no time."""
    result = command("tune", "--kernel", "pot8", "--kernel", "fxpot", *SMALL, "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [(row["kernel"], row["n"], row["m"], row["k"]) for row in rows] == [
        ("pot8", 4, 5, 33),
        ("fxpot", 4, 5, 33),
    ]
    for row in rows:
        assert tuple(row["unroll"]) in _kernels.unrolls(row["kernel"], row["isa"])
        assert row["time_us"] > 0
        assert row["gain"] == pytest.approx(row["default_us"] / row["time_us"], rel=0.01)
        assert row["threads"] == 1
    assert tuning.best("pot8", ISA, 4, 5, 33, 1) == tuple(rows[0]["unroll"])
    listed = json.loads(command("tune", "--list", "--json").stdout)
    assert sorted(listed, key=str) == sorted(rows, key=str)
    one = json.loads(command("tune", "--list", "--kernel", "fxpot", "--json").stdout)
    assert one == rows[1:]


def test_the_command_draws_a_table(cache: Path, quick: dict[Unroll, float]) -> None:
    quick[UNROLLS[0]] = 0.125
    result = command("tune", "--kernel", "pot8", *SMALL)
    assert result.exit_code == 0, result.output
    header, line, _, where = result.stdout.splitlines()
    for word in ("kernel", "N,M,K", "default µs", "best unroll", "gain"):
        assert word in header
    assert "4,5,33" in line
    assert " × ".join(map(str, UNROLLS[0])) in line
    assert line.split()[-1] == "8.00"
    assert str(cache) in where


def test_the_command_deletes(cache: Path) -> None:
    tuning.store([choice()])
    assert command("tune", "--delete").stdout == "deleted 1 choice\n"
    assert not cache.exists()
    assert json.loads(command("tune", "--delete", "--json").stdout) == [{"deleted": 0}]
    assert "nothing is tuned" in command("tune", "--list").stdout
    assert json.loads(command("tune", "--list", "--json").stdout) == []


def test_the_command_says_that_the_cache_is_off(quick: dict[Unroll, float]) -> None:
    result = command("tune", "--kernel", "pot8", *SMALL)
    assert result.exit_code == 0
    assert "not kept: STERNA_CACHE is off" in result.stdout


@pytest.mark.parametrize("place", ["file/cache", "a" * 300])  # too long a name anywhere
def test_a_cache_that_cannot_be_written_is_said_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path / place))
    monkeypatch.setattr(tuning, "tune", lambda *_, **__: pytest.fail("measures"))
    failed(command("tune", "--kernel", "pot8", *SMALL), place, "STERNA_CACHE")


@pytest.mark.usefixtures("cache")
def test_a_cache_for_no_files_is_said_before_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tuning.tempfile, "TemporaryFile", refused)
    monkeypatch.setattr(tuning, "tune", lambda *_, **__: pytest.fail("measures"))
    failed(command("tune", "--kernel", "pot8", *SMALL), "must be writable", "Permission denied")


def test_a_choice_that_cannot_be_kept_is_shown(
    quick: dict[Unroll, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def store(*_: object) -> None:
        raise RequestError("full")

    monkeypatch.setattr(tuning, "store", store)
    result = command("tune", "--kernel", "pot8", *SMALL)
    assert (result.exit_code, "best unroll" in result.stdout) == (2, True)


def test_wrong_options() -> None:
    failed(command("tune", "--kernel", "pot9", *SMALL), "pot9", "pot8")
    failed(command("tune", "--shape", "4,5"), "three whole numbers", "4,5")
    failed(command("tune", "--shape", "0,5,5", "--repeat", "1"), "0,5,5")
    failed(command("tune", "--repeat", "0", "--shape", "4,5,6"), "repeat")
    failed(command("tune", "--list", "--delete"), "--list")
    failed(command("tune", "--list", "--kernel", "pot9"), "pot9", "pot8")
    failed(command("tune", "--delete", "--kernel", "pot9"), "pot9", "pot8")
    failed(command("tune", "--isa", "z80"), "z80")


def test_the_smallest_products_are_not_repeated_for_minutes() -> None:
    """Each call starts threads, which takes longer than they have to do."""
    assert tuning.rounds_of(2, 2, 2) == tuning.MAX_ROUNDS
    assert tuning.rounds_of(64, 512, 512) == 1
    assert tuning.rounds_of(16, 64, 64) == tuning.SMALL_MACS // (16 * 64 * 64)
