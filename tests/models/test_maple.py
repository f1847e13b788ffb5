"""Maple, whose class transformers lacks: logits of the published definition, in float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import gguf_factory
import numpy as np
import pytest
import saved_models
import torch
from gguf_factory import Tiny
from helpers import assert_same_bits, failure
from safetensors.torch import save_file
from torch.nn.functional import silu, softmax

from sterna import LLM, loading
from sterna.engine import Engine
from sterna.errors import UnsupportedModelError

CONFIG: dict[str, Any] = {
    "architectures": ["MapleForCausalLM"], "model_type": "maple", "vocab_size": 272,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "hidden_act": "silu", "use_bias": False,
    "rms_norm_eps": 1e-3, "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
    "max_position_embeddings": 256, "sliding_window": 16, "num_experts": 6,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_shared_experts": 0,
    "norm_topk_prob": True, "router_dtype": "fp32", "tie_word_embeddings": False,
    "nope_on_global_attention": True, "moe_router_enable_expert_bias": False, "use_qk_norm": True,
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
}  # fmt: skip
TOKENS = np.random.default_rng(1).integers(0, 256, 40).tolist()
Tensors = dict[str, torch.Tensor]


def tensors(ternary: bool) -> Tensors:
    """A random checkpoint; ternary: layers are -s, 0 and s, with another s in each row."""
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    def linear(m: int, k: int) -> torch.Tensor:
        w = 2 * normal(m, k) * k**-0.5
        s = (normal(m, 1).abs() + 1) * k**-0.5
        return (s * w.div(k**-0.5).round().clamp(-1, 1)).bfloat16() if ternary else w

    d, heads, kv_heads, ff = 64, 4 * 32, 2 * 32, 32
    out = {"model.word_embeddings.weight": normal(272, d), "lm_head.weight": normal(272, d) / 8}
    out["model.norm.weight"] = 1 + normal(d) / 4
    for i in range(4):
        p = f"model.layers.{i}."
        for norm, width in (("input_layernorm", d), ("post_attention_layernorm", d),
                            ("self_attn.q_norm", 32), ("self_attn.k_norm", 32)):  # fmt: skip
            out[f"{p}{norm}.weight"] = 1 + normal(width) / 4
        for name, m, k in (
            ("q", heads, d),
            ("k", kv_heads, d),
            ("v", kv_heads, d),
            ("o", d, heads),
        ):
            out[f"{p}self_attn.{name}_proj.weight"] = linear(m, k)
        out[f"{p}mlp.gate.weight"] = normal(6, d)
        for e in range(6):
            for name, m, k in (("gate", ff, d), ("up", ff, d), ("down", d, ff)):
                factor = 1 if ternary or name == "down" else 4  # so that the limit of 7 counts
                out[f"{p}mlp.experts.{e}.{name}_proj.weight"] = factor * linear(m, k)
    return out


def write(folder: Path, weights: Tensors, **fields: object) -> Path:
    """A folder as it is published."""
    (folder / "config.json").write_text(json.dumps(CONFIG | fields))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    saved_models.tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def expected(weights: Tensors) -> np.ndarray:
    """The published definition, in float64."""
    t = {name: tensor.double() for name, tensor in weights.items()}
    n = len(TOKENS)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-3).rsqrt() * t[f"{name}.weight"]

    angles = torch.arange(n).double()[:, None] * 10000.0 ** (-torch.arange(0, 16, 2).double() / 16)
    cosine, sine = (f(torch.cat([angles, angles], -1))[:, None] for f in (torch.cos, torch.sin))

    def rotated(x: torch.Tensor) -> torch.Tensor:
        half, rest = x[..., :16], x[..., 16:]
        turned = torch.cat([-half[..., 8:], half[..., :8]], -1)
        return torch.cat([half * cosine + turned * sine, rest], -1)

    distance = torch.arange(n)[:, None] - torch.arange(n)
    x = t["model.word_embeddings.weight"][TOKENS]
    for i, kind in enumerate(CONFIG["layer_types"]):
        p, windowed = f"model.layers.{i}", kind == "sliding_attention"
        h = norm(x, f"{p}.input_layernorm")
        q, k, v = ((h @ t[f"{p}.self_attn.{name}_proj.weight"].T).view(n, -1, 32) for name in "qkv")
        q, k = norm(q, f"{p}.self_attn.q_norm"), norm(k, f"{p}.self_attn.k_norm")
        if windowed:
            q, k = rotated(q), rotated(k)
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * 32**-0.5
        seen = (distance >= 0) & (
            (distance <= 16) | (not windowed)
        )  # a token sees 16 before itself
        mixed = softmax(scores.masked_fill(~seen, -torch.inf), -1)
        a = torch.einsum("hqk,khd->qhd", mixed, v).reshape(n, -1)
        x = x + a @ t[f"{p}.self_attn.o_proj.weight"].T
        h = norm(x, f"{p}.post_attention_layernorm")
        shares, chosen = softmax(h @ t[f"{p}.mlp.gate.weight"].T, -1).topk(2)
        shares = shares / shares.sum(-1, keepdim=True)
        for token in range(n):
            for share, e in zip(shares[token], chosen[token].tolist(), strict=True):
                gate, up, down = (
                    t[f"{p}.mlp.experts.{e}.{name}_proj.weight"] for name in ("gate", "up", "down")
                )
                g, u = (gate @ h[token]).clamp(max=7), (up @ h[token]).clamp(-7, 7)
                x[token] = x[token] + share * (down @ (silu(g) * u))
    return (norm(x, "model.norm") @ t["lm_head.weight"].T).numpy()


def logits(folder: Path) -> np.ndarray:
    """Sterna's, with float32 keys."""
    model = loading.load(folder, cached=False)
    return Engine(model, threads=1, kv_dtype="f32", deterministic=True).logits([TOKENS])[0]


