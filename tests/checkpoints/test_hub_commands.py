"""`sterna pull`, `models` and `rm`, and processes that pull at once, against a local Hub."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import termios
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from children import spawn
from helpers import command, failed, failure
from hub_helpers import (
    GGUFS,
    NANO,
    NEEDED,
    REPO,
    TOKEN,
    WEIGHTS,
    pull,
)
from hub_server import Hub
from huggingface_hub import constants
from waits import HANGS_S, wait_until

from sterna.checkpoints import cache, hub
from sterna.checkpoints.hub import HubName, pulling, store
from sterna.checkpoints.resolve import BUILT_IN, resolve
from sterna.errors import (
    HubError,
)

# ---------------------------------------------------------------------------------- command line


def test_pull_models_rm(server: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path / "packed"))
    done = command("pull", REPO)
    assert done.stdout == f"{hub.downloads()[0].path}\n"
    (row,) = json.loads(command("pull", "--json", REPO).stdout)
    assert (row["model"], row["commit"]) == (REPO, server.refs[REPO, "main"])
    assert row["size_bytes"] == sum(len(NANO[name]) for name in NEEDED)
    key = cache.cache_key(resolve(REPO), "i2", None)
    cache.store_behind(key, lambda dst: _entry(dst)).wait()
    rows = {row["source"]: row for row in json.loads(command("models", "--json").stdout)}
    assert rows["hub"]["model"] == REPO
    assert rows["hub"]["architecture"] == "BitNetForCausalLM"
    assert rows["hub"]["size_bytes"] == row["size_bytes"]
    assert rows["hub"]["last_used"].startswith("20")
    assert rows["cache"]["packed_from"] == REPO
    shown = command("models").stdout
    assert f"{REPO}  hub" in shown
    assert row["commit"][:12] in shown
    assert rows["cache"]["path"] in shown  # whole, to be copied
    failed(command("rm", REPO), "--yes")
    done = command("rm", "--yes", "--json", REPO)
    freed = row["size_bytes"] + rows["cache"]["size_bytes"]
    assert json.loads(done.stdout) == [{"model": REPO, "freed_bytes": freed}]
    assert not store.Repository(REPO).folder.exists()
    assert not cache.entries()
    failed(command("rm", "-y", REPO), "not downloaded")


def _entry(folder: Path) -> None:
    for name in ("config.json", WEIGHTS):
        (folder / name).write_bytes(NANO[name])


def test_rm_asks_on_a_terminal(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    pull()
    monkeypatch.setattr("sterna.cli.rm._has_terminal", lambda: True)
    from click.testing import CliRunner

    from sterna.cli import main

    for answer, code in (("n\n", 130), ("y\n", 0)):
        result = CliRunner().invoke(main, ["rm", REPO], input=answer)
        assert result.exit_code == code
        assert f"{REPO} (3.7 MB)" in result.stderr
        assert bool(hub.downloads()) == bool(code)
    assert "bytes freed" in result.stdout


def test_rm_leaves_what_others_need(server: Hub) -> None:
    server.add("terns/ggufs", GGUFS)
    small, large = pull("terns/ggufs:Q4_K_S"), pull("terns/ggufs:Q4_K_M")
    assert hub.remove(small) == 1
    assert large.is_whole()
    assert not small.is_whole()
    old = pull()
    server.add(REPO, {**NANO, "generation_config.json": b"{}"})
    new = pull()
    (former,) = (d for d in hub.downloads(REPO) if d.commit == old.commit)
    assert hub.remove(former) == len(NANO["generation_config.json"])
    assert new.is_whole()
    assert not old.path.exists()
    failed(command("rm", "-y", "nano"), "part of Sterna")
    failed(command("rm", "-y", str(BUILT_IN["nano"])), "yours to remove")
    failed(command("rm", "-y", f"{REPO}@{old.commit}"), "not downloaded")


@pytest.mark.parametrize("missing", [("symlink",), ("symlink", "link")])
def test_without_links_on_the_disk(
    server: Hub, monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...]
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(1, "Operation not permitted")

    for name in missing:
        monkeypatch.setattr(os, name, refuse)
    download = pull()
    assert (download.path / WEIGHTS).read_bytes() == NANO[WEIGHTS]
    assert not (download.path / WEIGHTS).is_symlink()
    assert hub.remove(download) == download.nbytes * len(missing)
    assert not store.Repository(REPO).folder.exists()


def test_nothing_missing_needs_no_space(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    pull()
    monkeypatch.setattr(
        pulling.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 9, 10**6)
    )
    assert pull().is_whole()


def test_rm_of_a_transfer_left_half_done(server: Hub) -> None:
    server.cuts[WEIGHTS] = [1_000_000] + [0] * 20
    failure(pull, HubError)
    done = command("rm", "--yes", REPO)
    assert "1,000,000 bytes freed" in done.stdout
    assert not store.Repository(REPO).folder.exists() or not hub.partial_bytes(REPO)


def test_commands_fetch_a_model_by_its_name(server: Hub) -> None:
    texts = [
        command("generate", "--model", name, "--max-tokens", "3", "--seed", "1", "def f").stdout
        for name in ("nano", REPO)
    ]
    assert texts[0] == texts[1]
    server.requests.clear()
    assert command("generate", "--offline", "--model", REPO, "--max-tokens", "1", "x").stdout
    failed(command("generate", "--offline", "--model", "terns/none", "x"), "offline", "pull")
    for args in (["verify"], ["compare", "nano"]):
        more = ["--file", __file__, "--limit", "1"] if args[0] == "compare" else []
        failed(command(*args, "--offline", "terns/none", *more), "terns/none", "offline")
    for name in ("convert", "quantize"):
        failed(command(name, "--offline", "--format", "i2", "terns/none", "x"), "offline")
    assert command("verify", "--offline", REPO).exit_code == 0
    failed(command("pull", "./folder"), "org/name")
    failed(command("pull", "nano"), "org/name")
    assert not server.requests


def test_the_environment_of_a_process(server: Hub, tmp_path: Path) -> None:
    """HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE and HF_HUB_DISABLE_XET, as a user sets them."""
    env = {
        **os.environ,
        "HF_ENDPOINT": server.url,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": "0",
    }
    server.cuts[WEIGHTS] = [1_000_000]

    def sterna(*args: str, **more: str) -> subprocess.CompletedProcess[str]:
        run = [sys.executable, "-m", "sterna", *args]
        return subprocess.run(run, env=env | more, capture_output=True, text=True, timeout=HANGS_S)

    done = sterna("pull", REPO)
    assert (done.returncode, done.stderr) == (0, "")  # no bar where there is no terminal
    assert str(tmp_path / "home" / "hub") in done.stdout
    done = sterna("pull", "terns/other", HF_HUB_OFFLINE="1")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "offline" in done.stderr


def test_ctrl_c_ends_a_stalled_transfer(server: Hub) -> None:
    env = {**os.environ, "HF_ENDPOINT": server.url, "HF_HUB_OFFLINE": "0"}
    env |= {"HF_HUB_CACHE": constants.HF_HUB_CACHE, "HF_HUB_DOWNLOAD_TIMEOUT": "1"}
    server.stalled.add(WEIGHTS)
    run = [sys.executable, "-m", "sterna", "pull", REPO]

    def stalled() -> subprocess.Popen[bytes] | None:
        """None: on a busy machine, the listing took a second, too."""
        process = spawn(run, env=env, stderr=subprocess.PIPE)
        # No other file is as large.
        wait_until(lambda: hub.partial_bytes(REPO) > 1_000_000 or process.poll() is not None)
        return process if process.poll() is None else None

    process = wait_until(stalled)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=HANGS_S)[1] == b""
    assert process.returncode == 130
    assert hub.partial_bytes(REPO) > 0  # for the next time


def test_ctrl_c_between_two_files(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the transfers that have begun, also where others have not."""
    server.stalled.add(WEIGHTS)
    submit = ThreadPoolExecutor.submit

    def interrupted(pool: ThreadPoolExecutor, *args: Any) -> Any:
        if args[1].path == WEIGHTS:
            monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1)
        job = submit(pool, *args)
        if args[1].path == WEIGHTS:
            wait_until(lambda: hub.partial_bytes(REPO) > 1_000_000)
            raise KeyboardInterrupt
        return job

    monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pull()
    assert len(server.fetched(WEIGHTS)) == 1


