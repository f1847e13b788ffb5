"""Methods that read earlier positions: attention, convolutions and recurrences."""

from __future__ import annotations

import numpy as np

from sterna.errors import UnsupportedModelError
from sterna.graph.heads import F32, ROW_BLOCK, Attention, Heads, RecurrentHeads
from sterna.graph.methods.base import Methods
from sterna.graph.ops import (
    AttentionOp,
    ConvOp,
    RecurrenceOp,
    RgLruOp,
    RopeOp,
    SelectiveScanOp,
    ShortConvOp,
    StateSpaceOp,
    Value,
)

__all__ = ["SequenceMethods"]


class SequenceMethods(Methods):
    """Methods that read earlier positions: attention, convolutions and recurrences."""

    def attention(
        self, qkv: Value, layer: int, how: Attention,
        norms: tuple[F32, ...] = (), eps: float = 0.0, gated: bool = False,
        norms_last: bool = False, heads: Heads | None = None, keys_are_values: bool = False,
        keys_of: Value | None = None,
    ) -> Value:  # fmt: skip
        """Rotate q and k of a row [q | k | v], store k and v, and attend to the positions so far.

        layer: of the model, for messages. heads: of this layer; None: the graph's.
        norms: weights of RMSNorms of q, k and (if there are three) v. Of size head_dim they
        normalise each head, before the rotation or with norms_last after it. Two of size
        heads * head_dim normalise all of q and all of k, before it.
        gated: each head of q is followed by as many values, which `gated` may read.
        keys_are_values: the row is [q | k]; the keys, before norms and rotation, are the values.
        keys_of: what `attention` returned for an earlier layer, whose keys and values this one
        reads; the row is q alone, with at most one norm.
        """
        r = heads or self.heads
        stored = 0 if keys_of is not None else r.n_kv_heads * (1 if keys_are_values else r.stored)
        if qkv.width != (r.n_heads * (1 + gated) + stored) * r.head_dim:
            raise UnsupportedModelError(
                f"layer {layer}: where q, k and v are in several formats, head_dim must be a "
                f"multiple of {ROW_BLOCK}, but got {r.head_dim}; give them one --format"
            )
        cached = 0 if self.one_layer else len(self.graph.kv_heads)
        stores = keys_of is None
        if keys_of is not None:
            assert isinstance(keys_of.op, AttentionOp)
            cached = keys_of.op.layer
        q_norm, k_norm, v_norm = (*norms, None, None, None)[:3]
        width = (r.n_heads + (r.stored * r.n_kv_heads if stores else 0)) * r.padded_head
        rotated = self._add(
            RopeOp(
                name=f"model.layers.{layer}.self_attn", output=Value(width), x=qkv, layer=cached,
                heads=r, attention=how, q_norm=q_norm, k_norm=k_norm, v_norm=v_norm, eps=eps,
                norms_last=norms_last, gated=gated, stores=stores,
                keys_are_values=keys_are_values,
            )
        )  # fmt: skip
        return self._add(
            AttentionOp(
                name="attention", output=Value(r.n_heads * r.outputs), x=rotated, layer=cached,
                heads=r, attention=how,
            )
        )  # fmt: skip

    def conv(
        self, x: Value, weight: F32, name: str, bias: F32 | None = None, column: int = 0,
        linear: bool = False,
    ) -> Value:  # fmt: skip
        """Convolve channels of x causally, each by itself, then apply SiLU, unless it is linear.

        weight: float32 [channels, width]; the last column is for the token itself. bias: float32
        [channels]. column: of x, where the channels begin; other columns stay as they are. Read the
        result and not x afterwards.
        """
        taps = np.ascontiguousarray(weight.T)
        out = Value(x.width, x.starts)
        return self._add(
            ConvOp(
                name=name, output=out, x=x, taps=taps, bias=bias, column=column, linear=linear
            )
        )  # fmt: skip

    def short_conv(self, x: Value, weight: F32, bias: F32 | None, name: str) -> Value:
        """Write after * (conv(before * x) (+ bias)) of a row [before | after | x]; the convolution
        is causal, of each channel by itself.

        weight: float32 [channels, width]; the last column is for the token itself. bias: float32
        [channels].
        """
        taps = np.ascontiguousarray(weight.T)
        out = Value(len(weight))
        return self._add(ShortConvOp(name=name, output=out, x=x, taps=taps, bias=bias))

    def recurrence(
        self, x: Value, heads: RecurrentHeads, a: int, b: int, rate: F32, bias: F32, name: str,
        strength: float = 1.0,
    ) -> Value:  # fmt: skip
        """Apply the gated delta rule; the result is float32 [v_heads * v_dim].

        A row begins [q | k | v], and has the two gates of each value head from the columns `a` and
        `b` on. q and k get unit length, and q is divided by the root of k_dim. With
        decay = exp(rate softplus(a + bias)) and beta = strength sigmoid(b), each head's state is
        S <- decay S + k (beta (v - (decay S)^T k))^T, and the result is S^T q. rate, bias: float32
        [v_heads]. Where they are [v_heads * k_dim], a has as many columns, and each row of a state
        decays by itself. Do not read x afterwards.
        """
        return self._add(
            RecurrenceOp(
                name=name, output=Value(heads.v_width), x=x, heads=heads, a=a, b=b, rate=rate,
                bias=bias, strength=strength,
            )
        )  # fmt: skip

    def state_space(
        self, x: Value, heads: RecurrentHeads, column: int, step: int, rate: F32, bias: F32,
        skip: F32, name: str, limits: tuple[float, float] = (0.0, float("inf")),
    ) -> Value:  # fmt: skip
        """Apply a state space (Mamba-2); the result is float32 [v_heads * v_dim].

        A row has [v | k | q] from `column` on (in the paper's words x, B and C), and a step of each
        value head from the column `step` on. With h = softplus(step + bias), kept within `limits`,
        each head's state is S <- exp(rate h) S + k (h v)^T, and the result is S^T q + skip v. rate,
        bias, skip: float32 [v_heads].
        """
        out, (least, most) = Value(heads.v_width), limits
        return self._add(
            StateSpaceOp(
                name=name, output=out, x=x, heads=heads, column=column, step=step, rate=rate,
                bias=bias, skip=skip, least=least, most=most,
            )
        )  # fmt: skip

    def selective_scan(
        self, x: Value, step: Value, k: tuple[Value, int], q: tuple[Value, int], rate: F32,
        skip: F32, name: str,
    ) -> Value:  # fmt: skip
        """Apply Mamba's selective scan; the result is as wide as x.

        Each channel of x has a state S of n values and a step of its own. All channels of a token
        share k and q, n columns of a value from a column on (in the paper's words B and C). With
        h = softplus(step), S <- exp(rate h) S + k h x, and the result is S^T q + skip x.
        rate: float32 [channels, n]; skip: float32 [channels].
        """
        return self._add(
            SelectiveScanOp(
                name=name, output=Value(x.width), x=x, step=step, k=k[0], q=q[0], k_column=k[1],
                q_column=q[1], rate=np.ascontiguousarray(rate.T), skip=skip,
            )
        )  # fmt: skip

    def rg_lru(self, x: Value, gates: Value, decay: F32, name: str) -> Value:
        """Apply the RG-LRU of Griffin to each channel of x.

        gates: [i | r], two of each channel. With a = exp(-8 softplus(decay) sigmoid(r)), the state
        of a channel, which is the result, is h <- a h + sqrt(1 - a^2) sigmoid(i) x; that of a
        text's first token is sigmoid(i) x. decay: float32 [channels].
        """
        out = Value(x.width)
        return self._add(RgLruOp(name=name, output=out, x=x, gates=gates, decay=decay))
