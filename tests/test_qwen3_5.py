"""Qwen3.5: its checkpoints in every dress, what a sequence keeps of recurrent layers, bad input.

Logits against transformers: test_against_transformers.py; against the words' definitions:
test_recurrent.py; over units, threads, chunks and batches: test_determinism.py, test_digests.py.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import gguf_factory
import numpy as np
import pytest
import torch
from checkpoint_factory import QWEN3_5, RECIPES, Recipe, config, tensors, write
from helpers import assert_same_bits, cold, failure
from safetensors.torch import save_file
from test_hadamard import sylvester
from test_interrupts import MODULES, POOL, forget, interrupted
from transformers import AutoModelForCausalLM

from sterna import LLM, Conversation, _native, loading
from sterna.convert import to_directory
from sterna.engine import PAGE, Engine, PrefixCache, Sequence
from sterna.errors import ModelFormatError, RequestError, UnsupportedModelError
from sterna.evaluate import scoring

NAMES = [name for name in RECIPES if name.startswith("qwen3_5")]
PROMPT = [int(t) for t in np.random.default_rng(3).integers(0, 256, 3 * PAGE + 5)]


def engine(model: loading.Model, **options: Any) -> Engine:
    return Engine(model, threads=2, kv_dtype="f32", **options)


def tokens_of(e: Engine, sequence: Sequence, tokens: list[int]) -> np.ndarray:
    """Logits after the last of the tokens, which follow what the sequence has."""
    return e.prefill(sequence, tokens).copy()


# --------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_are_those_of_transformers(
    name: str, checkpoint: Callable[[str], Path]
) -> None:
    """A prompt, and 24 tokens after it by the state that a step leaves to the next."""
    folder = checkpoint(name)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    wanted = reference.generate(
        torch.tensor([PROMPT[:40]]), max_new_tokens=24, do_sample=False, eos_token_id=-1
    )[0, 40:].tolist()
    e = engine(loading.load(folder), deterministic=True)
    sequence, got = Sequence(), []
    logits = tokens_of(e, sequence, PROMPT[:40])
    for _ in range(24):
        got.append(int(logits.argmax()))
        logits = tokens_of(e, sequence, got[-1:])
    assert got == wanted


def wrapped(folder: Path, recipe: Recipe) -> Path:
    """The recipe's text in a checkpoint with a vision tower and layers that predict ahead."""
    write(folder, recipe)
    text = config(recipe)
    nested = {
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
        "tie_word_embeddings": text.pop("tie_word_embeddings"), "text_config": text,
        "vision_config": {"depth": 1}, "image_token_id": 3,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(nested))
    weights = {
        name.replace("model.", "model.language_model.", 1) if "model." in name else name: w
        for name, w in tensors(recipe).items()
    }
    weights["model.visual.patch_embed.proj.weight"] = torch.zeros(8, 3, 2, 4, 4)
    weights["mtp.norm.weight"] = torch.zeros(recipe.hidden)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_a_vision_tower_is_skipped_and_said_so(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """The text alone has the bits that it has in a checkpoint of its own."""
    with pytest.warns(RuntimeWarning) as told:
        model = loading.load(wrapped(tmp_path / "m", QWEN3_5))
    lines = [str(w.message) for w in told]
    assert any("1 tensors model.visual.*" in line and "text alone" in line for line in lines)
    assert any("1 tensors mtp.*" in line for line in lines)
    expected = engine(loading.load(checkpoint("qwen3_5"))).logits([PROMPT])[0]
    assert_same_bits(engine(model).logits([PROMPT])[0], expected)


@pytest.mark.filterwarnings("ignore:.*are skipped")
@pytest.mark.parametrize("format", [None, "i8", "q4_0"])
def test_packed_directories(format: str | None, tmp_path: Path) -> None:
    """Saved, converted and loaded again: the bits of the checkpoint, nested or not."""
    source = wrapped(tmp_path / "m", QWEN3_5)
    model = loading.load(source, format=format)
    expected = engine(model).logits([PROMPT])[0]
    loading.save(model, tmp_path / "saved")
    to_directory(source, tmp_path / "converted", format)
    for folder in ("saved", "converted"):
        assert_same_bits(engine(loading.load(tmp_path / folder)).logits([PROMPT])[0], expected)


# ---------------------------------------------------------------------------------------- GGUF


def tiled(w: np.ndarray, axis: int, k_heads: int, v_heads: int) -> np.ndarray:
    """Value heads in llama.cpp's order: 0 0 1 1 2 2 becomes 0 1 2 0 1 2."""
    w = np.moveaxis(w, axis, 0)
    order = np.arange(v_heads).reshape(k_heads, -1).T.reshape(-1)
    heads = w.reshape(v_heads, -1, *w.shape[1:])[order]
    return np.ascontiguousarray(np.moveaxis(heads.reshape(w.shape), 0, axis))


INSIDE = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
} | {f"{hf}.weight": f"{name}.weight" for name, hf in gguf_factory.LINEARS.items()}
OUTER = {
    "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}  # fmt: skip


def as_gguf(recipe: Recipe, stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The recipe's tensors, float32, as llama.cpp's converter writes them."""
    sizes, r = recipe.config, recipe.recurrent
    heads = sizes["linear_num_key_heads"], sizes["linear_num_value_heads"]
    out = {}
    for name, tensor in stored.items():
        w = tensor
        if "norm.weight" in name and "linear_attn" not in name:
            w = w + np.float32(1)
        inside = name.split(".", 3)[-1]
        part = inside.removeprefix("linear_attn.").removesuffix(".weight")
        if part == "A_log":
            w = np.array([-math.exp(x) for x in w], np.float32)
        if part == "conv1d":
            w = w[:, 0]
        if part in ("in_proj_qkv", "conv1d"):
            keys = 2 * r["k"]
            w = np.concatenate([w[:keys], tiled(w[keys:], 0, *heads)])
        elif part in ("in_proj_z", "in_proj_a", "in_proj_b", "A_log", "dt_bias"):
            w = tiled(w, 0, *heads)
        elif part == "out_proj":
            w = tiled(w, 1, *heads)
        out[OUTER.get(name) or f"blk.{name.split('.')[2]}.{INSIDE[inside]}"] = w
    return out


def write_gguf(
    path: Path, recipe: Recipe, change: Callable[[dict[str, Any], dict[str, np.ndarray]], None]
) -> Path:
    """The recipe as a GGUF file, whose keys and tensors `change` may change before."""
    sizes = recipe.config
    tiny = gguf_factory.Tiny(
        "qwen35", recipe.hidden, recipe.intermediate, recipe.layers, recipe.heads,
        recipe.kv_heads, recipe.width, recipe.tied, rope_theta=10000.0,
    )  # fmt: skip
    rope = sizes["rope_parameters"]
    values = gguf_factory.metadata(tiny) | {
        "qwen35.attention.layer_norm_rms_epsilon": sizes["rms_norm_eps"],
        "qwen35.rope.dimension_count": int(recipe.width * rope["partial_rotary_factor"]),
        "qwen35.rope.dimension_sections": [*rope["mrope_section"], 0],
        "qwen35.ssm.conv_kernel": sizes["linear_conv_kernel_dim"],
        "qwen35.ssm.state_size": sizes["linear_key_head_dim"],
        "qwen35.ssm.group_count": sizes["linear_num_key_heads"],
        "qwen35.ssm.time_step_rank": sizes["linear_num_value_heads"],
        "qwen35.ssm.inner_size": recipe.recurrent["v"],
        "qwen35.full_attention_interval": sizes.get("full_attention_interval", 4),
    }
    file = as_gguf(recipe, {name: w.float().numpy() for name, w in tensors(recipe).items()})
    change(values, file)
    writer = gguf.GGUFWriter(path, "qwen35")
    keys = {key: value for key, value in values.items() if value is not None}
    gguf_factory.add_metadata(writer, replace(tiny, keys=keys))
    for name, w in file.items():
        writer.add_tensor(name, w)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


GGUF_RECIPES = {
    "grouped": QWEN3_5,
    "alone": RECIPES["qwen3_5-interval"],
}
GGUF_RECIPES["alone"] = replace(
    GGUF_RECIPES["alone"], config={**GGUF_RECIPES["alone"].config, "attention_bias": False}
)


@pytest.mark.parametrize("name", GGUF_RECIPES)
def test_gguf(name: str, tmp_path: Path) -> None:
    """llama.cpp's layout means the same model; where no head changes its place, the same bits."""
    recipe = replace(GGUF_RECIPES[name], dtype=torch.float32)
    path = write_gguf(tmp_path / "m.gguf", recipe, lambda keys, file: None)
    model = loading.load(path)
    got = engine(model).logits([PROMPT])[0]
    expected = engine(loading.load(write(tmp_path / "hf", recipe))).logits([PROMPT])[0]
    if name == "alone":
        assert_same_bits(got, expected)
    else:  # out_proj adds in another order
        assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()
        assert not np.array_equal(got, expected)
    loading.save(model, tmp_path / "packed")
    assert_same_bits(engine(loading.load(tmp_path / "packed")).logits([PROMPT])[0], got)


@pytest.mark.parametrize("grouped", [True, False])
def test_a_folded_gguf(grouped: bool, tmp_path: Path) -> None:
    """Blocks of out_proj go over heads: grouped, as they were trained, or as the file has them."""
    recipe = replace(QWEN3_5, dtype=torch.float32)
    heads = [recipe.config[f"linear_num_{kind}_heads"] for kind in ("key", "value")]
    width, block = recipe.recurrent["v"], 32
    signs = np.where(np.random.default_rng(5).integers(0, 2, width) == 1, 1, -1)
    names = [f"blk.{i}.ssm_out.weight" for i in range(3)]  # the fourth layer attends

    def change(keys: dict[str, Any], file: dict[str, np.ndarray]) -> None:
        for name in names:
            w = file[name]
            if grouped:
                w = tiled(w, 1, heads[1] // heads[0], heads[1])
            blocks = (w * signs).reshape(-1, block).astype(np.float64)
            file[name] = (blocks @ sylvester(block) / block**0.5).reshape(w.shape).astype("f4")
        contract = {
            "version": 1, "block_size": block, "axis": "input-last-dimension",
            "transform": "normalized-sylvester-walsh-hadamard", "sign_mode": "explicit",
            "sign_widths": [width], "sign_values": signs.tolist(), "weight_names": names,
            "gdn_v_grouped": grouped,
        }  # fmt: skip
        keys.update({f"prism.hadamard.{key}": value for key, value in contract.items()})

    model = loading.load(write_gguf(tmp_path / "m.gguf", recipe, change))
    got = engine(model).logits([PROMPT])[0]
    expected = engine(loading.load(write(tmp_path / "hf", recipe))).logits([PROMPT])[0]
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()
    loading.save(model, tmp_path / "packed")
    for isa in _native.isas():
        packed = engine(loading.load(tmp_path / "packed"), isa=isa)
        assert_same_bits(packed.logits([PROMPT])[0], got)


def test_gguf_layers_that_predict_ahead_are_skipped(tmp_path: Path) -> None:
    """They are blocks behind the others, which block_count counts."""

    def change(keys: dict[str, Any], file: dict[str, np.ndarray]) -> None:
        keys["qwen35.nextn_predict_layers"] = 1
        keys["qwen35.block_count"] += 1
        file["blk.4.attn_q.weight"] = np.zeros((2, 2), np.float32)
        file["blk.4.nextn.eh_proj.weight"] = np.zeros((2, 2), np.float32)

    with pytest.warns(RuntimeWarning, match=r"2 tensors from blk.4 on .* skipped"):
        model = loading.load(write_gguf(tmp_path / "m.gguf", QWEN3_5, change))
    assert model.config.n_layers == 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"qwen35.ssm.inner_size": 97}, ("ssm.inner_size", "multiple of time_step_rank=6", "97")),
        ({"qwen35.rope.dimension_sections": [1, 1, 1, 0]}, ("mrope_section", "sum is 4")),
        ({"qwen35.ssm.group_count": 4}, ("linear_num_value_heads", "linear_num_key_heads=4", "6")),
        ({"qwen35.nextn_predict_layers": 4}, ("nextn_predict_layers", "fewer than", "4")),
        ({"ssm_a": 1.0}, ("A_log", "negative rates")),
        ({"blk.0.ssm_x": 1.0}, ("blk.0.ssm_x", "this is another")),
        ({"ssm_dt.bias": None}, ("blk.0.ssm_dt.bias", "no such tensor")),
    ],
    ids=lambda case: "-".join(case) if isinstance(case, dict) else "",
)
def test_gguf_bad_input(change: dict[str, Any], words: tuple[str, ...], tmp_path: Path) -> None:
    """One line that names the file, the key or tensor, the rule and the value."""

    def apply(keys: dict[str, Any], file: dict[str, np.ndarray]) -> None:
        for key, value in change.items():
            name = key if key.startswith("blk") else f"blk.0.{key}"
            if key.startswith("qwen35"):
                keys[key] = value
            elif value is None:
                del file[name]
            else:
                file[name] = np.full(6, value, np.float32)

    path = write_gguf(tmp_path / "m.gguf", QWEN3_5, apply)
    kinds = (ModelFormatError, UnsupportedModelError)
    with pytest.raises(kinds) as caught:
        loading.load(path)
    message = str(caught.value)
    assert message.isprintable()
    assert all(word in message for word in ("m.gguf", *words)), message


