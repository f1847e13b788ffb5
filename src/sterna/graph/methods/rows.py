"""Methods that make, copy and order columns of rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from sterna.formats import PackedWeight
from sterna.graph.heads import F32, Piece
from sterna.graph.methods.base import Methods
from sterna.graph.ops import (
    CopyOp,
    EmbedOp,
    FeaturesOp,
    HiddenStatesOp,
    PartsOp,
    PositionsOp,
    Route,
    RowwiseOp,
    ScaleOp,
    SelectOp,
    SplitHeadsOp,
    Value,
)

__all__ = ["RowMethods"]


class RowMethods(Methods):
    """Methods that make, copy and order columns of rows."""

    def embed(
        self,
        table: PackedWeight,
        factor: float = 1.0,
        first_for_rest: bool = False,
        image_token: int = -1,
    ) -> Value:
        """Look up rows of the table [vocab, width] for the batch's tokens, times the factor.

        first_for_rest: the table may be shorter; tokens behind its last row take its first.
        image_token: the token whose row stands where images stand; -1: their features do.
        """
        return self._add(
            EmbedOp(
                name="embed_tokens", output=Value(table.K), weight=table, factor=factor,
                first_for_rest=first_for_rest, image_token=image_token,
            )
        )  # fmt: skip

    def previous_hidden_states(self, width: int) -> Value:
        """Add a row for each token from outside (`StepInput.previous_hidden_states`)."""
        return self._add(CopyOp(name="previous_hidden_states", output=Value(width), x=None))

    def concatenate(self, parts: Sequence[Value]) -> Value:
        """Put the columns of all parts into one row."""
        *starts, width = accumulate((part.width for part in parts), initial=0)
        out = Value(width)
        for part, start in zip(parts, starts, strict=True):
            self._add(CopyOp(name="concatenate", output=out, x=part, column=start))
        return out

    def place(self, width: int, pieces: Sequence[tuple[Value, Piece]], name: str) -> Value:
        """Put columns of several values into one row of this width, as each `Piece` says."""
        out = Value(width)
        for x, piece in pieces:
            self._copy(x, piece, out, name)
        return out

    def head_rows(self, x: Value, piece: Piece, name: str) -> Value:
        """Put each piece of x into a row of its own, of one of `count` heads.

        `linear` then multiplies it by the head's own matrix, one of `Experts`; `place` puts rows of
        heads back into one. They end the rows of a route.
        """
        route = self._follow(Route(None, piece.count, piece.count))
        out = Value(piece.width, route=route)
        self._copy(x, piece, out, name)
        # A rowwise operation rounds rows, or makes planes of them, for what follows.
        rows = Value(piece.width, route=route)
        return self._add(RowwiseOp(name=name, output=rows, x=out))

    def _copy(self, x: Value, piece: Piece, out: Value, name: str) -> None:
        self._add(
            CopyOp(
                name=name, output=out, x=x, column=piece.column, pieces=piece.count,
                width=piece.width, begin=piece.begin, stride=piece.stride,
                to_stride=piece.to_stride,
            )
        )  # fmt: skip

    def hidden_states(self, x: Value, weight: F32, eps: float, name: str) -> None:
        """Output RMSNorm(x) * weight of every token to the inputs that ask for it
        (`StepInput.return_hidden_states`); computed only if one does."""
        self._add(HiddenStatesOp(name=name, output=Value(x.width), x=x, norm=weight, eps=eps))

    def features(self, x: Value, column: int, name: str) -> Value:
        """Add an image's features to the rows of its tokens, those from a column on.

        `embed` puts the first ones, as many as the table is wide, in the places of tokens.
        """
        return self._add(FeaturesOp(name=name, output=Value(x.width), x=x, column=column))

    def positions(self, x: Value, table: F32, name: str, first: int = 0) -> Value:
        """x + the table's row of each token's position; first: the row of position 0."""
        out = Value(x.width)
        return self._add(PositionsOp(name=name, output=out, x=x, table=table, first=first))

    def parts(self, x: Value, table: F32, name: str) -> Value:
        """x + row 0 of the table, or row 1 in the second part of a pair (`StepInput.second_part`).

        table: float32 [1 or more, width].
        """
        return self._add(PartsOp(name=name, output=Value(x.width), x=x, table=table))

    def scale(self, x: Value, factors: F32, name: str) -> Value:
        """Multiply each column of x by its factor, float32 [width of x].

        Read the result and not x afterwards.
        """
        out = Value(x.width, x.starts)
        return self._add(ScaleOp(name=name, output=out, x=x, factors=factors))

    def split_heads(self, x: Value, n_heads: int, parts: int, name: str, first: int = 1) -> Value:
        """Reorder columns [q | k | v] of each head in turn to [q of all | k of all | v of all].

        parts: how many parts a head has. first: so many queries come in one head, before its k.
        """
        out = Value(x.width)
        return self._add(
            SplitHeadsOp(name=name, output=out, x=x, n_heads=n_heads, parts=parts, first=first)
        )

    def select(self, x: Value, mean: bool = False) -> Value:
        """Go on with the rows of x whose logits are wanted; all that follows runs only on them.

        mean: with the mean of its sequence's new rows in the place of each.
        """
        self.selected = True
        return self._add(SelectOp(name="select", output=Value(x.width), x=x, mean=mean))
