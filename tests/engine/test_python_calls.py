"""How much Python a decoded token runs: for small models that is as long as their layers."""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType
from typing import Any

from sterna import LLM

#: Calls of Python functions, with generators that go on: 118 when this was written.
MOST_CALLS = 120


def test_calls_of_a_decoded_token() -> None:
    """The counts do not depend on the time, as the scheduler's clock stands still."""
    llm = LLM("nano", threads=1)
    llm.engine_loop.scheduler._clock = lambda: 0.0
    options: dict[str, Any] = {"temperature": 0, "ignore_eos": True}

    def calls(n: int) -> Counter[str]:
        found: Counter[str] = Counter()

        def count(frame: FrameType, event: str, _: object) -> None:
            if event == "call":
                found[frame.f_code.co_name] += 1

        stream = llm.stream("def read_lines(path):\n    x = 7 # hello", max_tokens=n, **options)
        before = sys.getprofile()
        sys.setprofile(count)
        try:
            for _piece in stream:
                pass
        finally:
            sys.setprofile(before)
        return found

    calls(4)  # what a first answer imports
    few, many = calls(20), calls(120)
    assert sum((many - few).values()) / 100 <= MOST_CALLS, (many - few).most_common(20)
