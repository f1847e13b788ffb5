"""Towers in files of their own, written with the names of the `gguf` package, make the rows that
their checkpoints make."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf_factory
import numpy as np
import pytest
import seeing_models
import torch
from checkpoint_factory import QWEN3_5
from gguf_factory import Tiny, finish
from helpers import assert_same_bits
from image_families import noise
from model_configs import SIZES
from seeing_models import SEEING, Seeing
from test_images import logits, opened
from test_qwen3_5_gguf import write_gguf

from sterna import LLM, loading
from sterna.engine import Engine
from sterna.engine.images.image_encoder import ImageEncoder
from sterna.errors import ModelFormatError, RequestError, UnsupportedModelError
from sterna.gguf.paths import find_mmproj
from sterna.models.towers import AXES

gguf = pytest.importorskip("gguf", reason="needs the gguf package")

#: Of a family: the projector, the text's architecture, and the token of images.
FILES = {
    "gemma3": ("gemma3", "gemma3", "<image_soft_token>"),
    "smolvlm": ("idefics3", "llama", "<image>"),
    "llava": ("mlp", "llama", "<image>"),
    "llava-next": ("mlp", "llama", "<image>"),
    "llava-next-qwen2": ("mlp", "qwen2", "<image>"),
    "mistral3": ("pixtral", "llama", "[IMG]"),
    "qwen2-vl": ("qwen2vl_merger", "qwen2vl", "<|image_pad|>"),
    "qwen2.5-vl": ("qwen2.5vl_merger", "qwen2vl", "<|image_pad|>"),
    "qwen3-vl": ("qwen3vl_merger", "qwen3vl", "<|image_pad|>"),
    "gemma4": ("gemma4v", "gemma4", "<|image|>"),
    "gemma4-together": ("gemma4v", "gemma4", "<|image|>"),
}


KEYS: dict[str, dict[str, Any]] = {
    "gemma3": {
        "gemma3.attention.sliding_window": 20, "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
        "gemma3.rope.freq_base": 1e6, "gemma3.rope.freq_base_swa": 10000.0,
    },
    "gemma4": {
        "gemma4.attention.sliding_window": 20,
        "gemma4.attention.sliding_window_pattern": [True, True, False, True, False],
        "gemma4.attention.key_length": 32, "gemma4.attention.value_length": 32,
        "gemma4.attention.key_length_swa": 24, "gemma4.attention.value_length_swa": 24,
        "gemma4.rope.dimension_count": 32, "gemma4.rope.dimension_count_swa": 24,
        "gemma4.rope.freq_base": 1e6, "gemma4.rope.freq_base_swa": 10000.0,
        "gemma4.attention.layer_norm_rms_epsilon": 1e-6,
    },
    "llama": {"llama.attention.layer_norm_rms_epsilon": 1e-6},
    "qwen2": {"qwen2.attention.layer_norm_rms_epsilon": 1e-6},
    "qwen2vl": {
        "qwen2vl.rope.dimension_sections": [4, 1, 3, 0],
        "qwen2vl.attention.layer_norm_rms_epsilon": 1e-5,
    },
    "qwen3vl": {
        "qwen3vl.rope.dimension_sections": [4, 3, 1, 0],
        "qwen3vl.attention.layer_norm_rms_epsilon": 1e-6,
    },
}  # fmt: skip


def of_llava(model: Any, tiles: bool) -> dict[str, np.ndarray]:
    """Those of a file of llama.cpp's older converter: without the layers behind the one that is
    read, and with the names of an FFN's matrices exchanged (tiles), which was corrected later."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 8)
    found = {}
    for name, tensor in model.state_dict().items():
        name = name.replace("model.vision_tower.", "vision_tower.vision_model.")
        name = name.removeprefix("model.")
        if ".layers.2." in name or "post_layernorm" in name or name.startswith("language_model"):
            continue
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if name.startswith("multi_modal_projector."):
            _, layer, suffix = name.split(".")
            target = f"mm.{0 if layer == 'linear_1' else 2}.{suffix}"
        elif name == "image_newline":
            target = "model.image_newline"
        elif tiles and target is not None and ".ffn_" in target:
            old, new = ("up", "down") if "ffn_up" in target else ("down", "up")
            target = target.replace(f"ffn_{old}", f"ffn_{new}")
        if target is not None and target.startswith(("v.", "mm.", "model.")):
            found[target] = tensor.float().numpy()
    return found


