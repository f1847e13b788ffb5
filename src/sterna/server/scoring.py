"""Log-probabilities of a prompt's own tokens."""

from __future__ import annotations

import asyncio

import numpy as np

from sterna import _native
from sterna.answers import TokenLogprob
from sterna.llm import LLM

__all__ = ["prompt_logprobs"]

CHUNK = 64  #: rows of logits at a time: 33 MB for a vocabulary of 128k


async def prompt_logprobs(llm: LLM, tokens: list[int], most: int) -> list[TokenLogprob | None]:
    """Of each token its log-probability and the `most` likeliest in its place; None for the first,
    which nothing precedes. RequestError as `LLM.logprobs`."""
    return await asyncio.to_thread(_scored, llm, tokens, most)


def _scored(llm: LLM, tokens: list[int], most: int) -> list[TokenLogprob | None]:
    found: list[TokenLogprob | None] = [None]
    for rows, targets in llm.logit_chunks(tokens, 1, CHUNK):
        # The likeliest first, of equals the lower id.
        best = np.argsort(-rows, axis=1, kind="stable")[:, :most]
        columns = np.concatenate([targets[:, None], best], axis=1).astype(np.int32)
        logprobs = [
            _native.log_softmax_at(rows, np.ascontiguousarray(column), llm.engine.threads)
            for column in columns.T
        ]
        for i in range(len(targets)):
            pairs = [(int(c[i]), float(p[i])) for c, p in zip(columns.T, logprobs, strict=True)]
            found.append(TokenLogprob(*pairs[0], tuple(pairs[1:])))
    return found
