"""A long conversion that is killed goes on where it ended, and gives the same bytes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import failure

from sterna.convert import candidates
from sterna.convert.best_for_size import Goal, best_for_size
from sterna.convert.candidates import units_of
from sterna.convert.plan import plan
from sterna.convert.sensitivity import Probe
from sterna.convert.unfinished import Kept, unfinished
from sterna.errors import RequestError
from sterna.formats import weighted

TEXTS = [f"line {i} of a text about {i * i} things\n" * 9 for i in range(60)]
FORMATS = ("t5:g32", "nf2:g32", "i4:g32", "nf4:g32")
#: Kills itself when a stage has done some of its work.
KILLED = """
import json, os, signal, sys
from sterna.convert import candidates
from sterna.convert.best_for_size import Goal, best_for_size

src, dst, stage, share, texts, formats = sys.argv[1:]
candidates.TARGETS["sterna"] = json.loads(formats)

def progress(now, done, total):
    if now == stage and done >= float(share) * total:
        os.kill(os.getpid(), signal.SIGKILL)

best_for_size(
    src, dst, Goal(bits=4.0), json.loads(texts), tokens=512, threads=1, progress=progress
)
"""


@pytest.fixture(autouse=True, scope="module")
def few_formats() -> Iterator[None]:
    """Choose from a few formats: their number says nothing about what is kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(candidates.TARGETS, "sterna", FORMATS)
        yield


def run(src: Path, dst: Path) -> list[str]:
    """Run to the end; return the stages that had something to do."""
    stages = list[str]()
    best_for_size(
        src,
        dst,
        Goal(bits=4.0),
        TEXTS,
        tokens=512,
        threads=1,
        progress=lambda stage, done, total: stages.append(stage),
    )
    return stages


def kill(src: Path, dst: Path, stage: str, share: float) -> None:
    given = (str(src), str(dst), stage, str(share), json.dumps(TEXTS), json.dumps(FORMATS))
    made = subprocess.run(
        [sys.executable, "-c", KILLED, *given], capture_output=True, text=True, check=False
    )
    assert made.returncode == -signal.SIGKILL, made.stderr
    assert not dst.exists()


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def whole(
    checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    """Files of a run that nothing ended early."""
    dst = tmp_path_factory.mktemp("whole") / "model"
    assert set(run(checkpoint("llama"), dst)) == {"reading", "measuring", "rounding"}
    return files(dst)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_killed_in_each_stage(
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
    whole: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    src, dst = checkpoint("llama"), tmp_path / "model"
    kill(src, dst, "reading", 0.5)
    kill(src, dst, "measuring", 0.3)
    kept = Kept(tmp_path / "model.unfinished", 0)
    assert kept.get("moments-0") is not None
    assert kept.get("measured-0") is not None
    kill(src, dst, "rounding", 0.5)
    roundings = len(list(kept.folder.glob("rounded-*.npz")))
    assert roundings > 2

    calls = {"sensitivity": 0, "rounded": 0}
    measured, rounded = Probe.sensitivity, weighted.rounded

    def count_measured(*arguments: Any) -> float:
        calls["sensitivity"] += 1
        return measured(*arguments)

    def count_rounded(*arguments: Any, **options: Any) -> Any:
        calls["rounded"] += 1
        return rounded(*arguments, **options)

    monkeypatch.setattr(Probe, "sensitivity", count_measured)
    monkeypatch.setattr(weighted, "rounded", count_rounded)
    assert set(run(src, dst)) == {"rounding"}
    matrices = len(units_of(plan(src)[1]))  # each is rounded in one piece
    assert calls == {"sensitivity": 0, "rounded": matrices - roundings}
    assert files(dst) == whole
    assert [path.name for path in tmp_path.iterdir()] == ["model"]  # nothing else is left


def test_another_size_needs_nothing_anew_but_another_text_does(
    checkpoint: Callable[[str], Path], tmp_path: Path, whole: dict[str, bytes]
) -> None:
    src, dst = checkpoint("llama"), tmp_path / "model"
    assert stopped(src, dst, "rounding", 5.0, TEXTS)[-1] == "measuring"
    assert "reading" not in run(src, dst)
    assert files(dst) == whole
    stopped(src, tmp_path / "b", "measuring", 4.0, TEXTS)
    with pytest.warns(RuntimeWarning, match=r"b.unfinished: was begun with another text, so"):
        assert "reading" in stopped(src, tmp_path / "b", "measuring", 4.0, TEXTS[1:])


def stopped(src: Path, dst: Path, at: str, bits: float, texts: list[str]) -> list[str]:
    """Stop a run as soon as a stage has done some of its work; return the stages before it."""
    stages = list[str]()

    def stop(stage: str, done: int, total: int) -> None:
        if stage == at:
            raise KeyboardInterrupt
        stages.append(stage)

    with pytest.raises(KeyboardInterrupt):
        best_for_size(src, dst, Goal(bits=bits), texts, tokens=512, threads=1, progress=stop)
    return stages


def test_places(tmp_path: Path) -> None:
    folder = tmp_path / "m.unfinished"
    folder.mkdir()
    (folder / "photo.jpg").write_bytes(b"mine")
    failure(lambda: _enter(tmp_path / "m"), RequestError, "has no begun.json; remove it yourself")
    assert (folder / "photo.jpg").exists()
    with unfinished(tmp_path / "n", {"a": 1}, 0) as kept:
        failure(lambda: _enter(tmp_path / "n"), RequestError, "another one is under way")
    assert not kept.folder.exists()


def _enter(dst: Path) -> None:
    with unfinished(dst, {"a": 1}, 0):
        pass


def test_what_is_kept(tmp_path: Path) -> None:
    kept, full = Kept(tmp_path, 0), Kept(tmp_path, 1 << 60)
    values = {"a": np.arange(3, dtype=np.float32), "b.c/d": np.array(["x", "yz"])}
    assert kept.get("one") is None
    kept.put("one", values)
    full.put("two", values)  # would leave too little of the disk
    assert kept.get("two") is None
    found = kept.get("one")
    assert found is not None
    assert {name: array.tolist() for name, array in found.items()} == {
        "a": [0, 1, 2],
        "b.c/d": ["x", "yz"],
    }
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-40])
    assert kept.get("one") is None