def of_gemma4(model: Any) -> dict[str, np.ndarray]:
    """Limits have an axis, and patches the order of a convolution."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 8)
    ends = ("weight", "input_min", "input_max", "output_min", "output_max")
    found = {}
    for name, tensor in model.state_dict().items():
        w = np.atleast_1d(tensor.float().numpy())
        name = name.replace("model.vision_tower.encoder.", "vision_model.model.")
        name = name.replace(".linear.weight", ".weight")
        if name.endswith("position_embedding_table"):
            name += ".weight"
        if name.endswith("input_proj.weight"):
            edge = int((w.shape[1] // 3) ** 0.5)
            w = w.reshape(-1, edge, edge, 3).transpose(0, 3, 1, 2)
        target = names.get_name(name, try_suffixes=tuple(f".{end}" for end in ends))
        if target is not None and target.startswith(("v.", "mm.")):
            found[target] = w
    return found


def tower_tensors(projector: str, model: Any, seeing: Seeing) -> dict[str, np.ndarray]:
    """Those of a file, in the order and with the values of llama.cpp's converter."""
    if projector == "mlp":
        return of_llava(model, "image_grid_pinpoints" in seeing.outer)
    if projector == "gemma4v":
        return of_gemma4(model)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 8)
    deep = seeing.vision.get("deepstack_visual_indexes", [])
    found = {}
    for name, tensor in model.state_dict().items():
        w = tensor.float().numpy()
        if projector == "gemma3":
            name = name.replace("model.vision_tower.", "vision_tower.vision_model.")
            name = name.removeprefix("model.").replace("projection_weight", "projection.weight")
            w = w + 1 if "soft_emb_norm" in name else w
        name = name.replace("model.vision_tower.", "vision_tower.")
        name = name.replace("model.multi_modal", "multi_modal").replace("model.visual.", "visual.")
        if "vision_tower.tr" in name and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = seeing.vision["num_attention_heads"]
            w = w.reshape(heads, 2, -1, w.shape[1]).swapaxes(1, 2).reshape(w.shape)
        if "deepstack" in name:
            _, _, i, rest = name.split(".", 3)
            found[f"v.deepstack.{deep[int(i)]}.{rest.replace('linear_', '')}"] = w
        elif ".attn.qkv." in name and "qwen2" in projector:
            for part, one in zip("qkv", np.split(w, 3), strict=True):
                apart = names.get_name(name.replace("qkv", part), try_suffixes=(".weight", ".bias"))
                found[apart] = one
        elif name.startswith("visual.merger.") and "qwen2" not in projector:
            name = name.removeprefix("visual.merger.").replace("norm", "v.post_ln")
            found[name.replace("linear_fc1", "mm.0").replace("linear_fc2", "mm.2")] = w
        elif name == "visual.patch_embed.proj.weight":
            found["v.patch_embd.weight"], found["v.patch_embd.weight.1"] = w[:, :, 0], w[:, :, 1]
        elif "head." not in name:
            target = names.get_name(name, try_suffixes=(".weight", ".bias"))
            if target is not None and target.startswith(("v.", "mm.")):
                found[target] = w
    return found


