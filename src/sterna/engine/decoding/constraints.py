"""`Constraints`: compiles grammars that answers must follow, by llguidance and within limits.

A constraint is refused, with the reason, unless all of it is enforced: docs/how-to/constrain.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sterna.chat.reasoning import ReasoningMarks
from sterna.checks import checked_flag, checked_items
from sterna.engine.decoding.grammar_compiler import GrammarCompiler, refusal
from sterna.engine.decoding.grammar_matcher import GrammarMatcher
from sterna.engine.decoding.reasoning_budget import ROOM, ReasoningBudget, ReasoningMatcher
from sterna.engine.decoding.special_tokens import SpecialTokens, quoted
from sterna.errors import RequestError, shown
from sterna.tokenizer import Tokenizer

if TYPE_CHECKING:
    import llguidance

    from sterna.engine.decoding.grammars import CallGroup, Frame, Messages, TextArgument, ToolCall

__all__ = ["Constraint", "Constraints"]

MAX_GRAMMAR_BYTES = 1 << 18
MAX_CHOICES = 10_000
_ANY_OBJECT = {"type": "object"}
#: Strings, comments and patterns of a Lark grammar.
_LITERALS = re.compile(r'"(?:\\.|[^"\\\n])*"|//.*|/(?:\\.|[^/\\\n])+/')


class Constraint:
    """A compiled grammar; any number of answers may follow it at once.

    ignored: parts of a schema that are not enforced, only possible with strict=False.
    """

    def __init__(
        self,
        compiler: GrammarCompiler,
        what: str,
        grammar: str,
        ignored: tuple[str, ...] = (),
        strict: bool = True,
    ) -> None:
        """Compile a grammar; arguments as in `GrammarCompiler.compile`. RequestError."""
        matcher, warnings = compiler.compile(what, grammar, strict)
        self._compiler, self._ends = compiler, compiler.ends
        self._compiled = [matcher]  # for the first answer
        self.grammar = grammar
        self.ignored: tuple[str, ...] = (*ignored, *warnings)
        #: Of a constraint after reasoning: whether the prompt has opened that.
        self._opened: bool | None = None
        self._marks = ReasoningMarks()
        #: Of a constraint with calls: the grammar of those that leave reasoning open, and whether
        #: the answer may end within it.
        self._within: str | None = None
        self._ends_within = False
        self._behind: dict[tuple[bool, ReasoningMarks], Constraint] = {}

    def after_reasoning(self, opened: bool, marks: ReasoningMarks | None = None) -> Constraint:
        """Return a constraint that lets an answer think first.

        opened: whether the prompt has opened the reasoning; else the answer may open it, or have
        none. marks: its marks; default <think> and </think>. Raises RequestError if that is
        too complex.
        """
        key = opened, marks or ReasoningMarks()
        if key not in self._behind:
            self._behind[key] = self._after_reasoning(*key)
        return self._behind[key]

    def _after_reasoning(self, opened: bool, marks: ReasoningMarks) -> Constraint:
        from sterna.engine.decoding.grammars import after_reasoning

        grammar = after_reasoning(
            self.grammar,
            self._compiler.special,
            opened,
            (marks.opens.strip(), marks.closes.strip()),
            self._within,
            self._ends_within,
        )
        strict = not self.ignored
        made = Constraint(self._compiler, "constraint", grammar, self.ignored, strict)
        made._opened, made._marks = opened, marks
        return made

    def matcher(
        self, max_tokens: int = 0, reasoning: ReasoningBudget | None = None
    ) -> GrammarMatcher:
        """Return a matcher for one answer of at most `max_tokens`; 0: no limit.

        reasoning: its budget.
        """
        if self._opened is not None and max_tokens:
            budget, tokenizer = int(max_tokens * (1 - ROOM)), self._compiler.tokenizer
            own = ReasoningBudget.of_marks(self._marks, self._opened, budget, tokenizer)
            reasoning = own if reasoning is None or own.budget < reasoning.budget else reasoning
        return GrammarMatcher(self._new_matcher, self._compiler.vocab, self._ends, reasoning)

    def _new_matcher(self) -> llguidance.LLMatcher:
        """Return a matcher at the begin of an answer.

        Compiled, not copied: copies share a lexer, whose errors would end other answers.
        """
        try:
            return self._compiled.pop()
        except IndexError:
            return self._compiler.new_matcher(self.grammar)

    def fits(self, compiler: GrammarCompiler) -> bool:
        """Whether a compiler is for the same tokens as this constraint."""
        return self._compiler.has_tokens_of(compiler)


class Constraints:
    """Compiles constraints for a model's tokens.

    Methods raise RequestError for what cannot be enforced, for grammars that are too large or
    complex, and if llguidance is not installed.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        """`vocab`: tokens of the model, at least the tokenizer's."""
        self._compiler = GrammarCompiler(tokenizer, vocab)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._compiler.tokenizer

    def matcher(
        self, constraint: object, max_tokens: int = 0, reasoning: ReasoningBudget | None = None
    ) -> GrammarMatcher | ReasoningMatcher | None:
        """Return a matcher as `Constraint.matcher`, for an answer of this model; None for none."""
        if constraint is None:
            return ReasoningMatcher(reasoning, self._compiler.vocab) if reasoning else None
        if not isinstance(constraint, Constraint):
            raise RequestError(
                f"constraint: must be one of LLM.constraints, but got {shown(constraint)}"
            )
        if not constraint.fits(self._compiler):
            raise RequestError(
                "constraint: must be for this model's tokens, but was made for another's; make it "
                "with this LLM.constraints"
            )
        return constraint.matcher(max_tokens, reasoning)

    def json_schema(
        self, schema: Mapping[str, Any] | str | bool, *, strict: bool = True
    ) -> Constraint:
        """Compile a JSON schema, given as an object or as JSON.

        strict: refuse a schema of which any part cannot be enforced; False: leave these parts out,
        malformed ones among them, take oneOf as anyOf, and list them in `Constraint.ignored`.
        """
        from sterna.engine.decoding.json_schema_rewriting import (
            for_llguidance,
            grammar_options,
            read_schema,
            unenforced,
        )
        from sterna.engine.decoding.malformed_schemas import without_malformed

        checked_flag("strict", strict)
        read, malformed = read_schema(schema), list[str]()
        if not strict:
            read, malformed = without_malformed(read)
        ignored = [*malformed, *unenforced(read)]
        if ignored and strict:
            raise RequestError(refusal("schema", ignored[0]))
        grammar = self._compiler.library.LLMatcher.grammar_from_json_schema(
            json.dumps(for_llguidance(read)), overrides=grammar_options(strict)
        )
        return Constraint(self._compiler, "schema", grammar, tuple(ignored), strict)

    def json_object(self) -> Constraint:
        """Compile a grammar of any JSON object."""
        return self.json_schema(_ANY_OBJECT)

    def regex(self, pattern: str) -> Constraint:
        """Compile a pattern for the whole answer: Rust's syntax, without look-around."""
        text = _checked_text("regex", pattern)
        return Constraint(
            self._compiler, "regex", self._compiler.library.LLMatcher.grammar_from_regex(text)
        )

    def lark(self, grammar: str) -> Constraint:
        """Compile a grammar in llguidance's kind of Lark, whose first rule is `start`."""
        from sterna.engine.decoding.json_schema_rewriting import MOST_PATTERNS

        text = _checked_text("grammar", grammar)
        if (count := _LITERALS.sub("", text).count("&")) >= MOST_PATTERNS:
            raise RequestError(
                f"grammar: must have fewer than {MOST_PATTERNS} intersections (&), but has {count}"
            )
        return Constraint(
            self._compiler, "grammar", self._compiler.library.LLMatcher.grammar_from_lark(text)
        )

    def gbnf(self, grammar: str) -> Constraint:
        """Compile a grammar in GBNF, that of llama.cpp, whose first rule is `root`."""
        from sterna.engine.decoding.gbnf import lark_of_gbnf

        text = _checked_text("grammar", grammar)
        _ = self._compiler.library
        return Constraint(self._compiler, "grammar", lark_of_gbnf(text))

    def grammar(self, grammar: str) -> Constraint:
        """Compile a grammar in Lark or GBNF, which its rules tell apart."""
        from sterna.engine.decoding.gbnf import is_gbnf

        text = _checked_text("grammar", grammar)
        return self.gbnf(text) if is_gbnf(text) else self.lark(text)

    def choice(self, choices: Sequence[str]) -> Constraint:
        """Compile a choice between texts."""
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
        *,
        frame: Frame | None = None,
        messages: Messages | None = None,
        others: Sequence[CallGroup] = (),
    ) -> Constraint:
        """Compile a grammar of texts in which each `trigger` opens a call of a tool.

        calls: how each tool is called. required: the answer consists of calls, at least one.
        several: allow more than one call; else the answer ends with the first. answer: the
        constraint of an answer without calls; None: any text, with calls in it. frame: what stands
        around calls; the trigger must open it, or each call. messages: the answer consists of
        these; calls may then be none if there is an answer. others: more ways to call in any text.

        In any text, calls that are not strict are opened by the whole text that all calls begin
        with (`CallGroup.opening`), so that it may mention the trigger.
        """
        from sterna.engine.decoding.grammars import NO_FRAME, CallGroup, CallRules, calls_within
        from sterna.engine.decoding.grammars import calls as calls_grammar

        frame = frame or NO_FRAME
        opens = [frame.opens or call.begin for call in calls]
        lacks = not calls or not trigger or not all(text.startswith(trigger) for text in opens)
        if lacks and not (messages and (calls or answer)):
            raise RequestError(
                "tools: must have calls that all begin with the trigger, but got "
                f"{shown(trigger)} and {shown(opens)}"
            )
        ignored = list(answer.ignored if answer else ())
        groups = [CallGroup(calls, trigger, frame), *others]
        free = not (required or answer or messages or any(call.strict for call in calls))
        made = list[CallRules]()
        for i, group in enumerate(groups):
            bodies = self._bodies(group, f"group_{i}_" if i else "", ignored)
            opening = group.opening if free else group.trigger
            made.append(CallRules(bodies, opening, group.frame, required, several, messages))
        rules = replace(made[0], others=made[1:])
        grammar = calls_grammar(rules, self._compiler.special, answer.grammar if answer else None)
        enforced = all(call.strict for call in calls) and not ignored
        compiled = Constraint(self._compiler, "tools", grammar, tuple(ignored), enforced)
        if calls and not messages:
            only = required or answer is not None
            first, *more = (
                replace(one, trigger=group.opening) for one, group in zip(made, groups, strict=True)
            )
            within = replace(first, others=more)
            compiled._within = calls_within(within, self._compiler.special, only)
            compiled._ends_within = not only
        return compiled

    def _bodies(
        self, group: CallGroup, prefix: str, ignored: list[str]
    ) -> list[tuple[ToolCall, str, list[str]]]:
        """Return the grammars of a group's calls; adds unenforced parts to `ignored`."""
        bodies = []
        for i, call in enumerate(group.calls):
            if call.text:
                self.lark(call.text.lark)  # alone, so that it cannot reach beyond its place
            body, rules, left = _body(call, f"{prefix}value_{i}", self._compiler.special)
            if left and call.strict:
                raise RequestError(refusal(f"tool {i}", left[0]))
            if not prefix:
                ignored += [f"tool {i}: {what}" for what in left]
            bodies.append((call, body, rules))
        return bodies


