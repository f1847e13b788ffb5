"""Gemma 3: Gemma 2's graph with norms of the heads of q and k instead of the cap of scores. Five
layers have a window for each without; both kinds have rotations of their own. arXiv 2503.19786.

Images go through SigLIP. A square of patches becomes a token, their mean, and the tokens of an
image attend to each other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sterna.graph import Value
from sterna.models import gemma2, towers
from sterna.models.builder import ModelBuilder
from sterna.models.config import FULL, SLIDING, TransformerConfig
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import INPUT_NORMS, QK_NORMS, SOFT_CAPS, SWA_BASE
from sterna.models.options import QKNorm
from sterna.models.pooling import DENSE
from sterna.models.rope import rotations_of
from sterna.models.vision import siglip, vit
from sterna.models.vision.patches import average_pool
from sterna.models.vision.tower import Tower, graph_of, vision_config
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("Gemma3ForCausalLM", "Gemma3TextModel", "Gemma3ForConditionalGeneration")
ACTIVATION = "gelu_pytorch_tanh"
ENCODER = True
DEFAULTS: dict[str, Any] = (
    gemma2.DEFAULTS
    | {"vocab_size": 262208, "max_position_embeddings": 131072, "rope_theta": 1e6}
    | {"rope_local_base_freq": 10000.0, "sliding_window_pattern": 6, "attn_logit_softcapping": None}
    | {"final_logit_softcapping": None}
)
GGUF = {
    "gemma3": replace(
        gemma2.GGUF["gemma2"],
        architecture=ARCHITECTURES[0],
        modules={**gemma2.GGUF["gemma2"].modules, **QK_NORMS, **INPUT_NORMS},
        reads=(*SOFT_CAPS, SWA_BASE),
        period=6,
    )
}
GGUF["gemma-embedding"] = replace(
    GGUF["gemma3"],
    architecture=ARCHITECTURES[1],
    encoder=True,
    unsaid={"use_bidirectional_attention": True},
    outer={DENSE.format(i): f"dense_{i + 2}" for i in range(2)},
)
TOWER, PROJECTION = siglip.VIT.patch_matrix, "multi_modal_projector.mm_input_projection"
SKIPPED = towers.SKIPPED
PREFIXES = {
    f"{outer}multi_modal_projector.mm_input_projection_weight": f"{PROJECTION}.weight"
    for outer in ("model.", "")
} | towers.PREFIXES
TRANSPOSED = ("mm_input_projection",)


def complete(f: Fields) -> dict[str, Any]:
    """Return the text's fields, those that follow from others, and the rotations of both kinds of
    layers."""
    f = towers.text_fields(f)
    f.supported("attn_logit_softcapping", f.config.get("attn_logit_softcapping"), None)
    derived: dict[str, Any] = {
        **f.config,
        "rope_parameters": rotations_of(
            f,
            {
                FULL: {"rope_theta": f.number("rope_theta")},
                SLIDING: {"rope_theta": f.number("rope_local_base_freq")},
            },
        ),
    }
    if f.flag("use_bidirectional_attention"):  # a window of 2n is n positions on both sides
        derived["sliding_window"] = f.count("sliding_window") // 2 + 1
    if f.config.get("layer_types") is None:
        n, pattern = f.n_layers, f.count("sliding_window_pattern")
        derived["layer_types"] = [SLIDING if (i + 1) % pattern else FULL for i in range(n)]
    return derived


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    return gemma2.write(m, QKNorm(plus_one=True))


def tower(c: TransformerConfig, w: WeightSource) -> Tower:
    """Add the encoder of images and its projector."""
    v, f = vision_config(siglip, c.fields), c.fields
    side, tokens = vit.side_of(v), f.count("mm_tokens_per_image", 256)
    edge = side // int(tokens**0.5)
    encoder = siglip.encoder(v, w)

    def project(m: ModelBuilder, x: Value) -> None:
        norm = "multi_modal_projector.mm_soft_emb_norm"
        x = m.norm(x, norm, plus_one=True)
        m.linear(x, PROJECTION, c.hidden_size)

    return Tower(
        encoder,
        graph_of(v, w, v.hidden_size, project),
        c.hidden_size,
        f.count("image_token_index", 262144),
        lambda features, _: average_pool(features, side, side, edge),
        lambda n, _: n * (side // edge) ** 2,
        together=True,
    )
