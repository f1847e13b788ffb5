"""llama.cpp's slots, as its clients ask: saving, restoring and erasing what a slot holds."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_process import ServerProcess, serving

PROMPT = "def add(a, b):\n    return a + b\n" * 12


def act(server: ServerProcess, slot: int, action: str, **body: object) -> httpx.Response:
    """The request of llama.cpp's own tests and clients."""
    return server.http.post(f"/slots/{slot}?action={action}", json=body)


def asked(server: ServerProcess, **fields: object) -> dict[str, Any]:
    answer = server.post(
        "/completion", prompt=PROMPT, n_predict=4, temperature=0, cache_prompt=True, **fields
    )
    found: dict[str, Any] = answer.json()
    assert answer.status_code == 200, found
    return found


def test_saved_slots_outlive_the_server(tmp_path: Path) -> None:
    """A saved prompt is restored after a restart, and its tokens are not computed again; erasing
    forgets them in memory."""
    folder = tmp_path / "pages"
    with serving(tmp_path, "nano", "--cache-disk", str(folder)) as server:
        first = asked(server, id_slot=1)
        assert (first["id_slot"], first["timings"]["cache_n"]) == (1, 0)
        count = first["tokens_evaluated"]
        saved = act(server, 1, "save", filename="slot1.bin").json()
        assert saved["id_slot"] == 1
        assert saved["filename"] == "slot1.bin"
        assert count - 64 < saved["n_saved"] <= count + 4
        assert saved["n_saved"] % 64 == 0
        assert saved["n_written"] > 4 * saved["n_saved"]
        assert saved["timings"]["save_ms"] > 0
        erased = act(server, 1, "erase").json()
        assert erased == {"id_slot": 1, "n_erased": count + first["tokens_predicted"]}
        assert act(server, 1, "save", filename="other.bin").status_code == 400
    with serving(tmp_path, "nano", "--cache-disk", str(folder)) as server:
        restored = act(server, 0, "restore", filename="slot1.bin").json()
        assert {**restored, "timings": 0} == {
            "id_slot": 0, "filename": "slot1.bin", "n_restored": saved["n_saved"],
            "n_read": saved["n_written"], "timings": 0,
        }  # fmt: skip
        again = asked(server, id_slot=0)
        assert again["content"] == first["content"]
        assert again["timings"]["cache_n"] == saved["n_saved"]
        rows = server.http.get("/slots").json()
        assert [row["id"] for row in rows] == list(range(len(rows)))
        assert act(server, 0, "restore", filename="none.bin").status_code == 400
        file = next((folder / "slots").glob("*/slot1.bin"))
        damaged = bytearray(file.read_bytes())
        damaged[-40] ^= 1
        file.write_bytes(damaged)
        answer = act(server, 0, "restore", filename="slot1.bin")
        assert answer.status_code == 400
        assert "damaged" in answer.json()["error"]["message"]
        _refusals(server)


def _refusals(server: ServerProcess) -> None:
    """What llama.cpp's server refuses, too."""
    for name in ("../x", "a/b", "/etc/x", "..", ".", "", "a\0b", "a\\b", "x" * 300, ".hidden"):
        for action in ("save", "restore"):
            answer = act(server, 0, action, filename=name)
            assert answer.status_code == 400, name
            assert answer.json()["error"]["param"] == "filename"
    for slot, action, param in ((0, "copy", "action"), (0, "", "action"), (999, "save", "id_slot")):
        answer = act(server, slot, action, filename="a.bin")
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith(f"{param}:")
    assert server.http.post("/slots/x?action=save", json={"filename": "a"}).status_code == 400
    assert server.post("/completion", prompt="a", id_slot=999).status_code == 400
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/completions", {"prompt": "a"}),
    ):
        assert server.post(path, **body, id_slot=999, max_tokens=1).status_code == 400
        assert server.post(path, **body, id_slot=-1, max_tokens=1).status_code == 200
    assert server.http.post("/slots/0?action=erase").status_code == 200  # clients send no body


def test_other_keys_and_a_server_without_a_disk(tmp_path: Path) -> None:
    """A slot is its owner's; without the option, llama.cpp's error names it."""
    folder, keys = tmp_path / "pages", {"STERNA_API_KEY": "one two"}
    with serving(tmp_path, "nano", "--cache-disk", str(folder), **keys) as server:
        for key, status in (("one", 200), ("two", 400)):
            server.http.headers["authorization"] = f"Bearer {key}"
            if key == "one":
                asked(server, id_slot=0)
                assert act(server, 0, "save", filename="a").status_code == status
            assert act(server, 0, "restore", filename="a").status_code == status
            if key == "two":
                assert act(server, 0, "save", filename="a").status_code == status
    with serving(tmp_path, "nano") as server:
        answer = act(server, 0, "save", filename="a")
        assert answer.status_code == 501
        error = answer.json()["error"]
        assert error["type"] == "not_supported_error"
        assert "--cache-disk" in error["message"]


@pytest.mark.parametrize("running", [1, 3])
def test_what_runs(tmp_path: Path, running: int) -> None:
    """Each request has a slot while it runs, the first that is free."""
    body = {"prompt": "a", "n_predict": 4000, "ignore_eos": True, "stream": True}
    with serving(tmp_path, "nano") as server, ExitStack() as stack:
        texts = []
        for _ in range(running):
            answer = stack.enter_context(server.http.stream("POST", "/completion", json=body))
            texts.append(answer.iter_lines())
            next(texts[-1])
        rows = server.http.get("/slots").json()
        assert [row["is_processing"] for row in rows[: running + 1]] == [True] * running + [False]
        for row in rows[:running]:
            (progress,) = row["next_token"]
            assert row["n_prompt_tokens"] >= 1
            assert progress["n_decoded"] + progress["n_remain"] == row["params"]["max_tokens"]
