"""Constraints: grammars that an answer keeps to, compiled by llguidance within limits.

A constraint is refused, with the reason, unless all of it is enforced; docs/constrained.md says
what that takes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from sterna.checks import checked_flag, checked_items
from sterna.engine.guide import Guide
from sterna.engine.schemas import for_llguidance, grammar_options, problems, read_schema
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
#: Any text, and a JSON object of any kind.
_TEXT = r"/(.|\n)*/"
_ANY_OBJECT = {"type": "object"}


@dataclass(frozen=True)
class ToolCall:
    """How an answer calls one tool: `begin`, a JSON value of the schema, `end`.

    <tool_call>{"name": "f", "arguments": ...}</tool_call>, say, has the schema of f's parameters.
    """

    begin: str
    schema: Mapping[str, Any] | bool
    end: str = ""


class Constraint:
    """A compiled grammar, which any number of answers may keep to at once.

    ignored: what of a schema is not enforced; nothing, unless it was compiled with strict=False.
    """

    def __init__(
        self, matcher: llguidance.LLMatcher, of: Constraints, ends: Sequence[int],
        ignored: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self._matcher, self._of, self._ends = matcher, of, ends
        self.ignored = ignored

    def guide(self) -> Guide:
        """For one answer."""
        return Guide(self._matcher.deep_copy(), self._of.vocab, self._ends)

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

    def guide(self, constraint: object) -> Guide | None:
        """For an answer of this model; None where the constraint is."""
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
        return constraint.guide()

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
        quoted = [_quoted(_checked_text("choice", text)) for text in texts]
        return self.lark("start: " + " | ".join(quoted))

    def tools(
        self, calls: Sequence[ToolCall], trigger: str, required: bool = False, several: bool = True
    ) -> Constraint:
        """A text in which each `trigger` opens a call of a tool, and nothing else.

        Each begin must start with the trigger. required: the answer is calls alone, one at least.
        several: whether there may be more than one; else the answer ends with it.
        """
        if not calls or not trigger or not all(c.begin.startswith(trigger) for c in calls):
            raise RequestError(
                "tools: must have calls, each of which begins with the trigger, but got "
                f"{shown(trigger)} and {shown([c.begin for c in calls])}"
            )
        head = "call_head" + ("" if required else "[lazy]")
        opened = _quoted(trigger) if required else f"TEXT {_quoted(trigger)}"
        if self.tokenizer.is_added(trigger):  # a token that no text spells
            opened = trigger if required else f"TEXT {trigger}"
            head = "call_head"
        rules = [f"{head}: {opened}", f"TEXT: {_TEXT}"]
        names = []
        for i, call in enumerate(calls):
            read = read_schema(call.schema)
            if wrong := problems(read):
                raise RequestError(_refusal(f"tool {i}", wrong[0]))
            value = json.dumps({**for_llguidance(read), "x-guidance": grammar_options(strict=True)})
            parts = (_quoted(call.begin.removeprefix(trigger)), f"%json {value}", _quoted(call.end))
            rules.append(f"call_{i}: call_head {' '.join(p for p in parts if p != _quoted(''))}")
            names.append(f"call_{i}")
        one = f"({' | '.join(names)})"
        start = one + "+" * several if required else f"{one}* TEXT" if several else f"{one} | TEXT"
        return self.lark("\n".join(["%llguidance {}", f"start: {start}", *rules]))

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
        return Constraint(matcher, self, self._tokens.eos_tokens, (*ignored, *warnings))

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

    @property
    def _limits(self) -> llguidance.LLParserLimits:
        """llguidance's own, but for errors, which would quote the text."""
        limits: llguidance.LLParserLimits = self._library.LLParserLimits(verbose_errors=False)
        return limits


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


def _quoted(text: str) -> str:
    """As a grammar spells a text."""
    return json.dumps(text, ensure_ascii=False)


def _refusal(what: str, reason: str) -> str:
    return f"{what}: must be enforced in full, but {reason}"


def _line(text: object) -> str:
    return shown(" ".join(str(text).split()))
