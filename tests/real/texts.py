"""Inputs for real models: texts, strings and conversations, written for these tests."""

from __future__ import annotations

import random
from typing import Any

PROSE = """\
The lighthouse at the end of the harbour had been dark for eleven years when a new keeper came. \
She carried one suitcase, a radio that no longer worked, and a letter from the ministry saying \
that the lamp was to be lit again before winter. Nobody in the village believed it. The steps were \
rotten, the lens had been sold, and the road was under water twice a day. But on the third evening \
a small light moved behind the windows of the tower, and the fishermen, who had stopped looking \
up, looked up."""
CODE = '''\
import json
from pathlib import Path


def load_settings(path: Path, default: dict | None = None) -> dict:
    """Read settings from a JSON file, or return the defaults."""
    if not path.exists():
        return dict(default or {})
    with path.open(encoding="utf-8") as file:
        settings = json.load(file)
    for name, value in (default or {}).items():
        settings.setdefault(name, value)
    return settings
'''
LANGUAGES = """\
Der Zug nach München fährt um 14:35 Uhr auf Gleis 7 ab. Le train pour Lyon partira à 15 h 10, voie \
3. El próximo tren a Sevilla sale a las cuatro de la tarde. Поезд в Казань отправляется вечером. \
東京行きの列車は午後三時に出発します。 The last train to London leaves at 11 p.m., so please do \
not be late, and take your ticket with you."""
DIALOGUE = """\
| item   | count | price |
|--------|-------|-------|
| apple  | 3     | 0.40  |
| bread  | 1     | 2.75  |
| cheese | 2     | 4.10  |

Question: How much do three apples and one loaf of bread cost together?
Answer: Three apples cost 3 × 0.40 = 1.20, and the bread costs 2.75, so together they cost 1.20 + \
2.75 = 3.95.

Question: And how much do two pieces of cheese cost?
Answer: Two pieces of cheese cost 2 × 4.10 = 8.20."""
TEXTS = {"prose": PROSE, "code": CODE, "languages": LANGUAGES, "dialogue": DIALOGUE}
# How many tokens of each text: a row of logits of Gemma is a megabyte.
POSITIONS = {"smollm2": 96, "gemma3": 40}

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n",
    "Water boils at",
)
N_GREEDY = 24

PIECES = (
    "a", "The", " the", "don't", "I'LL", " we've", "über", "naïve", "日本語", "中文字符", "한국어",
    "русский", "العربية", "עברית", "हिन्दी", "ไทย", "🙂", "👩‍👩‍👧", "🇩🇪", "e\u0301", "\u00a0",
    "\u200b", "\u3000", "\t", "\n", "\n\n", "\r\n", " ", "  ", "    ", "0", "42", "1234567", "3.14",
    "1,000", "²", "½", "…", "—", "«»", "!!!", "?", "//", "/* x */", "{}", "[[", "</a>", "<b>", "@",
    "#", "$x_1$", "https://example.org/a?b=c&d=%20", "snake_case", "CamelCase", "__init__", "\\n",
    "\x00", "\x7f", "\ufeff", "ﬁ", "ǅ", "İ", "ß", "K", "Å", "\U0001d54f",
)  # fmt: skip
BY_HAND = (
    "", " ", "\n", "\t \n", "Hello", " Hello", "Hello ", "  Hello  world  ", "Hello, world!",
    "\n\n\nx", "x\n\n\n", "  \n  \n", "I'm you're HE'S", "'s 't 'll", "1 22 333 4444 55555 666666",
    "3333333333333333", "a\u0301b", "A\u030a", "\u1112\u1161\u11ab", "🙂🙂", "👍🏽", "ⅷ", "x" * 300,
    "ab" * 100, " " * 40, "\n" * 20, "=" * 60, "-----\n-----", "#include <stdio.h>",
    "if (a < b && c > d) { return !e; }", "SELECT * FROM t WHERE a = 'b';",
    "http://localhost:8080/?q=%C3%A9", "user@example.com", "C:\\Users\\me\\file.txt",
    "<|im_start|>user\nHi<|im_end|>\n", "<|endoftext|>", "<bos>x<eos>", "<start_of_turn>user\nHi",
    "<|im_start |>", "a<|im_end|>b", " <|im_end|> ", "<unk>", "<pad>", "[INST] x [/INST]",
    "<table><tr><td>1</td></tr></table>", "\u2581x\u2581y", "▁▁", "Ġx", "<0x0A>", "\ufffd",
)  # fmt: skip


def strings() -> list[str]:
    """300 strings: those by hand, then pieces of many scripts joined at random."""
    rng = random.Random(300)
    made = [
        rng.choice(("", " ", " ", "\n")).join(rng.choices(PIECES, k=rng.randint(2, 9)))
        for _ in range(300 - len(BY_HAND))
    ]
    return [*BY_HAND, *made]


CONVERSATIONS: tuple[list[dict[str, Any]], ...] = (
    [{"role": "user", "content": "Hello"}],
    [{"role": "user", "content": "  What is 1 < 2 & é日本?\n"}],
    [{"role": "system", "content": "Answer in one word."}, {"role": "user", "content": "Sky?"}],
    [
        {"role": "user", "content": "Name a colour."},
        {"role": "assistant", "content": "Blue."},
        {"role": "user", "content": "Another one."},
    ],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "And times ten?"},
    ],
)
