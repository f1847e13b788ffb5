"""Towers in GGUF files of their own (`mmproj-*.gguf`), as llama.cpp's converter writes them.

Their names and keys become those of the family's checkpoint, so that the family's own `tower` reads
them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.checkpoints.safetensors_header import TensorInfo
from sterna.errors import ModelFormatError, RequestError, UnsupportedModelError, shown
from sterna.formats import PackedWeight
from sterna.gguf.file import GgufModel
from sterna.gguf.hf_config import TOWER
from sterna.gguf.image_settings import GEMMA4_POOLED, preprocessor_config
from sterna.gguf.metadata import Metadata
from sterna.gguf.projectors import ARRAYS, PROJECTORS, Projector
from sterna.gguf.tensor_reader import TensorReader
from sterna.gguf.tensor_types import FLOAT_TYPES
from sterna.gguf.weight_source import GgufWeights
from sterna.models.llava_next import LINE_END
from sterna.models.vision.qwen2_vl import APART
from sterna.weights import packing
from sterna.weights.parts import Linear
from sterna.weights.storages import Floats

__all__ = ["MmprojReader", "MmprojWeights", "with_tower"]

#: SentencePiece's tokens for what is no token, and for bytes.
UNKNOWN, BYTES = "<unk>", [f"<0x{byte:02X}>" for byte in range(256)]
CHANNELS = 3
#: An FFN's matrices -> in a file that has exchanged them (`_has_swapped_layers`).
_SWAPPED = {"fc1": "fc2", "fc2": "fc1", "up_proj": "down_proj", "down_proj": "up_proj"}
F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]


def with_tower(config: dict[str, Any], text: GgufModel, file: GgufModel) -> dict[str, Any]:
    """Return a text model's config.json with the settings of its tower from an mmproj file.

    A text without a token for images gets one. UnsupportedModelError for a file of another kind.
    """
    m = file.metadata
    if m.text("general.architecture") != TOWER:
        raise RequestError(f"mmproj: must be a file of a tower, but got {file.path}")
    kind, projector = _kind(m)
    of_text = text.metadata.text("general.architecture")
    if of_text not in kind.texts:
        raise UnsupportedModelError(
            f"{file.path}: a {projector} must belong to a model of {' or '.join(kind.texts)}, "
            f"but {text.path.name} is {of_text}; Sterna does not run these together yet"
        )
    token, tiles = _image_token(text, kind.token), ARRAYS[LINE_END] in file.tensors
    architecture = kind.texts[of_text].replace("Llava", "LlavaNext" if tiles else "Llava")
    return {
        **config,
        "architectures": [architecture],
        "image_token_id": token,
        "image_token_index": token,
        **_fields(m, projector, file),
        **(_gemma4_text(config) if projector == "gemma4v" else {}),
        **({"text_config": config} if projector == "mlp" else {}),  # whose class has several texts
        "rope_parameters": _sections(config, text, of_text),
        "preprocessor_config": preprocessor_config(m, projector, tiles),
    }


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


def _kind(m: Metadata) -> tuple[Projector, str]:
    projector = m.text("clip.projector_type", "mlp")
    projector = m.text("clip.vision.projector_type", projector)
    kind = PROJECTORS.get(projector)
    if kind is None:
        raise UnsupportedModelError(
            f"{m.path}: clip.projector_type must be one of {', '.join(PROJECTORS)}, but got "
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
    if projector == "gemma4v":
        return {"vision_config": vision | _gemma4_vision(m, file)}
    if projector == "idefics3":
        return {"vision_config": vision, "scale_factor": number("projector.scale_factor", 2)}
    if projector == "mlp":
        vision |= {"model_type": "clip_vision_model", "hidden_act": _activation(m)}
        return {
            "vision_config": vision,
            "vision_feature_layer": _feature_layer(m, layers),
            "multimodal_projector_bias": "mm.0.bias" in file.tensors,
        }
    merge = number("spatial_merge_size", 2)
    if projector == "pixtral":
        vision["hidden_act"] = "silu" if m.boolean("clip.use_silu", False) else "gelu"
        return {
            "vision_config": vision,
            "spatial_merge_size": merge,
            "multimodal_projector_bias": "mm.1.bias" in file.tensors,
        }
    if projector.startswith("qwen2"):
        return {"vision_config": _qwen2_vision(m, file, vision | {"spatial_merge_size": merge})}
    vision |= {
        "spatial_merge_size": merge,
        "num_position_embeddings": _size(file, "v.position_embd.weight", 0, 2),
        "deepstack_visual_indexes": _deep(m, layers),
    }
    return {"vision_config": vision}


def _size(file: GgufModel, name: str, axis: int, axes: int) -> int:
    """Return a size of a tensor, which must have this number of axes."""
    info = file.tensors.get(name)
    if info is None or len(info.shape) != axes:
        got = "no such tensor" if info is None else f"shape {list(info.shape)}"
        raise ModelFormatError(file.path, name, f"{axes} axes", got)
    return info.shape[axis]


def _qwen2_vision(m: Metadata, file: GgufModel, vision: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the encoders of Qwen2-VL and Qwen2.5-VL.

    The key of an FFN's width has another number in files of the first. No key says how wide windows
    are: they have Qwen2.5-VL's width, as in llama.cpp.
    """
    wide = "v.blk.0.ffn_down.weight" if _has_swapped_layers(file) else "v.blk.0.ffn_up.weight"
    width, vision = _size(file, wide, 0, 2), {**vision, APART: True}
    if "v.blk.0.ffn_gate.weight" not in file.tensors:
        return {**vision, "embed_dim": vision["hidden_size"], "intermediate_width": width}
    period = m.integer("clip.vision.n_wa_pattern")
    whole = list(range(period - 1, vision["num_hidden_layers"], period)) if period else []
    return {**vision, "intermediate_size": width, "fullatt_block_indexes": whole}


