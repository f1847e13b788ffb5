"""The parts of an `LLM` that its methods use."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from sterna import loading
from sterna.engine import Engine, EngineLoop, PrefixCache, Request
from sterna.engine.decoding.constraints import Constraints
from sterna.llm.adapters import Adapters
from sterna.llm.chat_renderer import ChatRenderer
from sterna.llm.prompt_encoder import PromptEncoder
from sterna.llm.request_factory import RequestFactory
from sterna.outputs import AnswerReader, Completion, Piece, Stream
from sterna.tokenizer import Tokenizer

if TYPE_CHECKING:
    from sterna.llm.cross_encoder import CrossEncoder
    from sterna.llm.decider import Decider
    from sterna.llm.embedder import Embedder

__all__ = ["LLMParts"]


class LLMParts:
    """The parts of an `LLM`, whose docstring says what each part does."""

    model: loading.Model
    engine: Engine
    engine_loop: EngineLoop
    requests: RequestFactory
    renderer: ChatRenderer
    tokenizer: Tokenizer
    adapters: Adapters
    constraints: Constraints
    _encoder: PromptEncoder

    @property
    def prefix_cache(self) -> PrefixCache | None:
        """The keys and values of earlier requests; None if none are kept."""
        return self.engine_loop.scheduler.cache

    # These are imported when they are asked for: most starts only generate.

    @property
    def decider(self) -> Decider:
        """Makes requests from the questions of `decide`."""
        from sterna.llm.decider import Decider

        return Decider(self.engine, self.tokenizer, self.renderer, self.adapters)

    @property
    def embedder(self) -> Embedder:
        """What makes the vectors of `embed`."""
        from sterna.llm.embedder import Embedder

        return Embedder(self.engine, self.tokenizer)

    @property
    def cross_encoder(self) -> CrossEncoder:
        """What makes the scores of `score`."""
        from sterna.llm.cross_encoder import CrossEncoder

        return CrossEncoder(self.engine, self.tokenizer, self.renderer)

    def start(self, request: Request, *, chat: bool = False) -> Stream:
        """Start a request that `requests` made. chat: give the pieces their parts (`Piece`)."""
        pieces = self.engine_loop.pieces(request)
        return Stream(_read(pieces, request) if chat else pieces, request.completion)

    def _answers(self, requests: Sequence[Request]) -> list[Completion]:
        """Run requests at the same time; raises the first error."""
        for request in self.engine_loop.finished(requests):
            if request.error is not None:
                raise request.error
        return [request.completion for request in requests]


def _read(pieces: Generator[Piece, None, None], request: Request) -> Generator[Piece, None, None]:
    """Yield pieces of a chat's answer with the parts that its parser finds."""
    reader = AnswerReader(request.completion)
    try:
        yield from map(reader.read, pieces)
        last = reader.end()
        if last is not None:
            yield last
    finally:
        pieces.close()
