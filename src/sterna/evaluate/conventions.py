"""Which tokens of a text a perplexity counts, and how much context each has, under three names.

Perplexities are comparable only with the same convention: more context lowers them.
docs/how-to/measure-quality.md compares the three.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sterna.errors import RequestError, shown

__all__ = ["CONVENTIONS", "LLAMA_CPP", "Convention", "chunks", "windows"]

LLAMA_CPP = "llama.cpp"
CONVENTIONS = ("sterna", LLAMA_CPP, "transformers")
LLAMA_CPP_WINDOW = 512  # --ctx-size where llama-perplexity is given none
TRANSFORMERS_STRIDE = 512  # of the guide "Perplexity of fixed-length models"
Span = tuple[int, int, int]


def windows(n_tokens: int, window: int, stride: int | None = None) -> Iterator[Span]:
    """Yield (begin, end, first scored) of each window of a document.

    Each token is scored once, in the first window that has it, after at least window - stride
    tokens, or after all earlier ones if these are fewer. Token 0 is not scored. If the stride is a
    whole window, the first token of every window is not scored either. stride: tokens between the
    starts of two windows; default half a window.
    """
    stride = stride or max(window // 2, 1)
    begin, scored = 0, 1
    while scored < n_tokens:
        end = min(begin + window, n_tokens)
        if scored < end:
            yield begin, end, scored
        begin += stride
        scored = max(end, begin + 1)


def chunks(n_tokens: int, window: int, stride: int | None = None) -> Iterator[Span]:
    """Yield the spans of llama.cpp's perplexity tool: whole windows, without the remaining end.

    Without a stride they do not overlap, and only the second half of each is scored. With a stride
    they are `stride` apart, and the last `stride` tokens of each are scored.
    """
    if stride is None:
        for begin in range(0, n_tokens - window + 1, window):
            yield begin, begin + window, begin + window // 2 + 1
    else:
        for begin in range(0, n_tokens - window, stride):
            yield begin, begin + window, begin + window - stride


@dataclass(frozen=True)
class Convention:
    """A convention with its sizes, in tokens; stride is None for llama.cpp's disjoint chunks."""

    name: str
    window: int
    stride: int | None

    @classmethod
    def of(
        cls, name: str, *, limit: int, context: int | None = None, stride: int | None = None
    ) -> Convention:
        """Make the convention of a name, for a model of `limit` positions.

        context: tokens of a window; default the limit, for llama.cpp 512. A stride makes
        llama.cpp's window stride / 2 longer. stride: default half a window, with transformers at
        most 512, with llama.cpp none. Raises RequestError for an unknown name or a wrong size.
        """
        if name not in CONVENTIONS:
            raise RequestError(
                f"convention: must be one of {', '.join(CONVENTIONS)}, but got {shown(name)}"
            )
        llama = name == LLAMA_CPP
        window = (min(LLAMA_CPP_WINDOW, limit) if llama else limit) if context is None else context
        least = 4 if llama else 2
        if not least <= window <= limit:
            fits = f"lie in {least}..{limit}, the model's"
            rule = fits if least <= limit else f"be at least {least} to measure with"
            remedy = "raise" if window < least else "lower"
            raise RequestError(f"context: must {rule}, but got {window}; {remedy} it")
        if stride is not None and not 1 <= stride <= (window - 1 if llama else window):
            raise RequestError(
                f"stride: must lie in 1..{window - 1 if llama else window} for a window of "
                f"{window} tokens, but got {stride}; lower it"
            )
        if llama:
            window += (stride or 0) // 2
        elif stride is None:
            most = TRANSFORMERS_STRIDE if name == "transformers" else window
            stride = max(min(most, window // 2), 1)
        if window > limit:
            raise RequestError(
                f"context: with a stride llama.cpp's window is {window} tokens, context + stride / "
                f"2, but the model's is {limit}; lower --context or --stride"
            )
        return cls(name, window, stride)

    @property
    def reopens(self) -> bool:
        """Whether each window starts with BOS in place of its first token.

        llama.cpp's strided variant is meant to, but writes BOS after the window is computed.
        """
        return self.name == LLAMA_CPP and self.stride is None

    @property
    def scores_all(self) -> bool:
        """Whether every token of a document but its first is scored."""
        return self.name != LLAMA_CPP and self.stride != self.window

    def spans(self, n_tokens: int, document: int = 1) -> Iterator[Span]:
        """Yield (begin, end, first scored) of each window of a document.

        llama.cpp needs a text of two windows (RequestError).
        """
        if self.name != LLAMA_CPP:
            return windows(n_tokens, self.window, self.stride)
        if n_tokens < 2 * self.window:
            raise RequestError(
                f"llama.cpp: needs texts of two windows, {2 * self.window} tokens, but document "
                f"{document} has {n_tokens}; lower --context or join the files"
            )
        return chunks(n_tokens, self.window, self.stride)
