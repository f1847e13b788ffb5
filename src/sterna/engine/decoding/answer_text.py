"""`AnswerText`: makes a completion's text of drawn tokens, up to a stop string."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf

from sterna import _native
from sterna.engine.decoding.answer_parts import CONTENT, REASONING, AnswerParts, PartMarks
from sterna.engine.decoding.stop_strings import StopFilter
from sterna.outputs import Completion, Piece, TokenLogprob
from sterna.sampling_params import SamplingParams
from sterna.tokenizer import Detokenizer, Tokenizer

__all__ = ["AnswerText"]


class AnswerText:
    """The text of one answer, as its tokens come.

    completion: where text, tokens and log-probabilities are added. visible: special tokens that are
    part of the text. marks: marks of reasoning, in which stop strings mean nothing.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: SequenceOf[int],
        params: SamplingParams,
        completion: Completion,
        visible: frozenset[int] = frozenset(),
        marks: PartMarks | None = None,
    ) -> None:
        self.completion = completion
        self._params = params
        #: Whether the answer has its last piece.
        self.finished: bool = False
        self._detokenizer = Detokenizer(tokenizer, list(prompt), visible=visible)
        self._filter = StopFilter(tuple(params.stop))
        self._parts = AnswerParts(marks) if marks else None
        self._unsure = 0  # tokens at the start that may turn out to be reasoning

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the text."""
        return self._filter.stopped

    def add(self, drawn: _native.SampleResult) -> Piece:
        """Add a token that is part of the answer; returns its piece, whose text may be empty."""
        token, done = int(drawn.token), self.completion
        done.tokens.append(token)
        done.stats.n_generated += 1
        logprob = None
        if self._params.logprobs:
            logprob = TokenLogprob(token, float(drawn.logprob), tuple(drawn.top))
            done.logprobs.append(logprob)
        text = self._detokenizer.push(token)
        if self._parts is None:
            text = self._filter.push(text)
        else:
            before = self._parts.kind
            text = self._pushed(text)
            self._count(before, self._parts.kind)
        done.text += text
        return Piece(text, token, logprob, self._params.choice)

    def _pushed(self, text: str, final: bool = False) -> str:
        """Add text; returns what of it is certain. Only content may have a stop string."""
        if self._parts is None:
            return self._filter.push(text)
        text_out = ""
        for kind, piece in self._parts.split(text, final):
            text_out += self._filter.push(piece) if kind == CONTENT else self._passed(piece)
        return text_out

    def _passed(self, piece: str) -> str:
        return "" if self.stopped else self._filter.flush() + piece

    def _count(self, before: str, after: str) -> None:
        """Count the latest token if it is of reasoning, its marks included: by the kinds of text
        before it and with it."""
        self._unsure += 1
        if REASONING in (before, after):
            self.completion.stats.n_reasoning += self._unsure
        if after:
            self._unsure = 0

    def finish(self, reason: str) -> Iterator[Piece]:
        """Finish the answer, and yield the text that was held back, if any."""
        done = self.completion
        if not self.stopped:
            rest = self._detokenizer.flush(cut=reason != "stop")
            held_text = self._pushed(rest, final=True) + self._filter.flush()
        else:
            held_text = ""
        done.finish_reason = "stop" if self.stopped else reason
        done.stop_string = self._filter.stopped_by
        self.finished = True
        done.text += held_text
        if held_text and done.tokens:
            yield Piece(held_text, done.tokens[-1], None, self._params.choice)
