"""Requests of mixed lengths, many of them, some cancelled: pages and memory return to the start.

STERNA_REQUESTS says how many (1,000 take a minute on an idle machine).
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time

from sterna import LLM, AsyncLLM
from sterna.runtime import resident_bytes

COUNT = int(os.environ.get("STERNA_REQUESTS", "1000"))


def test_pages_and_bytes_return() -> None:
    """The second half takes no more memory than the first, but for what is cached."""
    llm, choose = LLM("nano", threads=2), random.Random(1)
    cache = llm.engine_loop.scheduler.cache
    assert cache is not None

    async def one(engine: AsyncLLM, i: int) -> None:
        prompt = [choose.randrange(300, 4000) for _ in range(choose.choice((1, 20, 200, 700)))]
        ticket = engine.submit(
            prompt,
            n=choose.choice((1, 1, 3)),
            max_tokens=choose.choice((1, 10, 60)),
            key=str(i % 3),
        )
        async for _ in ticket:
            if choose.random() < 0.01:
                ticket.cancel()

    async def some(count: int) -> None:
        async with AsyncLLM(llm) as engine:
            for begin in range(0, count, 50):
                await asyncio.gather(*(one(engine, i) for i in range(begin, begin + 50)))
            end = time.monotonic() + 10
            while engine.load().pages_used and time.monotonic() < end:
                await asyncio.sleep(0.01)  # what is cancelled inside a step has pages until its end
            assert engine.load().pages_used == 0

    sizes = []
    for _ in range(2):
        asyncio.run(some(COUNT // 2))
        cache.clear()
        gc.collect()
        assert llm.engine.kv_cache.pool.free == llm.engine.kv_cache.pool.count
        assert llm.engine.kv_cache.pool.ref_counts().sum() == 0
        sizes.append(resident_bytes())
    assert sizes[1] < sizes[0] + (64 << 20)