# ----------------------------------------------------------------------------------- bad input

ROPE = QWEN3_5.config["rope_parameters"]


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"layer_types": ["full_attention"] * 3}, ModelFormatError, ("layer_types", "4 items")),
        (
            {"layer_types": ["full_attention", "mamba", "linear_attention", "linear_attention"]},
            UnsupportedModelError, ("layer_types", "linear_attention, full_attention", "mamba"),
        ),
        ({"layer_types": ["linear_attention"] * 4}, ModelFormatError, ("at least one full",)),
        (
            {"rope_parameters": {**ROPE, "mrope_section": [2, 2, 1]}},
            ModelFormatError, ("mrope_section", "sum is 4", "2, 2, 1"),
        ),
        (
            {"rope_parameters": {**ROPE, "mrope_section": [4]}},
            ModelFormatError, ("mrope_section", "three whole numbers"),
        ),
        (
            {"rope_parameters": {**ROPE, "partial_rotary_factor": 1.5}},
            ModelFormatError, ("partial_rotary_factor", "head_dim=32", "1.5"),
        ),
        ({"linear_num_value_heads": 5}, ModelFormatError, ("multiple of linear_num_key_heads=2",)),
        ({"linear_num_value_heads": 4}, ModelFormatError, ("in_proj_qkv", "[160, 96]")),
        ({"linear_key_head_dim": 20}, ModelFormatError, ("in_proj_qkv", "[176, 96]", "[192, 96]")),
        ({"linear_conv_kernel_dim": 3}, ModelFormatError, ("conv1d", "[192, 1, 3]", "[192, 1, 4]")),
        ({"linear_conv_kernel_dim": 17}, ModelFormatError, ("linear_conv_kernel_dim", "1..16")),
        ({"attn_output_gate": False}, UnsupportedModelError, ("attn_output_gate", "False")),
    ],
    ids=lambda case: "-".join(case) if isinstance(case, dict) else "",
)  # fmt: skip
def test_bad_input(
    change: dict[str, Any], kind: type[Exception], words: tuple[str, ...], tmp_path: Path
) -> None:
    """One line that names the file, the field or tensor, the rule and the value."""
    folder = write(tmp_path / "m", QWEN3_5)
    (folder / "config.json").write_text(json.dumps({**config(QWEN3_5), **change}))
    failure(lambda: loading.load(folder), kind, str(folder), *words)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:.*are skipped")
