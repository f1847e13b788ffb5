"""Small random models that see images, as transformers saves them, and their images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import saved_models
import seeing_images
import torch
import transformers
from model_configs import MODELS, SIZES
from model_configs.common import GEMMA4
from seeing_images import Image

__all__ = ["SEEING", "Seeing", "write"]


@dataclass(frozen=True)
class Seeing:
    """A class of transformers, its configs in addition to `SIZES`, and the inputs of its test.

    outer: fields next to those of the text and the tower. image: makes one of noise. inputs: the
    model's arguments of images, next to the tokens. token: the image token; marks: what stands
    before and behind an image; types, modalities: whether it is told which tokens are of
    images, and by which argument.
    """

    name: str
    text: dict[str, Any]
    vision: dict[str, Any]
    outer: dict[str, Any]
    image: Callable[[np.random.Generator], Image]
    inputs: Callable[[list[Image]], dict[str, Any]]
    token: int = 270
    marks: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    types: bool = False
    modalities: bool = False

    def images(self, count: int) -> list[Image]:
        return [self.image(np.random.default_rng(i)) for i in range(count)]

    def prompt(self, images: list[Image], seed: int = 0) -> list[int]:
        """Text, and an image with its marks behind each piece of it but the last."""
        rng = np.random.default_rng(seed)
        before, behind = self.marks
        tokens: list[int] = []
        for image in images:
            tokens += [*rng.integers(0, 256, 5).tolist(), *before]
            tokens += [*[self.token] * image.tokens, *behind]
        return [*tokens, *rng.integers(0, 256, 6).tolist()]

    def rows(self, model: Any, images: list[Image]) -> Any:
        """The features of images, float32 [all tokens, width]."""
        found = model.get_image_features(**self.inputs(images))
        columns = [found.pooler_output, *(getattr(found, "deepstack_features", None) or [])]
        return np.concatenate([torch.cat(list(each)).numpy() for each in columns], axis=1)

    def arguments(self, prompt: list[int], images: list[Image]) -> dict[str, Any]:
        """The arguments of the model."""
        ids = torch.tensor([prompt])
        made = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **self.inputs(images)}
        if self.types:
            made["token_type_ids"] = (ids == self.token).long()
        if self.modalities:
            made["mm_token_type_ids"] = (ids == self.token).int()
        return made


def config_of(seeing: Seeing) -> Any:
    """The config, with those of the text and of the tower within."""
    kind = getattr(transformers, seeing.name).config_class
    text = {**SIZES, **seeing.text}
    return kind(text_config=text, vision_config=seeing.vision, **seeing.outer)


def write(folder: Path, seeing: Seeing) -> Any:
    """Saves a model and a tokenizer; returns the model."""
    kind = getattr(transformers, seeing.name)
    model = saved_models.made_to_count(kind, config_of(seeing), seed=0)
    _fill(model)
    saved_models.save(folder, model)
    return model


@torch.no_grad()
def _fill(model: Any) -> None:
    """Values for Gemma 4's limits of linear layers, and its norm of tokens."""
    for name, tensor in model.named_buffers():
        if name.endswith(("put_min", "put_max")):
            tensor.uniform_(0.5, 2.5).mul_(-1 if name.endswith("min") else 1)
        elif name.endswith(("std_bias", "std_scale")):
            tensor.normal_().add_(1)


