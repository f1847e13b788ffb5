"""Tokens a second of many streams: bare steps, the engine, and over HTTP; see README.md.

    python tests/long/server_load.py MODEL [STREAMS …]

Bare steps are those of `sterna bench e2e --batch`, without prompts, draws, text and events. All
three use the same number of threads. The client takes CPU time from the server: the client's share
is printed, too.
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from server_process import serving

from sterna import LLM, AsyncLLM
from sterna.bench.timed_runs import generate
from sterna.llm.async_stream import AsyncStream

TOKENS = 64
ROUNDS = 3
PROMPT = "def read_lines(path):\n"


def bare_steps(llm: LLM, streams: int) -> float:
    return streams * TOKENS / generate(llm.engine, TOKENS, streams).seconds


class Clock:
    """Tokens a second from the time when all streams have their first token; no prompts, then."""

    def __init__(self, streams: int) -> None:
        self.streams, self.began = streams, time.perf_counter()
        self.firsts: list[float] = []  # seconds to each stream's first event
        self.gaps: list[float] = []  # seconds between its events
        self.end = self.began

    async def read(self, events: AsyncIterator[object]) -> None:
        last = self.began
        async for _ in events:
            now = time.perf_counter()
            (self.firsts if last == self.began else self.gaps).append(now - last)
            last = self.end = now

    @property
    def tokens_per_s(self) -> float:
        seconds = self.end - self.began - max(self.firsts)
        return self.streams * (TOKENS - 1) / seconds


async def engine_alone(llm: LLM, streams: int) -> Clock:
    async with AsyncLLM(llm) as engine:
        clock = Clock(streams)

        def answer(seed: int) -> AsyncStream:
            options = {"max_tokens": TOKENS, "ignore_eos": True, "temperature": 1.0, "seed": seed}
            return engine.submit(PROMPT, **options)

        await asyncio.gather(*(clock.read(answer(seed)) for seed in range(streams)))
        return clock


async def over_http(port: int, streams: int) -> Clock:
    clock = Clock(streams)

    async def events(seed: int) -> AsyncIterator[bytes]:
        body = {"prompt": PROMPT, "max_tokens": TOKENS, "ignore_eos": True, "temperature": 1}
        data = json.dumps({**body, "seed": seed, "stream": True}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
        writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        count = 0
        while part := await reader.read(1 << 16):
            if found := part.count(b"data: {"):
                count += found
                yield part
        writer.close()
        assert count > TOKENS // 2

    await asyncio.gather(*(clock.read(events(seed)) for seed in range(streams)))
    return clock


def main() -> None:
    model, *given = sys.argv[1:]
    llm = LLM(model)
    threads = str(int(llm.engine.threads))
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder), model, "--threads", threads) as server,
    ):
        for streams in map(int, given or (1, 4, 16, 64)):
            rows = []
            for _ in range(ROUNDS):
                bare = bare_steps(llm, streams)
                engine = asyncio.run(engine_alone(llm, streams)).tokens_per_s
                before = resource.getrusage(resource.RUSAGE_SELF)
                http = asyncio.run(over_http(server.port, streams))
                after = resource.getrusage(resource.RUSAGE_SELF)
                rows.append((bare, engine, http.tokens_per_s, after.ru_utime - before.ru_utime))
            bare, engine, speed, client_s = (
                statistics.median(row) for row in zip(*rows, strict=True)
            )
            firsts = sorted(http.firsts)
            print(
                f"{streams:4} streams: steps {bare:8.1f} tok/s, engine {engine:8.1f} "
                f"({engine / bare:.1%}), HTTP {speed:8.1f} ({speed / bare:.1%}); client's CPU "
                f"{client_s:.2f} s; first event p50 {statistics.median(firsts) * 1e3:.0f} ms, p99 "
                f"{firsts[int(0.99 * len(firsts))] * 1e3:.0f} ms; between events p50 "
                f"{statistics.median(http.gaps) * 1e3:.1f} ms",
                flush=True,
            )


if __name__ == "__main__":
    main()
