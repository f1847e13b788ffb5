"""`Request`: a prompt and its answer so far, computed a step of the engine at a time."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.engine.adapter import Adapter, cache_salt
from sterna.engine.decoding.allowed_tokens import AllowedTokens
from sterna.engine.decoding.answer_parts import PartMarks
from sterna.engine.decoding.answer_text import AnswerText
from sterna.engine.decoding.grammar_matcher import GrammarMatcher
from sterna.engine.decoding.reasoning_budget import ReasoningMatcher
from sterna.engine.decoding.sampling import Draw, checked_finite
from sterna.engine.decoding.sequence_breakers import SequenceBreakers
from sterna.engine.decoding.speculation import Speculation, StepTimes, default_step_times
from sterna.engine.decoding.token_masks import TokenMasks
from sterna.engine.decoding.token_rules import TokenRules
from sterna.engine.engine import PREFILL_CHUNK, StepInput, StepOutput
from sterna.engine.kv_cache.sequence import Sequence
from sterna.outputs import Completion, Piece, Stats
from sterna.sampling_params import SamplingParams
from sterna.tokenizer import Tokenizer

if TYPE_CHECKING:
    from sterna.engine.images.image_encoding import ProcessedImage
    from sterna.engine.images.prompt_images import PromptImages

__all__ = ["Request"]

I32 = npt.NDArray[np.int32]

#: Drawn tokens that the reader has not had yet, at which a request is left out of steps.
MOST_UNREAD = 16

_ids = itertools.count(1)


class Request:
    """A prompt, its answer so far, and the input of its next step.

    It has two sides, which may be two threads. The scheduler gives its `step_input` to a step and
    the step's output to `receive`, until it has `ended`. The reader asks for `pieces`, which turn
    drawn tokens into text, until it is `finished`.

    Its progress is the length of its sequence and nothing else: if keys and values are lost, it
    computes them again, and given a sequence that begins with the same tokens it resumes there.

    Where the context ends, so does the answer; with `shift_keep` it goes on. Then the older half of
    the tokens behind the first `shift_keep` leaves the sequence, and what is left is computed
    again, so the next token is that of a prompt of these tokens.

    Its clock starts when it is made.

    Args:
        prompt: Token ids, 1 to `context`.
        context: The most positions of a sequence, as in the engine.
        shift_keep: See above; at most half of the context. None: the answer ends there.
        ends: Ids that end the answer and are no part of it, in addition to the parameters' own.
        vocab: Vocabulary size of the model. Default: the tokenizer's.
        completion: The object that receives the answer.
        matcher: The state of the answer's constraint.
        speculation: Drafts its tokens.
        boundary: A length to which recurrent layers may have to go back; they keep a snapshot.
        adapter: A LoRA adapter of the engine's model.
        key: The owner, for fair shares of compute (`FairQueue`).
        priority: Higher is sooner.
        deadline_s: Seconds after which the scheduler ends it.
        salt: Prefixes are shared only between requests of the same salt.
        images: The images of the prompt.
        visible: Special tokens that are part of the text.
        marks: The marks of its reasoning.
    """

    #: Whether it may start from a cached prefix of its prompt.
    uses_prefix_cache = True
    #: Whether a reader waits for its tokens one by one, not only for the end of many requests.
    is_streamed = True
    #: How many of its first tokens a prefix cache should keep after its end; None: all.
    n_kept: int | None = None

    def __init__(
        self,
        prompt: SequenceOf[int],
        params: SamplingParams,
        tokenizer: Tokenizer,
        *,
        context: int,
        shift_keep: int | None = None,
        ends: frozenset[int] = frozenset(),
        vocab: int | None = None,
        completion: Completion | None = None,
        matcher: GrammarMatcher | ReasoningMatcher | None = None,
        speculation: Speculation | None = None,
        key: str = "",
        priority: int = 0,
        deadline_s: float | None = None,
        salt: str = "",
        boundary: int = 0,
        adapter: Adapter | None = None,
        images: PromptImages | None = None,
        visible: frozenset[int] = frozenset(),
        marks: PartMarks | None = None,
    ) -> None:
        self._began = time.perf_counter()
        self.id: int = next(_ids)
        self.params = params
        self.context = context
        self.ends: frozenset[int] = ends.union(params.stop_token_ids)
        self.key = key
        self.priority = priority
        self.deadline_s = deadline_s
        self.adapter = adapter
        self.images = images
        self.salt: str = cache_salt(salt, adapter)
        #: Lengths at which a step must end, since a snapshot may be needed there.
        self.boundaries: set[int] = {boundary} - {0}
        vocab = tokenizer.vocab_size if vocab is None else vocab
        params.check_ids(vocab)
        allowed = AllowedTokens(params, tokenizer, self.ends, vocab)
        self._breakers = SequenceBreakers(params, tokenizer)
        self._rules = TokenRules(allowed, matcher, self.ends, vocab)
        self._matcher, self._speculation, self._vocab = matcher, speculation, vocab
        self._masks: TokenMasks | None = None  # of the latest step
        self._n_drafts = 0  # of the latest step, in the history after known tokens
        self._fed_from = 0  # where the latest step's tokens began
        self._again = 0  # known tokens to compute again after a wrong draft
        self.completion: Completion = completion or Completion(stats=Stats(n_prompt=len(prompt)))
        self.sequence: Sequence = Sequence()
        #: The error that ended the request, if any; `pieces` raises it.
        self.error: Exception | None = None
        self.n_prompt: int = len(prompt)
        self.shift_keep: int | None = shift_keep
        self._left_out = 0  # tokens of the history that the sequence is computed without
        self._history = np.zeros(min(len(prompt) + params.max_tokens, context + 1), np.int32)
        self._history[: len(prompt)] = prompt
        # Mirostat's state before each token of the answer, NaN at its begin. It follows from the
        # tokens before and their logits, so whatever is computed again finds it here.
        self._mu = (
            np.full(len(self._history) + 1 - len(prompt), np.nan) if params.mirostat else None
        )
        # The one record of progress, so that an interrupt cannot leave both sides at odds.
        self._drawn: list[_native.SampleResult | None] = []
        self._unended = -1  # drawn tokens that do not end it, when that was asked last
        self._n_read = 0
        self._reason: str | None = None
        self._answer = AnswerText(tokenizer, prompt, params, self.completion, visible, marks)

    # ---------------------------------------------------------------------- for the scheduler

    @property
    def tokens(self) -> I32:
        """The prompt and the drawn tokens, an end token included, int32."""
        return self._history[: self.n_prompt + len(self._drawn)]

    @property
    def prefix_keys(self) -> I32:
        """`tokens`, with numbers of images in the places of their tokens: what is compared where
        prefixes are shared."""
        if self.images is None:
            return self._span(0, self.n_positions) if self._left_out else self.tokens
        return np.concatenate([self.images.keys, self._history[self.n_prompt : self._known]])

    @property
    def n_positions(self) -> int:
        """How many of `tokens` its sequence has or will have: all that were not left out."""
        return self.n_prompt + len(self._drawn) - self._left_out

    def _span(self, begin: int, end: int) -> I32:
        """Return the tokens at these positions of its sequence, some of them left out."""
        out, keep = self._left_out, self.shift_keep or 0
        kept, newer = self._history[min(begin, keep) : min(end, keep)], max(begin, keep) + out
        return np.concatenate([kept, self._history[newer : max(newer, end + out)]])

    @property
    def to_shift(self) -> int | None:
        """Where its sequence must be cut, as the context is full, before `shift`; else None."""
        if self.shift_keep is None or self.n_positions < self.context or self.ended:
            return None
        return self.shift_keep

    def shift(self) -> None:
        """Leave the older half of the tokens out. Its sequence has no more than it keeps."""
        assert self.shift_keep is not None
        assert self.sequence.length <= self.shift_keep
        more = (self.context - self.shift_keep) // 2
        self._history = np.concatenate([self._history, np.zeros(more, np.int32)])
        if self._mu is not None:
            self._mu = np.concatenate([self._mu, np.full(more, np.nan)])
        self._speculation, self._again = None, 0  # its sources count positions of the history
        self._left_out += more

    @property
    def max_length(self) -> int:
        """Most positions that its sequence will have."""
        return min(self.n_prompt + self.params.max_tokens, self.context)

    @property
    def n_drawn(self) -> int:
        """How many tokens were drawn."""
        return len(self._drawn)

    @property
    def left(self) -> int:
        """Known tokens that are not computed yet; 1 while it decodes, or a few more."""
        return self.n_prompt + len(self._drawn) - self._left_out - self.sequence.length

    def missing_image(self, most: int | None = None) -> ProcessedImage | None:
        """Return the image that must be encoded before its next step of at most `most` tokens,
        default all; None if there is none."""
        if self.images is None:
            return None
        begin = self.sequence.length
        end = self.n_prompt if most is None else begin + most
        images = self.images.next_images(begin, end)
        return next((one for one in images if not self.images.encoder.has(one)), None)

    @property
    def encoding_s(self) -> float:
        """Predicted seconds that encoding its images takes."""
        if self.images is None:
            return 0.0
        return self.images.encoder.seconds(self.images.missing(self.sequence.length))

    @property
    def is_decoding(self) -> bool:
        """Whether its next step draws a token: only its latest token is left to compute, and those
        that recurrent layers must compute again."""
        left = self.n_prompt + len(self._drawn) - self._left_out - self.sequence.length
        return left <= 1 + self._again

    @property
    def ended(self) -> bool:
        """Whether it needs no further step: by its tokens, by `end`, or since it is finished."""
        drawn = len(self._drawn)  # read once: every step asks every request
        if self._reason is not None or self._answer.finished:
            return True
        if drawn == self._unended:
            return False
        known = self.n_prompt + drawn
        if drawn >= self.params.max_tokens or (
            drawn > 0
            and (
                (known >= self.context and self.shift_keep is None)
                or int(self._history[known - 1]) in self.ends
            )
        ):
            return True
        if self._matcher is not None:
            return self._matcher.ended
        self._unended = drawn
        return False

    @property
    def _is_complete(self) -> bool:
        """Whether its constraint allows nothing more."""
        return self._matcher is not None and self._matcher.ended

    def resume_from(self, sequence: Sequence) -> None:
        """Resume from a sequence that has the keys and values of the prompt's first tokens."""
        self.sequence, self._again = sequence, 0
        if not self._drawn:
            self.completion.stats.n_cached = sequence.length

    def step_input(
        self,
        most: int = PREFILL_CHUNK,
        budget: int = 0,
        costs: StepTimes = default_step_times,
        others: int = 0,
        /,
    ) -> StepInput:
        """Return the input of its next step: at most `most` tokens, and what to draw from them.

        It draws a token if they reach the last known one. budget: drafts that may follow that one
        while it decodes, beyond `most`. If a step with drafts fails, try again without: a wrong
        draft may be the cause. costs, others: as in `Speculation.propose`.
        """
        if self._masks is not None:
            self._masks.cancel()
        self._drop_drafts()
        sequence = self.sequence  # read once: a cancel, on another thread, replaces it
        begin, known = sequence.length, self._known - self._left_out
        end = min(begin + most, known)
        if self.images is not None:
            end = self.images.end_of_step(begin, end)
        part = self._span(begin, end) if self._left_out else self._history[begin:end]
        self._fed_from = begin
        hidden = self._speculation is not None and self._speculation.wants_hidden_states
        if end < known:
            return StepInput(
                sequence,
                part,
                adapter=self.adapter,
                return_hidden_states=hidden,
                images=self.images,
            )
        again = known - begin - 1
        if again <= self._again and self._speculation is not None:
            self._add_drafts(known, budget - again, costs, others, again)
        return StepInput(
            sequence,
            part if not self._n_drafts else self._history[begin : end + self._n_drafts],
            1 + self._n_drafts,
            draw=self._draw(known + self._left_out),
            drafts=self._n_drafts,
            adapter=self.adapter,
            return_hidden_states=hidden,
            images=self.images,
        )

    def _add_drafts(
        self, known: int, budget: int, costs: StepTimes, others: int, again: int
    ) -> None:
        """Put drafts after the known tokens, leaving room for a token to draw."""
        speculation = self._speculation
        most = min(budget, min(len(self._history), self.context + 1) - known - 1)
        if speculation is None or most <= 0:
            return
        if not speculation.may_draft(self.sequence):  # asked before drafts cost anything
            return
        tokens = self._history[:known]
        drafts = speculation.propose(tokens, most, costs, others, again)
        if not drafts:
            return
        if self._matcher is not None:
            self._matcher.follow(tokens[self.n_prompt :])
            drafts = drafts[: self._matcher.valid(drafts)]
        self._n_drafts = len(drafts)
        self._history[known : known + len(drafts)] = drafts

    def _drop_drafts(self) -> None:
        """Roll back wrong drafts, and the latest token if a lost step has computed it."""
        known = self._known - self._left_out
        if self.sequence.length >= known or self._n_drafts:
            self.sequence.roll_back(known - 1)
        self._n_drafts = 0

    def receive(self, output: StepOutput) -> None:
        """Take the output of its step."""
        self.take(output.drawn)
        if output.hidden_states is not None and self._speculation is not None and not self.ended:
            known = self.tokens
            rows = output.hidden_states[: len(known) - 1 - self._fed_from]
            self._speculation.observe(known, self._fed_from, rows)

    def take(self, drawn: SequenceOf[_native.SampleResult]) -> None:
        """Take drawn tokens, up to the first that differs from its draft.

        Raises NonFiniteError if their logits were not finite, RequestError if no token was allowed.
        """
        if self._masks is not None:
            self._masks.check()
            drawn = drawn[: self._masks.right]
        known = self._known
        drafts = self._history[known : known + self._n_drafts].tolist()
        accepted = 0
        for i, one in enumerate(drawn):
            if self.ended:
                break
            token = int(checked_finite(one).token)
            self._history[known + i] = token
            if self._mu is not None:
                self._mu[len(self._drawn) + 1] = one.mu
            self._drawn.append(one)
            self._note()
            if self._matcher is not None and token not in self.ends:
                self._matcher.follow(self.tokens[self.n_prompt :])
            if i < len(drafts):
                if token != drafts[i]:
                    break
                accepted += 1
        if drafts:
            self._drop_drafts()
            self._again = self.left - 1
            stats = self.completion.stats
            stats.n_drafted += len(drafts)
            stats.n_accepted += accepted
            if self._speculation is not None:
                self._speculation.note(len(drafts), accepted)

    def end(self, reason: str, error: Exception | None = None) -> None:
        """End the request with the tokens drawn so far; harmless if it has ended already."""
        self.error = self.error or error
        self._reason = self._reason or reason

    def draw(self, logits: npt.NDArray[np.float32]) -> _native.SampleResult:
        """Draw the next token from logits [vocab] after the last known one, as a step would."""
        return self._draw(self._known).sample(logits, self._known)

    def _draw(self, known: int) -> Draw:
        """Return the draw of the token after the known ones, and of those after each draft."""
        history = self._history[: known + self._n_drafts]
        self._masks = masks = self._rules.masks(history, known, self.n_prompt)
        words = None if masks is None else masks.words
        mu = math.nan if self._mu is None else float(self._mu[len(self._drawn)])
        native = self._breakers.native(history, known)
        return Draw(native, history, self.n_prompt, words, masks, mu)

    @property
    def _known(self) -> int:
        return self.n_prompt + len(self._drawn)

    def _at_end(self, count: int) -> bool:
        """Whether the `count`-th drawn token ends the answer."""
        return count > 0 and int(self._history[self.n_prompt + count - 1]) in self.ends

    def _note(self) -> None:
        """Update times and the work of the head."""
        stats = self.completion.stats
        stats.total_s = time.perf_counter() - self._began
        stats.ttft_s = stats.ttft_s or stats.total_s
        stats.head_bytes = self.sequence.head_bytes
        stats.head_rows_rescored = self.sequence.rows_rescored

    # ------------------------------------------------------------------------ for the reader

    @property
    def finished(self) -> bool:
        """Whether the reader has had the last piece."""
        return self._answer.finished

    @property
    def unread(self) -> int:
        """Drawn tokens that `pieces` has not turned into text yet."""
        return len(self._drawn) - self._n_read

    @property
    def paused(self) -> bool:
        """Whether the reader is too far behind for the request to take part in steps."""
        return len(self._drawn) - self._n_read >= MOST_UNREAD

    @property
    def has_news(self) -> bool:
        """Whether `pieces` would do anything."""
        return not self._answer.finished and (len(self._drawn) > self._n_read or self.ended)

    def pieces(self) -> Iterator[Piece]:
        """Yield the text of tokens drawn since the last call, piece by piece.

        After the last piece the request is `finished`, and an error that ended it is raised. A
        cancelled request yields nothing more.
        """
        while not self._answer.finished:
            if len(self._drawn) > self._n_read and self._reason != "cancelled":
                at_end = self._at_end(self._n_read + 1)
                for piece in (self._read(at_end), self._conclude(at_end)):
                    if piece:
                        yield piece
            elif not self.ended:
                break
            elif len(self._drawn) == self._n_read or self._reason == "cancelled":
                reason = self._reason or ("stop" if self._is_complete else "length")
                yield from self._answer.finish(reason)
                if self.error:
                    raise self.error
            # else a step of another thread has brought more since it was asked

    def _read(self, at_end: bool) -> Piece | None:
        """Return the next token's piece, None if it ends the answer."""
        drawn = self._drawn[self._n_read]
        assert drawn is not None
        self._drawn[self._n_read] = None
        self._n_read += 1
        return None if at_end else self._answer.add(drawn)

    def _conclude(self, at_end: bool) -> Piece | None:
        """Finish the answer if its latest token ends it; returns text held back until then.

        at_end: whether that token is an end token.
        """
        read = self._n_read
        at_end = at_end or self._answer.stopped or (self._is_complete and self.unread == 0)
        full = self.n_prompt + read >= self.context and self.shift_keep is None
        if not (at_end or read == self.params.max_tokens or full):
            return None
        return next(self._answer.finish("stop" if at_end else "length"), None)
