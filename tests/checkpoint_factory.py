"""Small random checkpoints on disk, laid out exactly like the published ones.

Each `Recipe` names one published layout; `write` puts a model of a few ten thousand parameters in
that layout into a folder, with a byte-level BPE tokenizer, so that Sterna and `transformers` read
the very same files. Nothing here imports Sterna: a reader's mistake cannot cancel itself out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

torch.set_num_threads(1)  # the models are tiny: a second thread would only wait for the first

BOS, EOS, EOT = "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] | capitalize }}: "
    "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}Assistant: {% endif %}"
)
CORPUS = """def read_lines(path):
    \"\"\"Return the lines of the file.\"\"\"
    with open(path, encoding="utf-8") as file:
        return [line.rstrip() for line in file]
The meaning of life is to read the lines of the file, and to return them.
"""
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    # Small enough that a head_dim of 16 has rotations in all three bands (kept, blended, divided).
    "original_max_position_embeddings": 64,
}


#: In an original context of 64, heads of 16 have pairs before, on and after the ramp.
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
#: Its context is longer than the original one, so that long factors hold.
LONGROPE = {
    "rope_type": "longrope", "short_factor": [1.0 + i / 16 for i in range(8)],
    "long_factor": [1.0 + i * i / 2 for i in range(8)], "original_max_position_embeddings": 32,
}  # fmt: skip


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
        return self.architecture.startswith("Gemma")

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
        if self.is_gemma:
            names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        if self.architecture == "Glm4ForCausalLM":
            names += ["post_self_attn_layernorm", "post_mlp_layernorm"]
        if self.architecture.startswith("Olmo"):
            names = ["post_attention_layernorm", "post_feedforward_layernorm"]
        return names

    @property
    def head_norms(self) -> dict[str, int]:
        """The norms of q and k and their widths, by their names inside the block."""
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


BITNET = Recipe()
LLAMA = Recipe("LlamaForCausalLM", "float", torch.float32, tied=False)
FALCON = replace(LLAMA, weights="divide", dtype=torch.bfloat16)
# Sizes that formats with groups of 32 divide; Qwen3's heads are wider than hidden / heads.
QWEN2 = replace(
    LLAMA, architecture="Qwen2ForCausalLM", hidden=96, intermediate=160, heads=6, kv_heads=2,
    rope_theta=1e6, seed=19,
)  # fmt: skip
QWEN3 = replace(QWEN2, architecture="Qwen3ForCausalLM", heads=4, kv_heads=2, head_dim=48, seed=21)
# Windows of less than a page and of more; four layers, so that either kind follows the other. Caps
# that scores and logits come near.
GEMMA2 = replace(
    QWEN2, architecture="Gemma2ForCausalLM", heads=4, kv_heads=2, head_dim=48, layers=4, tied=True,
    rope_theta=10000.0, seed=40,
    config={
        "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 40, "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 3.0, "final_logit_softcapping": 0.7,
    },
)  # fmt: skip
GEMMA3 = replace(
    GEMMA2, architecture="Gemma3ForCausalLM", seed=40, rope_theta=1e6,
    config={
        "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 100, "sliding_window_pattern": 3, "query_pre_attn_scalar": 64,
        "rope_local_base_freq": 1000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
)  # fmt: skip
GRANITE = replace(
    QWEN2, architecture="GraniteForCausalLM", seed=27,
    config={
        "embedding_multiplier": 5.0, "attention_multiplier": 0.11, "residual_multiplier": 0.3,
        "logits_scaling": 3.0, "attention_bias": True,
    },
)  # fmt: skip
SMOLLM3 = replace(
    QWEN2, architecture="SmolLM3ForCausalLM", seed=28, layers=4,
    config={"no_rope_layer_interval": 2, "pad_token_id": None},
)  # fmt: skip
# q, k, v and gate, up are stored as one matrix each; a window of less than a page.
PHI3 = replace(
    QWEN2, architecture="Phi3ForCausalLM", rope_theta=10000.0, seed=60,
    config={"sliding_window": 50, "pad_token_id": None},
)  # fmt: skip
# Two, and then three value heads to a key head; heads and widths that are no multiples of 16; a
# rotation of a quarter of a head, in sections.
QWEN3_5 = replace(
    QWEN2, architecture="Qwen3_5ForCausalLM", heads=4, kv_heads=2, head_dim=32, layers=4, seed=50,
    config={
        "model_type": "qwen3_5_text", "rms_norm_eps": 1e-6, "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 24,
        "linear_value_head_dim": 16,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
            "mrope_section": [2, 1, 1], "mrope_interleaved": True,
        },
    },
)  # fmt: skip
OLMO2 = replace(
    QWEN2, architecture="Olmo2ForCausalLM", rope_theta=10000.0, seed=62,
    config={"pad_token_id": None},
)  # fmt: skip
# The published base: another one, transformers 5.23 takes for layers without a window alone.
OLMO3 = replace(
    OLMO2, architecture="Olmo3ForCausalLM", layers=4, seed=64, rope_theta=500000.0,
    rope_scaling={"rope_type": "yarn", **YARN}, config={"sliding_window": 70, "pad_token_id": None},
)  # fmt: skip
GLM = replace(
    QWEN2, architecture="GlmForCausalLM", heads=4, head_dim=40, rope_theta=10000.0, seed=66,
    config={"pad_token_id": None},
)  # fmt: skip
GLM4 = replace(GLM, architecture="Glm4ForCausalLM", seed=67)
HUNYUAN = replace(
    QWEN2, architecture="HunYuanDenseV1ForCausalLM", heads=4, kv_heads=2, head_dim=48,
    rope_theta=10000.0, tied=True, seed=70,
    rope_scaling={
        "type": "dynamic", "alpha": 50.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1,
        "mscale": 1.0, "mscale_all_dim": 1.0,
    },
    config={"model_type": "hunyuan_v1_dense", "pad_token_id": None, "use_cla": False},
)  # fmt: skip
# Nothing of transformers' own: test_against_transformers makes a Llama of it.
MINICPM = replace(
    QWEN2, architecture="MiniCPMForCausalLM", layers=3, rope_theta=10000.0, seed=72,
    config={"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 24},
)  # fmt: skip
# Of 7 experts, whose rows fill no tile, each token takes 3; a file for each.
QWEN3_MOE = replace(
    QWEN3, architecture="Qwen3MoeForCausalLM", seed=70,
    config={
        "model_type": "qwen3_moe", "num_experts": 7, "num_experts_per_tok": 3,
        "moe_intermediate_size": 96, "norm_topk_prob": True,
    },
)  # fmt: skip
MIXTRAL = replace(
    QWEN2, architecture="MixtralForCausalLM", rope_theta=1e6, seed=73,
    config={"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
)  # fmt: skip
# Experts of all layers are one tensor each; another one is shared.
QWEN3_5_MOE = replace(
    QWEN3_5, architecture="Qwen3_5MoeForCausalLM", seed=74,
    config=QWEN3_5.config | {
        "model_type": "qwen3_5_moe_text", "num_experts": 9, "num_experts_per_tok": 4,
        "moe_intermediate_size": 64, "shared_expert_intermediate_size": 96,
    },
)  # fmt: skip
# As published, but for the experts' floats, which are those of a dequantised file.
GPT_OSS = replace(
    QWEN2, architecture="GptOssForCausalLM", heads=4, kv_heads=2, head_dim=32, layers=4, seed=75,
    rope_theta=150000.0, intermediate=64,
    rope_scaling={
        **YARN, "rope_type": "yarn", "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    },
    config={
        "model_type": "gpt_oss", "num_local_experts": 5, "num_experts_per_tok": 2,
        "attention_bias": True, "sliding_window": 40, "swiglu_limit": 1.5, "pad_token_id": None,
    },
)  # fmt: skip
RECIPES: dict[str, Recipe] = {
    "bitnet-multiply": BITNET,
    "bitnet-divide": replace(BITNET, weights="divide", seed=1),
    "bitnet-online": replace(BITNET, weights="online", seed=2),
    "bitnet-excluded": replace(
        BITNET,
        weights="online",
        seed=16,
        config={
            "quantization_config": {
                "quant_method": "bitnet",
                "linear_class": "autobitlinear",
                "quantization_mode": "online",
                "modules_to_not_convert": [
                    "lm_head",
                    "model.layers.0.self_attn.q_proj",
                    "mlp.up_proj",
                ],
            }
        },
    ),
    "bitnet-input-norms": replace(BITNET, input_norms=True, seed=30),
    "falcon-input-norms": replace(FALCON, input_norms=True, seed=31),
    "bitnet-untied": replace(BITNET, tied=False, kv_heads=5, seed=3),
    "bitnet-large-eps": replace(BITNET, config={"rms_norm_eps": 0.01}, seed=12),
    "llama-f32": replace(LLAMA, seed=4),
    "llama-bf16": replace(
        LLAMA, dtype=torch.bfloat16, tied=True, heads=4, kv_heads=2, head_dim=32, seed=5
    ),
    "llama-f16": replace(LLAMA, dtype=torch.float16, heads=8, kv_heads=4, head_dim=48, seed=6),
    "llama-large-eps": replace(LLAMA, config={"rms_norm_eps": 0.01}, seed=11),
    "llama3-rope": replace(LLAMA, rope_scaling=LLAMA3_ROPE, rope_theta=500000.0, seed=7),
    "llama-96": replace(LLAMA, hidden=96, intermediate=160, heads=6, kv_heads=2, seed=14),
    "llama-256": replace(LLAMA, hidden=256, intermediate=512, heads=4, kv_heads=2, seed=15),
    "llama-bias": replace(LLAMA, config={"attention_bias": True, "mlp_bias": True}, seed=16),
    "llama-linear-rope": replace(
        LLAMA, rope_scaling={"rope_type": "linear", "factor": 3.0}, seed=17
    ),
    "llama-yarn": replace(LLAMA, rope_scaling={"type": "yarn", **YARN}, seed=41),
    "llama-yarn-mscale": replace(
        LLAMA,
        seed=42,
        rope_scaling={"rope_type": "yarn", **YARN, "mscale": 0.7, "mscale_all_dim": 1},
    ),
    # The new place of the fields; ends of the ramp within a pair.
    "qwen3-yarn": replace(
        QWEN3,
        seed=43,
        config={
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e6,
                **YARN,
                "truncate": False,
                "beta_fast": 16,
                "beta_slow": 2.0,
                "attention_factor": 0.9,
            }
        },
    ),
    "llama-longrope": replace(LLAMA, rope_scaling=LONGROPE, seed=44),
    "qwen3-longrope-short": replace(
        QWEN3,
        seed=45,
        config={
            "rope_scaling": {
                "rope_type": "longrope",
                "short_factor": [1 + i / 8 for i in range(24)],
                "long_factor": [9.0] * 24,
                "factor": 2.0,
            },
            "original_max_position_embeddings": 512,
        },
    ),
    "mistral": replace(
        LLAMA, architecture="MistralForCausalLM", config={"sliding_window": None}, seed=18
    ),
    # The heads of bitnet_b1_58-3B, 100 wide, are no multiple of 16 either.
    "llama-heads-of-20": replace(LLAMA, hidden=100, kv_heads=5, seed=23),
    "qwen3-heads-of-36": replace(QWEN3, head_dim=36, config={"attention_bias": True}, seed=24),
    "qwen2": QWEN2,
    "qwen2-bf16": replace(QWEN2, dtype=torch.bfloat16, tied=True, seed=20),
    "qwen3": QWEN3,
    "qwen3-bias": replace(QWEN3, config={"attention_bias": True}, kv_heads=4, seed=22),
    "mistral-window": replace(
        LLAMA, architecture="MistralForCausalLM", config={"sliding_window": 70}, seed=32
    ),
    "qwen2-windows": replace(
        QWEN2,
        config={"use_sliding_window": True, "sliding_window": 33, "max_window_layers": 1},
        seed=33,
    ),
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "granite": GRANITE,
    "smollm3": SMOLLM3,
    "phi3": PHI3,
    # Three quarters of a head are rotated, as in Phi-4-mini.
    "phi3-longrope": replace(
        PHI3,
        tied=True,
        dtype=torch.bfloat16,
        heads=4,
        seed=61,
        rope_scaling={
            "type": "longrope",
            "short_factor": [1.0 + i / 16 for i in range(9)],
            "long_factor": [1.0 + i * i / 2 for i in range(9)],
        },
        config={
            "sliding_window": 262144,
            "pad_token_id": None,
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 32,
        },
    ),
    "olmo2": OLMO2,
    "olmo2-heads-of-36": replace(OLMO2, head_dim=36, kv_heads=1, tied=True, seed=63),
    "olmo3": OLMO3,
    "glm": GLM,
    "glm4": GLM4,
    "glm4-part": replace(
        GLM4,
        dtype=torch.bfloat16,
        seed=68,
        config={"pad_token_id": None, "partial_rotary_factor": 0.8, "attention_bias": False},
    ),
    "hunyuan": HUNYUAN,
    "hunyuan-plain": replace(HUNYUAN, rope_scaling=None, head_dim=36, seed=71),
    "minicpm": MINICPM,
    "minicpm-longrope": replace(MINICPM, tied=True, rope_scaling=LONGROPE, seed=73),
    "qwen3_5": QWEN3_5,
    "qwen3_5-interval": replace(
        QWEN3_5,
        tied=True,
        dtype=torch.bfloat16,
        layers=5,
        seed=51,
        config=QWEN3_5.config
        | {
            "full_attention_interval": 2,
            "linear_num_key_heads": 3,
            "linear_num_value_heads": 3,
            "linear_conv_kernel_dim": 3,
            "attention_bias": True,
        },
    ),
    "qwen3_5-types": replace(
        QWEN3_5,
        layers=3,
        seed=52,
        heads=2,
        head_dim=36,
        config=QWEN3_5.config
        | {
            "layer_types": ["full_attention", "linear_attention", "linear_attention"],
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 10,
            "linear_value_head_dim": 20,
            "rope_parameters": QWEN3_5.config["rope_parameters"]
            | {
                "partial_rotary_factor": 0.5,
                "mrope_section": [3, 3, 3],
            },
        },
    ),
    "qwen3_moe": QWEN3_MOE,
    "mixtral": MIXTRAL,
    "qwen3_5_moe": QWEN3_5_MOE,
    "gpt_oss": GPT_OSS,
    # Shares that do not add up to 1; the second layer's FFN is dense.
    "qwen3_moe-mixed": replace(
        QWEN3_MOE,
        tied=True,
        dtype=torch.bfloat16,
        layers=3,
        seed=71,
        config=QWEN3_MOE.config | {"norm_topk_prob": False, "mlp_only_layers": [1]},
    ),
    "llama-sharded": replace(LLAMA, dtype=torch.bfloat16, shards=3, seed=8),
    "falcon-e": replace(FALCON, tied=True, heads=8, kv_heads=2, head_dim=16, seed=9),
    "falcon3-untied": replace(FALCON, kv_heads=5, seed=13),
}


def tokenizer() -> Tokenizer:
    """A byte-level BPE like Llama 3's: 256 byte symbols, some merges, special tokens last."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=317, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tok.train_from_iterator([CORPUS], trainer)
    tok.add_special_tokens([BOS, EOS, EOT])
    bos = [(BOS, tok.token_to_id(BOS))]
    tok.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=bos
    )
    return tok