def _gemma4_vision(m: Metadata, file: GgufModel) -> dict[str, Any]:
    head_dim = _size(file, "v.blk.0.attn_q_norm.weight", 0, 1)
    return {
        "rms_norm_eps": m.number("clip.vision.attention.layer_norm_epsilon", 1e-6),
        "head_dim": head_dim,
        "num_key_value_heads": _size(file, "v.blk.0.attn_k.weight", 0, 2) // head_dim,
        "pooling_kernel_size": m.integer("clip.vision.projector.scale_factor", GEMMA4_POOLED),
        "position_embedding_size": _size(file, "v.position_embd.weight", 1, 3),
        "standardize": "v.std_bias" in file.tensors,
        "use_clipped_linears": "v.blk.0.attn_q.input_max" in file.tensors,
    }


def _gemma4_text(config: dict[str, Any]) -> dict[str, Any]:
    """Return whether an image's tokens see each other.

    Files do not say it. Of Google's models they do in those whose layers add no rows of their own
    (llama.cpp issue 28318).
    """
    together = not config["hidden_size_per_layer_input"]
    return {"use_bidirectional_attention": "vision" if together else None}


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
        rope |= {"mrope_section": sections[:3], "mrope_interleaved": name != "qwen2vl"}
    return rope


def _has_swapped_layers(file: GgufModel) -> bool:
    """Whether a file calls its layers' first matrix ffn_down and their second ffn_up, as files of
    llama.cpp's converter before 2025 do."""
    first = file.tensors.get("v.blk.0.ffn_down.weight")
    width = file.metadata.integer("clip.vision.embedding_length")
    return first is not None and first.shape[0] != width == first.shape[1]


