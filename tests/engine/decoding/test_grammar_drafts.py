"""Drafts decide nothing: whatever was drafted, each mask is that of a fresh matcher which reads the
accepted tokens.

STERNA_GRAMMARS says how many histories (100,000 take about 20 minutes on one core).
"""

from __future__ import annotations

import os
import random
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest
import random_grammars
from helpers import failure
from test_drafts import free

from sterna import LLM, _native
from sterna.engine import Request
from sterna.engine.decoding.allowed_tokens import clear_bits, mask_words, set_bits
from sterna.engine.decoding.constraints import Constraint, Constraints
from sterna.engine.decoding.draft_sources import ForcedTokens
from sterna.engine.decoding.grammar_matcher import GrammarMatcher
from sterna.engine.decoding.grammars import ToolCall
from sterna.engine.decoding.reasoning_budget import ReasoningBudget
from sterna.engine.decoding.speculation import MOST_DRAFTS, Speculation
from sterna.engine.decoding.token_masks import make_in_background
from sterna.errors import RequestError
from sterna.sampling_params import SamplingParams

HISTORIES = int(os.environ.get("STERNA_GRAMMARS", "600"))
PARTS = 4
PROMPT = [5, 6, 7]
LOGITS = np.random.default_rng(1).standard_normal((61, 4160)).astype(np.float32)
I32 = npt.NDArray[np.int32]


@pytest.fixture(scope="module")
def make() -> Constraints:
    return random_grammars.constraints_of_many(LLM("nano", threads=1))


def drawn_token(mask: I32, seed: int, at: int) -> int:
    """The likeliest token that a mask allows, at a place of the answer."""
    allowed = np.unpackbits(mask.view(np.uint8), bitorder="little").astype(bool)
    row = LOGITS[(7 * seed + at) % len(LOGITS), : len(allowed)]
    return int(np.where(allowed, row, -np.inf).argmax())


class Alone:
    """The answer without drafts: before each token, llguidance reads all tokens again."""

    def __init__(
        self, make: Constraints, grammar: str, budget: ReasoningBudget | None, ends: list[int],
        seed: int, most: int,
    ) -> None:  # fmt: skip
        self.tokens, self.masks, self.failed = list[int](), list[I32](), False
        while len(self.tokens) < most and not (self.tokens and self.tokens[-1] in ends):
            matcher = make._compiler.new_matcher(grammar)
            matcher.consume_tokens(self.tokens)
            assert not matcher.is_error(), matcher.get_error()
            if self.tokens and matcher.is_stopped():
                break
            mask = np.zeros(mask_words(make._compiler.vocab), np.int32)
            due = budget.after(self.tokens).due() if budget else None
            if due is not None and not matcher.validate_tokens([due]):
                due = budget = None  # it has no reasoning
            if due is not None:
                set_bits(mask, [due])
            else:
                matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
                clear_bits(mask, make._compiler.tokenizer.eos_ids)
                set_bits(mask, ends if matcher.is_accepting() else [])
            self.failed = not mask.any()
            if self.failed:
                break
            self.masks.append(mask)
            self.tokens.append(drawn_token(mask, seed, len(self.tokens)))


class Guesses:
    """Drafts of all kinds: right ones, with special tokens in between, and of earlier answers."""

    cost, prior = 0.0, 0.9

    def __init__(self, rng: random.Random, answer: list[int], others: list[int]) -> None:
        self.rng, self.answer, self.others = rng, answer, others

    def propose(self, history: I32, k: int) -> list[int]:
        at = len(history) - len(PROMPT)
        right = self.answer[at : at + self.rng.randrange(k + 1)]
        wrong = self.rng.choices(self.others, k=self.rng.randrange(1, 4))
        kind = self.rng.randrange(5)
        if kind == 0:
            return right[:k]
        if kind == 1:  # an earlier answer, its end, and what came after
            return [*right, *wrong, *self.answer][:k]
        if kind == 2:
            cut = self.rng.randrange(len(right) + 1)
            return [*right[:cut], *wrong, *right[cut:]][:k]
        return [*right, *self.rng.choices(range(4096), k=3)][:k] if kind == 3 else wrong[:k]


class History:
    """One answer, in steps with drafts; some steps are lost."""

    def __init__(self, make: Constraints, made: Constraint, rng: random.Random) -> None:
        tokenizer, seed, most = make._compiler.tokenizer, rng.randrange(1000), rng.randrange(1, 26)
        ends = rng.choice((list(tokenizer.eos_ids), [], [*tokenizer.eos_ids, 300]))
        matcher = made.matcher(rng.choice((0, most)))
        assert isinstance(matcher, GrammarMatcher)
        alone = Alone(make, made.grammar, matcher._budget, sorted(ends), seed, most)
        self.alone, self.rng, self.seed = alone, rng, seed
        self.accepted = 0
        others = [*tokenizer.added.values(), *range(300, 306)]
        speculation = Speculation([ForcedTokens(matcher), Guesses(rng, alone.tokens, others)])
        if rng.random() < 0.7:
            speculation = Speculation([Guesses(rng, alone.tokens, others)])
        self.request = Request(
            PROMPT, SamplingParams(max_tokens=most), tokenizer, context=999,
            vocab=make._compiler.vocab, ends=frozenset(ends), matcher=matcher,
            speculation=speculation,
        )  # fmt: skip

    def run(self) -> None:
        request = self.request
        try:
            while not request.ended:
                self._step()
        except RequestError:
            assert self.alone.failed
        assert request.tokens[len(PROMPT) :].tolist() == self.alone.tokens
        self.accepted = request.completion.stats.n_accepted

    def _step(self) -> None:
        request = self.request
        step_input = request.step_input(512, self.rng.randrange(MOST_DRAFTS + 1), free)
        assert step_input.draw
        masks = step_input.draw.pending_masks
        assert masks
        if self.rng.random() < 0.9:
            make_in_background([masks], thread=True)
        if self.rng.random() < 0.1:  # lost, before its masks or after
            return
        at, rows = request.n_drawn, 1 + step_input.drafts
        request.sequence.length += len(step_input.tokens)
        masks.check()
        drawn = [
            _native.SampleResult(drawn_token(masks.words[i], self.seed, at + i))
            for i in range(rows)
        ]
        request.take(drawn)
        for i in range(request.n_drawn - at):
            assert masks.words[i].tobytes() == self.alone.masks[at + i].tobytes()


