"""Fields that transformers' config classes have in common, with the defaults of most.

The `DEFAULTS` of a model's module build on them. They hold every field that a config.json may leave
out, with the value of the class; for a class that transformers lacks, the authors' code counts.
`tests/models/test_saved_models.py` compares them with the installed transformers, field by field.
A field that is null is not left out: the class says what null means.
"""

from __future__ import annotations

from typing import Any

__all__ = ["COMMON", "without"]

#: Sizes, activation and rotations of Llama's class; norms and biases differ too much.
COMMON: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


def without(defaults: dict[str, Any], *fields: str) -> dict[str, Any]:
    """Return the defaults of a class that has all but these fields."""
    return {field: value for field, value in defaults.items() if field not in fields}
