"""Llama and what shares its graph: Mistral, TinyLlama, and ternary Llamas such as Falcon-E.

    x = x + o(attention(rope(q, k), v));   x = x + down(silu(gate) * up)

Each half reads RMSNorm(x). Packed ternary layers quantise their input to int8; float layers do not.
"""

from __future__ import annotations

from sterna.graph import Graph, Value
from sterna.models.config import TransformerConfig
from sterna.models.weights import Linear, WeightSource

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
ACTIVATION = "silu"
TERNARY = False  # float tensors of linear layers are the weights themselves


def build(g: Graph, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the logits."""
    d, ff, eps = c.hidden_size, c.intermediate_size, c.rms_norm_eps
    q_width, kv_width = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    table = w.table("model.embed_tokens", c.vocab_size, d)
    x = g.embed(table)
    for i in range(c.n_layers):
        p = f"model.layers.{i}"
        a, m = f"{p}.self_attn", f"{p}.mlp"
        h = g.norm(x, w.vector(f"{p}.input_layernorm.weight", d), eps, f"{p}.input_layernorm")
        qkv = w.matrix(
            f"{a}.qkv_proj",
            [Linear(f"{a}.q_proj", q_width, d), Linear(f"{a}.k_proj", kv_width, d),
             Linear(f"{a}.v_proj", kv_width, d)],
        )  # fmt: skip
        h = g.attention(g.linear(h, qkv, f"{a}.qkv_proj"), i)
        o = w.matrix(f"{a}.o_proj", [Linear(f"{a}.o_proj", d, q_width)])
        x = g.linear(h, o, f"{a}.o_proj", residual=x)
        post = w.vector(f"{p}.post_attention_layernorm.weight", d)
        h = g.norm(x, post, eps, f"{p}.post_attention_layernorm")
        gate_up = w.matrix(
            f"{m}.gate_up_proj", [Linear(f"{m}.gate_proj", ff, d), Linear(f"{m}.up_proj", ff, d)]
        )
        h = g.glu(g.linear(h, gate_up, f"{m}.gate_up_proj"), ACTIVATION, f"{m}.act")
        down = w.matrix(f"{m}.down_proj", [Linear(f"{m}.down_proj", d, ff)])
        x = g.linear(h, down, f"{m}.down_proj", residual=x)
    x = g.norm(g.select(x), w.vector("model.norm.weight", d), eps, "model.norm")
    return g.linear(x, table if c.tied else w.table("lm_head", c.vocab_size, d), "lm_head")
