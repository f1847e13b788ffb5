"""Experts: the words against their definition, checkpoints in every dress, bad input.

Logits against transformers: test_against_transformers.py; over units, threads, chunks and batches:
test_determinism.py, test_digests.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import gguf
import gguf_factory
import numpy as np
import pytest
import torch
from checkpoint_factory import QWEN3_MOE, RECIPES, Recipe, config, tensors, write
from helpers import ISAS, assert_same_bits, failure
from safetensors.torch import load_file, save_file
from test_qwen3_5 import as_gguf
from transformers import AutoModelForCausalLM

from sterna import _native, loading, ops
from sterna.convert import to_directory, to_gguf
from sterna.engine import Engine, Sequence
from sterna.errors import (
    ModelFormatError,
    NonFiniteError,
    RequestError,
    SternaError,
    UnsupportedModelError,
)
from sterna.formats import Experts
from sterna.graph import Graph, Heads

NAMES = [name for name, recipe in RECIPES.items() if recipe.experts]
PROMPT = [int(t) for t in np.random.default_rng(3).integers(0, 256, 150)]


def engine(model: loading.Model, **options: Any) -> Engine:
    return Engine(model, threads=2, kv_dtype="f32", **options)


# --------------------------------------------------------------------------------------- words

TOKENS, EXPERTS, CHOSEN = 170, 5, 3
HIDDEN, WIDTH = 160, 96  # neither fills tiles
#: Formats of every arithmetic: floats, a scale for each row, groups of both kinds, lookup tables.
ARITHMETICS = ("f32", "bf16", "i8", "t5", "i2:g32", "q4_0", "q4_1", "mxfp4", "tl2_0", "pot4")


def values(*shape: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)


@lru_cache
def rows() -> np.ndarray:
    return values(TOKENS, HIDDEN, seed=0) * np.float32(HIDDEN**0.5)


@lru_cache
def stacked(name: str, count: int, M: int, K: int, seed: int) -> Experts:
    each = (ops.quantize(values(M, K, seed=seed + i), name) for i in range(count))
    return Experts.of(count, each, name)


@lru_cache
def router(kind: str) -> np.ndarray:
    """Its weights; those with ties give the experts logits of which many are equal."""
    w = values(EXPERTS, HIDDEN, seed=90)
    return w if kind == "apart" else w[[0, 1, 0, 1, 0]]


def finished(g: Graph, x: Any) -> _native.Program:
    """Logits are the value."""
    g.linear(g.select(x), ops.pack(np.eye(TOKENS, x.width, dtype=np.float32), format="f32"), "head")
    return g.compile()


def run(
    program: _native.Program, width: int, isa: str = "scalar", threads: int = 1, cut: int = TOKENS
) -> np.ndarray:
    """float32 [TOKENS, width], in steps of so many tokens."""
    found, cache = [], _native.KvCache(1, 1, 16, 4, "f32")
    for start in range(0, TOKENS, cut):
        tokens = np.arange(start, min(start + cut, TOKENS), dtype=np.int32)
        span = (start, len(tokens), len(tokens), np.arange(3, dtype=np.int32))
        found.append(program.run(cache, tokens, [span], isa, threads)[0][:, :width].copy())
    return np.concatenate(found)


def graph() -> tuple[Graph, Any]:
    g = Graph(Heads(1, 1, 16))
    return g, g.embed(ops.pack(rows(), format="f32"))


@lru_cache
def shares_program(kind: str, of_all: bool) -> _native.Program:
    g, x = graph()
    logits = g.linear(x, ops.pack(router(kind), format="f32"), "router")
    return finished(g, g.route(logits, EXPERTS, CHOSEN, "router", of_all).shares)


@lru_cache
def layer_program(name: str, kind: str) -> _native.Program:
    """x + the experts' linear layer with a bias."""
    g, x = graph()
    logits = g.linear(x, ops.pack(router(kind), format="f32"), "router")
    at = g.spread(x, g.route(logits, EXPERTS, CHOSEN, "router"), "spread")
    weights = stacked(name, EXPERTS, HIDDEN, HIDDEN, 1)
    y = g.linear(at, weights, "experts", bias=values(EXPERTS, HIDDEN, seed=2))
    return finished(g, g.combine(y, x, "experts"))