def _body(call: ToolCall, name: str, special: SpecialTokens) -> tuple[str, list[str], list[str]]:
    """Return the grammar of a call's value, the rules that it uses (prefixed with `name`), and the
    parts of its schema that are left out."""
    from sterna.engine.decoding.json_schema_rewriting import (
        for_llguidance,
        grammar_options,
        read_schema,
        unenforced,
    )
    from sterna.engine.decoding.malformed_schemas import without_malformed

    if call.text:
        return _text_body(call, call.text, special), [], []
    read, left = read_schema(call.schema), list[str]()
    if not call.strict:
        read, left = without_malformed(read)
    left += unenforced(read)
    if call.tagged and isinstance(read, dict):
        body, rules = call.tagged.rules(name, read, special)
        return body, rules, [*left, *call.tagged.left_out(read)]
    options = {"x-guidance": grammar_options(call.strict)}
    return f"%json {json.dumps({**for_llguidance(read), **options})}", [], left


def _text_body(call: ToolCall, text: TextArgument, special: SpecialTokens) -> str:
    """Return the grammar of a call's value whose only argument is a text of a grammar."""
    from sterna.engine.decoding.escaped_lark import JSON_STRING, string_of
    from sterna.engine.decoding.json_schema_rewriting import WHITE_SPACE

    if call.tagged:
        return call.tagged.text_argument(text.name, text.lark, special)
    opens = rf"/\{{{WHITE_SPACE}{json.dumps(text.name)}{WHITE_SPACE}:{WHITE_SPACE}/"
    return f"{opens} {string_of(text.lark, JSON_STRING, chr(34))} /{WHITE_SPACE}\\}}/"


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