def write_tower(path: Path, projector: str, model: Any, seeing: Seeing, without: str = "") -> None:
    v = seeing.vision
    writer = gguf.GGUFWriter(path, "clip")
    if projector == "gemma4v":  # such a file may have a tower of sound, too
        writer.add_clip_vision_projector_type(projector)
    else:
        writer.add_clip_projector_type(projector)
    writer.add_clip_has_vision_encoder(True)
    layers = v.get("num_hidden_layers", v.get("depth")) - (projector == "mlp")
    writer.add_vision_block_count(layers)
    writer.add_vision_embedding_length(v.get("embed_dim", v["hidden_size"]))
    # Of Qwen2-VL the converter writes the projector's width.
    writer.add_vision_feed_forward_length(v.get("intermediate_size", v["hidden_size"]))
    writer.add_vision_head_count(v.get("num_attention_heads", v.get("num_heads")))
    writer.add_vision_image_size(v.get("image_size", 64))
    writer.add_vision_patch_size(v["patch_size"])
    eps = v.get("layer_norm_eps", v.get("rms_norm_eps", 1e-5 if projector == "mlp" else 1e-6))
    writer.add_vision_attention_layernorm_eps(eps)
    if v.get("hidden_act") == "silu":
        writer.add_vision_use_silu(True)
    if "fullatt_block_indexes" in v:
        writer.add_vision_n_wa_pattern(v["fullatt_block_indexes"][0] + 1)
    if "deepstack_visual_indexes" in v:
        chosen = v["deepstack_visual_indexes"]
        writer.add_vision_is_deepstack_layers([i in chosen for i in range(layers)])
    outer = seeing.outer
    if "image_grid_pinpoints" in outer:
        grids = outer["image_grid_pinpoints"]
        writer.add_array(
            "clip.vision.image_grid_pinpoints", [edge for grid in grids for edge in grid]
        )
        writer.add_string("clip.vision.mm_patch_merge_type", "spatial_unpad")
    elif projector == "mlp":
        writer.add_array("clip.vision.feature_layer", [layers])
    if (merge := v.get("spatial_merge_size", outer.get("spatial_merge_size"))) is not None:
        writer.add_vision_spatial_merge_size(merge)
    if projector == "gemma3":
        writer.add_vision_projector_scale_factor(2)
    if "pooling_kernel_size" in v:
        writer.add_vision_projector_scale_factor(v["pooling_kernel_size"])
    if "scale_factor" in outer:
        writer.add_vision_projector_scale_factor(outer["scale_factor"])
    for name, w in tower_tensors(projector, model, seeing).items():
        if name != without:
            writer.add_tensor(name, np.ascontiguousarray(w))
    finish(writer)


def naming(values: dict[str, Any], id: int, token: str) -> dict[str, Any]:
    """The keys of a tokenizer in which an id has a token of images."""
    tokens, merges = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.merges"]
    removed, tokens[id] = tokens[id], token
    merges = [one for one in merges if removed not in (*one.split(), one.replace(" ", ""))]
    return {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges}


