"""The tensors of a recipe by their published names."""

from __future__ import annotations

from typing import Any

import torch

from checkpoint_factory import gemma4
from checkpoint_factory.recipe import FUSED_EXPERTS, Recipe
from checkpoint_factory.tokenizers import tokenizer


def pack_rows(ternary: torch.Tensor) -> torch.Tensor:
    """uint8 [M/4, K] of ternary [M, K]: bits 2i of row r hold the code of row i*M/4 + r."""
    codes = (ternary + 1).to(torch.uint8).reshape(4, -1, ternary.shape[1])
    return codes[0] | codes[1] << 2 | codes[2] << 4 | codes[3] << 6


def linear_shapes(recipe: Recipe, layer: int = 0) -> dict[str, tuple[int, int]]:
    """(M, K) of every linear layer of one block, by its name inside the block."""
    if recipe.is_gemma4:
        return gemma4.shapes(recipe, layer)
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
    """Shapes of an FFN of experts: its router, three for each expert, and those of a shared one."""
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
    """The part of `linear_shapes` that a token is multiplied with: as many experts as it has."""
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
        # Small next to the blocks' outputs: otherwise the input token always wins in a tied model.
        scaled = recipe.is_gemma or recipe.is_gemma4  # times the root of the width
        size = 0.015 if scaled else 0.25
        return (size * torch.randn(vocab, recipe.hidden, generator=rng)).to(recipe.dtype)

    out = {"model.embed_tokens.weight": table(), "model.norm.weight": norm(recipe.hidden)}
    if recipe.is_gemma4:
        out |= gemma4.outside(recipe, vocab, rng)
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
            for name, size in recipe.head_norms(i).items():
                out[f"{block}{name}.weight"] = norm(size)
        if recipe.is_gemma4:
            out[f"{block}self_attn.k_norm.weight"] *= 0.2  # as trained, since scores are not scaled
            scalar = 0.5 + torch.rand(1, generator=rng)
            out[f"{block}layer_scalar"] = scalar.to(recipe.dtype)
            if recipe.experts:
                more = gemma4.experts(recipe, rng)
                out |= {f"{block}{name}": tensor for name, tensor in more.items()}
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
    """Tensors of a recurrent layer that are no linear layers: decays from nearly 0 to nearly 1."""
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
