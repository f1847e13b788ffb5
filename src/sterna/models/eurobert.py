"""EuroBERT: Llama's graph with bidirectional attention. arXiv 2503.05500."""

from __future__ import annotations

from typing import Any

from sterna.models import llama
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import GgufArchitecture
from sterna.models.llama import build as build

ARCHITECTURES = ("EuroBertModel",)
ENCODER = True
DEFAULTS: dict[str, Any] = (
    llama.DEFAULTS
    | {"vocab_size": 128256, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12}
    | {"num_attention_heads": 12, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5}
    | {"classifier_pooling": "late"}
)

GGUF = {"eurobert": GgufArchitecture(ARCHITECTURES[0], encoder=True)}


def complete(f: Fields) -> dict[str, Any]:
    """Return the fields of an encoder."""
    return {"use_bidirectional_attention": True, "tie_word_embeddings": True}  # there is no head