def write_text(
    path: Path, arch: str, token: str, model: Any, seeing: Seeing, more: Any = None
) -> None:
    """The text of the model, which has the token of images in its vocabulary, or other keys."""
    sizes = SIZES | seeing.text
    tiny = Tiny(
        arch=arch, hidden=sizes["hidden_size"], wide=sizes["intermediate_size"],
        layers=sizes["num_hidden_layers"], heads=sizes["num_attention_heads"],
        kv_heads=sizes["num_key_value_heads"], head_dim=sizes.get("head_dim", 16), keys=KEYS[arch],
    )  # fmt: skip
    values = gguf_factory.metadata(tiny)
    writer = gguf.GGUFWriter(path, arch)
    keys = {**KEYS[arch], **(more or naming(values, seeing.token, token))}
    if arch == "gemma4":
        keys |= {
            "gemma4.embedding_length_per_layer_input": seeing.text["hidden_size_per_layer_input"],
            "gemma4.final_logit_softcapping": None,
            "tokenizer.ggml.padding_token_id": seeing.text["pad_token_id"],
        }
    gguf_factory.add_metadata(writer, replace(tiny, keys=keys))
    if arch == "gemma4":  # a quarter of the pairs of heads without a window turn
        turns = np.arange(seeing.text["global_head_dim"] // 2) < seeing.text["global_head_dim"] // 8
        writer.add_tensor("rope_freqs.weight", np.where(turns, 1, 1e30).astype(np.float32))
    kind = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch)
    names = gguf.get_tensor_name_map(kind, tiny.layers)
    for name, tensor in model.state_dict().items():
        w = tensor.float().numpy()
        text = name.replace("model.language_model.", "model.").replace("text_model.", "")
        text += ".weight" if text.endswith("layer_scalar") else ""
        target = names.get_name(text, try_suffixes=(".weight", ".bias"))
        if target is None or name.startswith(("model.vision", "model.visual", "model.embed_")):
            continue
        if arch == "llama" and text.endswith(("q_proj.weight", "k_proj.weight")):
            w = w.reshape(-1, 2, tiny.head_dim // 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)
        if arch == "gemma3" and "norm" in text:
            w = w + 1
        if text != "lm_head.weight" or not model.config.tie_word_embeddings:
            writer.add_tensor(target, np.ascontiguousarray(w))
    finish(writer)


def encoder(path: Path, **options: Any) -> ImageEncoder | None:
    model = loading.load(path, cached=False, **options)
    return Engine(model, threads=1, deterministic=True).image_encoder


@pytest.mark.parametrize("name", FILES)
def test_a_tower_is_its_checkpoint(name: str, tmp_path: Path) -> None:
    projector, arch, token = FILES[name]
    seeing = SEEING[name]
    model = seeing_models.write(tmp_path / "m", seeing)
    write_text(tmp_path / "text.gguf", arch, token, model, seeing)
    write_tower(tmp_path / "mmproj-F32.gguf", projector, model, seeing)
    expected, found = encoder(tmp_path / "m"), encoder(tmp_path / "text.gguf")
    assert expected is not None
    assert found is not None
    assert found.tower.image_token == seeing.token
    assert found.tower.together == expected.tower.together
    for image in seeing.images(2):
        assert_same_bits(found.rows(image), expected.rows(image))
    assert encoder(tmp_path / "text.gguf", mmproj="off") is None
    loading.save(loading.load(tmp_path / "text.gguf", cached=False), tmp_path / "packed")
    packed = encoder(tmp_path / "packed")
    assert packed is not None
    assert_same_bits(packed.rows(image), expected.rows(image))
    # Gemma 4's file does not say which tokens see each other, and LLaVA's class has several texts.
    if arch in ("gemma4", "qwen2", "qwen2vl"):
        images = seeing.images(2)
        prompt = seeing.prompt(images)
        ours, theirs = (
            logits(opened(tmp_path / name), seeing, prompt, images) for name in ("text.gguf", "m")
        )
        assert_same_bits(ours, theirs)


def test_a_text_without_a_token_of_images(tmp_path: Path) -> None:
    """As Vicuna's of LLaVA 1.5: the unknown token, which no text has, stands for images."""
    seeing = SEEING["llava"]
    model = seeing_models.write(tmp_path / "m", seeing)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    tokens += [chr(ord("a") + i) for i in range(12)]
    keys = {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 272, "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256,
        *[1] * 13], "tokenizer.ggml.pre": None, "tokenizer.ggml.merges": None,
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }  # fmt: skip
    write_text(tmp_path / "text.gguf", "llama", "", model, seeing, keys)
    write_tower(tmp_path / "mmproj-F32.gguf", "mlp", model, seeing)
    (template := tmp_path / "a.jinja").write_text("{{ messages[0].content }}")
    llm = LLM(tmp_path / "text.gguf", chat_template=str(template), cache=False)
    part = {"type": "image", "image": noise(40, 60)}
    message = {"role": "user", "content": [part, {"type": "text", "text": "abba"}]}
    done = llm.chat([message], max_tokens=1)
    assert done.stats.n_prompt == 64 + len("▁\nabba")
    assert llm.tokenizer.encode("a<unk>").count(0) == 0
    text = LLM(tmp_path / "text.gguf", mmproj="off", cache=False)
    assert text.tokenizer.token_id("<unk>") == 0


