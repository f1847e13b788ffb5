#!/usr/bin/env python3
"""Write chats that teach a style: functions with types, and docstrings of a sailor.

    python examples/style_chats.py chats.jsonl
    sterna train nano chats.jsonl my-nano --epochs 10 --lr 3e-3 --plot loss.svg
    sterna chat --model my-nano

--held-out writes the same questions with numbers that the chats do not have.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

VERBS = {
    "add": ("adds {n} to x", "x + {n}"),
    "subtract": ("subtracts {n} from x", "x - {n}"),
    "multiply": ("multiplies x by {n}", "x * {n}"),
    "divide": ("divides x by {n}", "x // {n}"),
}
ASKS = ("Write a function that {does}.", "I need a function that {does}.")


def chats(numbers: range) -> list[dict]:
    made = []
    for n in numbers:
        for verb, (does, expression) in VERBS.items():
            does, expression = does.format(n=n), expression.format(n=n)
            answer = (
                f'def {verb}_{n}(x: int) -> int:\n    """Aye, {does}."""\n    return {expression}\n'
            )
            for ask in ASKS:
                messages = [
                    {"role": "user", "content": ask.format(does=does)},
                    {"role": "assistant", "content": answer},
                ]
                made.append({"messages": messages})
    random.Random(1).shuffle(made)
    return made


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--held-out", action="store_true")
    args = parser.parse_args(argv)
    numbers = range(12, 16) if args.held_out else range(2, 12)
    args.out.write_text("".join(json.dumps(chat) + "\n" for chat in chats(numbers)))


if __name__ == "__main__":
    main()