@pytest.mark.parametrize("part", range(PARTS))
def test_histories(make: Constraints, part: int) -> None:
    counted, accepted = 0, 0
    for seed in range(part, HISTORIES, PARTS):
        rng = random.Random(seed)
        try:
            made = random_grammars.constraint(rng, make)
        except RequestError:
            made = make.regex("[a-z]{2,5}")
        history = History(make, made, rng)
        try:
            history.run()
        except Exception as error:
            raise AssertionError(f"history {seed}: {made.grammar}: {error!r}") from error
        counted, accepted = counted + 1, accepted + history.accepted
    assert accepted > counted


def test_an_end_token_is_no_text(make: Constraints) -> None:
    """Drafts copy it from after an earlier answer; the answer goes on as if they had not."""
    end = make._compiler.tokenizer.added["<|im_end|>"]
    call = ToolCall("<tool_call>", {"type": "object"}, "</tool_call><|im_end|>")
    forced = make.tools([call], "<tool_call>", required=True)
    value = '{"name": "tern", "legs": 2}'
    for made, text in (
        (make.json_object(), value), (forced, f"<tool_call>{value}</tool_call>"),
    ):  # fmt: skip
        ids = make._compiler.tokenizer.encode(text, add_special=False)
        for begin in range(len(ids)):
            matcher = made.matcher()
            matcher.follow(np.array(ids[:begin], np.int32))
            drafts = [*ids[begin:], end, *ids]
            assert matcher.valid(drafts) == len(ids) - begin
            assert len(matcher.masks(drafts[: len(ids) - begin], [end])) == 1 + len(ids) - begin
            for n in range(begin, len(ids) + 1):  # none of them was taken
                matcher.follow(np.array(ids[:n], np.int32))
            (mask,) = matcher.masks([], [end])
            assert mask[end // 32] >> end % 32 & 1


def test_what_looks_like_reasoning_is_not_closed(make: Constraints) -> None:
    """An answer that begins with a space or "<" is not cut by the budget of its reasoning."""
    for text in (" <b>", "<tool>"):
        made = make.regex(text).after_reasoning(False)
        ids = make._compiler.tokenizer.encode(text, add_special=False)
        matcher = made.matcher(2)  # a budget of one token
        for n, token in enumerate(ids):
            (mask,) = matcher.masks([], [0])
            assert mask[token // 32] >> token % 32 & 1
            matcher.follow(np.array(ids[: n + 1], np.int32))
        assert matcher.ended


#: After "7}" too complex for the limits of a mask, unlike after "8".
COMPLEX = r"(7\}(?:a?){30000}a{30000}|8[0-9]+)"


def test_too_complex_is_an_answer_by_itself(make: Constraints) -> None:
    """Neither drafts nor other answers with the same constraint decide that."""
    constraint = make.regex(COMPLEX)
    complex_, simple = [make._compiler.tokenizer.encode(t, add_special=False) for t in ("7}", "81")]
    failing, drafted, other = (constraint.matcher() for _ in range(3))
    (expected,) = other.masks([], [0])
    assert drafted.valid(complex_) == len(complex_)
    masks = drafted.masks(complex_, [0])
    assert (len(masks), masks[0].tobytes()) == (len(complex_), expected.tobytes())
    assert drafted.valid(simple) == 0  # no more drafts, but the answer
    failure(lambda: failing.follow(np.array(complex_, np.int32)), RequestError, "gave up")
    for matcher in (drafted, other):
        for n in range(1, len(simple) + 1):
            matcher.follow(np.array(simple[:n], np.int32))
            assert matcher.masks([], [0]).any()


def steps(request: Request, token: int) -> None:
    """Steps that draw the same token again and again."""
    while True:
        step_input = request.step_input(512, 9, free)
        request.sequence.length += len(step_input.tokens)
        request.take([_native.SampleResult(token)] * step_input.wanted)


def test_no_token_is_an_error_with_drafts_as_without(make: Constraints) -> None:
    """Where constraint and parameters leave none, after a right draft."""
    (letter,) = make._compiler.tokenizer.encode("a", add_special=False)
    errors = []
    for drafts in ([], [letter], [letter, 4097, letter]):
        matcher = make.regex("a{3,9}").matcher()
        source = Guesses(random.Random(1), [], [])
        source.propose = lambda history, k, drafts=drafts: drafts[:k]  # type: ignore[method-assign]
        request = Request(
            PROMPT, SamplingParams(allowed_token_ids=(letter,), bad_words=((letter, letter),)),
            make._compiler.tokenizer, context=999, vocab=make._compiler.vocab, ends=frozenset([0]),
            matcher=matcher, speculation=Speculation([source]),
        )  # fmt: skip
        message = failure(partial(steps, request, letter), RequestError)
        errors.append((message, request.n_drawn))
    assert "no token after 1" in errors[0][0]
    assert errors == [errors[0]] * 3
