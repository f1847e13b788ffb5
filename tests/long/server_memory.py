"""Resident memory of a server whose clients have long contexts; see README.md.

    python tests/long/server_memory.py [--seconds 240] [--streams 64] [--tokens 20000]
        [--cache-ram 256M]

The model is random, small and of a long context. Each client streams an answer to a random prompt
of up to so many tokens, and then the next one, so that nothing of the cache is used again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from checkpoint_factory import LLAMA, write
from server_process import ServerProcess, serving

VOCABULARY = range(16, 200)  # tokens of prompts
ANSWER = 64
NAMES = {
    "resident": "process_resident_memory_bytes",
    "running": "sterna_kv_cache_running_bytes",
    "cached": "sterna_kv_cache_cached_bytes",
    "most": "sterna_kv_cache_max_bytes",
}


async def client(port: int, seed: int, tokens: int, ended: list[int]) -> None:
    """Ask one long prompt after another."""
    rng = random.Random(seed)
    while True:
        prompt = rng.choices(VOCABULARY, k=rng.randint(tokens // 2, tokens))
        body = {"prompt": prompt, "max_tokens": ANSWER, "ignore_eos": True, "stream": True}
        data = json.dumps(body).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
        writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        text = b""
        while part := await reader.read(1 << 16):
            text = (text + part)[-1024:]
        writer.close()
        assert b"[DONE]" in text, text
        ended.append(len(prompt))


def measured(server: ServerProcess) -> dict[str, int]:
    """Bytes by the names of NAMES, as /metrics says them."""
    text = server.http.get("/metrics").text
    found = {}
    for name, metric in NAMES.items():
        values = re.findall(rf"^{metric}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
        found[name] = round(sum(map(float, values)))
    return found


async def load(server: ServerProcess, args: argparse.Namespace) -> None:
    ended = list[int]()
    clients = [
        asyncio.ensure_future(client(server.port, seed, args.tokens, ended))
        for seed in range(args.streams)
    ]
    began = time.monotonic()
    print("seconds  answers  resident  running  cached  MB")
    while (passed := time.monotonic() - began) < args.seconds:
        row = await asyncio.to_thread(measured, server)
        sizes = "  ".join(f"{row[name] / 1e6:.0f}" for name in ("resident", "running", "cached"))
        print(f"{passed:.0f}  {len(ended)}  {sizes}", flush=True)
        for one in clients:
            if one.done():
                one.result()
        assert max(row["running"], row["cached"]) <= row["most"], row  # they may share pages
        await asyncio.sleep(args.seconds / 12)
    for one in clients:
        one.cancel()
    print("most", f"{row['most'] / 1e6:.0f} MB of keys and values")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--cache-ram")
    args = parser.parse_args()
    bound = ("--cache-ram", args.cache_ram) if args.cache_ram else ()
    recipe = replace(
        LLAMA, hidden=256, heads=2, kv_heads=1, head_dim=128, layers=2, intermediate=256,
        max_positions=1 << 16,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "model", recipe)
        room = ("--context", str(args.tokens + ANSWER), "--max-wait", "86400", *bound)
        with serving(Path(folder), str(Path(folder) / "model"), *room) as server:
            print(server.log[: server.log.index("\n", server.log.index("--cache-ram"))])
            asyncio.run(load(server, args))


if __name__ == "__main__":
    main()
