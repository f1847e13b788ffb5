"""Constraints: grammars that an answer keeps to, compiled by llguidance within limits.

A constraint is refused, with the reason, unless all of it is enforced; docs/constrained.md says
what that takes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from sterna.chat.thoughts import CLOSE, OPEN
from sterna.checks import checked_flag, checked_items
from sterna.engine.grammars import Marks, ToolCall, behind_thoughts, quoted
from sterna.engine.grammars import calls as calls_grammar
from sterna.engine.guide import Guide
from sterna.engine.schemas import for_llguidance, grammar_options, problems, read_schema
from sterna.engine.thinking import ROOM, Thinking
from sterna.errors import RequestError, shown
from sterna.tokenizer import Tokenizer

if TYPE_CHECKING:
    import llguidance

__all__ = ["Constraint", "Constraints", "ToolCall"]

T = TypeVar("T")
#: Seconds that compiling may take; what takes longer goes on in its thread until a limit ends it.
DEADLINE_S = 10.0
MAX_GRAMMAR_BYTES = 1 << 18
MAX_CHOICES = 10_000
_ANY_OBJECT = {"type": "object"}


class Constraint:
    """A compiled grammar, which any number of answers may keep to at once.

    ignored: what of a schema is not enforced; nothing, unless it was compiled with strict=False.
    """

    def __init__(
        self, matcher: llguidance.LLMatcher, grammar: str, of: Constraints, ends: Sequence[int],
        ignored: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self._matcher, self._of, self._ends = matcher, of, ends
        self.grammar, self.ignored = grammar, ignored
        #: Of one behind thoughts: whether the prompt has opened them.
        self._opened: bool | None = None
        self._behind: dict[bool, Constraint] = {}

    def behind_thoughts(self, opened: bool) -> Constraint:
        """One that lets an answer think first. opened: whether the prompt has opened its thoughts;
        else it may open them, or have none. RequestError where that is too complex."""
        if opened not in self._behind:
            self._behind[opened] = self._of.behind_thoughts(self, opened)
        return self._behind[opened]

    def guide(self, max_tokens: int = 0) -> Guide:
        """For one answer, of at most so many tokens; 0: of any number, and with any thoughts."""
        matcher, thinking = self._matcher.deep_copy(), None
        if self._opened is not None and max_tokens:
            tokenizer, budget = self._of.tokenizer, int(max_tokens * (1 - ROOM))
            closing = tokenizer.encode(f"\n{CLOSE}\n\n", add_special=False)
            thinking = Thinking(self._opened, budget, closing, tokenizer.spelling)
        return Guide(matcher, self._of.vocab, self._ends, thinking)

    def fits(self, constraints: Constraints) -> bool:
        """Whether these make constraints for the same tokens."""
        one, other = self._of, constraints
        return one is other or (
            one.vocab == other.vocab and one.tokenizer.digest == other.tokenizer.digest
        )


class Constraints:
    """Compiles constraints for a model's tokens.

    Each method raises RequestError for what it cannot enforce, for a grammar that is too large or
    complex, and where llguidance is not installed.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        """`vocab`: tokens of the model, at least the tokenizer's."""
        self.tokenizer, self.vocab = tokenizer, vocab
        self._lock = threading.Lock()

    def guide(self, constraint: object, max_tokens: int = 0) -> Guide | None:
        """For an answer of this model, as `Constraint.guide`; None where the constraint is."""
        if constraint is None:
            return None
        if not isinstance(constraint, Constraint):
            raise RequestError(
                f"constraint: must be one of LLM.constraints, but got {shown(constraint)}"
            )
        if not constraint.fits(self):
            raise RequestError(
                "constraint: must be for this model's tokens, but was made for another's; make it "
                "with this LLM.constraints"
            )
        return constraint.guide(max_tokens)

    def json_schema(
        self, schema: Mapping[str, Any] | str | bool, *, strict: bool = True
    ) -> Constraint:
        """JSON that a schema describes: an object, or its JSON.

        strict: a schema of which something would not be enforced is refused; False: that is left
        out, oneOf counts as anyOf, and `Constraint.ignored` says what.
        """
        checked_flag("strict", strict)
        read = read_schema(schema)
        ignored = problems(read)
        if ignored and strict:
            raise RequestError(_refusal("schema", ignored[0]))
        grammar = self._library.LLMatcher.grammar_from_json_schema(
            json.dumps(for_llguidance(read)), overrides=grammar_options(strict)
        )
        return self._compiled("schema", grammar, tuple(ignored), strict)

    def json_object(self) -> Constraint:
        """Any JSON object."""
        return self.json_schema(_ANY_OBJECT)

    def regex(self, pattern: str) -> Constraint:
        """A text that the pattern matches from begin to end: Rust's syntax, without look-around."""
        text = _checked_text("regex", pattern)
        return self._compiled("regex", self._library.LLMatcher.grammar_from_regex(text))

    def lark(self, grammar: str) -> Constraint:
        """A text of llguidance's kind of Lark grammar, whose first rule is `start`."""
        text = _checked_text("grammar", grammar)
        return self._compiled("grammar", self._library.LLMatcher.grammar_from_lark(text))

    def choice(self, choices: Sequence[str]) -> Constraint:
        """One of several texts."""
        if isinstance(choices, str):
            raise RequestError(f"choice: must be several texts, but got {shown(choices)}")
        texts = list(checked_items("choice", choices, "a sequence of texts"))
        if not 1 <= len(texts) <= MAX_CHOICES:
            raise RequestError(f"choice: must have 1..{MAX_CHOICES} texts, but has {len(texts)}")
        quotes = [quoted(_checked_text("choice", text)) for text in texts]
        return self.lark("start: " + " | ".join(quotes))

    def tools(
        self,
        calls: Sequence[ToolCall],
        trigger: str,
        required: bool = False,
        several: bool = True,
        answer: Constraint | None = None,
    ) -> Constraint:
        """A text in which each `trigger` opens a call of a tool, and nothing else.

        Each begin must start with the trigger. required: the answer is calls alone, one at least.
        several: whether there may be more than one; else the answer ends with it. answer: what an
        answer keeps to that is no calls alone; None: any text, and calls within it.
        """
        if not calls or not trigger or not all(c.begin.startswith(trigger) for c in calls):
            raise RequestError(
                "tools: must have calls, each of which begins with the trigger, but got "
                f"{shown(trigger)} and {shown([c.begin for c in calls])}"
            )
        bodies, ignored = [], list(answer.ignored if answer else ())
        for i, call in enumerate(calls):
            body, rules, left = _body(call, f"value_{i}")
            if left and call.strict:
                raise RequestError(_refusal(f"tool {i}", left[0]))
            ignored += [f"tool {i}: {what}" for what in left]
            bodies.append((call, body, rules))
        grammar = calls_grammar(
            bodies, self._marks, trigger, required=required, several=several,
            answer=answer.grammar if answer else None,
        )  # fmt: skip
        strict = all(call.strict for call in calls) and not ignored
        return self._compiled("tools", grammar, tuple(ignored), strict)

    def behind_thoughts(self, constraint: Constraint, opened: bool) -> Constraint:
        """As `Constraint.behind_thoughts`."""
        grammar = behind_thoughts(constraint.grammar, self._marks, opened, OPEN, CLOSE)
        made = self._compiled("constraint", grammar, constraint.ignored, not constraint.ignored)
        made._opened = opened
        return made

    def _compiled(
        self, what: str, grammar: str, ignored: tuple[str, ...] = (), strict: bool = True
    ) -> Constraint:
        library, limits = self._library, self._limits
        matcher = _within(DEADLINE_S, what, lambda: library.LLMatcher(
            self._tokens, grammar, log_level=0, limits=limits
        ))  # fmt: skip
        if matcher.is_error():
            raise RequestError(_refusal(what, f"llguidance says {_line(matcher.get_error())}"))
        warnings = [_line(warning) for warning in matcher.get_grammar_warnings()]
        if warnings and strict:
            raise RequestError(_refusal(what, f"llguidance says {warnings[0]}"))
        if matcher.is_stopped():
            raise RequestError(f"{what}: must allow a text, but allows none but the empty one")
        return Constraint(matcher, grammar, self, self._tokens.eos_tokens, (*ignored, *warnings))

    @cached_property
    def _library(self) -> Any:
        try:
            import llguidance  # a part that not everybody needs
        except ImportError:
            raise RequestError(
                "constraint: needs llguidance, which is not installed; pip install "
                "'sterna[constraints]'"
            ) from None
        return llguidance

    @property
    def _tokens(self) -> llguidance.LLTokenizer:
        """The vocabulary as llguidance has it, made once: a second for 128k tokens."""
        with self._lock:
            return self._made_tokens

    @cached_property
    def _made_tokens(self) -> llguidance.LLTokenizer:
        ends = list(self.tokenizer.eos_ids)
        text = self.tokenizer.to_json()
        try:
            made = self._library.LLTokenizer(text, n_vocab=self.vocab, eos_token=ends or None)
        except ValueError as e:
            raise RequestError(
                f"constraint: must have a tokenizer that llguidance knows, but it says {_line(e)}"
            ) from None
        tokens: llguidance.LLTokenizer = made
        self._warm_up(tokens)
        return tokens

    def _warm_up(self, tokens: llguidance.LLTokenizer) -> None:
        """Has llguidance sort the vocabulary: with 128k tokens that takes a third of a second, at
        the first mask of a string, and must not be a step's."""
        matcher = self._library.LLMatcher(
            tokens,
            self._library.LLMatcher.grammar_from_json_schema('{"type": "string"}'),
            log_level=0,
        )
        matcher.consume_tokens(tokens.tokenize_str('"'))
        matcher.compute_bitmask()

    @cached_property
    def _marks(self) -> Marks:
        """Tokens that llguidance matches by their ids alone."""
        tokens, added = self._tokens, self.tokenizer.added
        below = {text: id for text, id in added.items() if id < self.vocab}
        return Marks({text: id for text, id in below.items() if tokens.is_special_token(id)})

    @property
    def _limits(self) -> llguidance.LLParserLimits:
        """llguidance's own, but for errors, which would quote the text."""
        limits: llguidance.LLParserLimits = self._library.LLParserLimits(verbose_errors=False)
        return limits


