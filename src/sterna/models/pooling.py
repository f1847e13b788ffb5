"""How an embedding model pools a text into one vector: `pooling`, Sterna's field in config.json.

    {"kind": "last", "normalise": true, "prompts": {"query": "Instruct: …"}, "default_prompt": null,
     "max_tokens": 32768, "dense": [{"folder": "2_Dense", "inputs": 768, "features": 3072,
     "bias": false, "activation": "Identity"}]}

kind: "last" takes the last token's values, "cls" the first one's, "mean" averages all tokens'.
Every text begins with one of the prompts. max_tokens counts the prompt. dense: linear layers after
the pooling, in their order. The values come from the files of sentence-transformers
(checkpoints/sentence_transformers.py) or from GGUF's `pooling_type`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sterna.models.config_fields import Fields

__all__ = ["DENSE", "KINDS", "POOLING", "Dense", "Pooling"]

POOLING = "pooling"
KINDS = ("last", "mean", "cls")
#: The name of a linear layer after the pooling, which sources of weights know.
DENSE = "dense.{}"
ACTIVATIONS = ("Identity", "Tanh")


@dataclass(frozen=True)
class Dense:
    """A linear layer after the pooling; activation: one of ACTIVATIONS, applied to its result.

    folder: where a folder of sentence-transformers has its weights.
    """

    folder: str
    inputs: int
    features: int
    bias: bool
    activation: str

    @classmethod
    def of(cls, f: Fields) -> Dense:
        """Read an entry; ModelFormatError or UnsupportedModelError."""
        activation = f.config.get("activation")
        if activation not in ACTIVATIONS:
            f.supported("activation", activation, "Identity")
        sizes = f.count("inputs"), f.count("features")
        return cls(str(f.config.get("folder", "")), *sizes, f.flag("bias"), str(activation))


@dataclass(frozen=True)
class Pooling:
    """Which tokens make a text's vector, and the prompt before the text."""

    kind: str
    normalise: bool
    prompts: dict[str, str]
    default_prompt: str | None
    max_tokens: int | None
    dense: tuple[Dense, ...] = ()

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
        listed = f.config.get("dense") or []
        dense = tuple(Dense.of(f.having(entry)) for entry in listed)
        return cls(str(kind), f.flag("normalise"), prompts, default, most, dense)