def test_a_tower_of_qwen3_5(tmp_path: Path) -> None:
    """Qwen3.5's files say the same projector as Qwen3-VL's; the text tells them apart."""
    seeing, wide = SEEING["qwen3_5"], {"hidden_size": QWEN3_5.hidden}
    seeing = replace(
        seeing, text=seeing.text | wide, vision=seeing.vision | {"out_hidden_size": QWEN3_5.hidden}
    )
    model = seeing_models.write(tmp_path / "m", seeing)
    write_tower(tmp_path / "mmproj-F32.gguf", "qwen3vl_merger", model, seeing)
    write_gguf(
        tmp_path / "text.gguf", replace(QWEN3_5, dtype=torch.float32),
        lambda keys, _: keys.update(naming(keys, seeing.token, "<|image_pad|>")),
    )  # fmt: skip
    expected, found = encoder(tmp_path / "m"), encoder(tmp_path / "text.gguf")
    assert expected is not None
    assert found is not None
    for image in seeing.images(2):
        assert_same_bits(found.rows(image), expected.rows(image))
    config = loading.load(tmp_path / "text.gguf", cached=False).config
    assert {0, 1, 2} == set(config.fields.config[AXES])


def test_other_files(tmp_path: Path) -> None:
    """A text is no tower, nor a tower a text; a folder takes no tower's file; a tower of another
    kind is refused, where it was asked for."""
    seeing = SEEING["smolvlm"]
    model = seeing_models.write(tmp_path / "m", seeing)
    write_text(tmp_path / "text.gguf", "llama", "<image>", model, seeing)
    with pytest.raises(RequestError, match="must be a file of a tower"):
        encoder(tmp_path / "text.gguf", mmproj=tmp_path / "text.gguf")
    write_tower(tmp_path / "other.gguf", "resampler", model, seeing)
    with pytest.raises(UnsupportedModelError, match=r"vision tower.*this one as mmproj"):
        encoder(tmp_path / "other.gguf")
    with pytest.raises(RequestError, match=r"mmproj: must be .* for a folder"):
        encoder(tmp_path / "m", mmproj=tmp_path / "other.gguf")
    with pytest.raises(UnsupportedModelError, match=r"clip\.projector_type"):
        encoder(tmp_path / "text.gguf", mmproj=tmp_path / "other.gguf")
    (tmp_path / "other.gguf").rename(tmp_path / "mmproj-other.gguf")
    with pytest.warns(RuntimeWarning, match=r"only the text runs.*clip\.projector_type"):
        assert encoder(tmp_path / "text.gguf") is None


@pytest.mark.parametrize(
    ("text", "tower"),
    [
        ("gemma-3-4b-it-Q4_K_M", "mmproj-gemma-3-4b-it-f16"),
        ("gemma-3-12b-it-Q4_0", "gemma-3-12b-it-mmproj-F16"),
        ("Qwen3VL-2B-Instruct-Q8_0", "mmproj-Qwen3VL-2B-Instruct-F16"),
        ("Qwen3VL-4B-Instruct-Q4_K_M", "mmproj-Qwen3VL-4B-Instruct-Q8_0"),
        ("another-Q4_K_M", "mmproj-model-f16"),
    ],
)
def test_a_folder_of_many_models(text: str, tower: str, tmp_path: Path) -> None:
    """Names tell which tower is a text's: the first one in the most bits would be another's."""
    towers = [
        "mmproj-a-other-F32", "mmproj-gemma-3-4b-it-f16", "gemma-3-12b-it-mmproj-F16",
        "mmproj-Qwen3VL-2B-Instruct-F16", "mmproj-Qwen3VL-4B-Instruct-Q8_0", "mmproj-model-f16",
        "mmproj-model-q8_0",
    ]  # fmt: skip
    for name in towers:
        (tmp_path / f"{name}.gguf").touch()
    found = find_mmproj(tmp_path / f"{text}.gguf")
    assert found is not None
    assert found.stem == tower


@pytest.mark.parametrize("name", ["v.position_embd.weight", "v.blk.0.attn_k.weight"])
def test_a_damaged_tower(name: str, tmp_path: Path) -> None:
    """Sizes that no key says are those of tensors, which must be there."""
    seeing = SEEING["gemma4"]
    model = seeing_models.write(tmp_path / "m", seeing)
    write_text(tmp_path / "text.gguf", "gemma4", "<|image|>", model, seeing)
    write_tower(tmp_path / "other.gguf", "gemma4v", model, seeing, without=name)
    with pytest.raises(ModelFormatError, match=f"{name}.*no such tensor"):
        encoder(tmp_path / "text.gguf", mmproj=tmp_path / "other.gguf")
