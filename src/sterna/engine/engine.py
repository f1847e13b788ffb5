"""The engine: sequences in the pages of a KV cache, and one step of a batch at a time.

A step takes any sequences with any number of new tokens each, runs the program once, and gives the
logits that were asked for, or the tokens drawn from them. Which sequences share a step cannot
change a bit of the logits that decide (with an exact head, others may be -inf).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence as SequenceOf
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sterna import _native, formats
from sterna.calibration import LEAST_BYTES, direct_tokens, prepare
from sterna.checks import checked_flag, checked_name, checked_whole
from sterna.engine.activations import resolve_activations
from sterna.engine.adapters import Adapter, by_adapter
from sterna.engine.masks import made_beside
from sterna.engine.memory import Memory
from sterna.engine.memory_nodes import place
from sterna.engine.sampling import EVERYTHING, DecidingLogits
from sterna.engine.sequence import NO_PAGES, PAGE, Sequence, without_flag
from sterna.engine.step_io import StepInput, StepOutput
from sterna.errors import NonFiniteError, RequestError
from sterna.graph import ACTIVATIONS
from sterna.loading import Model
from sterna.ops import is_fast
from sterna.runtime import resolve_isa, resolve_threads

__all__ = ["KV_DTYPES", "NUMERICS", "PREFILL_CHUNK", "Engine", "StepInput", "StepOutput"]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]

#: Raised when a version changes answers (tests/support/digests.json).
NUMERICS = 1
#: What keys and values are kept as, the default first: integers of 13 bits with a float for each
#: vector, in 16 bits; or floats.
KV_DTYPES = ("i16", "i8", "f16", "f32")
#: Tokens of a prompt that one step takes: enough to fill the matrix units, few enough that Ctrl-C
#: and other sequences do not wait long.
PREFILL_CHUNK = 512


class Engine(Memory):
    """A model with a KV cache and a place to run.

    threads, cores, isa, deterministic, activations: as in `LLM`; kv_dtype: one of KV_DTYPES,
    default the model's; context: positions of a sequence, default the model's, or more, with a
    warning; skip_zeros: whether a step of one token leaves out weights that meet a zero
    (`Graph.skips`), for which these have copies of two bits; default: where weights come from
    memory and not a cache;
    kv_bytes: what keys and values of all sequences may take, in pages of 64 positions that take
    memory when they are first written, and states of recurrent layers; default: eight full
    contexts, or a quarter of the available memory where that is more.
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
        self.activations = resolve_activations(model, activations)
        self.threads = resolve_threads(threads, cores)
        self.isa = resolve_isa(isa)
        limit, most = model.config.max_position, model.config.most_positions
        chosen = model.kv_dtype if kv_dtype is None else kv_dtype
        kv_dtype = checked_name("kv_dtype", chosen, KV_DTYPES)
        if context is None:
            context = limit
        else:
            context = checked_whole("context", context, 1, most, " for this model")
            if context > limit:
                warnings.warn(
                    f"context: {context} positions are more than the {limit} that the model was "
                    "made for; answers may be nonsense beyond them (rope_scaling extends it)",
                    RuntimeWarning, stacklevel=2,
                )  # fmt: skip
        if deterministic is not None:
            checked_flag("deterministic", deterministic)
        #: Whether the layers, all of floats, use the unit's bf16 products.
        self.fast = model.graph.can_be_fast and is_fast(
            formats.get(model.format), self.isa, deterministic
        )
        read = model.weight_bytes_per_token
        #: Whether masks are made beside steps: those of small models take no longer than a thread
        #: does to begin.
        self.masks_beside = read >= LEAST_BYTES
        if skip_zeros is None:
            # Copies for that are not placed near threads, as weights are.
            skip_zeros = read >= LEAST_BYTES and not self.threads.nodes
        prepare(self.threads, self.isa, read)
        layers = () if self.fast else model.graph.linear_weights()
        self._direct = direct_tokens(layers, self.threads, self.isa, read)
        self._program = model.graph.compile(
            self.fast, self.threads if skip_zeros else 0, self._direct, context,
            self.activations or ACTIVATIONS[0],
        )  # fmt: skip
        place(self._program, model.graph, self.threads)
        super().__init__(
            model.graph, self._program.state_bytes, context, kv_dtype, kv_bytes, PREFILL_CHUNK
        )

    @cached_property
    def identity(self) -> tuple[object, ...]:
        """What the bits of keys, values and logits depend on, tokens and adapters left out: the
        version of numerics, the model's digest, the type of keys and values, the context, what
        inputs of layers are rounded to; and the kernel unit, where layers use products that only
        this unit has (`fast`).

        The first look reads all weights, about a second for 1.5 GB.
        """
        common = (
            NUMERICS, self.model.digest, self.kv_dtype, self.context, self.activations,
        )  # fmt: skip
        return (*common, self.isa) if self.fast else common

    @property
    def left_out_bytes(self) -> int:
        """Bytes of weights that the last step did not read, since they would have met zeros."""
        return self._program.left_out

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds that all steps so far spent in each kind of operation, barriers included.

        "linear" is that of the layers; "head" that of the head, screened or not.
        """
        seconds, unscreened = dict(self._program.seconds), self._program.head_seconds
        seconds["head"] = seconds.pop("screen") + unscreened
        seconds["linear"] -= unscreened
        return seconds

    @property
    def square_sums(self) -> list[tuple[int, npt.NDArray[np.float64]]]:
        """Of a model whose graph is `observed`: rows read so far and their squares' sums by column,
        in the order of `Graph.observed_by`; of any other none."""
        return self._program.square_sums

    def run(self, inputs: SequenceOf[StepInput]) -> list[StepOutput]:
        """One step: computes the new tokens of each sequence, and gives what is wanted of them.

        With an exact head, logits that do not decide are -inf where they are not computed, and what
        is finite has the bits of the float head.

        Raises RequestError where a sequence grows over the context or the pool, or comes twice,
        NonFiniteError naming layer and operation.
        """
        return self._run(self._program, inputs)

    def hidden_states(
        self,
        batch: SequenceOf[tuple[Sequence, SequenceOf[int], int]],
        adapter: Adapter | None = None,
    ) -> list[F32]:
        """As `step`, but return hidden states in place of logits: float32 [rows wanted,
        hidden_size] for each sequence, after the model's last norm."""
        inputs = [StepInput(*share, adapter=adapter) for share in batch]
        outputs = self._run(self._without_head, inputs)
        return [rows.logits for rows in outputs]

    @cached_property
    def _without_head(self) -> _native.Program:
        return self.model.graph.without_head().compile(
            self.fast, 0, self._direct, self.context, self.activations or ACTIVATIONS[0]
        )

    def _run(self, program: _native.Program, inputs: SequenceOf[StepInput]) -> list[StepOutput]:
        if len({id(step_input.sequence) for step_input in inputs}) < len(inputs):
            raise RequestError("batch: a sequence must not come twice in one step; join its tokens")
        if all(step_input.adapter is None for step_input in inputs):
            return self._run_in_order(program, inputs, [])
        order, adapters = by_adapter([step_input.adapter for step_input in inputs])
        outputs = self._run_in_order(program, [inputs[i] for i in order], adapters)
        return [outputs[place] for place in np.argsort(order)]

    def _run_in_order(
        self,
        program: _native.Program,
        inputs: SequenceOf[StepInput],
        adapters: SequenceOf[tuple[int, int, _native.Adapter]],
    ) -> list[StepOutput]:
        deciding = [self._checked(f.deciding) for f in inputs]
        draws = [f.draw.native if f.draw else None for f in inputs]
        self._make_room([(step_input.sequence, len(step_input.tokens)) for step_input in inputs])
        tokens = np.concatenate([NO_PAGES, *(np.asarray(f.tokens, np.int32) for f in inputs)])
        given = [f.previous_hidden_states for f in inputs if f.previous_hidden_states is not None]
        hidden = None
        if any(f.return_hidden_states for f in inputs):
            hidden = np.empty((len(tokens), self.model.config.hidden_size), np.float32)
        # Pages that are gone lie before all windows: any page may stand for them.
        tables = [without_flag(np.maximum(f.sequence.pages, 0)) for f in inputs]
        spans = [
            (f.sequence.length, len(f.tokens), f.wanted, table)
            for f, table in zip(inputs, tables, strict=True)
        ]
        states = [f.sequence.state for f in inputs if f.sequence.state] if self.state_bytes else []
        ahead = self._states_ahead(inputs) if self.state_bytes else []
        late = [f.draw.late for f in inputs if f.draw and f.draw.late]
        masks = made_beside(late, self.masks_beside)
        try:
            logits, drawn, rescored, head_bytes = program.run(
                self._cache, tokens, spans, self.isa, self.threads, deciding, draws, states, masks,
                ahead, adapters, np.concatenate(given) if given else None, hidden,
            )  # fmt: skip
        except FloatingPointError as e:
            raise NonFiniteError(
                f"{e}: activations must be finite, but got NaN or infinity; "
                f"the model's weights or scales are damaged{', or an adapter' * bool(adapters)}"
            ) from None
        outputs, row, kept, token = [], 0, 0, 0
        for f in inputs:
            mine = None
            if hidden is not None and f.return_hidden_states:
                mine = hidden[token : token + len(f.tokens)]
            token += len(f.tokens)
            f.sequence.length += len(f.tokens)
            self.pool.give_back(f.sequence)
            f.sequence.rows_rescored += sum(rescored[row : row + f.wanted])
            f.sequence.head_bytes += head_bytes if f.wanted else 0
            count = 0 if f.draw else f.wanted
            first = row - kept  # of what was drawn
            outputs.append(
                StepOutput(
                    logits[kept : kept + count], drawn[first : first + f.wanted - count], mine
                )
            )
            row, kept = row + f.wanted, kept + count
        return outputs

    @cached_property
    def mtp(self) -> Engine | None:
        """That of the model's MTP layer, with pages of its own: as many as fit the same share of
        `kv_bytes`. None where there is none."""
        if self.model.mtp is None:
            return None
        kv_bytes = None
        if self._kv_bytes is not None:
            each = self.model.mtp.graph.kv_bytes(self.kv_dtype)
            pages = max(1, self._kv_bytes // (self.kv_bytes_per_position * PAGE))
            kv_bytes = pages * each * PAGE
        return Engine(
            self.model.mtp, threads=self.threads, isa=self.isa, kv_dtype=self.kv_dtype,
            context=self.context, deterministic=self._deterministic, kv_bytes=kv_bytes,
            activations=self.activations if resolve_activations(self.model.mtp, None) else None,
        )  # fmt: skip

    def step(
        self,
        batch: SequenceOf[tuple[Sequence, SequenceOf[int], int]],
        deciding: SequenceOf[DecidingLogits] | None = None,
        adapter: Adapter | None = None,
    ) -> list[F32]:
        """`run` for a batch of (sequence, tokens, how many of the last of them want logits).

        deciding: for each sequence, which logits of its rows decide; None: all, for all of them.
        adapter: of all of them.
        Returns float32 [logits wanted, vocab] for each.
        """
        if deciding is not None and len(deciding) != len(batch):
            raise RequestError(
                f"deciding: must be one for each of {len(batch)} sequences, but got {len(deciding)}"
            )
        inputs = [
            StepInput(
                sequence, tokens, wanted, deciding[i] if deciding is not None else EVERYTHING,
                adapter=adapter,
            )
            for i, (sequence, tokens, wanted) in enumerate(batch)
        ]  # fmt: skip
        return [output.logits for output in self.run(inputs)]

    def _checked(self, deciding: DecidingLogits) -> tuple[int, float]:
        """The arguments of the program; a count of more than there are tokens is all of them."""
        if deciding.count < 0 or not 0 <= deciding.gap <= 1e30:
            raise RequestError(
                f"deciding: needs count >= 0 and gap >= 0, but got {deciding.count}, {deciding.gap}"
            )
        count = deciding.count if deciding.count <= self.model.config.vocab_size else 0
        return count, deciding.gap

    def prefill(
        self, sequence: Sequence, tokens: SequenceOf[int], deciding: DecidingLogits | None = None
    ) -> F32:
        """Feed a prompt in chunks; returns the logits after its last token, float32 [vocab].

        deciding: which of them decide, as in `step`.
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
        """Teacher-forced logits float32 [n, vocab] of each sequence, all run as one batch.

        chunk: tokens of each sequence per step; None takes PREFILL_CHUNK. adapter: of all of them.
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
                self.release(state)
        vocab = self.model.config.vocab_size
        return [np.concatenate(p) if p else np.zeros((0, vocab), np.float32) for p in parts]
