"""The parts of an `LLM` that its methods use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sterna import loading
from sterna.engine import Engine, EngineLoop, Request
from sterna.engine.decoding.constraints import Constraints
from sterna.llm.adapters import Adapters
from sterna.llm.chat_renderer import ChatRenderer
from sterna.llm.prompt_encoder import PromptEncoder
from sterna.llm.request_factory import RequestFactory
from sterna.outputs import Completion, Stream
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
    last: Completion
    _encoder: PromptEncoder

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
    def _cross_encoder(self) -> CrossEncoder:
        from sterna.llm.cross_encoder import CrossEncoder

        return CrossEncoder(self.engine, self.tokenizer, self.renderer)

    def start(self, request: Request) -> tuple[Completion, Stream]:
        """Start a request; return its completion, and the stream that fills it."""
        self.last = request.completion
        return request.completion, Stream(self.engine_loop.pieces(request))

    def _answers(self, requests: Sequence[Request]) -> list[Completion]:
        """Run requests at the same time; raises the first error."""
        for request in self.engine_loop.finished(requests):
            if request.error is not None:
                raise request.error
        return [request.completion for request in requests]
