"""Gemma 2: norms around each sublayer, soft caps, windows in every other layer. arXiv 2408.00118.

    x = x + norm(o(attention(rope(q, k), v)));   x = x + norm(down(gelu(gate) * up))

Each sublayer reads RMSNorm(x). Norms multiply by 1 + their weight, the embedding is scaled by the
root of its width, scores and logits are capped: c tanh(s / c).
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import llama
from sterna.models.builder import ModelBuilder
from sterna.models.config import FULL, SLIDING
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import ADDS, LINEARS, SOFT_CAPS, GgufArchitecture
from sterna.models.options import AttentionOptions, Factors, Norms, QKNorm

ARCHITECTURES = ("Gemma2ForCausalLM",)
ACTIVATION = "gelu_pytorch_tanh"
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"rms_norm_eps": 1e-6, "attention_bias": False, "vocab_size": 256000, "hidden_size": 2304}
    | {"intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8}
    | {"num_key_value_heads": 4, "head_dim": 256, "hidden_act": ACTIVATION}
    | {"max_position_embeddings": 8192, "tie_word_embeddings": True, "query_pre_attn_scalar": 256}
    | {"sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
)
GGUF = {
    "gemma2": GgufArchitecture(
        ARCHITECTURES[0],
        ACTIVATION,
        LINEARS | ADDS | {"input_layernorm": "attn_norm", "pre_feedforward_layernorm": "ffn_norm"},
        sums=True,
        reads=SOFT_CAPS,
        period=2,
    )
}

NORMS = Norms(
    pre=("input_layernorm", "pre_feedforward_layernorm"),
    post=("post_attention_layernorm", "post_feedforward_layernorm"),
    plus_one=True,
)


def complete(f: Fields) -> dict[str, Any]:
    """Return fields that follow from others: the first layer has a window, the second none."""
    f.supported("use_bidirectional_attention", f.flag("use_bidirectional_attention"), False)
    if f.config.get("layer_types") is not None:
        return {}
    n = f.n_layers
    return {"layer_types": [FULL if i % 2 else SLIDING for i in range(n)]}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    return write(m, None)


def write(m: ModelBuilder, qk_norm: QKNorm | None, norms: Norms = NORMS) -> Value:
    """Add the layers; qk_norm: as in `AttentionOptions`."""
    c = m.config
    attention = AttentionOptions(
        qk_norm=qk_norm,
        scale=c.fields.factor("query_pre_attn_scalar") ** -0.5,
        cap=c.fields.cap("attn_logit_softcapping"),
    )
    factors = Factors(
        embedding=c.hidden_size**0.5, logits_cap=c.fields.cap("final_logit_softcapping")
    )
    return llama.build(m, norms=norms, attention=attention, factors=factors)
