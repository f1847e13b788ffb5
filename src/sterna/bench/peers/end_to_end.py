"""A whole model as a participant: prompts and generation, with its logits checked."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from sterna.bench.peers.case import F32, Case, Options, distance, end_to_end

__all__ = ["LIMIT", "EndToEnd"]

#: Two ways to compute the same logits may differ by the rounding of int8 activations: a value that
#: float rounding moves across a step changes by 1/127 of its token's maximum, in four quantisations
#: a layer. With unrelated noise that is about sqrt(4 * 30) / 127 = 0.09 after 30 layers. Logits of
#: something else are at a distance of about sqrt(2), zeros at 1.
LIMIT = 0.25


class EndToEnd:
    """Base of participants that run a model: a subclass says how to reset, feed and read.

    A run counts if its logits equal, within LIMIT, those of feeding the same tokens one at a time.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.vocab = options.model.vocab
        self.cases = end_to_end(options)
        self._expected: dict[int, F32] = {}

    def reset(self) -> None:
        """Forget all tokens."""
        raise NotImplementedError

    def feed(self, tokens: Sequence[int]) -> None:
        """Compute these tokens and the logits after the last; a call is what is timed."""
        raise NotImplementedError

    def logits(self) -> F32:
        """The logits after the last token fed, float32 [vocab], a copy."""
        raise NotImplementedError

    def weight_bytes(self, case: Case) -> float | None:
        """Bytes of weights that one step reads."""
        raise NotImplementedError

    def check(self, case: Case) -> tuple[bool, str]:
        """Compare with one token at a time, and with another prompt of the same length.

        The other prompt runs first: were a run to compute nothing, it would find that one's
        remains in its buffers, not its own.
        """
        expected = self._single(case.n)
        other = self._whole(self._prompt(case.n, 104729))
        whole = self._whole(self._prompt(case.n))
        if not (np.isfinite(whole).all() and whole.min() < whole.max()):
            return False, "logits are not finite or all equal"
        error, change = distance(whole, expected), distance(whole, other)
        how = (
            f"logits after {case.n} tokens at once differ from one at a time by {error:.1e} "
            f"of their norm (limit {LIMIT}), from another prompt's by {change:.2f}"
        )
        return error <= LIMIT < change, how

    def time(self, case: Case) -> tuple[float, bool]:
        """Feed at once (pp) or one by one (tg); only the feeding is timed.

        A few other tokens first wake the threads, and leave wrong logits in the buffers.
        """
        expected, tokens = self._single(case.n), self._prompt(case.n)
        self._whole(self._prompt(4, 104729))
        self.reset()
        begin = time.perf_counter()
        if case.what.startswith("pp"):
            self.feed(tokens)
        else:
            for token in tokens:
                self.feed([token])
        took = time.perf_counter() - begin
        return took, distance(self.logits(), expected) <= LIMIT

    def _prompt(self, n: int, stride: int = 7919) -> list[int]:
        return [(i * stride + 1) % self.vocab for i in range(n)]

    def _whole(self, tokens: Sequence[int]) -> F32:
        self.reset()
        self.feed(tokens)
        return self.logits()

    def _single(self, n: int) -> F32:
        """Logits after n tokens, fed one at a time; one pass serves all the lengths asked for."""
        if n not in self._expected:
            wanted = {case.n for case in self.cases}
            self.reset()
            for i, token in enumerate(self._prompt(max(wanted)), 1):
                self.feed([token])
                if i in wanted:
                    self._expected[i] = self.logits()
        return self._expected[n]