def test_errors_name_a_tensor_as_its_file_does(tmp_path: Path) -> None:
    """Of a checkpoint that nests the text."""
    folder = wrapped(tmp_path / "m", QWEN3_5)
    nested = json.loads((folder / "config.json").read_text())
    nested["text_config"]["linear_value_head_dim"] = 12
    (folder / "config.json").write_text(json.dumps(nested))
    name = "model.language_model.layers.0.linear_attn.in_proj_qkv.weight"
    failure(lambda: loading.load(folder), ModelFormatError, name, "[168, 96]", "[192, 96]")


# ------------------------------------------------------------------ what a sequence keeps


@pytest.fixture(scope="module")
def hybrid(checkpoint: Callable[[str], Path]) -> loading.Model:
    return loading.load(checkpoint("qwen3_5"), format="i8")


@pytest.fixture
def small(hybrid: loading.Model) -> Engine:
    """Room for four sequences of three pages, or more states and fewer pages."""
    of = engine(hybrid)
    page_bytes = of.kv_bytes_per_position * PAGE
    return engine(hybrid, kv_bytes=page_bytes * 4 * (3 + of.pool.state_pages))


def fresh(e: Engine, tokens: list[int]) -> np.ndarray:
    return tokens_of(e, Sequence(), tokens)


