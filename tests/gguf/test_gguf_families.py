"""GGUF files of families that Sterna reads and does not write.

They are made of the small checkpoints of `checkpoint_factory`: names come from the `gguf` package's
own table, orders of rows, norms of 1 + w and keys are those of llama.cpp's converters. A file must
give the bits of its checkpoint, and the logits of llama.cpp.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import checkpoint_factory as factory
import gguf_factory
import numpy as np
import pytest
import torch
from checkpoint_factory import RECIPES, Recipe
from gguf_factory import Tiny, interleaved
from helpers import assert_same_bits, failure
from llama_cpp_module import last_line
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from sterna import LLM, loading
from sterna.errors import ModelFormatError, UnsupportedModelError
from sterna.gguf.architectures import ARCHITECTURES_OF, WITH_EXPERTS
from sterna.gguf.file import GgufModel
from sterna.gguf.vocabulary import Vocabulary
from sterna.models import attribute, modules
from sterna.models.config import TransformerConfig

gguf = pytest.importorskip("gguf", reason="needs the gguf package")

SOUP = "aAbBéÉ日本ひカ🙂 \n\t\r1234.'/<_-ё한sStTmM$+"
TOKENS = np.random.default_rng(3).integers(0, 256, 110).tolist()  # past windows and contexts


@dataclass(frozen=True)
class Family:
    """A recipe as a file of a GGUF architecture, and the keys that only this architecture has.

    exact: whether keys, which are float32, hold config.json's numbers; theirs: whether llama.cpp
    computes the same function.
    """

    recipe: Recipe
    arch: str
    keys: dict[str, Any]
    exact: bool = True
    theirs: bool = True


def of(name: str, **config: Any) -> Recipe:
    """The recipe in float32, with other fields of config.json."""
    recipe = RECIPES[name]
    return replace(recipe, dtype=torch.float32, config=recipe.config | config)


_GEMMA3 = {
    "attention.sliding_window": 100, "attention.sliding_window_pattern": 3,
    "rope.freq_base_swa": 1000.0, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0,
}  # fmt: skip
_YARN = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
}  # fmt: skip
_MINICPM = {"embedding_scale": 12.0, "residual_scale": 1.4 / 3**0.5, "logit_scale": 4.0}
_GEMMA4 = {
    "attention.sliding_window": 40, "attention.sliding_window_pattern": [True, False] * 3,
    "attention.head_count_kv": [2, 1] * 3, "attention.shared_kv_layers": 2,
    "attention.key_length": 64, "attention.value_length": 64, "attention.key_length_swa": 48,
    "attention.value_length_swa": 48, "rope.dimension_count": 64, "rope.dimension_count_swa": 48,
    "rope.freq_base": 1e6, "rope.freq_base_swa": 10000.0, "final_logit_softcapping": 0.7,
    "feed_forward_length": [160] * 4 + [320] * 2, "embedding_length_per_layer_input": 32,
}  # fmt: skip
FAMILIES = {
    "gemma2": Family(
        of("gemma2", query_pre_attn_scalar=48), "gemma2",
        {
            "attention.sliding_window": 40, "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 0.7,
        },
    ),
    "gemma3": Family(of("gemma3", query_pre_attn_scalar=48), "gemma3", _GEMMA3),
    "gemma4": Family(of("gemma4"), "gemma4", _GEMMA4),
    "gemma4-plain": Family(
        of("gemma4-plain"), "gemma4",
        {
            **_GEMMA4, "attention.sliding_window_pattern": [True, False, False],
            "attention.head_count_kv": 2, "attention.shared_kv_layers": 0,
            "attention.key_length": 40, "attention.value_length": 40,
            "attention.key_length_swa": 36, "attention.value_length_swa": 36,
            "rope.dimension_count": 40, "rope.dimension_count_swa": 36,
            "feed_forward_length": 160, "embedding_length_per_layer_input": 0,
            "final_logit_softcapping": None,
        },
    ),
    "granite": Family(
        of("granite"), "granite",
        {
            "attention.scale": 0.11, "embedding_scale": 5.0, "residual_scale": 0.3,
            "logit_scale": 3.0,
        },
    ),
    "smollm3": Family(of("smollm3", no_rope_layer_interval=4), "smollm3", {}),
    # llama.cpp leaves this window out.
    "phi3": Family(of("phi3"), "phi3", {"attention.sliding_window": 50}, theirs=False),
    "phi3-longrope": Family(
        of("phi3-longrope"), "phi3",
        {
            "attention.sliding_window": 0, "rope.dimension_count": 18,
            "rope.scaling.original_context_length": 32,
            "rope.scaling.attn_factor": (1 + np.log(512 / 32) / np.log(32)) ** 0.5,
        },
    ),
    "olmo2": Family(of("olmo2"), "olmo2", {}),
    "olmo3": Family(of("olmo3"), "olmo2", {"attention.sliding_window": 70, **_YARN}),
    # As the converter writes it: which layers have a window, one by one, the base of these, and
    # config.json's attention_factor, here the paper's.
    "olmo3-list": Family(
        of(
            "olmo3",
            layer_types=["full_attention", "sliding_attention", "full_attention", "full_attention"],
        ),
        "olmo2",
        {
            "attention.sliding_window": 70, **_YARN, "rope.freq_base_swa": 500000.0,
            "attention.sliding_window_pattern": [False, True, False, False],
            "rope.scaling.yarn_attn_factor": 0.1 * np.log(4.0) + 1,
        },
        exact=False, theirs=False,
    ),
    "gemma2-list": Family(
        of(
            "gemma2", query_pre_attn_scalar=48,
            layer_types=["sliding_attention", "sliding_attention", "full_attention",
                         "sliding_attention"],
        ),
        "gemma2",
        {
            "attention.sliding_window": 40, "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 0.7,
            "attention.sliding_window_pattern": [True, True, False, True],
        },
    ),
    # Layers that read others' keys have no attn_v, and the others without a window do.
    "gemma4-values": Family(
        of("gemma4", attention_k_eq_v=False, num_global_key_value_heads=None), "gemma4",
        {**_GEMMA4, "attention.head_count_kv": 2},
    ),
    "glm4": Family(of("glm4"), "glm4", {"rope.dimension_count": 20}),
    "glm4-part": Family(of("glm4-part"), "glm4", {"rope.dimension_count": 32}),
    "hunyuan": Family(
        of("hunyuan"), "hunyuan-dense", {"rope.freq_base": 10000 * 50 ** (48 / 46)}, exact=False
    ),
    "hunyuan-plain": Family(of("hunyuan-plain"), "hunyuan-dense", {}),
    "minicpm": Family(of("minicpm"), "minicpm", _MINICPM),
    "minicpm-longrope": Family(
        of("minicpm-longrope"), "minicpm",
        {
            **_MINICPM, "rope.scaling.type": "longrope",
            "rope.scaling.original_context_length": 32,
            "rope.scaling.attn_factor": (1 + np.log(512 / 32) / np.log(32)) ** 0.5,
        },
    ),
}  # fmt: skip


def values(family: Family) -> dict[str, np.ndarray]:
    """The file's tensors, float32."""
    recipe, arch = family.recipe, family.arch
    kind = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch)
    names = gguf.get_tensor_name_map(kind, recipe.layers)
    heads = {"q_proj": recipe.heads, "k_proj": recipe.kv_heads}
    found = {}
    for name, tensor in factory.tensors(recipe).items():
        w = tensor.float().numpy()
        module = name.rpartition(".")[0].rpartition(".")[2]
        if arch in ("granite", "smollm3", "minicpm") and module in heads:
            w = interleaved(w, heads[module])
        if recipe.is_gemma and "norm" in module:
            w = w + np.float32(1)
        if name.endswith("layer_scalar"):
            name += ".weight"
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert target is not None, name
        found[target] = w
    if recipe.is_gemma4:  # a quarter of the pairs of heads without a window turn
        pairs = recipe.config["global_head_dim"] // 2
        turn = np.arange(pairs) < int(0.25 * 2 * pairs // 2)
        found["rope_freqs.weight"] = np.where(turn, 1, 1e30).astype(np.float32)
    for length in ("long", "short") if has_longrope(recipe) else ():
        factors = np.array(recipe.rope_scaling[f"{length}_factor"], np.float32)
        found[f"rope_factors_{length}.weight"] = factors
    return found


def has_longrope(recipe: Recipe) -> bool:
    """Whether the checkpoint has its two lists of factors."""
    return bool(recipe.rope_scaling and "long_factor" in recipe.rope_scaling)


def tokenizer_of_soup() -> Tokenizer:
    """One whose merges join what any rule would cut, trained on random characters."""
    rng = random.Random(1)
    built = Tokenizer(models.BPE())
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=2000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    built.train_from_iterator(("".join(rng.choices(SOUP, k=12)) for _ in range(5000)), trainer)
    built.add_special_tokens([factory.BOS, factory.EOS, factory.EOT])
    return built


def write(
    path: Path, family: Family, change: Callable[[dict[str, np.ndarray]], object] = lambda _: None,
    blocks: bool = False,
) -> Path:  # fmt: skip
    """The GGUF file, after a change of its tensors; blocks: matrices are Q8_0."""
    recipe, arch = family.recipe, family.arch
    tiny = Tiny(
        arch=arch, hidden=recipe.hidden, wide=recipe.intermediate, layers=recipe.layers,
        heads=recipe.heads, kv_heads=recipe.kv_heads, head_dim=recipe.width,
        rope_theta=recipe.rope_theta,
        keys={f"{arch}.{key}": value for key, value in family.keys.items()},
    )  # fmt: skip
    writer = gguf.GGUFWriter(path, arch)
    gguf_factory.add_metadata(writer, tiny)
    tensors = values(family)
    change(tensors)
    for name, w in tensors.items():
        if blocks and w.ndim == 2:
            raw = gguf.quants.quantize(w, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(name, w)
    gguf_factory.finish(writer)
    return path


def logits(path: Path) -> np.ndarray:
    """float32 [n, vocab]."""
    return LLM(path, threads=1, kv_dtype="f32", head="f32", deterministic=True).logits(TOKENS)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_file_is_its_checkpoint(name: str, tmp_path: Path) -> None:
    """The same bits, or where a key is rounded to float32, nearly."""
    family = FAMILIES[name]
    expected = logits(factory.write(tmp_path / "m", family.recipe))
    got = logits(write(tmp_path / "m.gguf", family))
    if family.exact:
        assert_same_bits(got, expected)
    else:
        np.testing.assert_allclose(got, expected, atol=1e-4 * expected.std())


def test_layers_that_read_others_keys_have_none(tmp_path: Path) -> None:
    """As the converter writes Gemma 4: the last layers have neither attn_k nor attn_v, which does
    not mean that keys are values in the layers before."""
    family = FAMILIES["gemma4-values"]

    def drop(tensors: dict[str, np.ndarray]) -> None:
        for layer in (4, 5):
            for part in ("attn_k", "attn_v", "attn_k_norm"):
                tensors.pop(f"blk.{layer}.{part}.weight", None)

    expected = logits(factory.write(tmp_path / "m", family.recipe))
    assert_same_bits(logits(write(tmp_path / "m.gguf", family, drop)), expected)

    def drop_one(tensors: dict[str, np.ndarray]) -> None:
        del tensors["blk.1.attn_v.weight"]

    some = write(tmp_path / "some.gguf", family, drop_one)
    failure(lambda: loading.load(some), ModelFormatError, "attn_v.weight", "or in none")


def test_a_tensor_that_nothing_reads(tmp_path: Path) -> None:
    """A bias of a norm would change every answer."""
    bias = {"blk.1.attn_norm.bias": np.ones(96, np.float32)}
    path = write(tmp_path / "m.gguf", FAMILIES["smollm3"], lambda t: t.update(bias))
    failure(lambda: loading.load(path), UnsupportedModelError, "blk.1.attn_norm.bias")


@pytest.mark.parametrize("name", ["gemma2", "granite", "phi3", "glm4"])
def test_blocks_are_those_of_the_same_floats(name: str, tmp_path: Path) -> None:
    """Of fused matrices and of permuted rows, too: read as floats, the weights are ggml's."""
    q8 = gguf.GGMLQuantizationType.Q8_0

    def round_all(tensors: dict[str, np.ndarray]) -> None:
        for key, w in tensors.items():
            if w.ndim == 2:
                tensors[key] = gguf.quants.dequantize(gguf.quants.quantize(w, q8), q8)

    floats = write(tmp_path / "floats.gguf", FAMILIES[name], round_all)
    file = write(tmp_path / "blocks.gguf", FAMILIES[name], blocks=True)
    assert LLM(file, threads=1).info()["format"] == "q8_0"
    options = {"threads": 1, "format": "f32", "head": "f32"}
    assert_same_bits(LLM(file, **options).logits(TOKENS), LLM(floats, **options).logits(TOKENS))


@pytest.mark.parametrize(("arch", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_scale_of_27b(arch: str, layers: int, tmp_path: Path) -> None:
    """It is that of hidden / heads, and known by the number of layers."""
    recipe = replace(
        FAMILIES[arch].recipe, layers=layers, hidden=32, intermediate=32, heads=2, kv_heads=1
    )
    config = loading.load(write(tmp_path / "m.gguf", replace(FAMILIES[arch], recipe=recipe))).config
    assert config.fields.number("query_pre_attn_scalar") == 16


def config_of(path: Path, family: Family) -> TransformerConfig:
    """That of a file of the family."""
    return loading.load(write(path, family)).config


def test_what_a_file_need_not_say(tmp_path: Path) -> None:
    """Gemma 2's window and caps, Gemma 3's pattern; without a window all of its layers see all."""
    plain = replace(FAMILIES["gemma2"], keys={})
    config = config_of(tmp_path / "a.gguf", replace(plain, recipe=replace(plain.recipe, layers=2)))
    assert config.fields.number("attn_logit_softcapping") == 50
    assert config.fields.number("final_logit_softcapping") == 30
    family = FAMILIES["gemma3"]
    window = config_of(tmp_path / "b.gguf", replace(family, keys={"attention.sliding_window": 100}))
    assert [a.window for a in window.attention] == [100] * 4
    none = config_of(tmp_path / "c.gguf", replace(family, keys={}))
    assert [a.window for a in none.attention] == [None] * 4
    granite = config_of(tmp_path / "d.gguf", replace(FAMILIES["granite"], keys={}))
    assert granite.fields.number("attention_multiplier") == 16**-0.5


BAD: dict[str, tuple[str, dict[str, Any], type, str]] = {
    "MiniCPM without factors": ("minicpm", {"logit_scale": None}, ModelFormatError, "logit_scale"),
    "a factor of 0": ("minicpm", {"logit_scale": 0.0}, ModelFormatError, "logit_scale"),
    "a scale for Gemma": ("gemma2", {"attention.scale": 0.1}, UnsupportedModelError, "scale"),
    "a cap below 0": ("gemma2", {"final_logit_softcapping": -1.0}, ModelFormatError, "softcapping"),
    "no period": (
        "gemma3", {"attention.sliding_window_pattern": 0}, ModelFormatError, "window_pattern",
    ),
    "axes": ("glm4", {"rope.dimension_sections": 8}, UnsupportedModelError, "sections"),
    "an odd part": ("phi3", {"rope.dimension_count": 15}, ModelFormatError, "dimension_count"),
    "too large a part": ("glm4", {"rope.dimension_count": 60}, ModelFormatError, "dimension_count"),
    "experts": ("granite", {"expert_count": 8}, UnsupportedModelError, "expert_count"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_keys(case: str, tmp_path: Path) -> None:
    """Each is named, in one line."""
    name, keys, kind, word = BAD[case]
    path = write(tmp_path / "m.gguf", replace(FAMILIES[name], keys=FAMILIES[name].keys | keys))
    failure(lambda: loading.load(path), kind, word)


def test_bad_tensors(tmp_path: Path) -> None:
    """Of another architecture, missing, or of another length."""
    norm, weight = "blk.1.post_ffw_norm.weight", np.ones(96, np.float32)

    def spoil(name: str, file: str, change: Callable[[dict[str, np.ndarray]], object]) -> Path:
        return write(tmp_path / file, FAMILIES[name], change)

    path = spoil("smollm3", "a.gguf", lambda t: t.update({norm: weight}))
    failure(lambda: loading.load(path), UnsupportedModelError, norm)
    path = spoil("olmo2", "b.gguf", lambda t: t.update({"blk.0.attn_norm.weight": weight}))
    failure(lambda: loading.load(path), UnsupportedModelError, "blk.0.attn_norm.weight")
    path = spoil("phi3", "c.gguf", lambda t: t.update({"blk.0.attn_q.weight": weight}))
    failure(lambda: loading.load(path), UnsupportedModelError, "blk.0.attn_q.weight")
    path = spoil("olmo2", "d.gguf", lambda t: t.pop(norm))
    failure(lambda: loading.load(path), ModelFormatError, norm)
    q_norm = "blk.0.attn_q_norm.weight"
    path = spoil("olmo2", "e.gguf", lambda t: t.update({q_norm: t[q_norm][:16]}))
    failure(lambda: loading.load(path), ModelFormatError, q_norm, "[96]", "[16]")


IDS = """
import json, sys
import llama_cpp
model = llama_cpp.Llama(sys.argv[1], vocab_only=True, verbose=False)
texts = json.loads(sys.argv[2])
print(json.dumps([model.tokenize(t.encode(), add_bos=False, special=False) for t in texts]))
"""
LLAMA_CPP = """
import json, sys
import llama_cpp
import numpy as np
from llama_cpp import llama_cpp as native
defaults = native.llama_model_default_params
def plain():
    # Without repacking for matrix units: what llama.cpp's AMX code needs, not every host grants.
    params = defaults()
    params.use_extra_bufts = False
    return params
native.llama_model_default_params = plain
model = llama_cpp.Llama(
    sys.argv[1], n_ctx=512, n_threads=1, logits_all=True, verbose=False, type_k=0, type_v=0
)
tokens = json.loads(sys.argv[2])
model.eval(tokens)
np.save(sys.argv[3], model.scores[: len(tokens)])
"""


@pytest.mark.parametrize("pre", ["glm4", "chatglm-bpe", "hunyuan-dense"])
def test_llama_cpp_cuts_texts_alike(
    pre: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rule's own digits, scripts and signs are in the soup."""
    monkeypatch.setattr(gguf_factory, "tokenizer", tokenizer_of_soup)
    keys = {"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": False}
    plain = {"vocab_size": tokenizer_of_soup().get_vocab_size()}
    family = replace(FAMILIES["olmo2"], keys=plain)
    path = tmp_path / "m.gguf"
    monkeypatch.setattr(
        gguf_factory, "metadata", lambda tiny, old=gguf_factory.metadata: old(tiny) | keys
    )
    write(path, family)
    rng = random.Random(2)
    texts = ["".join(rng.choices(SOUP, k=rng.randint(1, 40))) for _ in range(300)]
    texts += ["I'm HELLO World's 12345 foo_bar(x)  \n\n  日本語 .Text/URL\n", "don'T WE'RE LL'll"]
    theirs = json.loads(last_line(IDS, str(path), json.dumps(texts)))
    backend = Vocabulary(GgufModel(path).metadata).backend
    assert [backend.encode(text).ids for text in texts] == theirs


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.theirs])
def test_llama_cpp_gives_the_same_logits(name: str, tmp_path: Path) -> None:
    """Of every family: its norms, orders, factors, rotations and windows."""
    path, out = write(tmp_path / "m.gguf", FAMILIES[name]), tmp_path / "logits.npy"
    last_line(LLAMA_CPP, str(path), json.dumps(TOKENS), str(out))
    theirs, ours = np.load(out), logits(path)
    # It sums in another order, and takes its exponentials from tables of f16 where it may.
    assert np.abs(ours - theirs).max() < 0.01 * ours.std()


def test_architectures_are_found_by_their_names() -> None:
    """Looked for in modules of like names, or in all: the same, and each in one module."""
    for found, constant in ((ARCHITECTURES_OF, "GGUF"), (WITH_EXPERTS, "GGUF_WITH_EXPERTS")):
        listed = [item for module in modules() for item in attribute(module, constant).items()]
        assert len(found) == len(dict(listed)) == len(listed)
        assert all(found[name] is kind for name, kind in listed)
        assert [found.get(name) for name in ("", "llama2", "no-such")] == [None] * 3
