"""`Request`: a prompt on its way to an answer, a step of the engine at a time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.answers import Completion, Piece, Stats, StopFilter, TokenLogprob
from sterna.engine.engine import PREFILL_CHUNK, Feed
from sterna.engine.pages import Sequence
from sterna.engine.sampling import Draw, SamplingParams, checked
from sterna.tokenizer import Detokenizer, Tokenizer

__all__ = ["Request"]


class Request:
    """A prompt, what was made of it so far, and what the engine has to compute next.

    Whoever schedules it gives `feed` to a step, alone or beside others, and what that drew to
    `advance` and then `conclude`, until it is `finished`. It knows nothing about its place but its
    sequence, and is as far as that is long: so keys and values may be lost, or come from another
    sequence that begins with the same tokens, and it goes on.

    prompt: token ids, at least one, no more than `context`, the engine's; ends: ids that end the
    answer and are no part of it; completion: where the answer goes. Its clock starts here.
    """

    def __init__(
        self,
        prompt: list[int],
        params: SamplingParams,
        tokenizer: Tokenizer,
        *,
        context: int,
        ends: frozenset[int] = frozenset(),
        completion: Completion | None = None,
    ) -> None:
        self._began = time.perf_counter()
        self.params, self.ends, self.context = params, ends, context
        self.completion = completion or Completion(stats=Stats(n_prompt=len(prompt)))
        self.sequence = Sequence()
        self.finished = False
        longest = min(len(prompt) + params.max_tokens, context + 1)
        self._history = np.zeros(longest, np.int32)
        self._history[: len(prompt)] = prompt
        self._known = len(prompt)
        self._at_end = False
        self._detokenizer = Detokenizer(tokenizer, prompt)
        self._text = StopFilter(params.stop)
        if params.max_tokens == 0:
            self._finish("length")

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """The prompt and what follows it so far, an id that ended it included."""
        return self._history[: self._known]

    def go_on_from(self, sequence: Sequence) -> None:
        """Takes a sequence that has the keys and values of the prompt's first tokens."""
        self.sequence = sequence
        self.completion.stats.n_cached = sequence.length

    def feed(self, most: int = PREFILL_CHUNK) -> Feed:
        """The tokens that the next step takes, at most so many, and what it is to draw from them.

        It draws where these reach the last token that is known.
        """
        begin = self.sequence.length
        end = min(begin + most, self._known)
        part = self._history[begin:end]
        if end < self._known:
            return Feed(self.sequence, part)
        return Feed(self.sequence, part, 1, draw=Draw(self.params, self.tokens))

    def draw(self, logits: npt.NDArray[np.float32]) -> _native.SampleResult:
        """The token that logits [vocab] after the last known token give: what a step draws."""
        return self.params.sample(logits, self.tokens, self._known)

    def pieces(self, drawn: Iterable[_native.SampleResult]) -> Iterator[Piece]:
        """What the tokens of a step add to the answer, each taken when it is asked for."""
        for one in drawn:
            for piece in (self.advance(one), self.conclude()):
                if piece:
                    yield piece

    def advance(self, drawn: _native.SampleResult) -> Piece | None:
        """Takes the next token; what it adds to the answer, None where it is an end.

        NonFiniteError if the logits were not finite.
        """
        token = int(checked(drawn).token)
        self._history[self._known] = token
        self._known += 1
        self._note()
        if token in self.ends:
            self._at_end = True
            return None
        done = self.completion
        done.tokens.append(token)
        done.stats.n_generated += 1
        logprob = None
        if self.params.logprobs:
            logprob = TokenLogprob(token, float(drawn.logprob), tuple(drawn.top))
            done.logprobs.append(logprob)
        text = self._text.push(self._detokenizer.push(token))
        done.text += text
        return Piece(text, token, logprob)

    def conclude(self) -> Piece | None:
        """Ends the answer where its latest token does; the text held back until then, if any."""
        done = self.completion
        if self._text.stopped:
            self._finish("stop")
            return None
        full = len(done.tokens) == self.params.max_tokens or self._known >= self.context
        if not self._at_end and not full:
            return None
        held_text = self._text.push(self._detokenizer.flush()) + self._text.flush()
        self._finish("stop" if self._at_end or self._text.stopped else "length")
        done.text += held_text
        return Piece(held_text, done.tokens[-1]) if held_text and done.tokens else None

    def _finish(self, reason: str) -> None:
        self.completion.finish_reason = reason
        self.finished = True

    def _note(self) -> None:
        """Times, and what the head took."""
        stats = self.completion.stats
        stats.total_s = time.perf_counter() - self._began
        stats.ttft_s = stats.ttft_s or stats.total_s
        stats.head_bytes = self.sequence.head_bytes
        stats.head_rows_rescored = self.sequence.rows_rescored