def test_states_count_as_pages(small: Engine) -> None:
    """Each sequence takes a state beside its pages; what is released or forgotten is free."""
    pool, most = small.pool, small.pool.count
    assert small.state_bytes > 0
    assert pool.state_pages * PAGE * small.kv_bytes_per_position >= small.state_bytes
    alive = []
    while pool.free >= 1 + pool.state_pages:
        alive.append(Sequence())
        small.step([(alive[-1], [1], 0)])
        assert pool.free == most - len(alive) * (1 + pool.state_pages)
    refused = Sequence()
    failure(lambda: small.step([(refused, [1], 0)]), RequestError, "pages", "missing")
    assert (refused.state, len(refused.pages), refused.length) == (None, 0, 0)
    small.release(alive.pop())
    small.step([(refused, [1], 0)])
    small.release(refused)  # the error knows it, and may live on
    del alive
    assert pool.free == most


def test_rewind_goes_to_the_nearest_snapshot(small: Engine) -> None:
    """Or to nothing; and what follows has the bits of a sequence that never went further."""
    s = Sequence()
    for start, end in ((0, 20), (20, 50), (50, 90)):
        small.prefill(s, PROMPT[start:end])
        assert small.snapshot(s, keep=2)
    assert [state.position for state in s.snapshots] == [50, 90]
    assert small.rewind(s, 90) == 90  # where it is
    small.prefill(s, PROMPT[90:100])
    assert small.rewind(s, 89) == s.length == 50
    assert [state.position for state in s.snapshots] == [50]
    other = PROMPT[100:140]
    assert_same_bits(tokens_of(small, s, other), fresh(small, PROMPT[:50] + other))
    assert small.rewind(s, 50) == 50  # a snapshot serves again
    assert_same_bits(tokens_of(small, s, other), fresh(small, PROMPT[:50] + other))
    assert small.rewind(s, 49) == s.length == 0
    assert s.state is None
    assert_same_bits(tokens_of(small, s, other), fresh(small, other))


