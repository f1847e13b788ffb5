"""`Request`: a prompt on its way to an answer, a step of the engine at a time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.engine.adapters import Adapter, cache_salt
from sterna.engine.allowed import AllowedTokens, mask_words
from sterna.engine.drafts import Costs, Speculation, usual_costs
from sterna.engine.engine import PREFILL_CHUNK, StepInput, StepOutput
from sterna.engine.guide import Guide
from sterna.engine.masks import Masks
from sterna.engine.sampling import Draw, checked
from sterna.engine.sequence import Sequence
from sterna.engine.stop_strings import StopFilter
from sterna.errors import RequestError
from sterna.outputs import Completion, Piece, Stats, TokenLogprob
from sterna.sampling_params import SamplingParams
from sterna.tokenizer import Detokenizer, Tokenizer

__all__ = ["Request"]

I32 = npt.NDArray[np.int32]

#: Tokens that a request may be ahead of who reads it, before it is left out of steps.
AHEAD = 16

_ids = itertools.count(1)


class Request:
    """A prompt, what was made of it so far, and what the engine has to compute next.

    It has two sides, which may be two threads. The scheduler gives its `step_input` to a step and
    the step's output to `receive`, until it has `ended`. The reader asks for
    `pieces`, which turn drawn tokens into text, until it is `finished`.

    It knows nothing about its place but its sequence, and is as far as that is long: so keys and
    values may be lost, or come from another sequence that begins with the same tokens, and it goes
    on.

    prompt: token ids, at least one, no more than `context`, the engine's; ends: ids that end the
    answer and are no part of it, beside the parameters' own; vocab: tokens of the model, default
    those of the tokenizer; completion: where the answer goes; guide: of a constraint that it keeps
    to; speculation: drafts its tokens. boundary: a length that may be wanted again, where layers
    cannot go back. adapter: of the engine's model. key, priority, deadline_s, salt: for the
    scheduler (`Scheduler.add`). Its clock starts here.
    """

    #: Whether it may go on from what a cache has of its prompt.
    looks_up = True
    #: Whether somebody waits for its tokens, and else for the end of many requests alone.
    read_along = True

    def __init__(
        self,
        prompt: SequenceOf[int],
        params: SamplingParams,
        tokenizer: Tokenizer,
        *,
        context: int,
        ends: frozenset[int] = frozenset(),
        vocab: int | None = None,
        completion: Completion | None = None,
        guide: Guide | None = None,
        speculation: Speculation | None = None,
        key: str = "",
        priority: int = 0,
        deadline_s: float | None = None,
        salt: str = "",
        boundary: int = 0,
        adapter: Adapter | None = None,
    ) -> None:
        self._began = time.perf_counter()
        self.id = next(_ids)
        self.params, self.context = params, context
        self.ends = ends.union(params.stop_token_ids)
        self.key, self.priority, self.deadline_s = key, priority, deadline_s
        self.adapter, self.salt = adapter, cache_salt(salt, adapter)
        #: Lengths at which a step is to end, since they may be wanted again.
        self.boundaries = {boundary} - {0}
        vocab = tokenizer.vocab_size if vocab is None else vocab
        params.check_ids(vocab)
        self._allowed = AllowedTokens(params, tokenizer, self.ends, vocab)
        self._guide, self._speculation, self._vocab = guide, speculation, vocab
        self._masks: Masks | None = None  # of the latest step
        self._n_drafts = 0  # in the history behind what is known, of the latest step
        self._fed_from = 0  # where the latest step's tokens began
        self._again = 0  # known tokens to be computed again, as drafts behind them were wrong
        self.completion = completion or Completion(stats=Stats(n_prompt=len(prompt)))
        self.sequence = Sequence()
        self.finished = False
        #: What ended it before its time; `pieces` raises it.
        self.error: Exception | None = None
        self.n_prompt = len(prompt)
        self._history = np.zeros(min(len(prompt) + params.max_tokens, context + 1), np.int32)
        self._history[: len(prompt)] = prompt
        # One list says how far both sides are: an interrupt cannot leave them at odds.
        self._drawn: list[_native.SampleResult | None] = []
        self._n_read = 0
        self._reason: str | None = None
        self._detokenizer = Detokenizer(tokenizer, list(prompt))
        self._text = StopFilter(tuple(params.stop))

    # ------------------------------------------------------------------- for who schedules it

    @property
    def tokens(self) -> I32:
        """The prompt and what follows it so far, an id that ended it included."""
        return self._history[: self._known]

    @property
    def longest(self) -> int:
        """Positions that its sequence has at the most."""
        return min(self.n_prompt + self.params.max_tokens, self.context)

    @property
    def generated(self) -> int:
        """Tokens that were drawn."""
        return len(self._drawn)

    @property
    def left(self) -> int:
        """Tokens that are known and not computed yet; 1 while it decodes, or some more."""
        return self._known - self.sequence.length

    @property
    def decodes(self) -> bool:
        """Whether its next step is to bring its next token: what is left is its latest one, and
        with it those that a recurrent layer has to see again."""
        return self.left <= 1 + self._again

    @property
    def ended(self) -> bool:
        """Whether no step is to come: its tokens have ended it, or it was ended, or is finished."""
        drawn = len(self._drawn)  # asked of all that wait, in each step
        return (
            self.finished
            or self._reason is not None
            or drawn >= self.params.max_tokens
            or (drawn > 0 and (self._known >= self.context or self._at_end(drawn)))
            or self._is_complete
        )

    @property
    def _is_complete(self) -> bool:
        """Whether its constraint lets nothing follow."""
        return self._guide is not None and self._guide.ended

    def go_on_from(self, sequence: Sequence) -> None:
        """Takes a sequence that has the keys and values of the prompt's first tokens."""
        self.sequence, self._again = sequence, 0
        if not self._drawn:
            self.completion.stats.n_cached = sequence.length

    def step_input(
        self, most: int = PREFILL_CHUNK, budget: int = 0, costs: Costs = usual_costs,
        others: int = 0,
    ) -> StepInput:  # fmt: skip
        """The tokens that the next step takes, at most so many, and what it is to draw from them.

        It draws where these reach the last token that is known. budget: drafts that may follow
        that one while it decodes, beyond `most`; a step that fails with some is to be tried again
        without, since a wrong one may be why. costs, others: as in `Speculation.propose`.
        """
        if self._masks is not None:
            self._masks.give_up()
        self._drop_drafts()
        sequence = self.sequence  # once: a cancel, of another thread, leaves an empty one here
        begin = sequence.length
        end = min(begin + most, self._known)
        part, self._fed_from = self._history[begin:end], begin
        hidden = self._speculation is not None and self._speculation.wants_hidden_states
        if end < self._known:
            return StepInput(sequence, part, adapter=self.adapter, return_hidden_states=hidden)
        if self.decodes:
            self._add_drafts(budget - self.left + 1, costs, others)
        return StepInput(
            sequence, self._history[begin : end + self._n_drafts], 1 + self._n_drafts,
            draw=self._draw(), drafts=self._n_drafts, adapter=self.adapter,
            return_hidden_states=hidden,
        )  # fmt: skip

    def _add_drafts(self, budget: int, costs: Costs, others: int) -> None:
        """Puts them behind what is known, as many as may still come and leave a token to draw."""
        most = min(budget, len(self._history) - self._known - 1)
        if self._speculation is None or most <= 0:
            return
        if not self._speculation.may_draft(self.sequence):  # before they cost anything
            return
        again = self.left - 1
        drafts = self._speculation.propose(self.tokens, most, costs, others, again)
        if self._guide is not None:
            self._guide.follow(self.tokens[self.n_prompt :])
            drafts = drafts[: self._guide.valid(drafts)]
        self._n_drafts = len(drafts)
        self._history[self._known : self._known + len(drafts)] = drafts

    def _drop_drafts(self) -> None:
        """Its sequence has no position of a draft afterwards that was not right, nor of its latest
        token, which a step may have computed that was lost."""
        if self.sequence.length >= self._known or self._n_drafts:
            self.sequence.settle(self._known - 1)
        self._n_drafts = 0

    def receive(self, output: StepOutput) -> None:
        """Takes what a step gave it."""
        self.take(output.drawn)
        if output.hidden_states is not None and self._speculation is not None and not self.ended:
            known = self.tokens
            rows = output.hidden_states[: len(known) - 1 - self._fed_from]
            self._speculation.observe(known, self._fed_from, rows)

    def take(self, drawn: SequenceOf[_native.SampleResult]) -> None:
        """Takes the next tokens, up to the first that was drafted otherwise; NonFiniteError where
        their logits were not finite, RequestError where no token could come."""
        if self._masks is not None:
            self._masks.check()
        drafts = self._history[self._known :][: self._n_drafts].tolist()
        accepted = 0
        for i, one in enumerate(drawn):
            if self.ended:
                break
            token = int(checked(one).token)
            self._history[self._known] = token
            self._drawn.append(one)
            self._note()
            if self._guide is not None and token not in self.ends:
                self._guide.follow(self.tokens[self.n_prompt :])
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
        """No further step; the answer is what was taken so far. Harmless where it has ended."""
        self.error = self.error or error
        self._reason = self._reason or reason

    def draw(self, logits: npt.NDArray[np.float32]) -> _native.SampleResult:
        """The token that logits [vocab] after the last known token give: what a step draws."""
        return self._draw().sample(logits, self._known)

    def _draw(self) -> Draw:
        """Of the token after each draft, and after the last that is known."""
        history = self._history[: self._known + self._n_drafts]
        if self._guide is None and self._allowed.all:
            return Draw(self.params.native, history, self.n_prompt)
        rows, words = 1 + self._n_drafts, mask_words(self._vocab)
        self._masks = masks = Masks(rows, words, lambda to: self._allow(to, history))
        if self._guide is None:
            masks.make()  # a few bits are no work for a thread
        return Draw(self.params.native, history, self.n_prompt, masks.words, masks)

    def _allow(self, masks: I32, history: I32) -> None:
        """Writes what may come after the last known token, and after each draft."""
        if self._guide is not None:
            known = self._known
            self._guide.follow(history[self.n_prompt : known])
            masks[:] = self._guide.masks(history[known:].tolist(), sorted(self.ends))
        else:
            masks[:] = -1
        if not self._allowed.all:
            first = len(history) + 1 - len(masks)
            for i, mask in enumerate(masks):
                mask &= self._allowed.mask(history[: first + i], first + i - self.n_prompt)
        if not masks[0].any():
            raise RequestError(
                "answer: must have a next token, but constraint, allowed_token_ids, bad_words and "
                f"min_tokens leave no token after {len(self._drawn)}"
            )

    @property
    def _known(self) -> int:
        return self.n_prompt + len(self._drawn)

    def _at_end(self, count: int) -> bool:
        """Whether the latest of so many drawn tokens ends the answer."""
        return count > 0 and int(self._history[self.n_prompt + count - 1]) in self.ends

    def _note(self) -> None:
        """Times, and what the head took."""
        stats = self.completion.stats
        stats.total_s = time.perf_counter() - self._began
        stats.ttft_s = stats.ttft_s or stats.total_s
        stats.head_bytes = self.sequence.head_bytes
        stats.head_rows_rescored = self.sequence.rows_rescored

    # ----------------------------------------------------------------------- for who reads it

    @property
    def unread(self) -> int:
        """Tokens that were taken and that `pieces` has not made text of."""
        return len(self._drawn) - self._n_read

    @property
    def paused(self) -> bool:
        """Whether who reads it is too far behind."""
        return self.unread >= AHEAD

    @property
    def has_news(self) -> bool:
        """Whether `pieces` would do anything."""
        return not self.finished and (self.unread > 0 or self.ended)

    def pieces(self) -> Iterator[Piece]:
        """What the tokens that were taken add to the answer, each when it is asked for.

        After the last one the answer is `finished`, and what ended it before its time is raised.
        Where it was cancelled, what was not asked for before is not told.
        """
        while not self.finished:
            ended = self.ended  # before what is unread: a step of another thread may bring more
            if self.unread and self._reason != "cancelled":
                for piece in (self._tell(), self._conclude()):
                    if piece:
                        yield piece
            elif ended:
                yield from self._last(self._reason or ("stop" if self._is_complete else "length"))
                if self.error:
                    raise self.error
            else:
                break

    def _tell(self) -> Piece | None:
        """The next token's piece; None where it is an end."""
        drawn = self._drawn[self._n_read]
        assert drawn is not None
        self._drawn[self._n_read] = None
        self._n_read += 1
        if self._at_end(self._n_read):
            return None
        token, done = int(drawn.token), self.completion
        done.tokens.append(token)
        done.stats.n_generated += 1
        logprob = None
        if self.params.logprobs:
            logprob = TokenLogprob(token, float(drawn.logprob), tuple(drawn.top))
            done.logprobs.append(logprob)
        text = self._text.push(self._detokenizer.push(token))
        done.text += text
        return Piece(text, token, logprob, self.params.choice)

    def _conclude(self) -> Piece | None:
        """Ends the answer where its latest token does; the text held back until then, if any."""
        if self._text.stopped:
            self._finish("stop")
            return None
        at_end = self._at_end(self._n_read) or (self._is_complete and self.unread == 0)
        full = (
            self._n_read == self.params.max_tokens or self.n_prompt + self._n_read >= self.context
        )
        return next(self._last("stop" if at_end else "length"), None) if at_end or full else None

    def _last(self, reason: str) -> Iterator[Piece]:
        """Finishes the answer, with the text that was held back."""
        done = self.completion
        rest = self._detokenizer.flush(cut=reason != "stop")
        held_text = self._text.push(rest) + self._text.flush()
        self._finish("stop" if self._text.stopped else reason)
        done.text += held_text
        if held_text and done.tokens:
            yield Piece(held_text, done.tokens[-1], None, self.params.choice)

    def _finish(self, reason: str) -> None:
        self.completion.finish_reason = reason
        self.completion.stop_string = self._text.stopped_by
        self.finished = True
