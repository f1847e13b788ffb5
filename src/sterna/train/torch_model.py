"""A torch module for `sterna.evaluate` instead of an LLM, with the same arithmetic of scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sterna.evaluate.loglikelihood import Score, ScoringRequest, fitted
from sterna.evaluate.tasks import Accuracy, Question, accuracy, question_scores
from sterna.llm import LLM
from sterna.tokenizer import Tokenizer
from sterna.torch.checkpoint_export import config_of

__all__ = ["Both", "TorchModel", "evaluate_both"]


class TorchModel:
    """A model of transformers, to be scored before its export as `sterna.LLM` is after it.

    >>> perplexity(TorchModel(model, llm.tokenizer), texts), perplexity(llm, texts)
    >>> evaluate(TorchModel(model, llm.tokenizer), questions), evaluate(llm, questions)

    tokenizer: Sterna's, of the exported model or of the folder that training began from.
    """

    def __init__(self, model: nn.Module, tokenizer: Tokenizer) -> None:
        """Raise RequestError unless this is a model of transformers."""
        self.context: int = int(config_of(model).max_position_embeddings)
        self.model = model
        self.tokenizer = tokenizer

    def logprobs(self, tokens: list[int], start: int = 1) -> npt.NDArray[np.float32]:
        """log p(tokens[i] | tokens[:i]) for i = start … n - 1, natural log, float32 [n - start]."""
        logprobs, _ = self._scored(tokens, start)
        return logprobs

    def scores(
        self,
        groups: Sequence[Sequence[ScoringRequest]],
        progress: Callable[[int], None] = lambda done_groups: None,
    ) -> list[list[Score]]:
        """Score requests one after the other; raises as `evaluate.loglikelihood.score`."""
        made: list[list[Score]] = []
        for group in groups:
            made.append([self._score(fitted(request, self.context)) for request in group])
            progress(len(made))
        return made

    def _score(self, request: ScoringRequest) -> Score:
        tokens = list(request.tokens)
        logprobs, likeliest = self._scored(tokens, len(tokens) - request.scored)
        greedy = likeliest.tolist() == tokens[-request.scored :]
        return Score(float(logprobs.sum(dtype=np.float64)), greedy)

    def _scored(self, tokens: list[int], start: int) -> tuple[npt.NDArray[np.float32], Tensor]:
        """Return log-probabilities of tokens from `start` on, and the likeliest tokens."""
        if start >= len(tokens):
            return np.zeros(0, np.float32), torch.zeros(0, dtype=torch.int64)
        training = self.model.training
        # transformers compiles pieces of its BitLinear, which takes a compiler and a minute.
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            # The last token is scored, but is not an input.
            logits = self.model.eval()(torch.tensor([tokens[:-1]]), use_cache=False).logits[0]
        self.model.train(training)
        scores = logits[start - 1 :].double().log_softmax(-1)
        targets = torch.tensor(tokens[start:])[:, None]
        logprobs: npt.NDArray[np.float32] = scores.gather(1, targets)[:, 0].float().numpy()
        return logprobs, scores.argmax(-1)


class Both(NamedTuple):
    """A module and its export on the same questions; difference: the largest of the log-probability
    of a choice."""

    torch: Accuracy
    sterna: Accuracy
    difference: float


def evaluate_both(
    model: nn.Module,
    llm: LLM,
    questions: list[Question],
    progress: Callable[[int], None] = lambda done_questions: None,
) -> Both:
    """Answer multiple-choice questions with a module of transformers and with its LLM.

    progress: called with the number of questions done, of both. Raises RequestError for a module
    that is no model of transformers, and as `evaluate.tasks.evaluate`.
    """
    module = TorchModel(model, llm.tokenizer)
    ours = question_scores(llm, questions, progress)
    theirs = question_scores(module, questions, lambda done: progress(len(questions) + done))
    difference = max(
        abs(a.logprob - b.logprob)
        for of_a, of_b in zip(ours.of, theirs.of, strict=True)
        for a, b in zip(of_a, of_b, strict=True)
    )
    return Both(accuracy(questions, theirs), accuracy(questions, ours), difference)
