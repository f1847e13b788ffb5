"""`Engine`: runs a model on a batch of sequences, a step at a time.

A step takes any sequences with any number of new tokens each, runs the program once, and returns
the requested logits, or tokens drawn from them. Batching does not change a bit of the logits that
decide (with an exact head, others may be -inf).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence as SequenceOf
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sterna import _native, formats
from sterna.calibration import LEAST_BYTES, direct_tokens, joint_tokens, prepare, tile_tokens
from sterna.calibration.unit_check import checked_isa
from sterna.checks import checked_flag, checked_name, checked_whole
from sterna.engine.activations import resolve_activations
from sterna.engine.adapter import Adapter, by_adapter
from sterna.engine.decoding.sampling import ALL_LOGITS, DecidingLogits
from sterna.engine.decoding.token_masks import make_in_background
from sterna.engine.kv_cache.manager import KVCacheManager
from sterna.engine.kv_cache.page_pool import PagesMissing
from sterna.engine.kv_cache.sequence import PAGE, Sequence
from sterna.engine.numa import place_weights
from sterna.engine.step_io import StepArguments, StepInput, StepOutput, split_outputs
from sterna.errors import NonFiniteError, RequestError
from sterna.graph import ACTIVATIONS, Crossings, Graph
from sterna.loading import Model
from sterna.ops import is_fast
from sterna.runtime import Threads, resolve_threads

if TYPE_CHECKING:
    from sterna.engine.images.image_encoder import ImageEncoder

__all__ = [
    "KV_DTYPES",
    "NUMERICS",
    "PREFILL_CHUNK",
    "SMALL",
    "Engine",
    "StepInput",
    "StepOutput",
    "checked_kv_dtype",
]

F32 = npt.NDArray[np.float32]

#: Raised when a version changes answers (tests/support/digests.json).
NUMERICS = 1
#: Types of stored keys and values, the default first: integers of 13 bits (in 16) or 8 bits with a
#: float for each vector, keys of 8 and values of 4 bits, or floats.
KV_DTYPES = ("i16", "i8", "k8v4", "f16", "f32")
#: The name of the most exact one of at most 6.5 bits (docs/measurements/quality.md has the curve).
SMALL = {"small": "k8v4"}
#: Most prompt tokens of a step: enough to fill the matrix units, few enough that Ctrl-C and other
#: sequences do not wait long.
PREFILL_CHUNK = 512


def checked_kv_dtype(name: object) -> str:
    """Return one of KV_DTYPES, by its own name or by one of SMALL. Raises RequestError."""
    known = checked_name("kv_dtype", name, (*KV_DTYPES, *SMALL))
    return SMALL.get(known, known)


class Engine:
    """A model with its KV cache, its threads and its kernel unit.

    threads, cores, isa, deterministic, activations: as in `LLM`. kv_dtype: a name that
    `checked_kv_dtype` knows, default the model's. context: most positions of a sequence, default
    the model's; more warns.
    skip_zeros: whether a step of one token skips weights that meet a zero (`Graph.skips`), which
    takes copies of two bits a weight; default: if weights come from memory and not from a cache.
    kv_bytes: memory for keys and values of all sequences, in pages of 64 positions that take memory
    when they are first written, and for recurrent states; default: a quarter of the available
    memory, or a sequence of full context if that is more.
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
        activations: str | None = None,
        skip_zeros: bool | None = None,
        kv_bytes: int | None = None,
    ) -> None:
        self.model = model
        self._deterministic, self._kv_bytes = deterministic, kv_bytes
        self.activations: str | None = resolve_activations(model, activations)
        self.threads: Threads = resolve_threads(threads, cores)
        self.isa: str = checked_isa(isa)
        limit, most = model.config.max_position, model.config.most_positions
        chosen = model.kv_dtype if kv_dtype is None else kv_dtype
        kv_dtype = checked_kv_dtype(chosen)
        if context is None:
            context = limit
        else:
            context = checked_whole("context", context, 1, most, " for this model")
            if context > limit:
                warnings.warn(
                    f"context: {context} positions are more than the {limit} that the model was "
                    "made for; answers may be nonsense beyond them (rope_scaling extends it)",
                    RuntimeWarning,
                    stacklevel=2,
                )
        if deterministic is not None:
            checked_flag("deterministic", deterministic)
        #: Whether layers, all of floats, use the unit's bf16 products.
        self.fast: bool = model.graph.can_be_fast and is_fast(
            formats.get(model.format), self.isa, deterministic
        )
        read = model.weight_bytes_per_token
        #: Whether masks are filled in the background; steps of small models take no longer than
        #: starting a thread.
        self.background_masks: bool = read >= LEAST_BYTES
        if skip_zeros is None:
            # Skipping needs copies, which, unlike weights, are not placed near threads, and which
            # take the memory that weights on disk do without.
            all_here = model.weight_cache is None
            skip_zeros = read >= LEAST_BYTES and not self.threads.nodes and all_here
        weights = model.graph.linear_weights()
        in_memory = weights if model.weight_cache is None else weights[-1:]  # the head's
        prepare(self.threads, self.isa, read, (weight.codes for weight in in_memory))
        integer = () if self.fast else weights
        self._crossings = Crossings(
            direct_tokens(integer, self.threads, self.isa, read),
            joint_tokens(integer, self.threads, self.isa, read),
            tile_tokens(integer, self.threads, self.isa, read),
        )
        skip_with = self.threads if skip_zeros else 0
        self._program = self._streaming(model.graph, skip_with, context)
        place_weights(self._program, model.graph, self.threads)
        #: Pages and recurrent states of all sequences.
        self.kv_cache: KVCacheManager = KVCacheManager(
            model.graph, self._program.state_bytes, context, kv_dtype, kv_bytes, PREFILL_CHUNK
        )

    @property
    def context(self) -> int:
        """Most positions of a sequence."""
        return self.kv_cache.context

    @property
    def kv_dtype(self) -> str:
        """How keys and values are stored: one of KV_DTYPES."""
        return self.kv_cache.kv_dtype

    @cached_property
    def identity(self) -> tuple[object, ...]:
        """All that the bits of keys, values and logits depend on, except tokens, pixels and
        adapters.

        That is the version of numerics, the model's digest, the type of keys and values, the
        context, the rounding of layers' inputs, and the kernel unit if layers use products that
        only it has (`fast`), and that of the tower. The first access reads all weights, about a
        second for 1.5 GB.
        """
        common = (NUMERICS, self.model.digest, self.kv_dtype, self.context, self.activations)
        unit = (self.isa,) if self.fast else ()
        return (*common, *unit, *(one.identity for one in [self.image_encoder] if one is not None))

    @property
    def skipped_bytes(self) -> int:
        """Bytes of weights that the last step skipped, since they met zeros."""
        return self._program.left_out

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds that all steps so far spent in each kind of operation, barriers included.

        "linear" counts the layers, "head" the head, screened or not.
        """
        seconds, unscreened = dict(self._program.seconds), self._program.head_seconds
        seconds["head"] = seconds.pop("screen", 0.0) + unscreened
        seconds["linear"] -= unscreened
        return seconds

    @property
    def square_sums(self) -> list[tuple[int, npt.NDArray[np.float64]]]:
        """If the graph is `observed`: rows read so far and their sums of squares by column, in the
        order of `Graph.observed_by`; else empty."""
        return self._program.square_sums

    def run(self, inputs: SequenceOf[StepInput]) -> list[StepOutput]:
        """Run a step: compute the new tokens of each sequence, and return an output for each input.

        With an exact head, logits that do not decide may be -inf; finite ones have the bits of the
        float head. Raises RequestError if a sequence exceeds the context or the pool, or comes
        twice, NonFiniteError naming layer and operation.
        """
        return self._run(self._program, inputs)

    def hidden_states(
        self,
        batch: SequenceOf[tuple[Sequence, SequenceOf[int], int]],
        adapter: Adapter | None = None,
    ) -> list[F32]:
        """Run as `step`, but return hidden states instead of logits: float32 [selected rows,
        hidden_size] for each sequence, after the model's last norm."""
        inputs = [StepInput(*share, adapter=adapter) for share in batch]
        outputs = self._run(self._without_head, inputs)
        return [rows.logits for rows in outputs]

    @cached_property
    def _without_head(self) -> _native.Program:
        return self._streaming(self.model.graph.without_head(), 0, self.context)

    def _streaming(self, graph: Graph, skip_with: int, context: int) -> _native.Program:
        """Compile a graph, whose weights on disk are read through the model's cache."""
        activations, cache = self.activations or ACTIVATIONS[0], self.model.weight_cache
        on_disk = cache is not None
        program = graph.compile(
            self.fast, skip_with, self._crossings, context, activations, guesses=on_disk
        )
        if cache is not None:
            program.stream(cache)
        return program

    def compiled(self, graph: Graph) -> _native.Program:
        """Compile a variant of the model's graph, for `run_variant`; layers sum without `fast`."""
        activations = self.activations or ACTIVATIONS[0]
        return graph.compile(False, 0, self._crossings, self.context, activations)

    def run_variant(
        self,
        program: _native.Program,
        tokens: SequenceOf[int],
        wanted: int,
        kept: F32 | None = None,
    ) -> F32:
        """Run a text of its own through a program of `compiled`; return its last `wanted` rows.

        kept: float32 [tokens, columns], where the graph's `KeepOp`s save rows.
        """
        sequence = Sequence()
        try:
            (output,) = self._run(program, [StepInput(sequence, tokens, wanted)], kept)
        finally:
            self.kv_cache.release(sequence)
        return output.logits

    def _run(
        self,
        program: _native.Program,
        inputs: SequenceOf[StepInput],
        kept: F32 | None = None,
    ) -> list[StepOutput]:
        sequences, adapted = set[int](), False
        for one in inputs:
            sequences.add(id(one.sequence))
            adapted = adapted or one.adapter is not None
        if len(sequences) < len(inputs):
            raise RequestError("batch: a sequence must not come twice in one step; join its tokens")
        if self.model.config.bidirectional and any(i.sequence.length for i in inputs):
            raise RequestError(f"{self.model.name}: an encoder computes a text whole, in one step")
        if not adapted:
            return self._run_in_order(program, inputs, [], kept)
        order, adapters = by_adapter([step_input.adapter for step_input in inputs])
        outputs = self._run_in_order(program, [inputs[i] for i in order], adapters)
        return [outputs[place] for place in np.argsort(order)]

    def _run_in_order(
        self,
        program: _native.Program,
        inputs: SequenceOf[StepInput],
        adapters: SequenceOf[tuple[int, int, _native.Adapter]],
        kept: F32 | None = None,
    ) -> list[StepOutput]:
        kv_cache = self.kv_cache
        kv_cache.reserve([(i.sequence, len(i.tokens)) for i in inputs])
        arguments = StepArguments.of(inputs, self.model.config.vocab_size)
        tokens, hidden = arguments.tokens, None
        if arguments.returns_hidden_states:
            hidden = np.empty((len(tokens), self.model.config.hidden_size), np.float32)
        states, draft_states = list[_native.State](), list[tuple[int, int, _native.State]]()
        if kv_cache.state_bytes:
            states = [i.sequence.state for i in inputs if i.sequence.state]
            draft_states = self._draft_states(inputs)
        masks = make_in_background(arguments.pending_masks, self.background_masks)
        try:
            logits, drawn, rescored, head_bytes = program.run(
                kv_cache.native,
                tokens,
                arguments.spans,
                self.isa,
                self.threads,
                arguments.deciding,
                arguments.draws,
                states,
                masks,
                draft_states,
                adapters,
                arguments.previous_hidden_states,
                hidden,
                arguments.second_parts,
                arguments.images,
                kept,
            )
        except FloatingPointError as e:
            raise NonFiniteError(
                f"{e}: activations must be finite, but got NaN or infinity; "
                f"the model's weights or scales are damaged{', or an adapter' * bool(adapters)}"
            ) from None
        windows = kv_cache.has_windows
        for i in inputs:
            i.sequence.length += len(i.tokens)
            if windows:
                kv_cache.pool.free_unseen(i.sequence)
        return split_outputs(inputs, logits, drawn, rescored, head_bytes, hidden)

    def _draft_states(self, inputs: SequenceOf[StepInput]) -> list[tuple[int, int, _native.State]]:
        """Return (index, drafts, state) of each input with drafts: the state that they change."""
        states = []
        for i, step_input in enumerate(inputs):
            if step_input.drafts:
                sequence, pool = step_input.sequence, self.kv_cache.pool
                if not pool.may_draft(sequence) or sequence.draft_state is None:
                    raise PagesMissing(
                        f"KV cache: a recurrent state takes {pool.state_pages} of {pool.count} "
                        "pages, but fewer are free; run without drafts"
                    )
                states.append((i, step_input.drafts, sequence.draft_state))
        return states

    @cached_property
    def image_encoder(self) -> ImageEncoder | None:
        """The encoder of images, compiled at the first access; None for a text-only model."""
        tower = self.model.tower
        if tower is None:
            return None
        from sterna.engine.images.image_encoder import ImageEncoder

        return ImageEncoder(tower, self.threads, self.isa, self._deterministic)

    @cached_property
    def mtp(self) -> Engine | None:
        """The engine of the model's MTP layer, or None if it has none.

        It has pages of its own, as many as this engine.
        """
        if self.model.mtp is None:
            return None
        kv_bytes = None
        if self._kv_bytes is not None:
            each = self.model.mtp.graph.kv_bytes(self.kv_dtype)
            pages = max(1, self._kv_bytes // (self.kv_cache.bytes_per_position * PAGE))
            kv_bytes = pages * each * PAGE
        return Engine(
            self.model.mtp,
            threads=self.threads,
            isa=self.isa,
            kv_dtype=self.kv_dtype,
            context=self.context,
            deterministic=self._deterministic,
            kv_bytes=kv_bytes,
            activations=self.activations if resolve_activations(self.model.mtp, None) else None,
        )

    def step(
        self,
        batch: SequenceOf[tuple[Sequence, SequenceOf[int], int]],
        deciding: SequenceOf[DecidingLogits] | None = None,
        adapter: Adapter | None = None,
    ) -> list[F32]:
        """Run as `run`, for a batch of (sequence, tokens, number of last tokens to return logits
        for).

        deciding: which logits decide, for each sequence; None: all. adapter: for all sequences.
        Returns float32 [requested rows, vocab] for each.
        """
        if deciding is not None and len(deciding) != len(batch):
            raise RequestError(
                f"deciding: must be one for each of {len(batch)} sequences, but got {len(deciding)}"
            )
        ids = [ALL_LOGITS] * len(batch) if deciding is None else deciding
        inputs = [
            StepInput(*one, decides, adapter=adapter)
            for one, decides in zip(batch, ids, strict=True)
        ]
        return [output.logits for output in self.run(inputs)]

    def prefill(
        self, sequence: Sequence, tokens: SequenceOf[int], deciding: DecidingLogits | None = None
    ) -> F32:
        """Compute a prompt in chunks; returns the logits after its last token, float32 [vocab].

        deciding: which of these decide, as in `step`.
        """
        last = np.zeros(0, np.float32)
        for start in range(0, len(tokens), PREFILL_CHUNK):
            part = tokens[start : start + PREFILL_CHUNK]
            done = start + len(part) == len(tokens)
            (logits,) = self.step([(sequence, part, int(done))], [deciding or DecidingLogits()])
            if done:
                last = logits[0]
        return last

    def logits(
        self,
        sequences: SequenceOf[SequenceOf[int]],
        chunk: int | None = None,
        adapter: Adapter | None = None,
    ) -> list[F32]:
        """Return logits float32 [n, vocab] after each token of each sequence, run as one batch.

        chunk: tokens of each sequence per step, default PREFILL_CHUNK. adapter: for all sequences.
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
                for i, rows in zip(live, self.step(batch, adapter=adapter), strict=True):
                    parts[i].append(rows)
        finally:
            for state in states:
                self.kv_cache.release(state)
        vocab = self.model.config.vocab_size
        return [np.concatenate(p) if p else np.zeros((0, vocab), np.float32) for p in parts]
