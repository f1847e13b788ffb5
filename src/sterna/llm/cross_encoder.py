"""`CrossEncoder`: how relevant texts are to queries, by a model that reads both at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.checks import checked_items
from sterna.engine import Adapter, Engine, classify
from sterna.errors import ContextError, RequestError, shown
from sterna.llm.chat_renderer import ChatRenderer
from sterna.llm.pair_truncation import NO_LIMITS, PairLimits, truncated, within_limits
from sterna.models.classifier import Scoring
from sterna.tokenizer import Tokenizer

__all__ = ["CrossEncoder"]


#: The prompt of Qwen3-Reranker's model card; its first files do not have it.
QWEN3_FORMAT = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that "
    "answer the query\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


class CrossEncoder:
    """Computes the scores of `LLM.score`, whose docstring describes the arguments."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, renderer: ChatRenderer) -> None:
        self._engine, self._tokenizer, self._renderer = engine, tokenizer, renderer

    @cached_property
    def scoring(self) -> Scoring | None:
        """How the model scores pairs; None if it is no cross-encoder."""
        model = self._engine.model
        scoring = Scoring.of(model.config.fields)
        if model.config.labels or scoring.true is not None:
            return scoring
        names = f"{model.path} {model.json.get('_name_or_path')}".lower()
        if model.config.architecture != "Qwen3ForCausalLM" or "qwen3-reranker" not in names:
            return None
        ids = (self._tokenizer.token_id(word) for word in ("yes", "no"))
        true, false = ids
        return (
            None if true is None else replace(scoring, true=true, false=false, format=QWEN3_FORMAT)
        )

    def score(
        self,
        pairs: Sequence[tuple[str, str]],
        adapter: Adapter | None,
        limits: PairLimits = NO_LIMITS,
    ) -> tuple[npt.NDArray[np.float32], list[int]]:
        """Compute scores, float32 [pairs], and how many tokens each pair has lost by truncation.

        Raises RequestError as `LLM.score`.
        """
        model, how = self._engine.model, self.scoring
        if how is None:
            raise RequestError(
                f"score: {model.name} is no cross-encoder; use embed, or a model of the class "
                "…ForSequenceClassification"
            )
        listed = checked_items("pairs", pairs, "a list of (query, text)")
        encoded = [self._encode(i, pair, how, limits) for i, pair in enumerate(listed)]
        cut = [lost for _, _, lost in encoded]
        logits = classify(self._engine, [(ids, second) for ids, second, _ in encoded], adapter)
        true, false = (0, 1 if model.config.labels == 2 else None)
        if how.true is not None:
            true, false = how.true, how.false
        scores = logits[:, true] if false is None else logits[:, true] - logits[:, false]
        return (scores if how.raw else _sigmoid(scores)), cut

    def _encode(
        self, i: int, pair: object, how: Scoring, limits: PairLimits
    ) -> tuple[list[int], int, int]:
        """Return token ids, where the second part begins, and how many tokens were cut."""
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise RequestError(f"pairs: must be of (query, text), but pair {i} is {shown(pair)}")
        for text in pair:
            if not isinstance(text, str):
                raise RequestError(f"pairs: must be of texts, but pair {i} has {shown(text)}")
        query, document = pair
        ids, second, lost = self._ids(query, document, how, limits)
        if len(ids) > self._engine.context:
            raise ContextError(
                f"pairs: must have at most {self._engine.context} tokens, but pair {i} has "
                f"{len(ids)}; shorten or truncate its text"
            )
        return ids, second, lost

    def _ids(
        self, query: str, document: str, how: Scoring, limits: PairLimits
    ) -> tuple[list[int], int, int]:
        if how.format is None and (how.true is None or self._renderer.template is None):
            whole = self._tokenizer.encode_pair(query, document)
            pair = truncated(whole, limits)
            return pair.ids, pair.second, len(whole.ids) - len(pair.ids)
        ids, lost = within_limits(
            self._tokenizer, document, limits, lambda text: self._prompt(query, text, how)
        )
        return ids, len(ids), lost

    def _prompt(self, query: str, document: str, how: Scoring) -> list[int]:
        """Return the ids of the prompt that asks a language model about a text."""
        if how.format is not None:
            begin, _, rest = how.format.partition("{query}")
            middle, _, end = rest.partition("{document}")
            return self._tokenizer.encode(begin + query + middle + document + end)
        messages = [{"role": "system", "content": how.system}] if how.system else []
        messages += [{"role": "query", "content": query}, {"role": "document", "content": document}]
        text = self._renderer.render(messages, add_generation_prompt=how.opens)
        return self._tokenizer.encode(text, add_special=False)


def _sigmoid(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """1 / (1 + exp(-x)), of numbers that cannot overflow."""
    small = _native.exponentials(np.ascontiguousarray(-np.abs(x)))
    return (np.where(x < 0, small, np.float32(1)) / (1 + small)).astype(np.float32)
