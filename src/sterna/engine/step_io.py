"""Input and output of a step, for each sequence in it."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.engine.adapter import Adapter
from sterna.engine.decoding.sampling import ALL_LOGITS, DecidingLogits, Draw
from sterna.engine.decoding.token_masks import TokenMasks
from sterna.engine.kv_cache.sequence import BARE, NO_PAGES, Sequence

if TYPE_CHECKING:
    from sterna.engine.images.prompt_images import PromptImages

__all__ = ["StepArguments", "StepImages", "StepInput", "StepOutput", "split_outputs"]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


@dataclass(eq=False, slots=True)
class StepInput:
    """One sequence's input to a step: its new tokens, and which results to compute.

    Attributes:
        wanted: How many of the last tokens get logits.
        deciding: Which of these logits to compute, if they are returned.
        draw: How to sample from the logits; None: return them.
        drafts: How many of the last tokens are drafts, after at least one that is not
            (`Sequence.roll_back`).
        adapter: A LoRA adapter of the model, the same in all steps of a sequence.
        previous_hidden_states: For an MTP layer: the hidden state of the token before each, float32
            [tokens, hidden_size].
        return_hidden_states: Return the hidden state of each token; for an MTP layer and for models
            that have one.
        second_part: For a cross-encoder: the position where the second text of a pair begins.
        images: The images of the prompt, whose rows replace the embeddings of image tokens.
    """

    sequence: Sequence
    tokens: SequenceOf[int] | I32
    wanted: int = 0
    deciding: DecidingLogits = ALL_LOGITS
    draw: Draw | None = None
    drafts: int = 0
    adapter: Adapter | None = None
    previous_hidden_states: F32 | None = None
    return_hidden_states: bool = False
    second_part: int | None = None
    images: PromptImages | None = None


@dataclass(eq=False, slots=True)
class StepOutput:
    """The result of a step for one `StepInput`: logits [wanted, vocab], or drawn tokens instead.

    `finite` of a drawn token is False where its logits were not finite. hidden_states: if asked
    for, float32 [tokens, hidden_size], after the model's last norm.
    """

    logits: F32
    drawn: list[_native.SampleResult]
    hidden_states: F32 | None = None


#: Rows of images, positions that attend to each other (sequence, begin, end), and coordinates.
StepImages = tuple[F32 | None, list[tuple[int, int, int]], I32 | None]


@dataclass(slots=True)
class StepArguments:
    """The arguments of `Program.run` that the inputs of a step make.

    spans: (start, count, wanted, pages) of each input. deciding, draws: one for each input.
    second_parts: (index, position) of each input that is a pair of texts. previous_hidden_states:
    those of all inputs that have any.
    """

    tokens: I32
    spans: list[tuple[int, int, int, I32]]
    deciding: list[tuple[int, float]]
    draws: list[tuple[_native.SampleParams, I32, int, I32 | None, float] | None]
    pending_masks: list[TokenMasks]
    second_parts: list[tuple[int, int]]
    previous_hidden_states: F32 | None
    returns_hidden_states: bool
    images: StepImages | None

    @classmethod
    def of(cls, inputs: SequenceOf[StepInput], vocab: int) -> StepArguments:
        """Collect the arguments, in one pass, since each step of a token takes it."""
        made = cls(NO_PAGES, [], [], [], [], [], None, False, None)
        tokens, hidden, images = [NO_PAGES], list[F32](), False
        for n, one in enumerate(inputs):
            sequence, draw, deciding = one.sequence, one.draw, one.deciding
            tokens.append(np.asarray(one.tokens, np.int32))
            # A page that is gone lies before all windows: any page number may replace it.
            pages = np.maximum(sequence.pages, 0) & (BARE - 1)
            made.spans.append((sequence.length, len(one.tokens), one.wanted, pages))
            made.deciding.append((deciding.count if deciding.count <= vocab else 0, deciding.gap))
            made.draws.append(draw.native if draw else None)
            if draw and draw.pending_masks:
                made.pending_masks.append(draw.pending_masks)
            if one.second_part is not None:
                made.second_parts.append((n, one.second_part))
            if one.previous_hidden_states is not None:
                hidden.append(one.previous_hidden_states)
            made.returns_hidden_states = made.returns_hidden_states or one.return_hidden_states
            images = images or one.images is not None
        made.tokens = np.concatenate(tokens)
        if hidden:
            made.previous_hidden_states = np.concatenate(hidden)
        if images:
            made.images = _images_of(inputs, made.tokens)
        return made


def _images_of(inputs: SequenceOf[StepInput], tokens: I32) -> StepImages:
    """Return the program's images; puts -1 - n into the tokens, of all inputs, that row n stands
    for."""
    features_of, together, n_rows, first = list[F32](), list[tuple[int, int, int]](), 0, 0
    coordinates, placed = np.empty((len(tokens), 3), np.int32), False
    for n, i in enumerate(inputs):
        begin, end = i.sequence.length, i.sequence.length + len(i.tokens)
        where = None if i.images is None else i.images.coordinates(begin, end)
        placed = placed or where is not None
        if where is None:
            where = np.arange(begin, end, dtype=np.int32)[:, None]
        coordinates[first : first + len(i.tokens)] = where
        if i.images is not None:
            at, rows = i.images.rows(begin, end)
            tokens[first + at - begin] = -1 - np.arange(n_rows, n_rows + len(rows))
            features_of.append(rows)
            n_rows += len(rows)
            together += [(n, *run) for run in i.images.together(begin, end)]
        first += len(i.tokens)
    features = np.concatenate(features_of) if n_rows else None
    return features, together, coordinates if placed else None


def split_outputs(
    inputs: SequenceOf[StepInput],
    logits: F32,
    drawn: SequenceOf[_native.SampleResult],
    rescored: SequenceOf[int],
    head_bytes: int,
    hidden: F32 | None,
) -> list[StepOutput]:
    """Split a program's results by input.

    logits: one row for each wanted token of the inputs that do not draw; drawn: one for each of the
    others; rescored: one for each wanted token; hidden: a row for each token.
    """
    outputs, row, n_logits, n_tokens = [], 0, 0, 0
    for i in inputs:
        i.sequence.rows_rescored += sum(rescored[row : row + i.wanted])
        i.sequence.head_bytes += head_bytes if i.wanted else 0
        states = None
        if hidden is not None and i.return_hidden_states:
            states = hidden[n_tokens : n_tokens + len(i.tokens)]
        if i.draw:
            first = row - n_logits
            output = StepOutput(logits[:0], list(drawn[first : first + i.wanted]), states)
        else:
            output = StepOutput(logits[n_logits : n_logits + i.wanted], [], states)
            n_logits += i.wanted
        outputs.append(output)
        row += i.wanted
        n_tokens += len(i.tokens)
    return outputs
