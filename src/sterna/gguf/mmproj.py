"""Towers in GGUF files of their own (`mmproj-*.gguf`), as llama.cpp's converter writes them.

Their names and keys become those of the family's checkpoint, so that the family's own `tower` reads
them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.checkpoints.safetensors_header import TensorInfo
from sterna.errors import RequestError, UnsupportedModelError, shown
from sterna.formats import PackedWeight
from sterna.gguf.file import GgufModel
from sterna.gguf.image_settings import preprocessor_config
from sterna.gguf.metadata import Metadata
from sterna.gguf.tensor_types import FLOAT_TYPES
from sterna.gguf.weight_source import GgufWeights
from sterna.models.llava_next import LINE_END
from sterna.weights import packing
from sterna.weights.parts import Linear
from sterna.weights.storages import Floats

__all__ = ["MmprojWeights", "with_tower"]

ARCHITECTURE = "clip"
#: SentencePiece's tokens for what is no token, and for bytes.
UNKNOWN, BYTES = "<unk>", [f"<0x{byte:02X}>" for byte in range(256)]
F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]

_VIT = {
    r"vision_tower\.embeddings\.patch_embedding": "v.patch_embd",
    r"vision_tower\.embeddings\.position_embedding": "v.position_embd",
    r"vision_tower\.post_layernorm": "v.post_ln",
    r"vision_tower\.encoder\.layers\.(\d+)\.layer_norm([12])": r"v.blk.\1.ln\2",
    r"vision_tower\.encoder\.layers\.(\d+)\.self_attn\.([qkv])_proj": r"v.blk.\1.attn_\2",
    r"vision_tower\.encoder\.layers\.(\d+)\.self_attn\.out_proj": r"v.blk.\1.attn_out",
    r"vision_tower\.encoder\.layers\.(\d+)\.mlp\.fc1": r"v.blk.\1.ffn_up",
    r"vision_tower\.encoder\.layers\.(\d+)\.mlp\.fc2": r"v.blk.\1.ffn_down",
}
#: Arrays without a module of their own: names in checkpoints -> in files.
_ARRAYS = {"vision_tower.embeddings.class_embedding": "v.class_embd", LINE_END: f"model.{LINE_END}"}
_PIXTRAL = r"vision_tower\.transformer\.layers\.(\d+)\."


@dataclass(frozen=True)
class _Kind:
    """What files of a projector are.

    texts: architectures of texts by which the tower may stand -> the class that reads both. token:
    of images. modules: names in checkpoints -> in files, regular expressions. permuted: rows of q
    and k are stored for interleaved rotations. transposed: ends of matrices that are stored as
    [K, M]. sums: ends of norms that are stored as 1 + w.
    """

    texts: Mapping[str, str]
    token: str
    modules: Mapping[str, str]
    permuted: bool = False
    transposed: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()


_KINDS = {
    "gemma3": _Kind(
        {"gemma3": "Gemma3ForConditionalGeneration"},
        "<image_soft_token>",
        {
            **_VIT,
            r"multi_modal_projector\.mm_input_projection": "mm.input_projection",
            r"multi_modal_projector\.mm_soft_emb_norm": "mm.soft_emb_norm",
        },
        transposed=("mm_input_projection",), sums=("mm_soft_emb_norm.weight",),
    ),
    "idefics3": _Kind(
        {"llama": "SmolVLMForConditionalGeneration"},
        "<image>",
        {**_VIT, r"connector\.modality_projection\.proj": "mm.model.fc"},
    ),
    "mlp": _Kind(
        {"llama": "LlavaForConditionalGeneration"},
        "<image>",
        {
            **_VIT,
            r"vision_tower\.pre_layrnorm": "v.pre_ln",
            r"multi_modal_projector\.linear_1": "mm.0",
            r"multi_modal_projector\.linear_2": "mm.2",
        },
    ),
    "pixtral": _Kind(
        dict.fromkeys(("llama", "mistral3"), "Mistral3ForConditionalGeneration"),
        "[IMG]",
        {
            r"vision_tower\.patch_conv": "v.patch_embd",
            r"vision_tower\.ln_pre": "v.pre_ln",
            _PIXTRAL + r"attention_norm": r"v.blk.\1.ln1",
            _PIXTRAL + r"ffn_norm": r"v.blk.\1.ln2",
            _PIXTRAL + r"attention\.([qkv])_proj": r"v.blk.\1.attn_\2",
            _PIXTRAL + r"attention\.o_proj": r"v.blk.\1.attn_out",
            _PIXTRAL + r"feed_forward\.(gate|up|down)_proj": r"v.blk.\1.ffn_\2",
            r"multi_modal_projector\.norm": "mm.input_norm",
            r"multi_modal_projector\.patch_merger\.merging_layer": "mm.patch_merger",
            r"multi_modal_projector\.linear_([12])": r"mm.\1",
        },
        permuted=True,
    ),
    "qwen3vl_merger": _Kind(
        {
            "qwen3vl": "Qwen3VLForConditionalGeneration",
            "qwen35": "Qwen3_5ForConditionalGeneration",
            "qwen35moe": "Qwen3_5MoeForConditionalGeneration",
        },
        "<|image_pad|>",
        {
            r"visual\.patch_embed\.proj": "v.patch_embd",
            r"visual\.pos_embed": "v.position_embd",
            r"visual\.merger\.norm": "v.post_ln",
            r"visual\.merger\.linear_fc1": "mm.0",
            r"visual\.merger\.linear_fc2": "mm.2",
            r"visual\.blocks\.(\d+)\.norm([12])": r"v.blk.\1.ln\2",
            r"visual\.blocks\.(\d+)\.attn\.qkv": r"v.blk.\1.attn_qkv",
            r"visual\.blocks\.(\d+)\.attn\.proj": r"v.blk.\1.attn_out",
            r"visual\.blocks\.(\d+)\.mlp\.linear_fc1": r"v.blk.\1.ffn_up",
            r"visual\.blocks\.(\d+)\.mlp\.linear_fc2": r"v.blk.\1.ffn_down",
            r"visual\.deepstack_merger_list\.(\d+)\.norm": r"v.deepstack.{\1}.norm",
            r"visual\.deepstack_merger_list\.(\d+)\.linear_fc([12])": r"v.deepstack.{\1}.fc\2",
        },
    ),
}  # fmt: skip


def with_tower(config: dict[str, Any], text: GgufModel, file: GgufModel) -> dict[str, Any]:
    """Return a text model's config.json with the settings of its tower from an mmproj file.

    A text without a token for images gets one. UnsupportedModelError for a file of another kind.
    """
    m = file.metadata
    if m.text("general.architecture") != ARCHITECTURE:
        raise RequestError(f"mmproj: must be a file of a tower, but got {file.path}")
    kind, projector = _kind(m)
    of_text = text.metadata.text("general.architecture")
    if of_text not in kind.texts:
        raise UnsupportedModelError(
            f"{file.path}: a {projector} must stand by a text of {' or '.join(kind.texts)}, but "
            f"{text.path.name} is {of_text}; Sterna does not run these together yet"
        )
    token, tiles = _image_token(text, kind.token), _ARRAYS[LINE_END] in file.tensors
    architecture = kind.texts[of_text].replace("Llava", "LlavaNext" if tiles else "Llava")
    return {
        **config, "architectures": [architecture], "image_token_id": token,
        "image_token_index": token, **_fields(m, projector, file),
        "rope_parameters": _sections(config, text, of_text),
        "preprocessor_config": preprocessor_config(m, projector, tiles),
    }  # fmt: skip


def _image_token(text: GgufModel, name: str) -> int:
    """Return the id of the token at whose positions images stand.

    Texts of older LLaVA files have none. Where bytes are tokens, no text has an unknown one, which
    therefore gets the name. UnsupportedModelError without either.
    """
    tokens = text.metadata.texts("tokenizer.ggml.tokens")
    if name not in tokens and {UNKNOWN, *BYTES} <= {*tokens}:
        tokens[tokens.index(UNKNOWN)] = name
    if name not in tokens:
        raise UnsupportedModelError(
            f"{text.path}: must have the token {name} for images, but has none of this name"
        )
    return tokens.index(name)


def _kind(m: Metadata) -> tuple[_Kind, str]:
    projector = m.text("clip.projector_type", "mlp")
    projector = m.text("clip.vision.projector_type", projector)
    kind = _KINDS.get(projector)
    if kind is None:
        raise UnsupportedModelError(
            f"{m.path}: clip.projector_type must be one of {', '.join(_KINDS)}, but got "
            f"{shown(projector)}; Sterna does not run this tower yet"
        )
    return kind, projector


def _fields(m: Metadata, projector: str, file: GgufModel) -> dict[str, Any]:
    """Return config.json's fields of the tower and the projector."""

    def number(key: str, default: int | None = None) -> int:
        return m.integer(f"clip.vision.{key}", default)

    layers = number("block_count")
    size, patch = number("image_size"), number("patch_size")
    vision: dict[str, Any] = {
        "hidden_size": number("embedding_length"),
        "intermediate_size": number("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": number("attention.head_count"),
        "image_size": size,
        "patch_size": patch,
        "layer_norm_eps": m.number("clip.vision.attention.layer_norm_epsilon", 1e-6),
    }
    if projector == "gemma3":
        factor = number("projector.scale_factor", 4)
        return {"vision_config": vision, "mm_tokens_per_image": (size // patch // factor) ** 2}
    if projector == "idefics3":
        return {"vision_config": vision, "scale_factor": number("projector.scale_factor", 2)}
    if projector == "mlp":
        vision |= {"model_type": "clip_vision_model", "hidden_act": _activation(m)}
        return {
            "vision_config": vision, "vision_feature_layer": _feature_layer(m, layers),
            "multimodal_projector_bias": "mm.0.bias" in file.tensors,
        }  # fmt: skip
    merge = number("spatial_merge_size", 2)
    if projector == "pixtral":
        vision["hidden_act"] = "silu" if m.boolean("clip.use_silu", False) else "gelu"
        return {
            "vision_config": vision, "spatial_merge_size": merge,
            "multimodal_projector_bias": "mm.1.bias" in file.tensors,
        }  # fmt: skip
    vision |= {
        "spatial_merge_size": merge,
        "num_position_embeddings": file.tensors["v.position_embd.weight"].shape[0],
        "deepstack_visual_indexes": _deep(m, layers),
    }
    return {"vision_config": vision}


def _activation(m: Metadata) -> str:
    """Return the activation of CLIP's layers; without a key it is that of OpenAI's CLIP."""
    for key, name in (("clip.use_gelu", "gelu"), ("clip.use_silu", "silu")):
        if m.boolean(key, False):
            return name
    return "quick_gelu"


def _feature_layer(m: Metadata, layers: int) -> object:
    """Return LLaVA's vision_feature_layer among the file's layers.

    The converter leaves out the layers behind it. (llama.cpp skips one more where no key says it,
    and so runs another model than the authors.)
    """
    key = "clip.vision.feature_layer"
    if key not in m:
        return -1
    chosen = m.array(key).tolist()
    return chosen[0] - layers - 1 if len(chosen) == 1 else chosen


def _deep(m: Metadata, layers: int) -> list[int]:
    """Return the layers whose features the text takes."""
    key = "clip.vision.is_deepstack_layers"
    return [i for i, deep in enumerate(m.flags(key, layers)) if deep] if key in m else []


def _sections(config: dict[str, Any], text: GgufModel, name: str) -> dict[str, Any]:
    """Return the rotations with their sections of an image's axes, if the text has them."""
    rope, key = dict(config.get("rope_parameters") or {}), f"{name}.rope.dimension_sections"
    if key in text.metadata:
        sections = text.metadata.array(key).tolist()
        rope |= {"mrope_section": sections[:3], "mrope_interleaved": True}
    return rope


def _has_swapped_layers(file: GgufModel) -> bool:
    """Whether a file calls its layers' first matrix ffn_down and their second ffn_up, as files of
    llama.cpp's converter before 2025 do."""
    first = file.tensors.get("v.blk.0.ffn_down.weight")
    width = file.metadata.integer("clip.vision.embedding_length")
    return first is not None and first.shape[0] != width == first.shape[1]


@dataclass
class MmprojWeights(GgufWeights):
    """The `WeightSource` of an mmproj file, by the names of the family's checkpoint."""

    _kind_of_file: _Kind = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Find the kind of the file's projector."""
        self._kind_of_file, _ = _kind(self.model.metadata)
        layers = self.model.metadata.integer("clip.vision.block_count")
        self._deep = _deep(self.model.metadata, layers)
        self._swapped = _has_swapped_layers(self.model)
        vision = self.config["vision_config"]
        self._head_dim = vision["hidden_size"] // vision["num_attention_heads"]

    @property
    def has_floats(self) -> bool:
        """Whether nothing in the file is quantised."""
        return all(info.dtype in FLOAT_TYPES for info in self.model.tensors.values())

    def vector(self, name: str, *shape: int) -> F32:
        """Read a small array, float32 of this shape."""
        info = self._info(self._name(name), shape)
        values = self._floats(info).values().reshape(shape)
        if name.endswith(self._kind_of_file.sums):
            values = values - np.float32(1)
        self.tensors[name] = values
        return values

    def matrix(self, name: str, parts: list[Linear]) -> list[PackedWeight]:
        """Pack the rows of `parts`, as `GgufWeights` does."""
        (part, *others) = parts
        if others or not part.name.endswith(self._kind_of_file.transposed or ("\0",)):
            return super().matrix(name, parts)
        floats = self._floats(self._info(self._name(f"{part.name}.weight"), (part.K, part.M)))
        rows = Floats(floats.format, np.ascontiguousarray(floats.bits.T))
        choice = packing.choose(rows, self.format)
        self.modules[name] = packing.pack([rows], choice, self.threads, part.name)
        return [self.modules[name]]

    def _name(self, name: str) -> str:
        if name in _ARRAYS:
            return _ARRAYS[name]
        if self._swapped and ".mlp." in name:
            old, new = ("fc1", "fc2") if ".fc1." in name else ("fc2", "fc1")
            name = name.replace(f".{old}.", f".{new}.")
        module, _, suffix = name.rpartition(".")
        for pattern, target in self._kind_of_file.modules.items():
            if match := re.fullmatch(pattern, module):
                found = match.expand(target)
                deep = re.sub(r"\{(\d+)\}", lambda at: str(self._deep[int(at[1])]), found)
                return f"{deep}.{suffix}"
        return name

    def _part(self, part: Linear) -> TensorInfo:
        if not part.kernel:
            return super()._part(part)
        name = self._name(f"{part.name}.weight")
        shape = part.kernel if len(part.kernel) == 3 else (part.kernel[0], *part.kernel[2:])
        return self._info(name, (part.M, *shape))

    def _raw(self, part: Linear) -> U8:
        """Read the bytes of rows; a patch of two frames has a tensor for each."""
        info = self._part(part)
        raw = self.model.read(info.name)
        if not part.kernel:
            return raw
        if len(part.kernel) == 4:
            second = self._info(f"{info.name}.1", info.shape)
            both = [
                one.reshape(part.M, part.kernel[0], -1)
                for one in (raw, self.model.read(second.name))
            ]
            raw = np.stack(both, axis=2)
        return raw.reshape(part.M, -1)

    def _order(self, module: str, rows: int) -> npt.NDArray[np.intp] | slice:
        if not self._kind_of_file.permuted or not module.endswith((".q_proj", ".k_proj")):
            return slice(None)
        pairs = np.arange(rows).reshape(-1, self._head_dim // 2, 2)
        return np.asarray(pairs.transpose(0, 2, 1).reshape(-1), np.intp)

    def _scale(self, part: Linear) -> None:
        return None