def test_snapshots_need_room(small: Engine) -> None:
    """Without, there is none, and the sequence goes on."""
    s = Sequence()
    small.prefill(s, PROMPT[:30])
    others = [Sequence()]
    while small.pool.free >= small.pool.state_pages:
        if others[-1].length == 2 * PAGE:
            others.append(Sequence())
        small.step([(others[-1], [1] * PAGE, 0)])
    assert not small.snapshot(s)
    assert small.snapshot(Sequence())  # of nothing, nothing is kept
    assert_same_bits(tokens_of(small, s, [5]), fresh_after(small, others, [*PROMPT[:30], 5]))


def fresh_after(e: Engine, others: list[Sequence], tokens: list[int]) -> np.ndarray:
    """As `fresh`, once the others have made room."""
    for other in others:
        e.release(other)
    return fresh(e, tokens)


def test_forks(small: Engine) -> None:
    """Two sequences share pages and snapshots and go their own ways, as each would alone."""
    s = Sequence()
    small.prefill(s, PROMPT[:70])
    small.snapshot(s)
    small.prefill(s, PROMPT[70:80])
    at_end, earlier, none = (small.pool.share(s, n) for n in (80, 75, 69))
    assert (at_end.length, earlier.length, none.length) == (80, 70, 0)
    assert earlier.snapshots == s.snapshots
    assert earlier.state is None  # until it is written
    ways = {id(s): [1, 2], id(at_end): [3, 4, 5], id(earlier): [6] * 9}
    feeds = [(one, ways[id(one)], 1) for one in (s, at_end, earlier)]
    given = [rows[-1].copy() for rows in small.step(feeds)]
    for one, logits, length in zip((s, at_end, earlier), given, (80, 80, 70), strict=True):
        assert_same_bits(logits, fresh(small, PROMPT[:length] + ways[id(one)]))
    assert len({id(one.state) for one in (s, at_end, earlier)}) == 3


def test_a_state_behind_another_length_is_refused(small: Engine) -> None:
    """As an interrupt between a step and its noting leaves it; rewinding makes it good."""
    s = Sequence()
    small.prefill(s, PROMPT[:10])
    small.snapshot(s)
    small.prefill(s, PROMPT[10:20])
    s.length = 19  # the step came to its end and nobody knows
    failure(lambda: small.step([(s, [1], 1)]), RequestError, "19 positions", "rewind")
    assert small.rewind(s, 19) == 10
    assert_same_bits(tokens_of(small, s, [1]), fresh(small, [*PROMPT[:10], 1]))


