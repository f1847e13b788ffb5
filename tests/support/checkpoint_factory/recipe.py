"""`Recipe`: one published checkpoint layout at a tiny size."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from checkpoint_factory import gemma4

#: Architectures with an RMSNorm of each head of q and k.
NORMED_HEADS = ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Gemma3ForCausalLM")
#: Architectures whose published files have a tensor for all experts of a layer.
FUSED_EXPERTS = ("Qwen3_5MoeForCausalLM", "GptOssForCausalLM")


@dataclass(frozen=True)
class Recipe:
    """One published checkpoint layout at a tiny size.

    The sizes are deliberately no multiples of the tile (64 rows, 64 k): hidden 80, feed-forward
    212, grouped-query heads. Rows are multiples of 4, as the packed layout needs.
    """

    architecture: str = "BitNetForCausalLM"
    weights: str = "multiply"  # multiply | divide | online | float
    dtype: torch.dtype = torch.bfloat16
    tied: bool = True
    hidden: int = 80
    intermediate: int = 212
    layers: int = 2
    heads: int = 5
    kv_heads: int = 1
    head_dim: int | None = None
    max_positions: int = 512
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    shards: int = 1
    seed: int = 0
    input_norms: bool = False  # BitNet's use_rms_norm: a norm before each linear layer
    config: dict[str, Any] = field(default_factory=dict)  # overrides the keys of config.json

    @property
    def width(self) -> int:
        """Features of one head."""
        return self.head_dim or self.hidden // self.heads

    @property
    def biased(self) -> set[str]:
        """The linear layers of a block that have a bias, by their names inside the block."""
        attention = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}
        names = set(attention) if self.architecture == "Qwen2ForCausalLM" else set()
        if self.is_glm:  # true is its default, and never says anything of o
            names |= attention if self.config.get("attention_bias", True) else set()
        elif self.config.get("attention_bias"):
            names |= attention | {"self_attn.o_proj"}
        if self.config.get("mlp_bias"):
            names |= {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}
        if self.architecture == "GptOssForCausalLM":
            names.add("mlp.router")
        return names

    @property
    def is_hybrid(self) -> bool:
        """Whether most layers are recurrent."""
        return self.architecture.startswith("Qwen3_5")

    @property
    def recurrent(self) -> dict[str, int]:
        """Widths of a recurrent layer: of q (or k), of v, and how many value heads there are."""
        key = self.config["linear_num_key_heads"] * self.config["linear_key_head_dim"]
        heads = self.config["linear_num_value_heads"]
        return {"k": key, "v": heads * self.config["linear_value_head_dim"], "heads": heads}

    def is_recurrent(self, layer: int) -> bool:
        """Whether a layer of a hybrid is recurrent."""
        types = self.config.get("layer_types")
        if types is not None:
            return types[layer] == "linear_attention"
        return (layer + 1) % self.config.get("full_attention_interval", 4) != 0

    @property
    def experts(self) -> int:
        """Experts of a layer; 0: there are none."""
        config = self.config
        return int(config.get("num_experts") or config.get("num_local_experts") or 0)

    @property
    def expert_width(self) -> int:
        """Features inside an expert's FFN."""
        return int(self.config.get("moe_intermediate_size", self.intermediate))

    def has_experts(self, layer: int) -> bool:
        """Whether a layer's FFN is one of experts."""
        return self.experts > 0 and layer not in self.config.get("mlp_only_layers", ())

    @property
    def is_gemma(self) -> bool:
        """Whether norms stand around each half, and store their difference from 1."""
        return self.architecture.startswith("Gemma") and not self.is_gemma4

    @property
    def is_gemma4(self) -> bool:
        """Whether norms stand around each half, and heads differ by layer."""
        return self.architecture.startswith("Gemma4")

    @property
    def is_stored_fused(self) -> bool:
        """Whether q, k and v are one matrix of the checkpoint, and gate and up another."""
        return self.architecture == "Phi3ForCausalLM"

    @property
    def is_glm(self) -> bool:
        """Whether gate and up are one matrix of the checkpoint, and q, k and v are not."""
        return self.architecture.startswith("Glm")

    @property
    def layer_norms(self) -> list[str]:
        """The norms of a layer, as wide as x, by their names inside the block."""
        names = ["input_layernorm", "post_attention_layernorm"]
        if self.is_gemma or self.is_gemma4:
            names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        if self.is_gemma4 and self.config["hidden_size_per_layer_input"]:
            names.append("post_per_layer_input_norm")
        if self.architecture == "Glm4ForCausalLM":
            names += ["post_self_attn_layernorm", "post_mlp_layernorm"]
        if self.architecture.startswith("Olmo"):
            names = ["post_attention_layernorm", "post_feedforward_layernorm"]
        return names

    def head_norms(self, layer: int = 0) -> dict[str, int]:
        """The norms of q and k and their widths, by their names inside the block."""
        if self.is_gemma4:
            width = gemma4.heads(self, layer)[1]
            return dict.fromkeys(("self_attn.q_norm", "self_attn.k_norm"), width)
        if self.architecture.startswith("Olmo"):
            q, k = self.heads * self.width, self.kv_heads * self.width
            return {"self_attn.q_norm": q, "self_attn.k_norm": k}
        if self.architecture == "HunYuanDenseV1ForCausalLM":
            names = "self_attn.query_layernorm", "self_attn.key_layernorm"
            return dict.fromkeys(names, self.width)
        if self.is_hybrid or self.architecture in NORMED_HEADS:
            return dict.fromkeys(("self_attn.q_norm", "self_attn.k_norm"), self.width)
        return {}

    @property
    def is_bitnet(self) -> bool:
        """Whether the graph has BitNet's sub-norms and relu^2."""
        return self.architecture == "BitNetForCausalLM"
