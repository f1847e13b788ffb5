"""`Decider`: makes the requests that compute the probabilities of answers to questions.

The context comes first in every prompt, so all questions share its keys and values. Options of one
token are read from one row of logits; a longer option is scored by a request of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, TypeAlias

from sterna.chat.reasoning import with_switches
from sterna.checks import checked_flag, checked_items
from sterna.engine import Engine, NextLogprobsRequest, PromptLogprobsRequest, Request
from sterna.errors import ContextError, RequestError, shown
from sterna.llm.adapters import Adapters
from sterna.llm.chat_renderer import ChatRenderer
from sterna.llm.decision_choices import Choices, parse_choices
from sterna.llm.decisions import Decision, decided
from sterna.llm.options import DecideOptions
from sterna.llm.prompt_encoder import PromptEncoder
from sterna.outputs import Stats
from sterna.tokenizer import Tokenizer

__all__ = ["Decider", "Inquiry", "decisions"]

#: Token ids of contexts by their text; None where a context cannot be encoded alone.
Heads: TypeAlias = "dict[str, list[int] | None]"

#: Put between the context and a question, so that no token spans both.
MARK = "Question: "


@dataclass(frozen=True)
class _Encoded:
    """Token ids of a prompt: `head`, then `base`, or one of `tails`, which have an option each.

    n_kept: how many first tokens all questions about one context share.
    """

    head: list[int]
    base: list[int]
    tails: list[list[int]]
    n_kept: int


@dataclass
class _Scored:
    """The options of one prompt: the requests that score them, each with its options."""

    lengths: list[int]
    requests: list[tuple[Request, list[int]]]

    def logprobs(self) -> list[float]:
        """Return the log-probability of each option, once all requests have ended."""
        logprobs = [0.0] * len(self.lengths)
        for request, places in self.requests:
            if isinstance(request, NextLogprobsRequest):
                for place, logprob in zip(places, request.logprobs, strict=True):
                    logprobs[place] = logprob
            elif isinstance(request, PromptLogprobsRequest):
                scores = [score.logprob for score in request.scores if score is not None]
                logprobs[places[0]] = math.fsum(scores)
        return logprobs


class Inquiry:
    """One question about one context: its `requests`, and its `decision` when they have ended."""

    def __init__(
        self, choices: Choices, normalised: bool, scored: _Scored, neutral: _Scored | None
    ) -> None:
        self._choices, self._normalised = choices, normalised
        self._scored, self._neutral = scored, neutral
        parts = [scored, neutral] if neutral else [scored]
        self.requests: list[Request] = [request for p in parts for request, _ in p.requests]

    def decision(self) -> Decision:
        """Return the decision. Raises the error of a request that failed."""
        stats = Stats()
        for request in self.requests:
            if request.error is not None:
                raise request.error
            own = request.completion.stats
            stats.n_prompt += own.n_prompt
            stats.n_cached += own.n_cached
            stats.total_s = max(stats.total_s, own.total_s)
        return decided(
            self._choices.texts,
            self._scored.logprobs(),
            self._scored.lengths,
            normalised=self._normalised,
            values=self._choices.values,
            stats=stats,
            neutral=self._neutral.logprobs() if self._neutral else None,
        )


def decisions(
    inquiries: Iterable[Inquiry], run: Callable[[Iterator[Request]], Iterator[Request]]
) -> list[Decision]:
    """Return the decision of each inquiry. Only a few inquiries have requests at the same time.

    run: computes requests, and yields each when it has ended (`EngineLoop.finished`).
    """
    results: list[Decision | Inquiry] = []
    places: dict[int, int] = {}
    left: list[int] = []

    def requests() -> Iterator[Request]:
        for inquiry in inquiries:
            left.append(len(inquiry.requests))
            places.update({request.id: len(results) for request in inquiry.requests})
            results.append(inquiry)
            yield from inquiry.requests

    for request in run(requests()):
        if request.error is not None:
            raise request.error
        place = places.pop(request.id)
        left[place] -= 1
        inquiry = results[place]
        if left[place] == 0 and isinstance(inquiry, Inquiry):
            results[place] = inquiry.decision()
    return [one for one in results if isinstance(one, Decision)]


class Decider:
    """Makes the requests of `LLM.decide`, whose docstring describes the arguments."""

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, renderer: ChatRenderer, adapters: Adapters
    ) -> None:
        self._engine, self._tokenizer, self._renderer = engine, tokenizer, renderer
        self._encoder, self._adapters = PromptEncoder(tokenizer, engine), adapters

    def inquiries(
        self, context: object, questions: object, options: DecideOptions, **request_args: Any
    ) -> Iterator[Inquiry]:
        """Yield an inquiry for each question about a context, or about each of several texts.

        request_args: other arguments of `Request`. RequestError; wrong options raise it
        immediately.
        """
        choices = parse_choices(options.get("options"), options.get("score"))
        normalised = checked_flag("normalise", options.get("normalise", False))
        request_args |= {"adapter": self._adapters.chosen(options.get("adapter"))}
        asked = [f"{choices.request}\n\n{MARK}{one}" for one in _questions(questions)]
        return self._inquiries(
            _contexts(context), asked, choices, normalised, options.get("neutral"), request_args
        )

    def _inquiries(
        self,
        contexts: list[object],
        asked: list[str],
        choices: Choices,
        normalised: bool,
        neutral: object,
        request_args: Mapping[str, Any],
    ) -> Iterator[Inquiry]:
        heads: Heads = {}
        for context in contexts:
            for one in asked:
                scored = self._scored(context, one, choices, heads, request_args)
                plain = None
                if neutral is not None:
                    plain = self._scored(neutral, one, choices, heads, request_args)
                yield Inquiry(choices, normalised, scored, plain)

    def _scored(
        self,
        context: object,
        asked: str,
        choices: Choices,
        heads: Heads,
        request_args: Mapping[str, Any],
    ) -> _Scored:
        prompt, opening = self._prompt(context, asked)
        encoded = self._encoded(prompt, [opening + text for text in choices.texts], heads)
        common = min(_common([encoded.base, *encoded.tails]), min(map(len, encoded.tails)) - 1)
        answers = [tail[common:] for tail in encoded.tails]
        if any(_begins(one, other) for one in answers for other in answers if one is not other):
            answers = [[*answer, self._end()] for answer in answers]
        start = [*encoded.head, *encoded.tails[0][:common]]
        longest = len(start) + max(map(len, answers)) - 1
        if longest > self._engine.context:
            raise ContextError(
                f"context: must fit {self._engine.context} tokens with the question and an option, "
                f"but they have {longest}; shorten it"
            )
        requests = list(self._requests(start, answers, encoded.n_kept, request_args))
        return _Scored(list(map(len, answers)), requests)

    def _requests(
        self,
        start: list[int],
        answers: list[list[int]],
        n_kept: int,
        request_args: Mapping[str, Any],
    ) -> Iterator[tuple[Request, list[int]]]:
        """Yield requests for answers after the same first tokens, and the places of the answers."""
        model, context = self._engine.model, self._engine.context
        common = {"context": context, "vocab": model.config.vocab_size, **request_args}
        if self._engine.kv_cache.needs_snapshots:
            common["boundary"] = n_kept
        short = [i for i, answer in enumerate(answers) if len(answer) == 1]
        requests = list[tuple[Request, list[int]]]()
        if short:
            ids = [answers[i][0] for i in short]
            requests.append((NextLogprobsRequest(start, ids, self._tokenizer, **common), short))
        for i, answer in enumerate(answers):
            if len(answer) > 1:
                tokens, scored = [*start, *answer], len(answer)
                args = {"scored": scored, **common}
                requests.append((PromptLogprobsRequest(tokens, 0, self._tokenizer, **args), [i]))
        for request, places in requests:
            request.n_kept = n_kept
            yield request, places

    def _end(self) -> int:
        """Return the token that ends an answer."""
        ends = sorted(self._renderer.turn_ends) or sorted(self._tokenizer.eos_ids)
        if not ends:
            raise RequestError(
                "options: must not begin with one another, since this model has no end token; "
                "change their texts"
            )
        return ends[0]

    def _prompt(self, context: object, asked: str) -> tuple[str, str]:
        """Return a prompt with the context first, and the text before the answer to it."""
        messages = _messages(context)
        if self._renderer.template is None:
            told = "\n\n".join(
                str(message["content"]) for message in messages if message["content"]
            )
            return f"{told}\n\n{asked}\nAnswer:" if told else f"{asked}\nAnswer:", " "
        if messages and messages[-1].get("role") == "user":
            *messages, last = messages
            asked = f"{last['content']}\n\n{asked}" if last["content"] else asked
        messages = [*messages, {"role": "user", "content": asked}]
        silent = with_switches({}, False)  # reasoning that the template opens is closed, too
        return self._renderer.render(messages, template_options=silent), ""

    def _encoded(self, prompt: str, options: Sequence[str], heads: Heads) -> _Encoded:
        """Return token ids of a prompt with each option.

        The context is encoded once for all questions, if the tokenizer allows a split before MARK
        or before the line breaks that precede it. heads: the contexts so far.
        """
        at = max(0, prompt.rfind(MARK))
        for cut in (at, len(prompt[:at].rstrip("\n"))):
            ids = self._head(prompt[:cut], prompt[cut : at + len(MARK)], heads)
            if ids is not None:
                rest = [
                    self._tokenizer.encode(prompt[cut:] + option, add_special=False)
                    for option in ("", *options)
                ]
                return _Encoded(ids, rest[0], rest[1:], len(ids))
        base, *tails = (self._encode(prompt + option) for option in ("", *options))
        return _Encoded([], base, tails, _common([self._encode(prompt[:at]), base]))

    def _head(self, head: str, mark: str, heads: Heads) -> list[int] | None:
        """Return the ids of a prompt's beginning; None if the text after it would change them."""
        if head not in heads:
            ids, whole = self._encode(head), self._encode(head + mark)
            self._encoder.encode(whole)  # checks the length, and that the model continues texts
            parted = whole == [*ids, *self._tokenizer.encode(mark, add_special=False)]
            heads[head] = ids if parted else None
        return heads[head]

    def _encode(self, text: str) -> list[int]:
        """Encode a prompt's beginning; a chat template writes its own special tokens."""
        return self._tokenizer.encode(text, add_special=self._renderer.template is None)


def _contexts(context: object) -> list[object]:
    """Return the list of contexts; a text or a list of messages is one context."""
    if isinstance(context, (list, tuple)) and context and isinstance(context[0], str):
        return list(context)
    return [context]


def _questions(argument: object) -> list[str]:
    one = [argument] if isinstance(argument, str) else argument
    questions = list(checked_items("question", one, "a text or several"))
    for question in questions:
        if not isinstance(question, str) or not question.strip():
            raise RequestError(f"question: must be a text, but got {shown(question)}")
    return questions


def _messages(context: object) -> list[dict[str, Any]]:
    """Return a context as messages; a text becomes a message of the user. RequestError."""
    if isinstance(context, str):
        return [{"role": "user", "content": context}]
    messages = list(checked_items("context", context, "a text or a list of messages"))
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
            raise RequestError(
                f"context: messages must have a text as content, but got {shown(message)}"
            )
    return [dict(message) for message in messages]


def _common(texts: Sequence[Sequence[int]]) -> int:
    """Count the tokens that all texts begin with."""
    columns = zip(*texts, strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))


def _begins(text: list[int], other: list[int]) -> bool:
    return other[: len(text)] == text