def chosen(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """(experts of each token, ascending; logits): the largest, of equal ones the first."""
    logits = ops.linear(rows(), ops.pack(router(kind), format="f32"))
    return np.sort(np.argsort(-logits, axis=1, kind="stable")[:, :CHOSEN], axis=1), logits


@pytest.mark.parametrize("of_all", [False, True])
@pytest.mark.parametrize("kind", ["apart", "ties"])
def test_shares_are_a_softmax(kind: str, of_all: bool) -> None:
    """Over the chosen experts or all, whichever way the tokens are cut."""
    experts, logits = chosen(kind)
    power = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    best = np.take_along_axis(power, experts, 1)
    wanted = best / (power if of_all else best).sum(1, keepdims=True)
    got = run(shares_program(kind, of_all), CHOSEN)
    np.testing.assert_allclose(got, wanted, rtol=2e-7)
    assert_same_bits(run(shares_program(kind, of_all), CHOSEN, threads=2, cut=7), got)
    if kind == "ties":
        assert (experts != np.sort(np.argsort(logits, axis=1)[:, ::-1][:, :CHOSEN])).any()


@pytest.mark.parametrize("kind", ["apart", "ties"])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ARITHMETICS)
def test_layers_of_experts(name: str, isa: str, kind: str) -> None:
    """Each row has the bits that its expert's weight alone gives it; the sum is in their order."""
    experts, _ = chosen(kind)
    weights, bias = stacked(name, EXPERTS, HIDDEN, HIDDEN, 1), values(EXPERTS, HIDDEN, seed=2)
    shares = run(shares_program(kind, False), CHOSEN)
    each = [ops.linear(rows(), weight) + bias[i] for i, weight in enumerate(weights)]
    total = np.zeros((TOKENS, HIDDEN), np.float32)
    for j in range(CHOSEN):
        rows_of = np.stack([each[e][n] for n, e in enumerate(experts[:, j])])
        total = total + shares[:, j : j + 1] * rows_of
    wanted = rows() + total
    for threads, cut in ((1, TOKENS), (2, TOKENS), (3, 17), (2, 1)):
        got = run(layer_program(name, kind), HIDDEN, isa, threads, cut)
        np.testing.assert_array_equal(got, wanted, f"{threads} threads, {cut} tokens a step")


@pytest.mark.parametrize("name", ARITHMETICS)
def test_one_expert_is_a_dense_ffn(name: str) -> None:
    """gate, up, activation, norm and rounding on rows of experts, to the bit."""
    gate_up, down = stacked(name, 1, 2 * WIDTH, HIDDEN, 5), stacked(name, 1, HIDDEN, WIDTH, 6)
    norm = np.abs(values(WIDTH, seed=7)) + 1
    found = []
    for of_experts in (True, False):
        g, x = graph()
        h = x
        if of_experts:
            logits = g.linear(x, ops.pack(values(1, HIDDEN, seed=8), format="f32"), "router")
            h = g.spread(x, g.route(logits, 1, 1, "router"), "spread")
        h = g.linear(h, gate_up if of_experts else gate_up[0], "gate_up")
        h = g.norm(g.glu(h, "silu", "act"), norm, 1e-5, "norm")
        if of_experts:
            y = g.combine(g.linear(h, down, "down"), x, "combine")
        else:
            y = g.linear(h, down[0], "down", residual=x)
        found.append(run(finished(g, y), HIDDEN, threads=2))
    assert_same_bits(*found)


def test_rows_of_two_routes_are_not_mixed() -> None:
    """A route ends before the next begins: the rows of experts are those of the last."""
    g, x = graph()
    weight = ops.pack(router("apart"), format="f32")
    first = g.route(g.linear(x, weight, "router"), EXPERTS, 2, "router")
    at = g.spread(x, first, "spread")
    g.route(g.linear(x, weight, "router"), EXPERTS, 2, "router")
    with pytest.raises(ValueError, match="before the next"):
        g.glu(at, "silu", "act")
    with pytest.raises(ValueError, match="last route"):
        g.spread(x, first, "spread")
    with pytest.raises(ValueError, match="rows of tokens"):
        g.combine(x, None, "combine")