def test_a_failed_step_leaves_no_state(hybrid: loading.Model, small: Engine) -> None:
    """What is not finite is an error, and no state of it is ever taken for a good one."""
    s = Sequence()
    small.prefill(s, PROMPT[:10])
    program = small._program

    class Failing:
        """Runs the step, then fails as one does whose activations are not finite."""

        def run(self, cache: Any, tokens: Any, spans: Any, *rest: Any) -> Any:
            states = rest[-1]
            program.run(cache, tokens, spans, *rest)
            assert states[0].position == 11
            raise FloatingPointError("layer 1")

    small._program = Failing()  # type: ignore[assignment]
    with pytest.raises(Exception, match="layer 1"):
        small.step([(s, [1], 1)])
    small._program = program
    failure(lambda: small.step([(s, [1], 1)]), RequestError, "10 positions")
    assert small.rewind(s, 10) == 0


def test_resume(small: Engine) -> None:
    """From a snapshot up to the first token that differs; the rest is computed again."""
    cache, first = PrefixCache(small.pool, small.pool.count), Sequence()
    small.prefill(first, PROMPT[:60])
    small.snapshot(first)
    small.prefill(first, PROMPT[60:70])
    cache.keep(np.array(PROMPT, np.int32), first, final=True)
    small.release(first)
    prompt = [*PROMPT[:65], 1, 2, 3]
    s, seen = cache.find(np.array(prompt, np.int32))
    assert s is not None
    assert (s.length, seen) == (60, 65)
    assert_same_bits(tokens_of(small, s, prompt[60:]), fresh(small, prompt))
    s, seen = cache.find(np.array([*PROMPT[:70], 1], np.int32))
    assert s is not None
    assert (s.length, seen) == (70, 70)  # with the state that the first one had at its end
    small.pool.cache = None  # others share the engine


def test_repeated(small: Engine) -> None:
    """A depth is there at once, and a step from there runs."""
    s = Sequence()
    small.prefill(s, PROMPT[:PAGE])
    deep = small.repeated(s, 2 * PAGE)
    assert deep.state is not None
    assert deep.state.position == 2 * PAGE
    small.step([(deep, [1], 1)])


def test_scoring_returns_to_where_requests_part(small: Engine) -> None:
    """A group's scores are those of its requests one by one, with room for snapshots or not."""
    requests = [
        scoring.Request([*PROMPT[:40], *PROMPT[50 + i : 56 + 2 * i]], 3 + i) for i in range(4)
    ]
    alone = [scoring.score(small, [[one]])[0][0] for one in requests]
    assert scoring.score(small, [requests])[0] == alone
    assert scoring.score(small, [requests[:2], requests[2:]]) == [alone[:2], alone[2:]]
    held, one = [Sequence()], 1 + small.pool.state_pages
    while small.pool.free >= one + small.pool.state_pages:  # a snapshot has no room then
        if small.pool.free >= 2 * one:
            held.append(Sequence())
        small.step([(held[-1], [1] * PAGE, 0)])
    assert scoring.score(small, [requests])[0] == alone


# ------------------------------------------------------------------------------ conversations


@pytest.fixture(scope="module")
def llm(checkpoint: Callable[[str], Path]) -> LLM:
    model = LLM(checkpoint("qwen3_5"), format="i8", threads=1, context=6 * PAGE)
    pages = 40 + 12 * model.engine.pool.state_pages
    nbytes = model.engine.kv_bytes_per_position * PAGE * pages
    model.engine = Engine(model.engine.model, threads=1, context=6 * PAGE, kv_bytes=nbytes)
    return model


OPTIONS: dict[str, Any] = {"max_tokens": 4, "ignore_eos": True, "temperature": 0}


