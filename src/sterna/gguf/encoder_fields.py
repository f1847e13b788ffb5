"""Fields of config.json that encoders' GGUF files have, as `architecture_fields` of the others."""

from __future__ import annotations

from typing import Any

from sterna.errors import UnsupportedModelError
from sterna.gguf.file import GgufModel
from sterna.models.config import FULL, SLIDING

__all__ = ["bert_fields", "dense_fields", "jina_bert_fields", "modern_bert_fields", "scorer_fields"]


def bert_fields(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes of tables, and a cross-encoder's class. XLM-RoBERTa's files are BERT's: they
    have no rows before the first position, and the same head by other names."""
    found = {"type_vocab_size": _rows(model, "token_types.weight")}
    if name == "bert":
        found["max_position_embeddings"] = _rows(model, "position_embd.weight")
        found |= _scoring_fields(model, "BertForSequenceClassification", ("cls", "cls.output"))
    return found


def jina_bert_fields(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the kind of FFN, which has a gate if its first matrix is wider than it says or not the
    only one, the size of a table, and a cross-encoder's class."""
    wide = _rows(model, "blk.0.ffn_up.weight") != fields["intermediate_size"]
    gated = wide or "blk.0.ffn_gate.weight" in model.tensors
    found = {
        "type_vocab_size": _rows(model, "token_types.weight"),
        "feed_forward_type": "geglu" if gated else "original",
    }
    parts = ("cls", "cls.output")
    return found | _scoring_fields(model, "JinaBertForSequenceClassification", parts)


def modern_bert_fields(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return windows and rotations, the activation, and a cross-encoder's class."""
    m, n, theta = model.metadata, fields["num_hidden_layers"], fields["rope_theta"]
    window, pattern = fields["sliding_window"], f"{name}.attention.sliding_window_pattern"
    if pattern in m and m.is_array(pattern):
        windowed = m.flags(pattern, n)
    else:
        every = m.integer(pattern, 3)
        if every < 1:
            raise m.error(pattern, "at least 1", every)
        windowed = [i % every != 0 for i in range(n)]
    found = {
        "layer_types": [SLIDING if w and window else FULL for w in windowed],
        "local_attention": window or 2,
        "global_rope_theta": theta,
        "local_rope_theta": m.number(f"{name}.rope.freq_base_swa", theta),
        "hidden_act": m.text(f"{name}.hidden_activation", fields["hidden_act"]),
        "norm_bias": "output_norm.bias" in model.tensors,
        "classifier_bias": "cls.bias" in model.tensors,
        "classifier_pooling": (
            "cls" if m.integer(f"{name}.classifier.pooling_type", 1) == 2 else "mean"
        ),
    }
    parts = ("cls", "cls.norm", "cls.output")
    return found | _scoring_fields(model, "ModernBertForSequenceClassification", parts)


def scorer_fields(model: GgufModel, scoring: str) -> dict[str, Any]:
    """Return the class of a language model that ranks; a head of two rows is yes and no, and the
    template named rerank is how the model is asked."""
    m, rows = model.metadata, _rows(model, "cls.output.weight")
    if not rows:
        return {}
    found: dict[str, Any] = {"architectures": [scoring], "num_labels": rows}
    if rows == 2:
        found["scoring"] = {"format": m.text("tokenizer.chat_template.rerank")}
    return found


def dense_fields(model: GgufModel, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the pooling with the layers after it, if the file has them."""
    dense = list[dict[str, Any]]()
    for tensor in ("dense_2.weight", "dense_3.weight"):
        info = model.tensors.get(tensor)
        if info is not None and len(info.shape) == 2:
            features, inputs = info.shape
            dense.append({"inputs": inputs, "features": features, "activation": "Identity"})
    has = dense and "pooling" in fields
    return {"pooling": {**fields["pooling"], "dense": dense}} if has else {}


def _scoring_fields(model: GgufModel, scoring: str, parts: tuple[str, ...]) -> dict[str, Any]:
    """Return the class of a cross-encoder and its labels for a file that has the head's parts."""
    if not any(tensor.startswith("cls.") for tensor in model.tensors):
        return {}
    for part in parts:
        if f"{part}.weight" not in model.tensors:
            raise UnsupportedModelError(
                f"{model.path}: {part}.weight must be there, as the head of {scoring} reads it; "
                "converters have left it out: use the model's safetensors"
            )
    shape = model.tensors["cls.output.weight"].shape
    return {"architectures": [scoring], "num_labels": shape[0] if len(shape) == 2 else 1}


def _rows(model: GgufModel, tensor: str) -> int:
    """Count the rows of a table; a file may leave out a size of 1; 0: there is no table."""
    info = model.tensors.get(tensor)
    return 0 if info is None else info.shape[0] if len(info.shape) == 2 else 1
