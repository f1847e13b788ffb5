"""What files of towers are, by `clip.projector_type`: the texts by which they stand, and names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sterna.models.llava_next import LINE_END

__all__ = ["ARRAYS", "PROJECTORS", "Projector"]

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
ARRAYS = {
    "vision_tower.embeddings.class_embedding": "v.class_embd",
    LINE_END: f"model.{LINE_END}",
    "vision_tower.patch_embedder.position_embedding_table": "v.position_embd.weight",
    "vision_tower.std_bias": "v.std_bias",
    "vision_tower.std_scale": "v.std_scale",
}
_PIXTRAL = r"vision_tower\.transformer\.layers\.(\d+)\."
_GEMMA4 = r"vision_tower\.encoder\.layers\.(\d+)\."
_QWEN2 = {
    r"visual\.patch_embed\.proj": "v.patch_embd",
    r"visual\.merger\.ln_q": "v.post_ln",
    r"visual\.merger\.mlp\.([02])": r"mm.\1",
    r"visual\.blocks\.(\d+)\.norm([12])": r"v.blk.\1.ln\2",
    r"visual\.blocks\.(\d+)\.attn\.([qkv])": r"v.blk.\1.attn_\2",
    r"visual\.blocks\.(\d+)\.attn\.proj": r"v.blk.\1.attn_out",
    r"visual\.blocks\.(\d+)\.mlp\.fc1": r"v.blk.\1.ffn_up",
    r"visual\.blocks\.(\d+)\.mlp\.fc2": r"v.blk.\1.ffn_down",
    r"visual\.blocks\.(\d+)\.mlp\.(gate|up|down)_proj": r"v.blk.\1.ffn_\2",
}


@dataclass(frozen=True)
class Projector:
    """The files of a projector.

    texts: architectures of texts by which the tower may stand -> the class that reads both. token:
    of images. modules: names in checkpoints -> in files, regular expressions. permuted: rows of q
    and k are stored for interleaved rotations. transposed: ends of matrices that are stored as
    [K, M]. sums: ends of norms that are stored as 1 + w. by_pixel: the matrix of patches whose rows
    have a pixel's channels side by side in checkpoints, and a channel's pixels in files.
    """

    texts: Mapping[str, str]
    token: str
    modules: Mapping[str, str]
    permuted: bool = False
    transposed: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    by_pixel: str = ""


PROJECTORS: Mapping[str, Projector] = {
    "gemma3": Projector(
        {"gemma3": "Gemma3ForConditionalGeneration"},
        "<image_soft_token>",
        {
            **_VIT,
            r"multi_modal_projector\.mm_input_projection": "mm.input_projection",
            r"multi_modal_projector\.mm_soft_emb_norm": "mm.soft_emb_norm",
        },
        transposed=("mm_input_projection",),
        sums=("mm_soft_emb_norm.weight",),
    ),
    "gemma4v": Projector(
        {"gemma4": "Gemma4ForConditionalGeneration"},
        "<|image|>",
        {
            r"vision_tower\.patch_embedder\.input_proj": "v.patch_embd",
            _GEMMA4 + r"input_layernorm": r"v.blk.\1.ln1",
            _GEMMA4 + r"pre_feedforward_layernorm": r"v.blk.\1.ln2",
            _GEMMA4 + r"post_attention_layernorm": r"v.blk.\1.attn_post_norm",
            _GEMMA4 + r"post_feedforward_layernorm": r"v.blk.\1.ffn_post_norm",
            _GEMMA4 + r"self_attn\.([qk])_norm": r"v.blk.\1.attn_\2_norm",
            _GEMMA4 + r"self_attn\.([qkv])_proj(?:\.linear)?": r"v.blk.\1.attn_\2",
            _GEMMA4 + r"self_attn\.o_proj(?:\.linear)?": r"v.blk.\1.attn_out",
            _GEMMA4 + r"mlp\.(gate|up|down)_proj(?:\.linear)?": r"v.blk.\1.ffn_\2",
            r"embed_vision\.embedding_projection": "mm.input_projection",
        },
        by_pixel="vision_tower.patch_embedder.input_proj",
    ),
    "idefics3": Projector(
        {"llama": "SmolVLMForConditionalGeneration"},
        "<image>",
        {**_VIT, r"connector\.modality_projection\.proj": "mm.model.fc"},
    ),
    "mlp": Projector(
        dict.fromkeys(("llama", "qwen2"), "LlavaForConditionalGeneration"),
        "<image>",
        {
            **_VIT,
            r"vision_tower\.pre_layrnorm": "v.pre_ln",
            r"multi_modal_projector\.linear_1": "mm.0",
            r"multi_modal_projector\.linear_2": "mm.2",
        },
    ),
    "pixtral": Projector(
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
    "qwen2vl_merger": Projector(
        {"qwen2vl": "Qwen2VLForConditionalGeneration"}, "<|image_pad|>", _QWEN2
    ),
    "qwen2.5vl_merger": Projector(
        {"qwen2vl": "Qwen2_5_VLForConditionalGeneration"}, "<|image_pad|>", _QWEN2
    ),
    "qwen3vl_merger": Projector(
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
}
