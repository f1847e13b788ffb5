"""The engine: sequences in the pages of a KV cache, and one step of a batch at a time.

A step takes any sequences with any number of new tokens each, runs the program once, and returns
the logits that were asked for. Which sequences share a step cannot change a bit of the logits that
decide (with an exact head, others may be -inf).
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sterna import _native, formats
from sterna.calibration import LEAST_BYTES, direct_tokens, prepare
from sterna.engine.pages import PAGE, PagePool, Sequence
from sterna.engine.sampling import Top
from sterna.errors import NonFiniteError, RequestError
from sterna.models import Model
from sterna.ops import is_fast
from sterna.runtime import checked_flag, checked_name, checked_whole, resolve_isa, resolve_threads

__all__ = ["KV_DTYPES", "PREFILL_CHUNK", "SLOTS", "Engine", "Kept"]

F32 = npt.NDArray[np.float32]

#: What keys and values are kept as, the default first: integers of 13 bits with a float for each
#: vector, in 16 bits; or floats.
KV_DTYPES = ("i16", "i8", "f16", "f32")
#: Tokens of a prompt that one step takes: enough to fill the matrix units, few enough that Ctrl-C
#: and other sequences do not wait long.
PREFILL_CHUNK = 512
#: Sequences of full context that the page pool holds. Pages cost memory only once written.
SLOTS = 8


@dataclass(eq=False)
class Kept:
    """A sequence that outlives a request, and the tokens whose keys and values it holds."""

    sequence: Sequence = field(default_factory=Sequence)
    tokens: list[int] = field(default_factory=list)


class Engine:
    """A model with a KV cache and a place to run.

    threads, cores, isa, deterministic: as in `LLM`; kv_dtype: one of KV_DTYPES,
    default the model's; context: positions of a sequence, at most (and by default) the model's;
    skip_zeros: whether a step of one token leaves out weights that meet a zero (`Graph.skips`), for
    which these have copies of two bits; default: where weights come from memory and not a cache.
    Raises RequestError for values out of range.
    """

    def __init__(
        self,
        model: Model,
        *,
        threads: int | None = None,
        cores: str | None = None,
        isa: str | None = None,
        kv_dtype: str | None = None,
        context: int | None = None,
        deterministic: bool | None = None,
        skip_zeros: bool | None = None,
    ) -> None:
        self.model = model
        self.threads = resolve_threads(threads, cores)
        self.isa = resolve_isa(isa)
        limit = model.config.max_position
        chosen = model.kv_dtype if kv_dtype is None else kv_dtype
        self.kv_dtype = kv_dtype = checked_name("kv_dtype", chosen, KV_DTYPES)
        self.context = limit
        if context is not None:
            self.context = checked_whole("context", context, 1, limit, " for this model")
        if deterministic is not None:
            checked_flag("deterministic", deterministic)
        c = model.config
        pages = -(-self.context // PAGE) * SLOTS
        try:
            self._cache = _native.KvCache(c.n_layers, c.n_kv_heads, c.head_dim, pages, kv_dtype)
        except MemoryError:
            raise RequestError(
                f"KV cache: address space for {SLOTS} sequences of {self.context} positions is "
                "needed, but the system refuses it; lower the context"
            ) from None
        self.pool = PagePool(pages)
        #: Whether the layers, all of floats, use the unit's bf16 products.
        self.fast = model.graph.can_be_fast and is_fast(
            formats.get(model.format), self.isa, deterministic
        )
        read = model.weight_bytes_per_token
        if skip_zeros is None:
            skip_zeros = read >= LEAST_BYTES
        prepare(self.threads, self.isa, read)
        layers = () if self.fast else model.graph.linear_weights()
        self._program = model.graph.compile(
            self.fast,
            self.threads if skip_zeros else 0,
            direct_tokens(layers, self.threads, self.isa, read),
        )

    @property
    def kv_bytes_per_position(self) -> int:
        """Bytes of keys and values that one position adds, over all layers."""
        c = self.model.config
        return _native.kv_bytes(c.n_layers, c.n_kv_heads, c.head_dim, self.kv_dtype)

    @property
    def left_out_bytes(self) -> int:
        """Bytes of weights that the last step did not read, since they would have met zeros."""
        return self._program.left_out

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds that all steps so far spent in each kind of operation, barriers included.

        "linear" is that of the layers; "head" that of the head, screened or whole.
        """
        found, whole = dict(self._program.seconds), self._program.head_seconds
        found["head"] = found.pop("screen") + whole
        found["linear"] -= whole
        return found

    def release(self, sequence: Sequence) -> None:
        """Give a sequence's pages back; it is empty again."""
        self.rewind(sequence, 0)

    def resume(self, kept: Kept, prompt: SequenceOf[int]) -> Sequence:
        """The kept sequence, cut back to where `prompt` begins as it does.

        At least the prompt's last token is left to be fed, for its logits. What follows has the
        same bits as after a prefill of the whole prompt, since a prefill may be split anywhere.
        """
        # An interrupt may have kept the tokens of its last steps from being written down.
        sequence = kept.sequence
        most = min(sequence.length, len(kept.tokens), len(prompt) - 1)
        same = next((i for i in range(most) if kept.tokens[i] != prompt[i]), most)
        self.rewind(sequence, same)
        kept.tokens = list(prompt[:same])
        sequence.rows_rescored = sequence.head_bytes = 0
        return sequence

    def rewind(self, sequence: Sequence, length: int) -> None:
        """Forget a sequence's tokens from `length` on; their pages are free again.

        RequestError unless the sequence is that long.
        """
        if not 0 <= length <= sequence.length:
            raise RequestError(f"rewind: must lie in 0..{sequence.length}, but got {length}")
        self.pool.cut(sequence, length)

    def _grow(self, sequence: Sequence, count: int) -> None:
        end = sequence.length + count
        if end > self.context:
            raise RequestError(
                f"context: holds {self.context} tokens, but the sequence would have {end}; "
                "shorten the prompt or raise --context"
            )
        missing = self.pool.grow(sequence, -(-end // PAGE))
        if missing:
            raise RequestError(
                f"KV cache: a sequence must fit the free ones of {self.pool.count} pages, but "
                f"{missing} are missing; run fewer sequences at once"
            )

    def repeated(self, sequence: Sequence, length: int) -> Sequence:
        """A sequence of `length` positions whose pages are copies of the given one's, in turn.

        What it answers means nothing; it takes memory and time as any sequence of that length does,
        and is there at once. `length` and that of `sequence` must be whole pages; RequestError
        where the context or the pool has no room.
        """
        if length % PAGE or sequence.length % PAGE or not sequence.length:
            raise RequestError(
                f"repeated: lengths must be multiples of {PAGE}, but got {length} of a sequence "
                f"of {sequence.length}"
            )
        copy = Sequence()
        self._grow(copy, length)
        for i, page in enumerate(copy.pages):
            self._cache.copy_page(int(sequence.pages[i % len(sequence.pages)]), int(page))
        copy.length = length
        return copy

    def step(
        self,
        batch: SequenceOf[tuple[Sequence, SequenceOf[int], int]],
        tops: SequenceOf[Top] | None = None,
    ) -> list[F32]:
        """Feed new tokens: (sequence, tokens, how many of the last of them want logits).

        tops: for each sequence, which logits of its rows decide; None: all, for all of them. With
        an exact head the others, where they are not computed, are -inf, and what is finite has the
        bits of the full head.

        Returns float32 [logits wanted, vocab] for each. Raises RequestError where a sequence grows
        over the context or the pool, NonFiniteError naming layer and operation.
        """
        if tops is not None and len(tops) != len(batch):
            raise RequestError(
                f"tops: must be one for each of {len(batch)} sequences, but got {len(tops)}"
            )
        if len({id(sequence) for sequence, _, _ in batch}) < len(batch):
            raise RequestError("batch: a sequence must not come twice in one step; join its tokens")
        for sequence, tokens, _ in batch:
            self._grow(sequence, len(tokens))
        flat = np.fromiter((t for _, tokens, _ in batch for t in tokens), np.int32)
        spans = [(s.length, len(tokens), wanted, s.pages) for s, tokens, wanted in batch]
        try:
            logits, rescored, head_bytes = self._program.run(
                self._cache, flat, spans, self.isa, self.threads, self._checked(tops)
            )
        except FloatingPointError as e:
            raise NonFiniteError(
                f"{e}: activations must be finite, but got NaN or infinity; "
                "the model's weights or scales are damaged"
            ) from None
        rows = np.cumsum([wanted for _, _, wanted in batch])
        for (sequence, tokens, wanted), end in zip(batch, rows, strict=True):
            sequence.length += len(tokens)
            sequence.rows_rescored += sum(rescored[end - wanted : end])
            sequence.head_bytes += head_bytes if wanted else 0
        return np.split(logits, rows[:-1])

    def _checked(
        self, tops: SequenceOf[Top] | None
    ) -> list[tuple[int, float, float, npt.NDArray[np.int32]]]:
        """As the program takes them; more than there are tokens is all of them."""
        vocab, found = self.model.config.vocab_size, []
        for t in tops or ():
            if t.count < 0 or not 0 <= t.gap <= 1e30 or not 0 < t.penalty <= 1e30:
                raise RequestError(
                    f"tops: needs count >= 0, gap >= 0 and penalty > 0, but got {t.count}, "
                    f"{t.gap}, {t.penalty}"
                )
            found.append((t.count if t.count <= vocab else 0, t.gap, t.penalty, t.history))
        return found

    def prefill(self, sequence: Sequence, tokens: SequenceOf[int], top: Top | None = None) -> F32:
        """Feed a prompt in chunks; returns the logits after its last token, float32 [vocab].

        top: which of them decide, as in `step`.
        """
        last = np.zeros(0, np.float32)
        for start in range(0, len(tokens), PREFILL_CHUNK):
            part = tokens[start : start + PREFILL_CHUNK]
            done = start + len(part) == len(tokens)
            (logits,) = self.step([(sequence, part, int(done))], [top or Top()])
            if done:
                last = logits[0]
        return last

    def logits(self, sequences: SequenceOf[SequenceOf[int]], chunk: int | None = None) -> list[F32]:
        """Teacher-forced logits float32 [n, vocab] of each sequence, all run as one batch.

        chunk: tokens of each sequence per step; None takes PREFILL_CHUNK.
        """
        states = [Sequence() for _ in sequences]
        parts: list[list[F32]] = [[] for _ in sequences]
        size = chunk or PREFILL_CHUNK
        try:
            for start in range(0, max(map(len, sequences), default=0), size):
                live = [i for i, s in enumerate(sequences) if start < len(s)]
                batch = []
                for i in live:
                    tokens = sequences[i][start : start + size]
                    batch.append((states[i], tokens, len(tokens)))
                for i, rows in zip(live, self.step(batch), strict=True):
                    parts[i].append(rows)
        finally:
            for state in states:
                self.release(state)
        vocab = self.model.config.vocab_size
        return [np.concatenate(p) if p else np.zeros((0, vocab), np.float32) for p in parts]
