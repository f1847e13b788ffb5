"""`MtpDrafts`: drafts of a model's MTP layer (its graph is models/mtp.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.engine.decoding.sampling import Draw, checked_finite
from sterna.engine.engine import PREFILL_CHUNK, Engine, StepInput
from sterna.engine.kv_cache.sequence import Sequence
from sterna.errors import NonFiniteError, RequestError

__all__ = ["MtpDrafts"]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


class MtpDrafts:
    """Drafts of an MTP layer, drawn with the request's own random numbers.

    Its sequence, in an engine of its own, has a position for each token from `_first` on: that
    token and the hidden state of the token before it. Hidden states arrive by `observe` and wait
    until they are needed, or are many. If a prefix cache had some tokens, their hidden states were
    never computed: the layer then starts after them and attends only to later tokens.

    engine: the model's engine; params: the request's; begin: where its answer begins.
    """

    prior: float = 0.6
    #: Tokens without drafts after an error, doubled each time.
    PAUSE = 64

    def __init__(self, engine: Engine, params: _native.SampleParams, begin: int) -> None:
        of_layer = engine.mtp
        assert of_layer is not None
        read = of_layer.model.weight_bytes_per_token
        self.cost: float = read / engine.model.weight_bytes_per_token
        self._engine, self._params, self._begin = of_layer, params, begin
        self._pause, self._rest_until = self.PAUSE, 0
        self._begin_anew(1)

    def _begin_anew(self, token: int) -> None:
        """Start after a token, without earlier positions."""
        self._sequence, self._first, self._next = Sequence(), token, token
        self._waiting: list[F32] = []

    def observe(self, history: I32, start: int, rows: F32) -> None:
        if start + len(rows) < self._rest_until:
            return
        if start + 1 > self._next:
            self._begin_anew(start + 1)
        new = rows[self._next - start - 1 :]
        if len(new):
            self._waiting.append(new)
            self._next += len(new)
        if self._next - self._computed >= PREFILL_CHUNK:
            with self._anew_after_errors():
                self._catch_up(history)

    def propose(self, history: I32, k: int) -> list[int]:
        known = len(history)
        k = min(k, self._engine.context - (known - self._first))
        if k <= 0 or self._next != known or not self._waiting:
            return []
        text = np.concatenate([history, np.zeros(k, np.int32)])
        with self._anew_after_errors():
            row = self._catch_up(history, self._draw(history))
            for end in range(known, known + k):
                text[end] = self._drawn
                if end + 1 < known + k:
                    row = self._run(text[end : end + 1], row, self._draw(text[: end + 1]))
            self._engine.kv_cache.rewind(self._sequence, known - self._first)
            return [int(token) for token in text[known:]]
        return []

    @property
    def _computed(self) -> int:
        """The token to be computed next."""
        return self._first + self._sequence.length

    @contextlib.contextmanager
    def _anew_after_errors(self) -> Iterator[None]:
        """If pages are missing, or numbers are not finite, pause and then start again."""
        try:
            yield
        except (RequestError, NonFiniteError):
            self._rest_until, self._pause = self._next + self._pause, 2 * self._pause
            self._begin_anew(self._next)

    def _draw(self, text: I32) -> Draw:
        return Draw(self._params, text, self._begin)

    def _catch_up(self, history: I32, draw: Draw | None = None) -> F32:
        """Compute the positions of all waiting hidden states; returns as `_run`."""
        rows, self._waiting = np.concatenate(self._waiting), []
        for at in range(0, len(rows), PREFILL_CHUNK):
            part = rows[at : at + PREFILL_CHUNK]
            last = at + len(part) == len(rows)
            tokens = history[self._computed :][: len(part)]
            hidden_states = self._run(tokens, part, draw if last else None)
        return hidden_states

    def _run(self, tokens: I32, rows: F32, draw: Draw | None) -> F32:
        """Run a step of the layer, and draw a token if asked to.

        Returns the hidden state of the last token, float32 [1, hidden_size]."""
        step_input = StepInput(
            self._sequence,
            tokens,
            int(draw is not None),
            draw=draw,
            previous_hidden_states=rows,
            return_hidden_states=True,
        )
        (output,) = self._engine.run([step_input])
        if draw is not None:
            self._drawn = int(checked_finite(output.drawn[0]).token)
        assert output.hidden_states is not None
        return output.hidden_states[-1:]