@dataclass
class MmprojReader(TensorReader):
    """Reads the tensors of an mmproj file by the names of the family's checkpoint."""

    projector: Projector = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Find the kind of the file's projector."""
        self.projector, _ = _kind(self.model.metadata)
        layers = self.model.metadata.integer("clip.vision.block_count")
        self._deep = _deep(self.model.metadata, layers)
        self._swapped = _has_swapped_layers(self.model)
        vision = self.config["vision_config"]
        self._head_dim = vision["hidden_size"] // vision["num_attention_heads"]

    def name(self, name: str) -> str:
        if name in ARRAYS:
            return ARRAYS[name]
        if self._swapped and ".mlp." in name:
            part = name.split(".")[-2]
            name = name.replace(f".{part}.", f".{_SWAPPED.get(part, part)}.")
        module, _, suffix = name.rpartition(".")
        for pattern, target in self.projector.modules.items():
            if match := re.fullmatch(pattern, module):
                found = match.expand(target)
                deep = re.sub(r"\{(\d+)\}", lambda at: str(self._deep[int(at[1])]), found)
                return f"{deep}.{suffix}"
        return name

    def part(self, part: Linear) -> TensorInfo:
        name = self.name(f"{part.name}.weight")
        if part.name == self.projector.by_pixel:
            edge = math.isqrt(part.K // CHANNELS)
            info = self.info(name, (part.M, CHANNELS, edge, edge))
            if info.dtype not in FLOAT_TYPES:
                raise self.error(info, "an array of floats", info.dtype)
            return info
        if not part.kernel:
            return super().part(part)
        shape = part.kernel if len(part.kernel) == 3 else (part.kernel[0], *part.kernel[2:])
        return self.info(name, (part.M, *shape))

    def raw(self, part: Linear) -> U8:
        """Read the bytes of rows; a patch of two frames has a tensor for each."""
        info = self.part(part)
        raw = self.model.read(info.name)
        if part.name == self.projector.by_pixel:
            cut = raw.reshape(part.M, CHANNELS, part.K // CHANNELS, -1)
            return np.ascontiguousarray(cut.swapaxes(1, 2)).reshape(part.M, -1)
        if not part.kernel:
            return raw
        if len(part.kernel) == 4:
            second = self.info(f"{info.name}.1", info.shape)
            both = [
                one.reshape(part.M, part.kernel[0], -1)
                for one in (raw, self.model.read(second.name))
            ]
            raw = np.stack(both, axis=2)
        return raw.reshape(part.M, -1)

    def order(self, module: str, rows: int) -> npt.NDArray[np.intp] | slice:
        if not self.projector.permuted or not module.endswith((".q_proj", ".k_proj")):
            return slice(None)
        pairs = np.arange(rows).reshape(-1, self._head_dim // 2, 2)
        return np.asarray(pairs.transpose(0, 2, 1).reshape(-1), np.intp)

    def _scale(self, part: Linear) -> None:
        return None


@dataclass
class MmprojWeights(GgufWeights):
    """The `WeightSource` of an mmproj file."""

    reader: MmprojReader

    @property
    def has_floats(self) -> bool:
        """Whether nothing in the file is quantised."""
        return all(info.dtype in FLOAT_TYPES for info in self.reader.model.tensors.values())

    def vector(self, name: str, *shape: int) -> F32:
        """Read a small array, float32 of this shape."""
        stored = shape or (1,)  # a file has no arrays without axes
        info = self.reader.info(self.reader.name(name), stored)
        values = self.reader.floats(info).values().reshape(shape)
        if name.endswith(self.reader.projector.sums):
            values = values - np.float32(1)
        self.tensors[name] = values
        return values

    def matrix(self, name: str, parts: list[Linear]) -> list[PackedWeight]:
        """Pack the rows of `parts`, as `GgufWeights` does."""
        (part, *others) = parts
        if others or not part.name.endswith(self.reader.projector.transposed or ("\0",)):
            return super().matrix(name, parts)
        floats = self.reader.floats(
            self.reader.info(self.reader.name(f"{part.name}.weight"), (part.K, part.M))
        )
        rows = Floats(floats.format, np.ascontiguousarray(floats.bits.T))
        choice = packing.choose(rows, self.format)
        self.modules[name] = packing.pack([rows], choice, self.reader.threads, part.name)
        return [self.modules[name]]
