"""Encoders, embedding models and cross-encoders."""

from __future__ import annotations

from typing import Any

from model_configs.common import FULL, SLIDING, Saved

__all__ = ["MODELS"]

#: Encoders have as many heads for keys, and no pads among the tokens.
_ENCODER: dict[str, Any] = {"num_key_value_heads": None, "layer_norm_eps": 1e-5}
_MODERN: dict[str, Any] = {"num_key_value_heads": None, "pad_token_id": 0, "local_attention": 20}
_BEHIND_PADS = {**_ENCODER, "pad_token_id": 271, "max_position_embeddings": 400}
MODELS: dict[str, Saved] = {
    "gemma3-base": Saved(
        "Gemma3TextModel",
        {"head_dim": 24, "sliding_window": 20, "query_pre_attn_scalar": 24},
        unsaid=True,
    ),
    "qwen3-base": Saved("Qwen3Model", {"head_dim": 24, "tie_word_embeddings": True}),
    "qwen3-score": Saved(
        "Qwen3ForSequenceClassification", {"head_dim": 24, "num_labels": 1}, converted=False
    ),
    "bert": Saved("BertModel", _ENCODER),
    "bert-eps": Saved("BertModel", {**_ENCODER, "layer_norm_eps": 1e-2, "type_vocab_size": 1}),
    # Their pooler is left out of files.
    "bert-score": Saved(
        "BertForSequenceClassification", {**_ENCODER, "num_labels": 1}, converted=False
    ),
    "nomic-bert": Saved("NomicBertModel", {**_ENCODER, "pad_token_id": 0}),
    "nomic-bert-base": Saved(
        "NomicBertModel",
        {
            **_ENCODER, "pad_token_id": 0, "layer_norm_eps": 1e-2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    "xlm-roberta": Saved("XLMRobertaModel", _BEHIND_PADS),
    "xlm-roberta-score": Saved(
        "XLMRobertaForSequenceClassification", {**_BEHIND_PADS, "num_labels": 1}
    ),
    "modernbert": Saved("ModernBertModel", _MODERN),
    "modernbert-biased": Saved(
        "ModernBertModel",
        {
            **_MODERN, "norm_bias": True, "attention_bias": True, "mlp_bias": True,
            "norm_eps": 1e-2, "hidden_activation": "silu",
            "layer_types": [SLIDING, FULL, SLIDING, SLIDING, FULL],
            "rope_parameters": {
                FULL: {"rope_type": "default", "rope_theta": 5000.0},
                SLIDING: {"rope_type": "default", "rope_theta": 100.0},
            },
        },
        unsaid=True,
    ),
    "modernbert-score": Saved("ModernBertForSequenceClassification", {**_MODERN, "num_labels": 1}),
    "modernbert-score-mean": Saved(
        "ModernBertForSequenceClassification",
        {
            **_MODERN, "num_labels": 1, "classifier_pooling": "mean", "classifier_bias": True,
            "norm_bias": True, "attention_bias": True, "mlp_bias": True, "norm_eps": 1e-2,
            "hidden_activation": "silu",
        },
    ),
    "jina-v3": Saved("JinaEmbeddingsV3Model", _ENCODER, converted=False),
    "jina-v3-types": Saved(
        "JinaEmbeddingsV3Model",
        {
            **_ENCODER, "layer_norm_eps": 1e-2, "type_vocab_size": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
        converted=False,
    ),
    "jina-v3-score": Saved(
        "JinaEmbeddingsV3ForSequenceClassification", {**_ENCODER, "num_labels": 1}, converted=False
    ),
    "gte": Saved("GteModel", _ENCODER, converted=False),
    "gte-no-types": Saved(
        "GteModel", {**_ENCODER, "type_vocab_size": 0, "layer_norm_eps": 1e-2}, converted=False
    ),
    "gte-score": Saved(
        "GteForSequenceClassification", {**_ENCODER, "num_labels": 1}, converted=False
    ),
    "eurobert": Saved("EuroBertModel", {"num_key_value_heads": 2}),
    "eurobert-biased": Saved(
        "EuroBertModel", {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-2}
    ),
    "embedding-gemma": Saved(
        "Gemma3TextModel",
        {
            "head_dim": 24, "query_pre_attn_scalar": 24, "sliding_window": 20,
            "use_bidirectional_attention": True,
        },
    ),
    "roberta": Saved("RobertaModel", _BEHIND_PADS),
    "roberta-score": Saved("RobertaForSequenceClassification", {**_BEHIND_PADS, "num_labels": 1}),
}  # fmt: skip