def _body(call: ToolCall, name: str) -> tuple[str, list[str], list[str]]:
    """What describes the value of a call in a grammar, the rules that this names, by this name, and
    what of its schema is left out."""
    read = read_schema(call.schema)
    left = problems(read)
    if call.members and isinstance(read, dict):
        body, rules = call.members.rules(name, read)
        return body, rules, [*left, *call.members.left_out(read)]
    options = {"x-guidance": grammar_options(call.strict)}
    return f"%json {json.dumps({**for_llguidance(read), **options})}", [], left


def _within(seconds: float, what: str, work: Callable[[], T]) -> T:
    """What the work gives; RequestError where it takes longer."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as e:  # handed on below
            errors.append(e)

    thread = threading.Thread(target=run, name="constraint", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise RequestError(f"{what}: must be compiled within {seconds:g} s, but takes longer")
    return results[0]


def _checked_text(name: str, text: object) -> str:
    if not isinstance(text, str) or not text:
        raise RequestError(f"{name}: must be a text that is not empty, but got {shown(text)}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise RequestError(f"{name}: must be valid Unicode, but got {shown(text)}") from None
    if size > MAX_GRAMMAR_BYTES:
        raise RequestError(f"{name}: must have at most {MAX_GRAMMAR_BYTES} bytes, but has {size}")
    return text


def _refusal(what: str, reason: str) -> str:
    return f"{what}: must be enforced in full, but {reason}"


def _line(text: object) -> str:
    return shown(" ".join(str(text).split()))