def test_conversations_have_the_bits_of_fresh_ones(llm: LLM) -> None:
    """Turns that go on, and such as take an answer back, which needs the snapshot."""
    with Conversation(llm) as talk:
        for text in ("Hello there", "And now?", "Well"):
            done = talk.ask(text, **OPTIONS)
            assert done.tokens == cold(llm).chat(talk.messages[:-1], **OPTIONS).tokens
        assert talk.last.stats.n_cached > 0
        before = talk.last.stats
        talk.undo()
        again = talk.ask("Well", **OPTIONS)  # the same prompt, from the end of the user's turn
        assert 0 < again.stats.n_cached < before.n_prompt
        assert again.tokens == cold(llm).chat(talk.messages[:-1], **OPTIONS).tokens
        # A template that writes answers otherwise than they came: as where thoughts are left out.
        talk.messages = [*talk.messages[:-1], {"role": "assistant", "content": "No."}]
        other = talk.ask("Why?", **OPTIONS)
        assert other.stats.n_cached >= again.stats.n_cached
        assert other.tokens == cold(llm).chat(talk.messages[:-1], **OPTIONS).tokens
    assert llm.engine.pool.free == llm.engine.pool.count


def test_an_interrupted_conversation_goes_on_as_if_nothing_had_been(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a turn ends, the next one has the bits of a fresh one: no state is half changed."""
    monkeypatch.setattr(llm.engine.pool, "_lock", contextlib.nullcontext())
    first, second = "Hello there", "x" * 40
    with Conversation(llm) as talk:
        expected = [talk.ask(text, **OPTIONS).tokens for text in (first, second)]
    at, done = 0, False
    while not done:
        talk = Conversation(llm)
        forget(llm)
        assert talk.ask(first, **OPTIONS).tokens == expected[0]
        before = talk.messages
        done = not interrupted(lambda talk=talk: talk.ask(second, **OPTIONS), at, MODULES)
        talk.messages = before
        assert talk.ask(second, **OPTIONS).tokens == expected[1], at
        del talk  # not closed: what is forgotten is free
        at += 37
    assert at > 1000
    assert llm.engine.pool.free == llm.engine.pool.count


def assert_sound_with_states(e: Engine, alive: Sequence) -> None:
    """What is free is what the sequence does not have, and can be had."""
    pages, states = e.pool.state_pages, len({id(s) for s in (alive.state, *alive.snapshots) if s})
    free = e.pool.count - len(alive.pages) - states * pages
    assert e.pool.free == free
    others = [Sequence() for _ in range(free // (1 + pages))]
    e.step([(other, [1], 0) for other in others])
    assert e.pool.free == free % (1 + pages)


def test_each_instruction_of_steps_and_rewinds(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """No page is lost, and every state that a sequence may still use is of its tokens."""
    e = llm.engine
    monkeypatch.setattr(e.pool, "_lock", contextlib.nullcontext())
    history = PROMPT[: 2 * PAGE]
    expected = {n: fresh(e, history[:n]) for n in (5, 6, PAGE + 9)}

    def run(s: Sequence) -> None:
        e.step([(s, history[:5], 1)])
        e.snapshot(s)
        e.step([(s, history[5 : PAGE + 9], 0)])
        fork = e.pool.share(s, s.length)
        e.step([(s, [7], 0), (fork, [8], 0)])
        e.rewind(s, 40)
        e.step([(s, history[5:6], 1)])
        e.snapshot(s)

    at, more = 0, True
    while more:
        s = Sequence()
        more = interrupted(lambda s=s: run(s), at, POOL)
        assert_sound_with_states(e, s)
        for n in sorted(expected):
            if n <= s.length or s.length == 0:
                continue
            # What is left of it after an interrupt goes on to the very logits.
            left = e.rewind(s, min(s.length, 5))
            assert_same_bits(tokens_of(e, s, history[left:n]), expected[n])
        at += 3 if at > 200 else 1
    assert at > 300


def test_the_tokenizer_of_its_files_keeps_marks_with_their_words(tmp_path: Path) -> None:
    """What tokenizer.ggml.pre calls qwen35; Qwen2's cuts before a mark."""

    def pieces(pre: str) -> list[str]:
        def change(keys: dict[str, Any], file: dict[str, np.ndarray]) -> None:
            keys["tokenizer.ggml.pre"] = pre

        model = loading.load(write_gguf(tmp_path / f"{pre}.gguf", QWEN3_5, change))
        assert model.companions is not None
        cutter = model.companions.tokenizer()._backend.pre_tokenizer
        return [text[slice(*span)] for _, span in cutter.pre_tokenize_str(text)]

    text = "कि it's 12"
    assert pieces("qwen35") == ["कि", " it", "'s", " ", "1", "2"]
    assert pieces("qwen2") == ["क", "ि", " it", "'s", " ", "1", "2"]
