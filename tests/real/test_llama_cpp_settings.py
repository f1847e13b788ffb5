"""What llama.cpp's server says of its settings and how it penalises, against ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import llama_cpp_process
import pytest
import texts

from sterna import LLM
from sterna.server.llama_cpp_options import default_options, generation_settings

#: Settings of penalties; the second of each pair has a window that is smaller than the texts.
PENALTIES: list[dict[str, Any]] = [
    {"repeat_penalty": 1.8, "repeat_last_n": 64}, {"repeat_penalty": 1.8, "repeat_last_n": 5},
    {"presence_penalty": 2.0, "repeat_last_n": 64}, {"frequency_penalty": 2.0, "repeat_last_n": 5},
]  # fmt: skip
N = 8


def test_llama_cpp_settings(smollm2: Path) -> None:
    """The names and defaults of a request that sets none; and almost all tokens under penalties.

    Its log-probabilities are a little different, so a token may be another where two are close. The
    next token is compared after its own text, so one such token changes no other.
    """
    llm = LLM(smollm2, threads=2, context=512)
    assert not llm.defaults
    prompts = [llm.tokenizer.encode(text) for text in texts.PROMPTS[:4]]
    greedy = {"n_predict": N, "temperature": 0, "ignore_eos": True, "return_tokens": True}
    bodies = [{"prompt": p, **greedy, **fields} for fields in PENALTIES for p in prompts]
    plain = {"prompt": "a", "n_predict": 1}
    first, *answers = llama_cpp_process.completions(smollm2, [plain, *bodies])
    _compare(llm, first)
    agreed, free = [0] * len(PENALTIES), 0
    for i, (body, answer) in enumerate(zip(bodies, answers, strict=True)):
        fields = {
            name.replace("repeat_penalty", "repetition_penalty"): body[name]
            for name in PENALTIES[i // len(prompts)]
        }
        asked: dict[str, Any] = {"max_tokens": 1, "temperature": 0, "ignore_eos": True}
        for at, token in enumerate(answer["tokens"]):
            text = [*body["prompt"], *answer["tokens"][:at]]
            agreed[i // len(prompts)] += llm.generate(text, **asked, **fields).tokens == [token]
            free += llm.generate(text, **asked).tokens == [token]
    total = N * len(prompts)
    print(agreed, free, total)
    assert min(agreed) >= 0.85 * total
    assert free < 0.85 * total * len(PENALTIES)


def _compare(llm: LLM, answer: dict[str, Any]) -> None:
    """The seed is said, where llama.cpp says that it is random."""
    theirs = answer["generation_settings"]
    ours = generation_settings(llm, default_options(llm))
    assert set(theirs) <= set(ours)
    for name in set(theirs) - {"seed", "max_tokens", "n_predict"}:
        value: Any = theirs[name]
        expected = pytest.approx(value, abs=1e-6) if isinstance(value, float) else value
        assert ours[name] == expected, name
