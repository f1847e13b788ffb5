"""Small random models of Jina embeddings v2 with the names and the fields of published checkpoints,
and what they compute in float64, by the description in arXiv 2310.19923.

transformers has no class of them. Kinds: `gated`, most of them; `plain`, whose FFN is BERT's; and
`code`, which has norms of q and k and one more in a layer.
"""

from __future__ import annotations

import json
from math import erf
from pathlib import Path
from typing import Any

import numpy as np
import saved_models
from safetensors.numpy import save_file

__all__ = ["KINDS", "fields", "rows", "save", "slopes", "tensors", "write"]

KINDS = ("gated", "plain", "code")


def fields(kind: str, heads: int = 4, **more: Any) -> dict[str, Any]:
    """Those of config.json."""
    return {
        "architectures": ["JinaBertForMaskedLM"], "model_type": "bert", "vocab_size": 272,
        "hidden_size": 16 * heads, "intermediate_size": 80, "num_hidden_layers": 3,
        "num_attention_heads": heads, "hidden_act": "gelu", "layer_norm_eps": 1e-5,
        "max_position_embeddings": 512, "type_vocab_size": 2, "emb_pooler": "mean",
        "position_embedding_type": "alibi",
        "feed_forward_type": "original" if kind == "plain" else "geglu", **more,
    }  # fmt: skip


def tensors(kind: str, config: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """float32 arrays by the names of JinaBertModel."""
    rng, d, ff = np.random.default_rng(seed), config["hidden_size"], config["intermediate_size"]
    found = dict[str, np.ndarray]()

    def matrix(name: str, out: int, width: int, bias: bool = True) -> None:
        found[f"{name}.weight"] = 1.5 * width**-0.5 * rng.standard_normal((out, width))
        if bias:
            found[f"{name}.bias"] = 0.3 * rng.standard_normal(out)

    def norm(name: str) -> None:
        found[f"{name}.weight"] = 1 + 0.3 * rng.standard_normal(d)
        found[f"{name}.bias"] = 0.3 * rng.standard_normal(d)

    found["embeddings.word_embeddings.weight"] = rng.standard_normal((config["vocab_size"], d))
    types = config["type_vocab_size"], d
    found["embeddings.token_type_embeddings.weight"] = rng.standard_normal(types)
    norm("embeddings.LayerNorm")
    for i in range(config["num_hidden_layers"]):
        p = f"encoder.layer.{i}."
        for part in ("query", "key", "value"):
            matrix(f"{p}attention.self.{part}", d, d)
        matrix(f"{p}attention.output.dense", d, d)
        norm(f"{p}attention.output.LayerNorm")
        if kind == "gated":
            matrix(f"{p}mlp.gated_layers", 2 * ff, d, bias=False)
            matrix(f"{p}mlp.wo", d, ff)
            norm(f"{p}mlp.layernorm")
        elif kind == "plain":
            matrix(f"{p}intermediate.dense", ff, d)
            matrix(f"{p}output.dense", d, ff)
            norm(f"{p}output.LayerNorm")
        else:
            matrix(f"{p}mlp.up_gated_layer", 2 * ff, d, bias=False)
            matrix(f"{p}mlp.down_layer", d, ff)
            for name in ("attention.self.layer_norm_q", "attention.self.layer_norm_k"):
                norm(p + name)
            norm(f"{p}layer_norm_1")
            norm(f"{p}layer_norm_2")
    matrix("pooler.dense", d, d)
    if config["architectures"][0].endswith("SequenceClassification"):
        found = {f"bert.{name}": w for name, w in found.items()}
        matrix("classifier", 1, d)
    return {name: w.astype(np.float32) for name, w in found.items()}


def write(folder: Path, kind: str, config: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Saves a model with a tokenizer; returns its tensors."""
    folder.mkdir(exist_ok=True)
    made = tensors(kind, config, seed)
    save(folder, made)
    (folder / "config.json").write_text(json.dumps(config))
    saved_models.tokenizer().save(str(folder / "tokenizer.json"))
    return made


def save(folder: Path, made: dict[str, np.ndarray]) -> None:
    """Writes tensors."""
    save_file(made, folder / "model.safetensors", {"format": "pt"})


def slopes(heads: int) -> list[float]:
    """ALiBi's: a power of two of heads has the powers of one number, of which 2^-8 is the last."""
    if heads & (heads - 1) == 0:
        return [2.0 ** (-8 * i / heads) for i in range(1, heads + 1)]
    less = 1 << (heads.bit_length() - 1)
    return slopes(less) + slopes(2 * less)[::2][: heads - less]


def rows(
    kind: str, made: dict[str, np.ndarray], config: dict[str, Any], tokens: list[int],
    second: int | None = None, biased: bool = True,
) -> np.ndarray:  # fmt: skip
    """The last hidden states, float64 [tokens, d].

    second: where the second part of a pair begins. biased: False leaves out ALiBi.
    """
    w = {name.removeprefix("bert."): x.astype(np.float64) for name, x in made.items()}
    n, heads, ff = len(tokens), config["num_attention_heads"], config["intermediate_size"]

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(-1, keepdims=True) + config["layer_norm_eps"])
        return centred / spread * w[f"{name}.weight"] + w[f"{name}.bias"]

    def split(x: np.ndarray) -> np.ndarray:
        return x.reshape(n, heads, -1).swapaxes(0, 1)

    def gelu(x: np.ndarray) -> np.ndarray:
        return x * (1 + np.vectorize(erf)(x / 2**0.5)) / 2

    types = (np.arange(n) >= (n if second is None else second)).astype(int)
    x = w["embeddings.word_embeddings.weight"][tokens]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][types], "embeddings.LayerNorm")
    distance = abs(np.subtract.outer(np.arange(n), np.arange(n)))
    bias = -np.array(slopes(heads))[:, None, None] * distance * biased
    for i in range(config["num_hidden_layers"]):
        p, at = f"encoder.layer.{i}", f"encoder.layer.{i}.attention"
        q, k, v = (linear(x, f"{at}.self.{part}") for part in ("query", "key", "value"))
        if kind == "code":
            q, k = norm(q, f"{at}.self.layer_norm_q"), norm(k, f"{at}.self.layer_norm_k")
        q, k, v = split(q), split(k), split(v)
        scores = q @ k.swapaxes(1, 2) / q.shape[-1] ** 0.5 + bias
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        h = linear((shares @ v).swapaxes(0, 1).reshape(n, -1), f"{at}.output.dense")
        h = norm(h + x, f"{at}.output.LayerNorm")
        if kind == "gated":
            both = linear(h, f"{p}.mlp.gated_layers")
            made_of = linear(gelu(both[:, :ff]) * both[:, ff:], f"{p}.mlp.wo")
            x = norm(made_of + h, f"{p}.mlp.layernorm")
        elif kind == "plain":
            made_of = linear(gelu(linear(h, f"{p}.intermediate.dense")), f"{p}.output.dense")
            x = norm(made_of + h, f"{p}.output.LayerNorm")
        else:
            h = norm(x + h, f"{p}.layer_norm_1")
            both = linear(h, f"{p}.mlp.up_gated_layer")
            made_of = linear(both[:, :ff] * gelu(both[:, ff:]), f"{p}.mlp.down_layer")
            x = norm(made_of + h, f"{p}.layer_norm_2")
    return x
