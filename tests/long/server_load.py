"""Tokens a second of many streams: the engine alone, and over HTTP; see README.md.

    python tests/long/server_load.py MODEL [STREAMS …]

The client takes CPU time from the server: the client's share is printed, too.
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from server_process import serving

from sterna import LLM, AsyncLLM

TOKENS = 64
PROMPT = "def read_lines(path):\n"


async def engine_alone(llm: LLM, streams: int) -> float:
    async with AsyncLLM(llm) as engine:

        async def one(seed: int) -> None:
            options = {"max_tokens": TOKENS, "ignore_eos": True, "temperature": 1.0, "seed": seed}
            async for _ in engine.submit(PROMPT, **options):
                pass

        began = time.perf_counter()
        await asyncio.gather(*(one(seed) for seed in range(streams)))
        return streams * TOKENS / (time.perf_counter() - began)


async def over_http(port: int, streams: int) -> tuple[float, list[float], list[float]]:
    """Tokens a second; seconds to each first event; seconds between events."""
    firsts: list[float] = []
    gaps: list[float] = []

    async def one(seed: int) -> None:
        body = {"prompt": PROMPT, "max_tokens": TOKENS, "ignore_eos": True, "temperature": 1}
        data = json.dumps({**body, "seed": seed, "stream": True}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
        began = last = time.perf_counter()
        writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        count = 0
        while part := await reader.read(1 << 16):
            now = time.perf_counter()
            if found := part.count(b"data: {"):
                (gaps if count else firsts).append(now - (last if count else began))
                count, last = count + found, now
        writer.close()
        assert count > TOKENS // 2

    began = time.perf_counter()
    await asyncio.gather(*(one(seed) for seed in range(streams)))
    return streams * TOKENS / (time.perf_counter() - began), firsts, gaps


def main() -> None:
    model, *given = sys.argv[1:]
    llm = LLM(model)
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), model) as server:
        for streams in map(int, given or (1, 4, 16, 64)):
            rows = []
            for _ in range(3):
                alone = asyncio.run(engine_alone(llm, streams))
                before = resource.getrusage(resource.RUSAGE_SELF)
                speed, firsts, gaps = asyncio.run(over_http(server.port, streams))
                after = resource.getrusage(resource.RUSAGE_SELF)
                client_s = after.ru_utime - before.ru_utime
                rows.append((alone, speed, client_s))
            alone, speed, client_s = (statistics.median(row) for row in zip(*rows, strict=True))
            firsts.sort()
            print(
                f"{streams:4} streams: engine {alone:8.1f} tok/s, HTTP {speed:8.1f} "
                f"({speed / alone:.1%}); client's CPU {client_s:.2f} s; first event p50 "
                f"{statistics.median(firsts) * 1e3:.0f} ms, p99 "
                f"{firsts[int(0.99 * len(firsts))] * 1e3:.0f} ms; between events p50 "
                f"{statistics.median(gaps) * 1e3:.1f} ms",
                flush=True,
            )


if __name__ == "__main__":
    main()