def test_who_waits_is_told(server: Hub) -> None:
    pull()
    said: list[str] = []
    with ThreadPoolExecutor(1) as pool, store.Repository(REPO).lock():
        waiting = pool.submit(hub.pull, HubName(REPO), announce=said.append)
        wait_until(lambda: said)
        assert "waiting" in said[0]
        assert not waiting.done()
    assert waiting.result().is_whole()


def test_a_terminal_sees_the_size_and_a_bar(server: Hub) -> None:
    env = {**os.environ, "HF_ENDPOINT": server.url, "HF_HUB_OFFLINE": "0"}
    env["HF_HUB_CACHE"] = constants.HF_HUB_CACHE
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0))
    run = [sys.executable, "-m", "sterna", "pull", REPO]
    process = subprocess.Popen(run, env=env, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a pseudoterminal
        while data := os.read(ours, 65536):
            shown += data
    process.communicate()
    os.close(ours)
    assert process.returncode == 0
    assert b"terns/nano: 3.4 MB in 1 file, to " in shown
    assert b"terns/nano:   0%|" in shown
    assert TOKEN.encode() not in shown


def test_processes_pull_at_once_and_one_is_killed(server: Hub, tmp_path: Path) -> None:
    """A killed process leaves no lock and no half model; the next takes its bytes over."""
    env = {**os.environ, "HF_ENDPOINT": server.url, "HF_HUB_OFFLINE": "0"}
    env["HF_HUB_CACHE"] = constants.HF_HUB_CACHE
    server.cuts[WEIGHTS] = [1_500_000, 0, 0, 0, 0]  # the first waits for a better time
    run = [sys.executable, "-m", "sterna", "pull", REPO]
    first = subprocess.Popen(run, env=env, stderr=subprocess.PIPE)
    wait_until(lambda: hub.partial_bytes(REPO) == 1_500_000)
    first.kill()
    first.communicate()
    assert not hub.downloads()
    server.cuts.clear()
    server.requests.clear()
    both = [subprocess.Popen(run, env=env, stdout=subprocess.PIPE) for _ in range(2)]
    outs = {process.communicate(timeout=HANGS_S)[0] for process in both}
    assert outs == {f"{hub.downloads()[0].path}\n".encode()}
    assert server.fetched(WEIGHTS) == ["bytes=1500000-"]
