"""Seconds per question of `/v1/decide`, and of chat requests that ask the same; see README.md.

    python tests/long/decision_speed.py MODEL [--questions 1000] [--tokens 4000] [--chats 32]
        [--answer 13]

STERNA_THREADS says how many threads the server has, by default one. All questions are about one
context. Chats are fewer than questions, since each takes longer; a chat that finds no cached
context has one of its own.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from server_process import ServerProcess, serving

WORDS = ("harbour", "gull", "blue", "boat", "repaired", "nets", "children", "ships", "quiet", "far")
UNCACHED = 3


def context_of(server: ServerProcess, tokens: int, rng: random.Random) -> str:
    """Return a text of random words with so many tokens."""
    text = " ".join(rng.choices(WORDS, k=tokens))
    ids = server.post("/tokenize", prompt=text, add_special_tokens=False).json()["tokens"]
    found: str = server.post("/detokenize", tokens=ids[:tokens]).json()["prompt"]
    return found


def questions_of(count: int, rng: random.Random) -> list[str]:
    """Return different questions of about 16 tokens."""
    return [f"Does line {i} of the text mention a {rng.choice(WORDS)} boat?" for i in range(count)]


def seconds_each(ask: Callable[[str], Any], questions: Sequence[str], at_once: int = 1) -> float:
    """Ask all questions, so many at a time, and return the seconds per question."""
    began = time.perf_counter()
    with ThreadPoolExecutor(at_once) as threads:
        for answer in threads.map(ask, questions):
            answer.raise_for_status()
    return (time.perf_counter() - began) / len(questions)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--chats", type=int, default=32)
    parser.add_argument("--answer", type=int, default=13)
    args = parser.parse_args()
    context_size = ("--context", str(args.tokens + 1024))
    rng = random.Random(1)
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder), args.model, *context_size) as server,
    ):
        server.http.timeout = httpx.Timeout(None)
        context = context_of(server, args.tokens, rng)
        questions, others = questions_of(args.questions, rng), questions_of(args.chats, rng)

        def chat(question: str, before: str = "") -> Any:
            said = [{"role": "user", "content": f"{before}{context}\n\n{question}"}]
            return server.post(
                "/v1/chat/completions", messages=said, max_tokens=args.answer, temperature=0,
                ignore_eos=True,
            )  # fmt: skip

        def decide(asked: list[str]) -> Any:
            return server.post("/v1/decide", context=context, question=asked)

        decide(questions[:1]).raise_for_status()
        began = time.perf_counter()
        answer = decide(questions)
        decided = (time.perf_counter() - began) / len(questions)
        answer.raise_for_status()
        assert len(answer.json()["data"]) == len(questions)
        print(f"/v1/decide: {decided:.4f} s a question, {len(questions)} questions", flush=True)
        chat("?").raise_for_status()
        ways = {
            "chats, one after another": seconds_each(chat, others),
            "chats, all at once": seconds_each(lambda q: chat(q + "?"), others, len(others)),
            "chats without a cached context": seconds_each(
                lambda q: chat(q, q + " "), others[:UNCACHED]
            ),
        }
        for name, each in ways.items():
            print(f"{name}: {each:.4f} s each, {each / decided:.1f} times a question")


if __name__ == "__main__":
    main()
