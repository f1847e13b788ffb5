"""`Scores`: logits and log-probabilities of given tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.checks import checked_whole
from sterna.engine import PREFILL_CHUNK, Scoring
from sterna.engine import Sequence as EngineSequence
from sterna.llm.loaded import Loaded
from sterna.outputs import TokenLogprob
from sterna.sampling_params import MAX_LOGPROBS

__all__ = ["Scores"]


class Scores(Loaded):
    """The part of an `LLM` that says how likely texts are."""

    def logits(
        self, tokens: Sequence[int], *, adapter: str | None = None
    ) -> npt.NDArray[np.float32]:
        """Teacher-forced logits float32 [n, vocab] of token ids; row i predicts token i + 1.

        adapter: as in `generate`.
        """
        chosen = self.adapters.chosen(adapter)
        return self.engine.logits([self._encode(tokens)], adapter=chosen)[0]

    def logprobs(
        self, tokens: Sequence[int], start: int = 1, *, adapter: str | None = None
    ) -> npt.NDArray[np.float32]:
        """log p(tokens[i] | tokens[:i]) for i = start … n - 1, natural log, float32 [n - start].

        Memory stays bounded by the prefill chunk. adapter: as in `generate`.
        """
        parts = [
            _native.log_softmax_at(rows, targets, self.engine.threads)
            for rows, targets in self.logit_chunks(tokens, start, adapter=adapter)
        ]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def prompt_logprobs(
        self, prompt: str | Sequence[int], top: int = 0, *, adapter: str | None = None
    ) -> list[TokenLogprob | None]:
        """The log-probability of each token of a prompt after those before it; None of the first.

        top: how many of the likeliest tokens to give beside it. They are computed, whatever is
        known of the prompt, in steps that other requests share. adapter, RequestError: as in
        `generate`.
        """
        request = self.scoring(prompt, top, adapter)
        self._answers([request])
        return request.scores

    def scoring(
        self, prompt: str | Sequence[int], top: int, adapter: str | None = None, **place: Any
    ) -> Scoring:
        """A request for `prompt_logprobs`; place: arguments of `Request`."""
        checked_whole("top", top, 0, MAX_LOGPROBS)
        return Scoring(
            self._encode(prompt), top, self.tokenizer, context=self.context,
            vocab=self.engine.model.config.vocab_size, adapter=self.adapters.chosen(adapter),
            **place,
        )  # fmt: skip

    def logit_chunks(
        self,
        tokens: Sequence[int],
        start: int = 1,
        chunk: int = PREFILL_CHUNK,
        *,
        adapter: str | None = None,
    ) -> Iterator[tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]]:
        """Teacher-forced logits that predict tokens[start:], a part at a time, and these tokens.

        (float32 [m, vocab], int32 [m]) for m <= chunk; row i predicts the token beside it. adapter:
        as in `generate`.
        """
        ids = self._encode(tokens)
        start = checked_whole("start", start, 1, len(ids))
        chunk = checked_whole("chunk", chunk, 1, 1 << 30)
        chosen, sequence = self.adapters.chosen(adapter), EngineSequence()
        try:
            for begin in range(0, len(ids) - 1, chunk):
                part = ids[begin : min(begin + chunk, len(ids) - 1)]
                first = max(begin, start - 1)  # row i scores token i + 1
                wanted = max(0, begin + len(part) - first)
                (rows,) = self.engine.step([(sequence, part, wanted)], adapter=chosen)
                if wanted:
                    yield rows, np.array(ids[first + 1 : begin + len(part) + 1], np.int32)
        finally:
            self.engine.release(sequence)