def pack_rows(ternary: torch.Tensor) -> torch.Tensor:
    """uint8 [M/4, K] of ternary [M, K]: bits 2i of row r hold the code of row i*M/4 + r."""
    codes = (ternary + 1).to(torch.uint8).reshape(4, -1, ternary.shape[1])
    return codes[0] | codes[1] << 2 | codes[2] << 4 | codes[3] << 6


def linear_shapes(recipe: Recipe, layer: int = 0) -> dict[str, tuple[int, int]]:
    """(M, K) of every linear layer of one block, by its name inside the block."""
    q, kv = recipe.heads * recipe.width, recipe.kv_heads * recipe.width
    hidden, wide = recipe.hidden, recipe.intermediate
    mixer = {
        "self_attn.q_proj": (q * (1 + recipe.is_hybrid), hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
    }
    if recipe.is_hybrid and recipe.is_recurrent(layer):
        r = recipe.recurrent
        mixer = {
            "linear_attn.in_proj_qkv": (2 * r["k"] + r["v"], hidden),
            "linear_attn.in_proj_z": (r["v"], hidden),
            "linear_attn.in_proj_b": (r["heads"], hidden),
            "linear_attn.in_proj_a": (r["heads"], hidden),
            "linear_attn.out_proj": (hidden, r["v"]),
        }
    if recipe.is_stored_fused:
        return {
            "self_attn.qkv_proj": (q + 2 * kv, hidden),
            "self_attn.o_proj": (hidden, q),
            "mlp.gate_up_proj": (2 * wide, hidden),
            "mlp.down_proj": (hidden, wide),
        }
    if recipe.is_glm:
        return mixer | {"mlp.gate_up_proj": (2 * wide, hidden), "mlp.down_proj": (hidden, wide)}
    if recipe.has_experts(layer):
        return {**mixer, **_expert_shapes(recipe)}
    return {
        **mixer,
        "mlp.gate_proj": (wide, hidden),
        "mlp.up_proj": (wide, hidden),
        "mlp.down_proj": (hidden, wide),
    }


def _expert_shapes(recipe: Recipe) -> dict[str, tuple[int, int]]:
    """Those of an FFN of experts: its router, three of each expert, and those of a shared one."""
    hidden, wide = recipe.hidden, recipe.expert_width
    block = "block_sparse_moe" if recipe.architecture == "MixtralForCausalLM" else "mlp"
    gate, up, down = ("w1", "w3", "w2") if block != "mlp" else ("gate_proj", "up_proj", "down_proj")
    router = "router" if recipe.architecture == "GptOssForCausalLM" else "gate"
    shapes = {f"{block}.{router}": (recipe.experts, hidden)}
    for i in range(recipe.experts):
        shapes[f"{block}.experts.{i}.{gate}"] = (wide, hidden)
        shapes[f"{block}.experts.{i}.{up}"] = (wide, hidden)
        shapes[f"{block}.experts.{i}.{down}"] = (hidden, wide)
    if shared := recipe.config.get("shared_expert_intermediate_size"):
        shapes["mlp.shared_expert_gate"] = (1, hidden)
        shapes["mlp.shared_expert.gate_proj"] = (shared, hidden)
        shapes["mlp.shared_expert.up_proj"] = (shared, hidden)
        shapes["mlp.shared_expert.down_proj"] = (hidden, shared)
    return shapes


def _fused(recipe: Recipe, apart: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A checkpoint whose experts' tensors are one for all of them."""
    out = {name: w for name, w in apart.items() if ".experts." not in name}
    for layer in range(recipe.layers):
        block = f"model.layers.{layer}.mlp.experts"
        gate, up, down = (
            torch.stack([apart[f"{block}.{i}.{p}_proj.weight"] for i in range(recipe.experts)])
            for p in ("gate", "up", "down")
        )
        if recipe.architecture == "GptOssForCausalLM":
            out |= gpt_oss_experts(f"{block}.", gate, up, down, recipe.seed)
        else:
            out |= {f"{block}.gate_up_proj": torch.cat([gate, up], 1), f"{block}.down_proj": down}
    return out


def gpt_oss_experts(
    name: str, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, seed: int
) -> dict[str, torch.Tensor]:
    """Its tensors of all experts: transposed, rows of gate and up in turn, and biases."""
    rng = torch.Generator().manual_seed(seed)
    gate_up = torch.stack([gate, up], 2).flatten(1, 2)
    biases = (torch.randn(w.shape[:2], generator=rng).to(w.dtype) for w in (gate_up, down))
    return {
        f"{name}gate_up_proj": gate_up.transpose(1, 2).contiguous(),
        f"{name}down_proj": down.transpose(1, 2).contiguous(),
        f"{name}gate_up_proj_bias": next(biases),
        f"{name}down_proj_bias": next(biases),
    }


def active_shapes(recipe: Recipe, layer: int = 0) -> dict[str, tuple[int, int]]:
    """Those of `linear_shapes` that a token is multiplied with: of as many experts as it has."""
    chosen = recipe.config.get("num_experts_per_tok", 0)
    return {
        name: shape
        for name, shape in linear_shapes(recipe, layer).items()
        if ".experts." not in name or int(name.split(".")[2]) < chosen
    }


def _linear(recipe: Recipe, shape: tuple[int, int], rng: torch.Generator) -> dict[str, Any]:
    """The stored tensors of one linear layer, by suffix."""
    m, k = shape
    # Outputs of about the size of the inputs, so that every layer of the stack matters.
    scale = (1.5 / k) ** 0.5 * (0.75 + 0.5 * torch.rand(1, generator=rng))
    if recipe.weights in ("multiply", "divide"):
        ternary = torch.randint(-1, 2, (m, k), generator=rng)
        stored = scale if recipe.weights == "multiply" else 1 / scale
        return {"weight": pack_rows(ternary), "weight_scale": stored.to(recipe.dtype)}
    weight = scale * torch.randn(m, k, generator=rng)
    if recipe.weights == "online":
        # Published masters have such values; 1e-39 is denormal in bf16 and f32. All become code 0.
        weight[::7, ::5] = 1e-34
        weight[3::7, 1::5] = -1e-39
    return {"weight": weight.to(recipe.dtype)}


def tensors(recipe: Recipe) -> dict[str, torch.Tensor]:
    """Every tensor of the checkpoint by its published name."""
    rng = torch.Generator().manual_seed(recipe.seed)
    vocab = tokenizer().get_vocab_size()

    def norm(size: int) -> torch.Tensor:
        middle = 0 if recipe.is_gemma or recipe.is_hybrid else 1
        return (middle + 0.2 * torch.randn(size, generator=rng)).to(recipe.dtype)

    def table() -> torch.Tensor:
        # Small beside the blocks' outputs: in a tied model the input token would else always win.
        size = 0.25 if not recipe.is_gemma else 0.015  # times the root of the width
        return (size * torch.randn(vocab, recipe.hidden, generator=rng)).to(recipe.dtype)

    out = {"model.embed_tokens.weight": table(), "model.norm.weight": norm(recipe.hidden)}
    if not recipe.tied:
        out["lm_head.weight"] = table()
    for i in range(recipe.layers):
        block = f"model.layers.{i}."
        for name in recipe.layer_norms[:2]:
            out[f"{block}{name}.weight"] = norm(recipe.hidden)
        if recipe.is_bitnet:
            out[block + "self_attn.attn_sub_norm.weight"] = norm(recipe.hidden)
            ffn = norm(recipe.intermediate)
            ffn[::9] = 1e-32  # as published; times an activation it may be denormal
            out[block + "mlp.ffn_sub_norm.weight"] = ffn
        for name in recipe.layer_norms[2:]:
            out[f"{block}{name}.weight"] = norm(recipe.hidden)
        if recipe.is_hybrid and recipe.is_recurrent(i):
            out |= _recurrent(recipe, f"{block}linear_attn.", rng)
        else:
            for name, size in recipe.head_norms.items():
                out[f"{block}{name}.weight"] = norm(size)
        if recipe.architecture == "GptOssForCausalLM":
            sinks = torch.randn(recipe.heads, generator=rng).to(recipe.dtype)
            out[f"{block}self_attn.sinks"] = sinks
        for name, shape in linear_shapes(recipe, i).items():
            if name in recipe.biased:
                bias = 0.5 * torch.randn(shape[0], generator=rng)
                out[f"{block}{name}.bias"] = bias.to(recipe.dtype)
            for suffix, tensor in _linear(recipe, shape, rng).items():
                out[f"{block}{name}.{suffix}"] = tensor
            if recipe.input_norms:
                out[f"{block}{name}.rms_norm.weight"] = norm(shape[1])
    return _fused(recipe, out) if recipe.architecture in FUSED_EXPERTS else out


def _recurrent(recipe: Recipe, name: str, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """What a recurrent layer has besides its linear layers: decays from nearly 0 to nearly 1."""
    r = recipe.recurrent
    width = recipe.config["linear_conv_kernel_dim"]
    taps = torch.randn(2 * r["k"] + r["v"], 1, width, generator=rng)
    rates = torch.rand(r["heads"], generator=rng) * 4 - 3
    return {
        f"{name}conv1d.weight": taps.to(recipe.dtype),
        f"{name}A_log": rates.to(recipe.dtype),
        f"{name}dt_bias": torch.randn(r["heads"], generator=rng).to(recipe.dtype),
        f"{name}norm.weight": (
            1 + 0.2 * torch.randn(recipe.config["linear_value_head_dim"], generator=rng)
        ).to(recipe.dtype),
    }


def config(recipe: Recipe) -> dict[str, Any]:
    """config.json with the keys and spellings of the published files."""
    vocab = tokenizer()
    out: dict[str, Any] = {
        "architectures": [recipe.architecture],
        "bos_token_id": vocab.token_to_id(BOS),
        "eos_token_id": vocab.token_to_id(EOS),
        "hidden_act": "relu2" if recipe.is_bitnet else "silu",
        "hidden_size": recipe.hidden,
        "initializer_range": 0.02,
        "intermediate_size": recipe.intermediate,
        "max_position_embeddings": recipe.max_positions,
        "model_type": recipe.architecture.removesuffix("ForCausalLM").lower(),
        "num_attention_heads": recipe.heads,
        "num_hidden_layers": recipe.layers,
        "num_key_value_heads": recipe.kv_heads,
        "rms_norm_eps": 1e-5,
        "rope_theta": recipe.rope_theta,
        "tie_word_embeddings": recipe.tied,
        "torch_dtype": str(recipe.dtype).removeprefix("torch."),
        "use_cache": True,
        "vocab_size": vocab.get_vocab_size(),
    }
    if recipe.head_dim is not None:
        out["head_dim"] = recipe.head_dim
    if recipe.rope_scaling is not None:
        out["rope_scaling"] = recipe.rope_scaling
    if recipe.weights != "float":
        out["quantization_config"] = quantization_config(recipe)
    return out | recipe.config


def quantization_config(recipe: Recipe) -> dict[str, Any]:
    """The three published modes; `divide` is the default and is written without a linear_class."""
    out: dict[str, Any] = {"quant_method": "bitnet", "modules_to_not_convert": None}
    if recipe.weights != "divide":
        out["linear_class"] = "autobitlinear"
        out["quantization_mode"] = "offline" if recipe.weights == "multiply" else "online"
    if recipe.input_norms:
        out |= {"use_rms_norm": True, "rms_norm_eps": 1e-6}
    return out


def write(folder: Path, recipe: Recipe) -> Path:
    """Writes the whole model folder (created if missing) and returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", config(recipe))
    tok = tokenizer()
    tok.save(str(folder / "tokenizer.json"))
    ids = {name: tok.token_to_id(token) for name, token in (("bos", BOS), ("eos", EOS))}
    stops = [ids["eos"], tok.token_to_id(EOT)]
    _write_json(
        folder / "generation_config.json",
        {"bos_token_id": ids["bos"], "eos_token_id": stops, "do_sample": False},
    )
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": EOS,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    _write_weights(folder, tensors(recipe), recipe.shards)
    return folder


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _write_weights(folder: Path, weights: dict[str, torch.Tensor], shards: int) -> None:
    """One `model.safetensors`, or `shards` numbered files and their index."""
    metadata = {"format": "pt"}
    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata)
        return
    names = sorted(weights)
    weight_map: dict[str, str] = {}
    for i in range(shards):
        part = {name: weights[name] for name in names[i::shards]}
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        save_file(part, folder / file, metadata)
        weight_map |= dict.fromkeys(part, file)
    total = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    _write_json(folder / "model.safetensors.index.json", index)
