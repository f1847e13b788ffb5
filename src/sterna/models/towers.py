"""Models of texts and images: their text only.

Checkpoints with a tower for images nest the text's config and tensors. Names vary by version of
transformers and by family.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sterna.graph import Value
from sterna.graph.ops import FeaturesOp
from sterna.models.builder import ModelBuilder
from sterna.models.config_fields import Fields

__all__ = [
    "AXES",
    "DEEP",
    "PREFIXES",
    "SKIPPED",
    "add_features",
    "axes_in_turn",
    "axes_of",
    "text_fields",
    "text_rotations",
    "with_axes",
]

#: A field of ours: the axis by which each pair is rotated, in a vision model.
AXES = "mrope_axes"
#: A field of ours: the encoder's layers whose features the text's first layers take.
DEEP = "deep_features"

#: Prefixes of the text's tensors -> in a text-only checkpoint.
PREFIXES = {
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.vision_tower.vision_model.": "vision_tower.",
    "model.vision_tower.": "vision_tower.",
    "vision_tower.vision_model.": "vision_tower.",
    "model.visual.": "visual.",
    "model.multi_modal_projector.": "multi_modal_projector.",
}
#: Prefixes of tensors that are not the text model's -> their descriptions.
SKIPPED = {
    prefix + name: f"{of}a vision tower: Sterna runs only the text"
    for prefix in ("", "model.")
    for name, of in {"visual.": "", "vision_tower.": "", "multi_modal_projector.": "of "}.items()
}


def text_fields(f: Fields) -> Fields:
    """Return the text's fields: those of text_config, if there is one, go over the outer ones."""
    text = f.mapping("text_config")
    t = f.having({**f.config, **text})
    tied = f.flag("tie_word_embeddings") or t.flag("tie_word_embeddings")
    return t.having({**t.config, "tie_word_embeddings": tied})


def text_rotations(t: Fields, rope: dict[str, Any], rotary_dim: int) -> dict[str, Any]:
    """Return rope_parameters without the sections, which tell an image's axes apart: in a text all
    have the same position."""
    sections = rope.get("mrope_section")
    if sections is not None:
        whole = isinstance(sections, list) and all(type(s) is int and s >= 0 for s in sections)
        if not whole or len(sections) != 3 or sum(sections) != rotary_dim // 2:
            rule = f"three whole numbers whose sum is {rotary_dim // 2}, half the rotated features"
            t.having(rope).fail("mrope_section", rule, sections)
    rest = {k: v for k, v in rope.items() if k not in ("mrope_section", "mrope_interleaved")}
    return {**rest, "rope_type": "default"} if rest.get("rope_type") == "mrope" else rest


def axes_of(t: Fields, rope: dict[str, Any], default: list[int], pairs: int) -> list[int]:
    """Return the axis of each of so many rotated pairs: 0 time, 1 line, 2 column.

    `text_rotations` has checked the sections of `rope`; default: the class's. Each axis has every
    third pair, from its own number up to three times its section.
    """
    t.having(rope).supported("mrope_interleaved", rope.get("mrope_interleaved", True), True)
    sections = rope.get("mrope_section") or default
    axes = [0] * pairs
    for axis in (1, 2):
        for pair in range(axis, min(3 * sections[axis], pairs), 3):
            axes[pair] = axis
    return axes


def axes_in_turn(rope: dict[str, Any], default: list[int], pairs: int) -> list[int]:
    """Return the axis of each of so many rotated pairs, where those of an axis follow each other.

    As `axes_of`.
    """
    sections = rope.get("mrope_section") or default
    axes = [axis for axis in (0, 1, 2) for _ in range(sections[axis])]
    return [*axes, *[0] * pairs][:pairs]


def with_axes(m: ModelBuilder) -> ModelBuilder:
    """Return a builder whose rotations go by an image's axes, if the model reads images."""
    c = m.config
    axes = c.fields.config.get(AXES)
    if not c.sees or axes is None:
        return m
    rotaries = [a.rotary and replace(a.rotary, axes=tuple(axes)) for a in c.attention]
    each = zip(c.attention, rotaries, strict=True)
    return m.with_config(attention=tuple(replace(a, rotary=rotary) for a, rotary in each))


def add_features(m: ModelBuilder, x: Value, layer: int) -> Value:
    """x + features of images, after one of the first layers; x after others."""
    deep = len(m.config.fields.config.get(DEEP) or ()) if m.config.sees else 0
    if layer >= deep:
        return x
    column = (layer + 1) * m.config.hidden_size
    return m.add(FeaturesOp(name=f"model.layers.{layer}.features", x=x, column=column))
