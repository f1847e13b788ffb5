"""A torch module where `sterna.evaluate.perplexity` takes an LLM: the same texts, the same sums."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sterna.tokenizer import Tokenizer
from sterna.torch.exporting import config_of

__all__ = ["TorchModel"]


class TorchModel:
    """A model of transformers, to be scored before its export as `sterna.LLM` is after it.

    >>> perplexity(TorchModel(model, llm.tokenizer), texts), perplexity(llm, texts)

    tokenizer: Sterna's, of the exported model or of the folder that training began from.
    """

    def __init__(self, model: nn.Module, tokenizer: Tokenizer) -> None:
        """RequestError for what is no model of transformers."""
        self.context = int(config_of(model).max_position_embeddings)
        self.model, self.tokenizer = model, tokenizer

    def logprobs(self, tokens: list[int], start: int = 1) -> npt.NDArray[np.float32]:
        """log p(tokens[i] | tokens[:i]) for i = start … n - 1, natural log, float32 [n - start]."""
        training = self.model.training
        # transformers compiles pieces of its BitLinear, which takes a compiler and a minute.
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            logits = self.model.eval()(torch.tensor([tokens]), use_cache=False).logits[0]
        self.model.train(training)
        scores = logits[start - 1 : -1].double().log_softmax(-1)
        targets = torch.tensor(tokens[start:])[:, None]
        found: npt.NDArray[np.float32] = scores.gather(1, targets)[:, 0].float().numpy()
        return found