def error(got: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference, relative to the spread of logits."""
    return float(np.abs(got - wanted).max() / wanted.std())


def test_floats(tmp_path: Path) -> None:
    """Windows include the token itself, the gate is at most 7, and full layers do not rotate."""
    weights = tensors(ternary=False)
    assert error(logits(write(tmp_path, weights)), expected(weights)) < 1e-4


def test_ternary(tmp_path: Path) -> None:
    """Levels in floats run as i2, whose inputs are rounded to int8; the router and the head not."""
    weights = tensors(ternary=True)
    model = loading.load(write(tmp_path, weights), cached=False)
    formats = {name: weight.format.name for name, weight in model.weights.modules.items()}
    assert {formats[n] for n in formats if n.endswith("_proj") and "experts" in n} == {"i2"}
    assert model.format == "i2"
    # Rounding may choose another expert for a token; so the median of tokens counts.
    wanted = expected(weights)
    each = np.abs(logits(tmp_path) - wanted).max(axis=1) / wanted.std()
    assert np.median(each) < 0.2
    done = LLM(tmp_path, cache=False).generate("hi", max_tokens=4, ignore_eos=True)
    assert len(done.tokens) == 4


#: Modules of a layer -> in GGUF files, by llama.cpp's converter.
NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate": "ffn_gate_inp",
}  # fmt: skip
KEYS = {
    "attention.layer_norm_rms_epsilon": 1e-3, "attention.sliding_window": 16,
    "attention.sliding_window_pattern": [True, True, True, False], "rope.dimension_count": 16,
    "expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 32,
    "vocab_size": 272,
}  # fmt: skip


#: As DeepGrove's own files say it: layers without a window are not rotated.
OWN_KEYS = {
    "rope.dimension_count": 0, "rope.dimension_count_swa": 16, "swiglu_clamp_exp": [7.0] * 4,
}  # fmt: skip


@pytest.mark.parametrize("keys", [{}, OWN_KEYS], ids=["converter", "own"])
def test_gguf(keys: dict[str, object], tmp_path: Path) -> None:
    """The file's logits have the bits of the folder's."""
    gguf_file(tmp_path / "m.gguf", KEYS | keys)
    (tmp_path / "m").mkdir()
    folder = write(tmp_path / "m", tensors(ternary=False))
    assert_same_bits(logits(tmp_path / "m.gguf"), logits(folder))


def test_another_clamp(tmp_path: Path) -> None:
    gguf_file(tmp_path / "m.gguf", KEYS | {"swiglu_clamp_exp": [7.0, 7.0, 6.0, 7.0]})
    failure(lambda: loading.load(tmp_path / "m.gguf"), UnsupportedModelError, "swiglu_clamp_exp")


def gguf_file(path: Path, keys: dict[str, object]) -> None:
    """The model as a file of these keys."""
    weights = tensors(ternary=False)
    tiny = Tiny(
        arch="maple", hidden=64, wide=96, layers=4, heads=4, kv_heads=2, head_dim=32,
        keys={f"maple.{key}": value for key, value in keys.items()},
    )  # fmt: skip
    writer = gguf.GGUFWriter(path, "maple")
    gguf_factory.add_metadata(writer, tiny)
    outer = {
        "model.word_embeddings": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
    }
    for name, to in outer.items():
        writer.add_tensor(f"{to}.weight", weights[f"{name}.weight"].numpy())
    for i in range(4):
        for name, to in NAMES.items():
            tensor = weights[f"model.layers.{i}.{name}.weight"]
            writer.add_tensor(f"blk.{i}.{to}.weight", tensor.numpy())
        for part in ("gate", "up", "down"):
            p = f"model.layers.{i}.mlp.experts"
            each = [weights[f"{p}.{e}.{part}_proj.weight"] for e in range(6)]
            writer.add_tensor(f"blk.{i}.ffn_{part}_exps.weight", torch.stack(each).numpy())
    gguf_factory.finish(writer)


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_shared_experts", 1), ("use_bias", True), ("moe_router_enable_expert_bias", True)],
)
def test_what_no_published_model_has(field: str, value: object, tmp_path: Path) -> None:
    folder = write(tmp_path, tensors(ternary=False), **{field: value})
    failure(lambda: loading.load(folder, cached=False), UnsupportedModelError, field)
