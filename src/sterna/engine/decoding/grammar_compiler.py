"""`GrammarCompiler`: compiles grammars by llguidance, for a model's tokens and within limits."""

from __future__ import annotations

import re
import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sterna.engine.decoding.cpu_time import CpuTimeExceeded, within_cpu_time
from sterna.engine.decoding.special_tokens import SpecialTokens
from sterna.errors import RequestError, shown
from sterna.tokenizer import Tokenizer

if TYPE_CHECKING:
    import llguidance

__all__ = ["GrammarCompiler", "refusal"]

#: Seconds of CPU time that compiling may take: ten times as much as the largest grammars that
#: llguidance's own limits let through. It is for those that its limits miss.
MAX_CPU_S = 10.0
#: The reasons in llguidance's errors for a regular expression, and for a line of a grammar.
_REGEX_ERROR = re.compile(r"(?:\n {4}([^\n]*)\n {4}( *)\^+)?\nerror: ([^\n]+)")
_GRAMMAR_ERROR = re.compile(r"^at (\d+)\((\d+)\): ([^\n]+)")


class GrammarCompiler:
    """Compiles grammars for a model's tokens.

    Methods raise RequestError for grammars that are too complex, and if llguidance is not
    installed.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        """`vocab`: tokens of the model, at least the tokenizer's."""
        self.tokenizer = tokenizer
        self.vocab = vocab
        self._lock = threading.Lock()

    def has_tokens_of(self, other: GrammarCompiler) -> bool:
        """Whether another compiler is for the same tokens."""
        return self is other or (
            self.vocab == other.vocab and self.tokenizer.digest == other.tokenizer.digest
        )

    def new_matcher(self, grammar: str) -> llguidance.LLMatcher:
        """Compile a grammar; the matcher knows the error of one that is invalid or too complex."""
        made: llguidance.LLMatcher = self.library.LLMatcher(
            self._tokens, grammar, log_level=0, limits=self._limits
        )
        return made

    def compile(
        self, what: str, grammar: str, strict: bool
    ) -> tuple[llguidance.LLMatcher, tuple[str, ...]]:
        """Return a matcher and llguidance's warnings.

        what: names the grammar in errors. strict: a warning is an error.
        """
        _ = self._tokens  # takes longer than a grammar, and counts for none
        try:
            matcher = within_cpu_time(MAX_CPU_S, lambda: self.new_matcher(grammar))
        except CpuTimeExceeded:
            raise RequestError(
                f"{what}: must be compiled within {MAX_CPU_S:g} s of CPU time, but takes more"
            ) from None
        if matcher.is_error():
            raise RequestError(_said(what, str(matcher.get_error())))
        warnings = [_line(warning) for warning in matcher.get_grammar_warnings()]
        if warnings and strict:
            raise RequestError(refusal(what, warnings[0]))
        if matcher.is_stopped():
            raise RequestError(f"{what}: must allow a text, but allows only the empty one")
        return matcher, tuple(warnings)

    @property
    def ends(self) -> list[int]:
        """The ids that end a text."""
        return list(self._tokens.eos_tokens)

    @cached_property
    def library(self) -> Any:
        """The module llguidance."""
        try:
            import llguidance  # an optional dependency
        except ImportError:
            raise RequestError(
                "constraint: needs llguidance, which is not installed; pip install "
                "'sterna[constraints]'"
            ) from None
        return llguidance

    @property
    def _tokens(self) -> llguidance.LLTokenizer:
        """llguidance's vocabulary, made once: takes a second for 128k tokens."""
        with self._lock:
            return self._made_tokens

    @cached_property
    def _made_tokens(self) -> llguidance.LLTokenizer:
        ends = list(self.tokenizer.eos_ids)
        text = self.tokenizer.to_json()
        try:
            made = self.library.LLTokenizer(text, n_vocab=self.vocab, eos_token=ends or None)
        except ValueError as e:
            raise RequestError(
                f"constraint: must have a tokenizer that llguidance knows, but it says {_line(e)}"
            ) from None
        tokens: llguidance.LLTokenizer = made
        self._warm_up(tokens)
        return tokens

    def _warm_up(self, tokens: llguidance.LLTokenizer) -> None:
        """Make llguidance sort the vocabulary now, which it would do at the first mask of a string:
        a third of a second for 128k tokens, too long for a step."""
        matcher = self.library.LLMatcher(
            tokens,
            self.library.LLMatcher.grammar_from_json_schema('{"type": "string"}'),
            log_level=0,
        )
        matcher.consume_tokens(tokens.tokenize_str('"'))
        matcher.compute_bitmask()

    @cached_property
    def special(self) -> SpecialTokens:
        """Special tokens, which llguidance matches only by their ids."""
        tokens, added = self._tokens, self.tokenizer.added
        below = {text: id for text, id in added.items() if id < self.vocab}
        return SpecialTokens(
            {text: id for text, id in below.items() if tokens.is_special_token(id)},
            self.tokenizer.eos_ids,
        )

    @property
    def _limits(self) -> llguidance.LLParserLimits:
        """llguidance's own limits, but errors that do not quote the text."""
        limits: llguidance.LLParserLimits = self.library.LLParserLimits(verbose_errors=False)
        return limits


def refusal(what: str, reason: str) -> str:
    """Return the message of an error: a grammar cannot be enforced, for a reason."""
    return f"{what}: must be enforced in full, but {reason}"


def _said(what: str, error: str) -> str:
    """Return an error of llguidance as ours, without the copies of the grammar around it."""
    if match := _REGEX_ERROR.search(error):
        quoted, before, reason = match.groups()
        # Other grammars quote a part of theirs, perhaps rewritten; line breaks are escaped.
        is_whole = what == "regex" and quoted is not None and r"\n" not in quoted
        return f"{what}: {reason} at {len(before)}" if is_whole else f"{what}: {reason}"
    if match := _GRAMMAR_ERROR.search(error):
        return f"{what}: {match[3]} (line {match[1]}, column {match[2]})"
    return refusal(what, f"llguidance says {_line(error)}")


def _line(text: object) -> str:
    return shown(" ".join(str(text).split()))