_SMALL = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "image_size": 28,
    "patch_size": 7,
    "model_type": "clip_vision_model",
}
_VIT = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "image_size": 56,
    "patch_size": 7,
}
_SIZED = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "patch_size": 7,
    "model_type": "pixtral",
}
_QWEN_VIT = {
    "depth": 3,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_heads": 3,
    "patch_size": 4,
    "num_position_embeddings": 25,
    "out_hidden_size": 64,
}
_QWEN2_VL = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 1, 3]}
_QWEN3_VL = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "mrope_section": [4, 3, 1],
    "mrope_interleaved": True,
}
_GEMMA4 = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "head_dim": 16,
    "patch_size": 4,
    "pooling_kernel_size": 2,
    "position_embedding_size": 16,
}
SEEING: dict[str, Seeing] = {
    "gemma3": Seeing(
        "Gemma3ForConditionalGeneration",
        {"head_dim": 32, "sliding_window": 20, "query_pre_attn_scalar": 32, "pad_token_id": 0},
        {**_VIT, "model_type": "siglip_vision_model", "layer_norm_eps": 1e-3},
        {"mm_tokens_per_image": 16, "image_token_index": 270},
        seeing_images.tile(56, 16),
        seeing_images.pixels_of,
        marks=((268,), (269,)),
        types=True,
    ),
    "llava": Seeing(
        "LlavaForConditionalGeneration",
        {"model_type": "llama"},
        {
            **_VIT,
            "model_type": "clip_vision_model",
            "num_hidden_layers": 3,
            "hidden_act": "quick_gelu",
        },
        {"image_token_index": 270},
        seeing_images.tile(56, 64),
        seeing_images.pixels_of,
    ),
    "smolvlm": Seeing(
        "SmolVLMForConditionalGeneration",
        {"model_type": "llama"},
        {**_VIT, "image_size": 74, "layer_norm_eps": 1e-3},  # 10.6 patches, as 2.2B has 27.4
        {"image_token_id": 270, "scale_factor": 2},
        seeing_images.tiles(74, 25),
        seeing_images.batch_of_one,
    ),
    "idefics3": Seeing(
        "Idefics3ForConditionalGeneration",
        {"model_type": "llama"},
        _VIT,
        {"image_token_id": 270, "scale_factor": 4},
        seeing_images.tiles(56, 4),
        seeing_images.batch_of_one,
    ),
    "mistral3": Seeing(
        "Mistral3ForConditionalGeneration",
        {"model_type": "mistral", "sliding_window": None},
        {**_SIZED, "hidden_act": "gelu"},
        {"image_token_index": 270, "spatial_merge_size": 2},
        seeing_images.sized(7, 2),
        seeing_images.padded,
    ),
    "mistral3-bias": Seeing(
        "Mistral3ForConditionalGeneration",
        {"model_type": "mistral", "sliding_window": None},
        {
            **_SIZED,
            "hidden_act": "silu",
            "rope_parameters": {"rope_type": "axial", "rope_theta": 100.0},
        },
        {"image_token_index": 270, "spatial_merge_size": 3, "multimodal_projector_bias": True},
        seeing_images.sized(7, 3),
        seeing_images.padded,
    ),
    "qwen2-vl": Seeing(
        "Qwen2VLForConditionalGeneration",
        {"rope_parameters": _QWEN2_VL},
        {
            "depth": 2,
            "embed_dim": 48,
            "mlp_ratio": 2,
            "num_heads": 3,
            "patch_size": 4,
            "hidden_size": 64,
        },
        {"image_token_id": 270, "video_token_id": 269},
        seeing_images.patches(2),
        seeing_images.with_grids,
        modalities=True,
    ),
    "qwen2.5-vl": Seeing(
        "Qwen2_5_VLForConditionalGeneration",
        {"rope_parameters": _QWEN2_VL},
        # Windows of 112 pixels, two tokens.
        {**_QWEN_VIT, "depth": 4, "patch_size": 28, "fullatt_block_indexes": [1, 3]},
        {"image_token_id": 270, "video_token_id": 269},
        seeing_images.patches(2, 28),
        seeing_images.with_grids,
        modalities=True,
    ),
    "qwen3-vl": Seeing(
        "Qwen3VLForConditionalGeneration",
        {"head_dim": 16, "rope_parameters": _QWEN3_VL},
        {**_QWEN_VIT, "deepstack_visual_indexes": [0, 2]},
        {"image_token_id": 270, "video_token_id": 269},
        seeing_images.patches(2),
        seeing_images.with_grids,
        modalities=True,
    ),
    "qwen3_5": Seeing(
        "Qwen3_5ForConditionalGeneration",
        MODELS["qwen3.5-regular"].config,
        {**_QWEN_VIT, "spatial_merge_size": 3},
        {"image_token_id": 270, "video_token_id": 269},
        seeing_images.patches(3),
        seeing_images.with_grids,
        modalities=True,
    ),
    "llava-next": Seeing(
        "LlavaNextForConditionalGeneration",
        {"model_type": "mistral", "sliding_window": None, "max_position_embeddings": 512},
        _SMALL,
        {"image_token_index": 270, "image_grid_pinpoints": seeing_images.GRIDS},
        seeing_images.tiled,
        seeing_images.filled,
    ),
    "gemma4": Seeing(
        "Gemma4ForConditionalGeneration",
        {**GEMMA4, "pad_token_id": 3},
        {**_GEMMA4, "use_clipped_linears": True, "rms_norm_eps": 1e-2},
        {"image_token_id": 270, "audio_config": None},
        seeing_images.placed_patches,
        seeing_images.with_places,
        modalities=True,
    ),
    "gemma4-together": Seeing(
        "Gemma4ForConditionalGeneration",
        {
            **GEMMA4,
            "hidden_size_per_layer_input": 0,
            "pad_token_id": 0,
            "use_bidirectional_attention": "vision",
        },
        {**_GEMMA4, "num_key_value_heads": 1, "standardize": True},
        {"image_token_id": 270, "audio_config": None},
        seeing_images.placed_patches,
        seeing_images.with_places,
        modalities=True,
    ),
    "llava-siglip": Seeing(
        "LlavaForConditionalGeneration",
        {"model_type": "llama"},
        {**_VIT, "model_type": "siglip_vision_model"},
        {"image_token_index": 270, "vision_feature_select_strategy": "full"},
        seeing_images.tile(56, 64),
        seeing_images.pixels_of,
    ),
    "llava-qwen2": Seeing(
        "LlavaForConditionalGeneration",
        {"model_type": "qwen2"},
        {**_VIT, "model_type": "siglip_vision_model", "image_size": 60},
        {
            "image_token_index": 270,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
        },
        seeing_images.tile(60, 64),
        seeing_images.pixels_of,
    ),
    "llava-next-qwen2": Seeing(
        "LlavaNextForConditionalGeneration",
        {"model_type": "qwen2", "max_position_embeddings": 512},
        _SMALL,
        {"image_token_index": 270, "image_grid_pinpoints": seeing_images.GRIDS},
        seeing_images.tiled,
        seeing_images.filled,
    ),
    "llava-pixtral": Seeing(
        "LlavaForConditionalGeneration",
        {"model_type": "mistral", "sliding_window": None},
        {**_SIZED, "hidden_act": "gelu"},
        {
            "image_token_index": 270,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
        },
        seeing_images.sized(7, 1),
        seeing_images.padded,
    ),
    "llava-full": Seeing(
        "LlavaForConditionalGeneration",
        {"model_type": "mistral", "sliding_window": None},
        {**_VIT, "model_type": "clip_vision_model", "layer_norm_eps": 1e-2},
        {
            "image_token_index": 270,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
            "multimodal_projector_bias": False,
        },
        seeing_images.tile(56, 65),
        seeing_images.pixels_of,
    ),
}
