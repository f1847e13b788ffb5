"""Names that other tools give to what Sterna has, for remedies in errors.

From vLLM, transformers, llama.cpp and ollama; keys are in lower case, with underscores.
"""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

__all__ = ["likely_names"]

_OTHERS = {
    "best_of": "choices",
    "c": "context",
    "cache_type_k": "kv_dtype",
    "ctx_size": "context",
    "dtype": "format",
    "enable_lora": "adapter",
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "kv_cache_dtype": "kv_dtype",
    "load_format": "format",
    "lora": "adapter",
    "lora_modules": "adapter",
    "m": "model",
    "max_length": "max_tokens",
    "max_model_len": "context",
    "max_new_tokens": "max_tokens",
    "max_num_seqs": "max_seqs",
    "n": "max_tokens",
    "n_ctx": "context",
    "n_predict": "max_tokens",
    "num_ctx": "context",
    "num_predict": "max_tokens",
    "quantization": "format",
    "repeat_penalty": "repetition_penalty",
    "served_model_name": "served_name",
    "speculative_model": "draft",
    "stop_strings": "stop",
    "system_prompt": "system",
    "t": "threads",
    "temp": "temperature",
    "threads_batch": "threads",
}


def likely_names(name: str, known: Collection[str]) -> list[str]:
    """Return which of the known names an unknown one may mean, the likeliest first; or none.

    Underscores and hyphens in front and between words are the same.
    """
    word = name.lstrip("-").replace("-", "_").lower()
    spelt = {each.lstrip("-").replace("-", "_"): each for each in known}
    other = _OTHERS.get(word)
    if other in spelt:
        return [spelt[other]]
    return [spelt[near] for near in get_close_matches(word, spelt)]