def test_logits_that_are_not_finite_are_named() -> None:
    """Where a router gives NaN, experts are chosen all the same, and the run ends with its name."""
    g, x = graph()
    weight = router("apart").copy()
    weight[2] = 3e38
    at = g.spread(
        x,
        g.route(g.linear(x, ops.pack(weight, format="f32"), "r"), EXPERTS, 3, "the router"),
        "spread",
    )
    program = finished(g, g.combine(at, x, "combine"))
    with pytest.raises(FloatingPointError, match="the router"):
        run(program, HIDDEN)


# --------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_are_those_of_transformers(
    name: str, checkpoint: Callable[[str], Path]
) -> None:
    """A prompt, and 24 tokens after it one by one."""
    folder = checkpoint(name)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    wanted = reference.generate(
        torch.tensor([PROMPT[:40]]), max_new_tokens=24, do_sample=False, eos_token_id=-1
    )[0, 40:].tolist()
    e = engine(loading.load(folder), deterministic=True)
    sequence, got = Sequence(), []
    logits = e.prefill(sequence, PROMPT[:40]).copy()
    for _ in range(24):
        got.append(int(logits.argmax()))
        logits = e.prefill(sequence, got[-1:]).copy()
    assert got == wanted


@pytest.mark.parametrize("format", [None, "i8", "q4_0", "t5"])
@pytest.mark.parametrize("name", NAMES)
def test_packed_directories(name: str, format: str | None, tmp_path: Path) -> None:
    """Saved, converted and loaded again: the bits of the checkpoint. The router stays as it is."""
    source = write(tmp_path / "m", RECIPES[name])
    model = loading.load(source, format=format)
    expected = engine(model).logits([PROMPT])[0]
    loading.save(model, tmp_path / "saved")
    to_directory(source, tmp_path / "converted", format)
    for folder in ("saved", "converted"):
        again = loading.load(tmp_path / folder)
        assert_same_bits(engine(again).logits([PROMPT])[0], expected)
        routers = [w for n, w in again.weights.modules.items() if n.endswith((".gate", ".router"))]
        assert routers
        assert not any(w.format.integer for w in routers)


def test_a_packed_directory_in_another_format(tmp_path: Path) -> None:
    """Floats are rounded as those of the checkpoint are, each expert's in its own tiles."""
    source = write(tmp_path / "m", QWEN3_MOE)
    loading.save(loading.load(source), tmp_path / "packed")
    got = engine(loading.load(tmp_path / "packed", format="i1")).logits([PROMPT])[0]
    assert_same_bits(got, engine(loading.load(source, format="i1")).logits([PROMPT])[0])


def test_what_a_token_needs(checkpoint: Callable[[str], Path]) -> None:
    """Parameters count once, bytes of a token those of its own experts."""
    model = loading.load(checkpoint("qwen3_moe"), head="f32")
    assert model.n_params == sum(t.numel() for t in tensors(QWEN3_MOE).values() if t.dim() == 2)
    ffn = 3 * 96 * 96 * QWEN3_MOE.layers
    assert model.n_params - model.n_active_params == (7 - 3) * ffn
    ops_of = [op for op in model.graph.ops if op.kind == "linear" and op.weight is not None]
    read = [op.weight.nbytes * (3 / 7 if "experts" in op.name else 1) for op in ops_of]
    assert model.weight_bytes_per_token == round(sum(read))


def fused(recipe: Recipe) -> dict[str, torch.Tensor]:
    """The experts of each layer as one tensor each."""
    stored = tensors(recipe)
    for i in range(recipe.layers):
        mlp = f"model.layers.{i}.mlp.experts"
        parts = {
            part: torch.stack([stored.pop(f"{mlp}.{e}.{part}_proj.weight") for e in range(7)])
            for part in ("gate", "up", "down")
        }
        stored[f"{mlp}.gate_up_proj"] = torch.cat([parts["gate"], parts["up"]], 1)
        stored[f"{mlp}.down_proj"] = parts["down"]
    return stored


