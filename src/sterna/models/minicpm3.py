"""MiniCPM3: MiniCPM's graph with multi-head latent attention.

    x = x + r o(latent attention);   x = x + r down(silu(gate) * up)

Each sublayer reads RMSNorm(x); r = scale_depth / sqrt(layers).
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import latent_attention, llama, minicpm
from sterna.models.builder import ModelBuilder
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import FFN, LATENT, READS, GgufArchitecture

ARCHITECTURES = ("MiniCPM3ForCausalLM",)
DEFAULTS: dict[str, Any] = (
    llama.DEFAULTS
    | {"vocab_size": 73448, "hidden_size": 2560, "intermediate_size": 6400, "num_hidden_layers": 62}
    | {"num_attention_heads": 40, "num_key_value_heads": 40, "max_position_embeddings": 32768}
    | {"rms_norm_eps": 1e-5, "tie_word_embeddings": True, "kv_lora_rank": 256, "q_lora_rank": 768}
    | {"qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "head_dim": 32}
    | {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}
)
GGUF = {
    "minicpm3": GgufArchitecture(ARCHITECTURES[0], modules={**FFN, **READS, **LATENT}, latent=True)
}


def complete(f: Fields) -> dict[str, Any]:
    """Return the sizes of keys, and factors that are 1 where the file has none."""
    base, depth = f.config["dim_model_base"], f.config["scale_depth"]
    return {
        **latent_attention.latent_fields(f),
        "dim_model_base": f.count("hidden_size") if base is None else base,
        "scale_depth": f.n_layers**0.5 if depth is None else depth,
    }


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    factors = minicpm.factors(m.config)
    return llama.build(m, factors=factors, attend=latent_attention.attention)
