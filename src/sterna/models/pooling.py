"""How a checkpoint makes one vector of a text: `pooling`, a field of ours in config.json.

    {"kind": "last", "normalise": true, "prompts": {"query": "Instruct: …"}, "default_prompt": null,
     "max_tokens": 32768}

kind: the last token's values, or the "mean" of all tokens'. What every text begins with is one of
the prompts; max_tokens, prompt included, may be left out. Folders say it in the files of
sentence-transformers (checkpoints/sentence_transformers.py), GGUF files in `pooling_type`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sterna.models.config_fields import Fields

__all__ = ["KINDS", "POOLING", "Pooling"]

POOLING = "pooling"
KINDS = ("last", "mean")


@dataclass(frozen=True)
class Pooling:
    """The values of which tokens make a text's vector, and what stands before the text."""

    kind: str
    normalise: bool
    prompts: dict[str, str]
    default_prompt: str | None
    max_tokens: int | None

    @classmethod
    def of(cls, fields: Fields) -> Pooling | None:
        """What config.json says, None where it says nothing; ModelFormatError names a field."""
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
