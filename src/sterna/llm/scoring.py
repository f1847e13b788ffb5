"""`LLM`'s methods that give numbers: vectors, scores, logits and log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from sterna.engine import PREFILL_CHUNK
from sterna.llm.adapters import AdapterChoice
from sterna.llm.llm_parts import LLMParts
from sterna.llm.logprobs import logit_chunks, token_logprobs
from sterna.llm.pair_truncation import PairLimits
from sterna.outputs import TokenLogprob

__all__ = ["ScoringMethods"]


class ScoringMethods(LLMParts):
    """Methods that give numbers: vectors, scores, logits and log-probabilities."""

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        pooling: str | None = None,
        truncate: bool | int | str = False,
        adapter: AdapterChoice = None,
    ) -> npt.NDArray[np.float32]:
        """Embed texts, float32 [texts, hidden_size]; one row for a single string.

        The checkpoint's files for sentence-transformers, or its GGUF metadata, define the pooling
        and the normalisation. The dot product of two vectors of unit length is their cosine
        similarity. A text has the same vector alone and among others, on every CPU.

        Args:
            texts: Each of at least one token, be it the tokenizer's special one.
            prompt_name: A prompt of the checkpoint that precedes each text, such as "query".
                Default: the checkpoint's default, usually none.
            prompt: A text that precedes each text instead.
            pooling: "last", "mean" or "cls", for a model whose files do not say; its vectors have
                unit length.
            truncate: True or "end" cuts the end of a text that is longer than the model takes,
                "start" its start; a number cuts beyond that many tokens. Special tokens stay.
                `llm.embedder.inputs` says how many tokens are cut.
            adapter: As in `generate`.

        RequestError for a text that is longer than the model takes, unless it is truncated, an
        unknown prompt, or a model without pooling where `pooling` is not given.
        """
        inputs = self.embedder.inputs(
            texts, prompt_name=prompt_name, prompt=prompt, pooling=pooling, truncate=truncate
        )
        return self.embedder.vectors(inputs, self.adapters.chosen(adapter))

    @property
    def scores_pairs(self) -> bool:
        """Whether the model is a cross-encoder, whose `score` scores pairs of texts."""
        return self.cross_encoder.scoring is not None

    def score(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        truncate: bool | int = False,
        max_tokens_per_doc: int | None = None,
        adapter: AdapterChoice = None,
    ) -> npt.NDArray[np.float32]:
        """Score how relevant texts are to queries by a cross-encoder, float32 [pairs].

        Scores lie in 0..1, unless the checkpoint says that they are the head's own. A pair has the
        same score alone and among others, on every CPU. A language model that ranks, such as
        Qwen3-Reranker, is asked by its template, and scores by its logits of yes and no.

        Args:
            pairs: Of a query and a text.
            truncate: True cuts the end of a pair that is longer than the model takes, the longer
                part first; a number cuts beyond that many tokens. Special tokens stay. The prompt
                of a language model loses the end of the text alone.
            max_tokens_per_doc: Tokens of a text, of which the end is cut beyond them. Default: no
                limit.
            adapter: As in `generate`.

        RequestError for a pair longer than the model takes, unless it is truncated, or a model that
        is no cross-encoder.
        """
        limits = PairLimits.of(truncate, max_tokens_per_doc, self.engine.context)
        return self.cross_encoder.score(pairs, self.adapters.chosen(adapter), limits)[0]

    def logits(
        self, tokens: Sequence[int], *, adapter: AdapterChoice = None
    ) -> npt.NDArray[np.float32]:
        """Teacher-forced logits float32 [n, vocab] of token ids; row i predicts token i + 1."""
        chosen = self.adapters.chosen(adapter)
        return self.engine.logits([self._encoder.encode(tokens)], adapter=chosen)[0]

    def logit_chunks(
        self,
        tokens: Sequence[int],
        start: int = 1,
        chunk: int = PREFILL_CHUNK,
        *,
        adapter: AdapterChoice = None,
    ) -> Iterator[tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]]:
        """Teacher-forced logits that predict tokens[start:], in chunks of at most `chunk` tokens.

        Yields logits float32 [m, vocab] and the tokens int32 [m] that they predict.
        """
        chosen = self.adapters.chosen(adapter)
        yield from logit_chunks(self.engine, self._encoder.encode(tokens), start, chunk, chosen)

    def logprobs(
        self, tokens: Sequence[int], start: int = 1, *, adapter: AdapterChoice = None
    ) -> npt.NDArray[np.float32]:
        """log p(tokens[i] | tokens[:i]) for i = start … n - 1, natural log, float32 [n - start].

        Memory stays bounded, however many tokens there are.
        """
        ids, chosen = self._encoder.encode(tokens), self.adapters.chosen(adapter)
        return token_logprobs(self.engine, ids, start, PREFILL_CHUNK, chosen)

    def prompt_logprobs(
        self, prompt: str | Sequence[int], top: int = 0, *, adapter: AdapterChoice = None
    ) -> list[TokenLogprob | None]:
        """Return log-probabilities of a prompt's tokens given earlier ones; None for the first.

        top: the number of likeliest tokens to report as well, up to 100. All tokens are computed,
        even if the prefix cache has them, in steps shared with other requests. RequestError as in
        `generate`.
        """
        request = self.requests.make_scoring(prompt, top, adapter)
        self._answers([request])
        return request.scores