@pytest.mark.parametrize("format", [None, "q4_1"])
def test_one_tensor_of_all_experts(
    format: str | None, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """The bits of one for each."""
    folder = write(tmp_path / "m", QWEN3_MOE)
    save_file(fused(QWEN3_MOE), folder / "model.safetensors", {"format": "pt"})
    got = engine(loading.load(folder, format=format)).logits([PROMPT])[0]
    expected = engine(loading.load(checkpoint("qwen3_moe"), format=format)).logits([PROMPT])[0]
    assert_same_bits(got, expected)


LEVELS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def mxfp4(w: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Weights [E, M, K] as OCP MXFP4, as gpt-oss has them: blocks, scales, and what they stand for,
    number by number."""
    E, M, K = w.shape
    blocks = w.reshape(E, M, K // 32, 32)
    exponents = np.floor(np.log2(np.abs(blocks).max(-1))).astype(int) - 2
    scales = np.ldexp(np.float32(1), exponents)[..., None].astype(np.float32)
    codes = np.abs(blocks[..., None] / scales[..., None] - LEVELS).argmin(-1)
    bytes_ = codes[..., 0::2] | codes[..., 1::2] << 4
    real = (LEVELS[codes] * scales).reshape(E, M, K)
    return (
        torch.from_numpy(np.ascontiguousarray(bytes_, np.uint8)),
        torch.from_numpy(np.ascontiguousarray(exponents + 127, np.uint8)),
        real,
    )


def mxfp4_checkpoint(folder: Path, recipe: Recipe) -> tuple[Path, Path]:
    """gpt-oss as it is published, and the same as float32."""
    packed, real = dict(tensors(recipe)), dict(tensors(recipe))
    for name in [n for n in packed if n.endswith(("gate_up_proj", "down_proj"))]:
        blocks, scales, values = mxfp4(packed.pop(name).float().transpose(1, 2).numpy())
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        real[name] = torch.from_numpy(np.ascontiguousarray(values.transpose(0, 2, 1)))
    floats = {name: w.float() if w.is_floating_point() else w for name, w in real.items()}
    stored = {"packed": packed, "floats": floats}
    for which, weights in stored.items():
        write(folder / which, recipe)
        save_file(weights, folder / which / "model.safetensors", {"format": "pt"})
    path = folder / "packed" / "config.json"
    settings = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    path.write_text(json.dumps({**config(recipe), "quantization_config": settings}))
    return folder / "packed", folder / "floats"


def test_mxfp4(tmp_path: Path) -> None:
    """Blocks stay what they are; as floats they are the weights that they stand for."""
    packed, floats = mxfp4_checkpoint(tmp_path, RECIPES["gpt_oss"])
    model = loading.load(packed)
    assert {w.format.name for n, w in model.weights.modules.items() if "experts" in n} == {"mxfp4"}
    expected = engine(loading.load(floats), deterministic=True).logits([PROMPT])[0]
    exact = loading.load(packed, format="f32")
    assert_same_bits(engine(exact, deterministic=True).logits([PROMPT])[0], expected)
    got = engine(model).logits([PROMPT])[0]
    assert np.median(np.abs(got - expected).max(1)) < 0.15 * expected.std()
    loading.save(model, tmp_path / "saved")
    to_directory(packed, tmp_path / "converted", None)
    for folder in ("saved", "converted"):
        assert_same_bits(engine(loading.load(tmp_path / folder)).logits([PROMPT])[0], got)
    for asked in ("q4_0", "i8"):
        load = partial(loading.load, packed, format=asked)
        failure(load, RequestError, "mxfp4", asked)


@pytest.mark.parametrize(
    ("suffix", "change", "kind", "words"),
    [
        ("blocks", lambda w: w[:, :, :, :8].clone(), ModelFormatError, ("[5, 128, 3, 16]",)),
        ("scales", lambda w: w[:4].clone(), ModelFormatError, ("[5, 128, 3]", "[4, 128, 3]")),
        ("scales", lambda w: w.float(), ModelFormatError, ("U8", "F32")),
        ("scales", lambda w: None, ModelFormatError, ("no such tensor",)),
        ("scales", lambda w: w.index_fill(0, torch.tensor(2), 255), NonFiniteError, ("expert 2",)),
        ("bias", lambda w: w[:, :5].clone(), ModelFormatError, ("[5, 128]", "[5, 5]")),
        ("bias", lambda w: None, ModelFormatError, ("gate_proj.bias", "no such tensor")),
    ],
)
def test_bad_mxfp4(
    suffix: str, change: Callable[[torch.Tensor], torch.Tensor | None], kind: type[SternaError],
    words: tuple[str, ...], tmp_path: Path,
) -> None:  # fmt: skip
    """One line that names the file, the tensor, the rule and the value."""
    folder, _ = mxfp4_checkpoint(tmp_path, RECIPES["gpt_oss"])
    stored = load_file(folder / "model.safetensors")
    name = f"model.layers.1.mlp.experts.gate_up_proj_{suffix}"
    changed = change(stored.pop(name))
    if changed is not None:
        stored[name] = changed
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    failure(lambda: loading.load(folder), kind, str(folder), *words)


# ---------------------------------------------------------------------------------------- GGUF

INSIDE = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
} | {hf: name for name, hf in gguf_factory.LINEARS.items()}  # fmt: skip
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
#: Sizes of whole super-blocks; two types in one model, as in Q4_K_M.
BIG = replace(
    QWEN3_MOE, hidden=256, dtype=torch.float32, head_dim=64, seed=80,
    config=QWEN3_MOE.config | {"moe_intermediate_size": 256},
)  # fmt: skip
TYPES = {
    "floats": {},
    "mixed": {"": "Q4_K", "attn_v": "Q6_K", "ffn_down_exps": "Q6_K"},
    "apart": {"": "Q8_0", "ffn_gate_exps": "Q4_K", "ffn_up_exps": "Q6_K", "ffn_gate_inp": "F32"},
    "blocks": {"": "Q4_0", "ffn_gate_exps": "MXFP4", "ffn_up_exps": "MXFP4"},
    "halves": {"": "F16"},
}


def gguf_tensors(recipe: Recipe) -> dict[str, np.ndarray]:
    """The recipe's tensors by their names in a GGUF file, those of experts stacked."""
    stored = {name: w.float().numpy() for name, w in tensors(recipe).items()}
    others = {name: w for name, w in stored.items() if ".experts." not in name}
    if recipe.is_hybrid:
        out = as_gguf(recipe, others)
    else:
        out = dict(_gguf_tensor(recipe, name, w) for name, w in others.items())
    for name, w in stored.items():
        if ".experts." in name:
            block = f"blk.{name.split('.')[2]}.ffn_"
            for part, kind, of_part in _parts_of_experts(recipe, name.split(".experts.")[1], w):
                found = out.get(f"{block}{part}_exps.{kind}")
                stack = of_part if found is None else np.concatenate([found, of_part])
                out[f"{block}{part}_exps.{kind}"] = stack
    return {name: np.ascontiguousarray(w) for name, w in out.items()}


def _gguf_tensor(recipe: Recipe, name: str, w: np.ndarray) -> tuple[str, np.ndarray]:
    """A tensor of a dense layer: its name, and its rows as they lie there."""
    if name.endswith(".sinks"):
        return f"blk.{name.split('.')[2]}.attn_sinks.weight", w
    module, _, kind = name.rpartition(".")
    if module in OUTER:
        return f"{OUTER[module]}.{kind}", w
    _, _, layer, inside = module.split(".", 3)
    heads = {"self_attn.q_proj": recipe.heads, "self_attn.k_proj": recipe.kv_heads}.get(inside)
    if recipe.architecture == "MixtralForCausalLM" and heads:
        w = gguf_factory.interleaved(w, heads)
    to = INSIDE[inside]
    if recipe.architecture == "GptOssForCausalLM" and to == "ffn_norm":
        to = "post_attention_norm"
    return f"blk.{layer}.{to}.{kind}", w


def _parts_of_experts(
    recipe: Recipe, name: str, w: np.ndarray
) -> Iterator[tuple[str, str, np.ndarray]]:
    """(gate, up or down, weight or bias, those of one expert or all) of a tensor of experts."""
    if name[0].isdigit():
        part = name.split(".")[1].removesuffix("_proj")
        yield {"w1": "gate", "w3": "up", "w2": "down"}.get(part, part), "weight", w[None]
        return
    kind = "bias" if name.endswith("_bias") else "weight"
    alternating = recipe.architecture == "GptOssForCausalLM"
    if alternating and kind == "weight":
        w = w.transpose(0, 2, 1)
    if name.startswith("down"):
        yield "down", kind, w
        return
    half = w.shape[1] // 2
    yield "gate", kind, w[:, 0::2] if alternating else w[:, :half]
    yield "up", kind, w[:, 1::2] if alternating else w[:, half:]


def write_gguf(
    path: Path, arch: str, recipe: Recipe, keys: dict[str, Any], types: dict[str, str],
    change: Callable[[dict[str, np.ndarray]], None] = lambda file: None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Writes the recipe's GGUF file; returns its tensors as the gguf package reads them."""
    tiny = gguf_factory.Tiny(
        arch, recipe.hidden, recipe.intermediate, recipe.layers, recipe.heads, recipe.kv_heads,
        recipe.width, recipe.tied, rope_theta=recipe.rope_theta,
        keys={
            f"{arch}.expert_count": recipe.experts,
            f"{arch}.expert_used_count": recipe.config["num_experts_per_tok"],
            f"{arch}.expert_feed_forward_length": recipe.expert_width,
            **keys,
        },
    )  # fmt: skip
    rng, floats, file = np.random.default_rng(0), {}, gguf_tensors(recipe)
    change(file)
    writer = gguf.GGUFWriter(path, arch)
    gguf_factory.add_metadata(writer, tiny)
    for name, w in file.items():
        part = name.split(".")[-2] if name.startswith("blk") else ""
        if part == "ffn_gate_inp_shexp":  # one row is a vector
            w = w.reshape(-1)
        matrix = w.ndim > 1 and part and name.endswith(".weight")
        kind = types.get(part, types.get("", "F32")) if matrix else "F32"
        kind = "F32" if part == "ffn_gate_inp" else kind
        raw, real = gguf_factory.stored(kind, w.reshape(-1, w.shape[-1]), rng)
        plain = kind in ("F32", "F16")
        shape = (*w.shape[:-1], raw.shape[-1])
        writer.add_tensor(name, raw.reshape(shape), raw_dtype=None if plain else _type(kind))
        floats[name] = real.reshape(w.shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return floats


def _type(kind: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[kind]


def as_checkpoint(folder: Path, recipe: Recipe, floats: dict[str, np.ndarray]) -> Path:
    """The tensors of a GGUF file as a checkpoint of the recipe."""
    write(folder, recipe)
    stored = {}
    for name in tensors(recipe):
        module = name.removesuffix(".weight")
        inside = module.split(".", 3)[-1]
        if module in OUTER:
            w = floats[f"{OUTER[module]}.weight"]
        elif ".experts." in inside:
            _, _, expert, part = inside.split(".")
            part = part.removesuffix("_proj")
            w = floats[f"blk.{name.split('.')[2]}.ffn_{part}_exps.weight"][int(expert)]
        else:
            w = floats[f"blk.{name.split('.')[2]}.{INSIDE[inside]}.weight"]
        stored[name] = torch.from_numpy(w.copy())
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("types", TYPES)
def test_gguf(types: str, tmp_path: Path) -> None:
    """Read as floats, the file gives the bits of what the gguf package reads; its own types stay,
    also through a packed directory."""
    path = tmp_path / "m.gguf"
    floats = write_gguf(path, "qwen3moe", BIG, {}, TYPES[types])
    expected = engine(
        loading.load(as_checkpoint(tmp_path / "hf", BIG, floats), format="f32", head="f32"),
        deterministic=True,
    ).logits([PROMPT])[0]
    exact = engine(loading.load(path, format="f32", head="f32"), deterministic=True)
    assert_same_bits(exact.logits([PROMPT])[0], expected)
    model = loading.load(path)
    got = engine(model).logits([PROMPT])[0]
    assert np.median(np.abs(got - expected).max(1)) < 0.15 * expected.std()
    found = {w.format.name.upper() for n, w in model.weights.modules.items() if "expert" in n}
    wanted = {
        TYPES[types].get(f"ffn_{p}_exps", TYPES[types].get("", "F32"))
        for p in ("gate", "up", "down")
    }
    assert found == wanted
    loading.save(model, tmp_path / "packed")
    to_directory(path, tmp_path / "converted", None)
    for folder in ("packed", "converted"):
        assert_same_bits(engine(loading.load(tmp_path / folder)).logits([PROMPT])[0], got)


#: Without what no key says, or value heads that would change places.
OTHER_KINDS = {
    "llama": (RECIPES["mixtral"], {"llama.expert_feed_forward_length": None}),
    "gpt-oss": (
        replace(RECIPES["gpt_oss"], config={**RECIPES["gpt_oss"].config, "swiglu_limit": 7.0}),
        {
            "gpt-oss.attention.sliding_window": 40, "gpt-oss.rope.scaling.type": "yarn",
            "gpt-oss.rope.scaling.factor": 4.0,
            "gpt-oss.rope.scaling.original_context_length": 64,
        },
    ),
    "qwen35moe": (
        replace(
            RECIPES["qwen3_5_moe"], rope_theta=10000.0,
            config={**RECIPES["qwen3_5_moe"].config, "linear_num_value_heads": 2},
        ),
        {
            "qwen35moe.attention.layer_norm_rms_epsilon": 1e-6,
            "qwen35moe.rope.dimension_count": 8, "qwen35moe.rope.dimension_sections": [2, 1, 1, 0],
            "qwen35moe.ssm.conv_kernel": 4, "qwen35moe.ssm.state_size": 24,
            "qwen35moe.ssm.group_count": 2, "qwen35moe.ssm.time_step_rank": 2,
            "qwen35moe.ssm.inner_size": 32, "qwen35moe.feed_forward_length": None,
            "qwen35moe.expert_shared_feed_forward_length": 96,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("arch", OTHER_KINDS)
def test_gguf_of_other_kinds(arch: str, tmp_path: Path) -> None:
    """llama.cpp's layout means the same model, to the bit."""
    recipe, keys = OTHER_KINDS[arch]
    write_gguf(tmp_path / "m.gguf", arch, recipe, keys, {})
    model = loading.load(tmp_path / "m.gguf")
    assert model.config.architecture == recipe.architecture
    got = engine(model).logits([PROMPT])[0]
    assert_same_bits(got, engine(loading.load(write(tmp_path / "hf", recipe))).logits([PROMPT])[0])
    loading.save(model, tmp_path / "packed")
    to_directory(tmp_path / "m.gguf", tmp_path / "converted", None)
    for folder in ("packed", "converted"):
        assert_same_bits(engine(loading.load(tmp_path / folder)).logits([PROMPT])[0], got)


def test_gguf_gate_and_up_as_one_tensor(tmp_path: Path) -> None:
    """The bits of two."""

    def join(file: dict[str, np.ndarray]) -> None:
        for i in range(BIG.layers):
            parts = [file.pop(f"blk.{i}.ffn_{part}_exps.weight") for part in ("gate", "up")]
            file[f"blk.{i}.ffn_gate_up_exps.weight"] = np.concatenate(parts, 1)

    types = {"": "Q8_0"}
    write_gguf(tmp_path / "1.gguf", "qwen3moe", BIG, {}, types)
    write_gguf(tmp_path / "2.gguf", "qwen3moe", BIG, {}, types, join)
    one, two = (engine(loading.load(tmp_path / f"{i}.gguf")).logits([PROMPT])[0] for i in (1, 2))
    assert_same_bits(one, two)


@pytest.mark.parametrize(
    ("keys", "drop", "words"),
    [
        ({"qwen3moe.expert_used_count": 8}, "", ("num_experts_per_tok", "num_experts=7", "8")),
        ({"qwen3moe.expert_count": 6}, "", ("blk.0.ffn_gate_inp.weight", "[6, 256]", "[7, 256]")),
        ({"qwen3moe.expert_feed_forward_length": 128}, "", ("ffn_gate_exps", "[7, 128, 256]")),
        ({"qwen3moe.expert_weights_scale": 2.5}, "", ("expert_weights_scale", "2.5")),
        ({"qwen3moe.expert_gating_func": 2}, "", ("expert_gating_func", "2")),
        ({}, "blk.1.ffn_gate_inp.weight", ("blk.1.ffn_gate_inp.weight", "no such tensor")),
        ({}, "blk.1.ffn_up_exps.weight", ("blk.1.ffn_up_exps.weight", "no such tensor")),
        ({"qwen3moe.expert_count": 0}, "", ("num_experts", "0")),
    ],
)
def test_bad_gguf(keys: dict[str, Any], drop: str, words: tuple[str, ...], tmp_path: Path) -> None:
    """One line that names the file, the key or tensor, the rule and the value."""
    path = tmp_path / "m.gguf"
    write_gguf(path, "qwen3moe", BIG, keys, {}, lambda file: file.pop(drop, None))
    with pytest.raises((ModelFormatError, UnsupportedModelError)) as caught:
        loading.load(path)
    message = str(caught.value)
    assert message.isprintable()
    assert all(word in message for word in ("m.gguf", *words)), message


# ----------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (
            {"num_experts_per_tok": 8},
            ModelFormatError,
            ("num_experts_per_tok", "num_experts=7", "8"),
        ),
        ({"num_experts_per_tok": 0}, ModelFormatError, ("num_experts_per_tok", "0")),
        ({"num_experts": None}, ModelFormatError, ("num_experts", "none")),
        ({"num_experts": 8}, ModelFormatError, ("mlp.gate.weight", "[8, 96]", "[7, 96]")),
        ({"num_experts": 5000}, ModelFormatError, ("num_experts", "1..4096", "5000")),
        ({"moe_intermediate_size": 64}, ModelFormatError, ("experts.0.gate_proj", "[64, 96]")),
        ({"mlp_only_layers": [0]}, ModelFormatError, ("model.layers.0.mlp.gate_proj.weight",)),
        ({"mlp_only_layers": "0"}, ModelFormatError, ("mlp_only_layers", "numbers")),
        ({"decoder_sparse_step": 2}, ModelFormatError, ("model.layers.0.mlp.gate_proj.weight",)),
        ({"norm_topk_prob": 1}, ModelFormatError, ("norm_topk_prob", "true or false")),
    ],
    ids=lambda case: "-".join(case) if isinstance(case, dict) else "",
)
def test_bad_config(
    change: dict[str, Any], kind: type[SternaError], words: tuple[str, ...], tmp_path: Path
) -> None:
    """One line that names the file, the field or tensor, the rule and the value."""
    folder = write(tmp_path / "m", QWEN3_MOE)
    (folder / "config.json").write_text(json.dumps({**config(QWEN3_MOE), **change}))
    failure(lambda: loading.load(folder), kind, str(folder), *words)


LAYER = "model.layers.1.mlp."


@pytest.mark.parametrize(
    ("name", "tensor", "kind", "words"),
    [
        ("gate.weight", None, ModelFormatError, ("a tensor", "none of this name")),
        ("experts.3.up_proj.weight", None, ModelFormatError, ("a tensor", "none of this name")),
        ("experts.6.down_proj.weight", torch.zeros(96, 95), ModelFormatError, ("[96, 95]",)),
        (
            "experts.0.gate_proj.weight",
            torch.full((96, 96), torch.nan),
            NonFiniteError,
            ("finite",),
        ),
        (
            "experts.7.gate_proj.weight",
            torch.zeros(96, 96),
            UnsupportedModelError,
            ("none of this",),
        ),
        ("experts.2.up_proj.bias", torch.zeros(96), UnsupportedModelError, ("no bias",)),
    ],
)
def test_bad_tensors(
    name: str, tensor: torch.Tensor | None, kind: type[SternaError], words: tuple[str, ...],
    tmp_path: Path,
) -> None:  # fmt: skip
    """A router that is missing, an expert's tensor of another shape, one expert too many."""
    folder = write(tmp_path / "m", QWEN3_MOE)
    stored = tensors(QWEN3_MOE)
    stored.pop(LAYER + name, None)
    if tensor is not None:
        stored[LAYER + name] = tensor
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    failure(lambda: loading.load(folder), kind, str(folder), LAYER + name, *words)


def test_a_fused_tensor_of_another_shape(tmp_path: Path) -> None:
    """All experts' rows must be there."""
    folder = write(tmp_path / "m", QWEN3_MOE)
    stored = fused(QWEN3_MOE)
    name = "model.layers.0.mlp.experts.down_proj"
    stored[name] = stored[name][:6].clone()
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    failure(lambda: loading.load(folder), ModelFormatError, name, "[7, 96, 96]", "[6, 96, 96]")


def test_no_gguf_file_is_written(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Rather than one that no one has tried."""
    dst = tmp_path / "m.gguf"
    failure(
        lambda: to_gguf(checkpoint("qwen3_moe"), dst, "Q8_0"), UnsupportedModelError, "Qwen3MoeFor"
    )
    assert not dst.exists()
