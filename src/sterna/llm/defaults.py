"""How a model's makers sample: what holds where a request says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sterna.errors import ModelFormatError, RequestError, shown
from sterna.sampling_params import SamplingParams

__all__ = ["sampling_of", "suppressed_of"]

SAMPLING = ("temperature", "top_k", "top_p", "min_p")


def sampling_of(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Options that generation_config.json sets, or GGUF's general.sampling in its words.

    As in vLLM, values of sampling hold unless do_sample is false, and a model that names no
    temperature means 1; a repetition penalty holds for greedy answers, too. ModelFormatError for
    values that cannot be used, in `file`.
    """
    found = {n: config[n] for n in (*SAMPLING, "repetition_penalty") if config.get(n) is not None}
    sampled = config.get("do_sample")
    if sampled is False or not (sampled or found.keys() & set(SAMPLING)):
        found = {n: v for n, v in found.items() if n not in SAMPLING}
    else:
        found = {"temperature": 1.0, **found}
    if found.get("top_k") == -1:  # off, in vLLM's words
        found["top_k"] = 0
    try:
        SamplingParams(**found)
    except RequestError as e:
        raise ModelFormatError(
            file=file, field="generation", expected="usable sampling values", got=e
        ) from None
    return found


def suppressed_of(config: Mapping[str, Any], vocab: int, file: Path) -> tuple[tuple[int, ...], ...]:
    """What no answer may have: suppress_tokens and bad_words_ids of generation_config.json.

    Gemma 4 names its marks of pictures and sound there. Ids that are none of the model's `vocab`
    are left out, as in llama.cpp. ModelFormatError for what is no such list, in `file`.
    """
    tokens, words = (config.get(key) or [] for key in ("suppress_tokens", "bad_words_ids"))
    try:
        named = [*((token,) for token in tokens), *map(tuple, words)]
        whole = all(type(id) is int and id >= 0 for word in named for id in word)
    except TypeError:
        whole = False
    if not whole:
        raise ModelFormatError(
            file=file, field="suppress_tokens, bad_words_ids", expected="ids, and lists of ids",
            got=shown([tokens, words]),
        )  # fmt: skip
    return tuple(word for word in named if word and max(word) < vocab)
