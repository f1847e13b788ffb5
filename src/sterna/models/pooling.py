"""How an embedding model pools a text into one vector: `pooling`, Sterna's field in config.json.

    {"kind": "last", "normalise": true, "prompts": {"query": "Instruct: …"}, "default_prompt": null,
     "max_tokens": 32768}

kind: "last" takes the last token's values, "cls" the first one's, "mean" averages all tokens'.
Every text begins with one of the prompts. max_tokens counts the prompt and may be left out. The
values come from the files of sentence-transformers (checkpoints/sentence_transformers.py) or from
GGUF's `pooling_type`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sterna.models.config_fields import Fields

__all__ = ["KINDS", "POOLING", "Pooling"]

POOLING = "pooling"
KINDS = ("last", "mean", "cls")


@dataclass(frozen=True)
class Pooling:
    """Which tokens make a text's vector, and the prompt that stands before the text."""

    kind: str
    normalise: bool
    prompts: dict[str, str]
    default_prompt: str | None
    max_tokens: int | None

    @classmethod
    def of(cls, fields: Fields) -> Pooling | None:
        """Read the field of config.json, None if it is absent; ModelFormatError names a field."""
        if fields.config.get(POOLING) is None:
            return None
        f = Fields(fields.mapping(POOLING), fields.file)
        prompts, default = f.mapping("prompts"), f.config.get("default_prompt")
        for name, text in prompts.items():
            if not isinstance(text, str):
                f.fail("prompts", "an object of texts", {name: text})
        if default is not None and default not in prompts:
            f.fail("default_prompt", f"one of {', '.join(prompts) or 'no prompts'}", default)
        kind = f.config.get("kind")
        if kind not in KINDS:
            f.fail("kind", " or ".join(KINDS), kind)
        most = None if f.config.get("max_tokens") is None else f.count("max_tokens")
        return cls(str(kind), f.flag("normalise"), prompts, default, most)
