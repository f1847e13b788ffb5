"""Makes prefix packs: what a model has computed of a text, in a file for other starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sterna.engine import PAGE, PackText, chain_names, common_prefix_length, write_pack
from sterna.errors import RequestError

if TYPE_CHECKING:
    from sterna.llm.llm import LLM

__all__ = ["make_pack"]


def make_pack(llm: LLM, text: str, kind: str, path: Path) -> int:
    """Compute a prefix and write its pack; returns its number of tokens, whole pages of 64.

    llm: with a `cache_disk` that has room for the pages. kind: "system", the text is a system
    prompt, or "text", it begins prompts. Raises RequestError.
    """
    tokens = np.asarray(_tokens(llm, text, kind), np.int32)
    tokens = tokens[: len(tokens) // PAGE * PAGE]
    if not len(tokens):
        raise RequestError(f"prefix: must have at least {PAGE} tokens, but has fewer")
    cache = llm.prefix_cache
    assert cache is not None  # `cache_disk` needs it
    request = llm.requests.make(
        tokens.tolist(), {"max_tokens": 1, "temperature": 0}, boundary=len(tokens)
    )
    llm.start(request, chat=False).result()
    count, _ = cache.save(tokens)
    if count < len(tokens):
        raise RequestError(
            f"prefix: must fit into memory and on the disk, but {count} of {len(tokens)} tokens do"
        )
    files = cache.disk.files
    names = chain_names(files, files.root_of(""), tokens)
    pages = (cache.disk.bytes_of(name) for name, _ in names)
    about = PackText(kind, text, llm.model.name)
    settings = f"{llm.model.format} layers and keys and values in {llm.engine.kv_dtype}"
    write_pack(path, files, tokens, pages, about, settings=settings)
    return len(tokens)


def _tokens(llm: LLM, text: str, kind: str) -> list[int]:
    if kind == "text":
        return llm.requests.encoder.encode(text)
    system = {"role": "system", "content": text}
    one, other = (
        np.asarray(llm.chat_tokens([system, {"role": "user", "content": content}]), np.int32)
        for content in ("Hello", "1, 2")
    )
    return [int(token) for token in one[: common_prefix_length(one, other)]]
