"""Encoders as GGUF files: the vectors, scores and tokens of their checkpoints.

Tensors' names are those of the `gguf` package's own table, keys and the order of a vocabulary those
of llama.cpp's converters.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf_factory
import numpy as np
import pytest
import saved_models
import test_encoders
from helpers import assert_same_bits, failure
from model_configs import MODELS, SIZES
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from sterna import LLM
from sterna.errors import UnsupportedModelError

gguf = pytest.importorskip("gguf", reason="needs the gguf package")

TEXTS = ["A cat sleeps", "the kitten naps near the door of a house?", "bréad", "cat sleeps ab"]
PAIRS = [("who sleeps ?", text) for text in TEXTS]
#: Row of MODELS -> the name in files and further keys.
FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {}),
    "xlm-roberta": ("bert", {}),
    "xlm-roberta-score": ("bert", {"pooling_type": 4}),
    "nomic-bert": ("nomic-bert", {"rope.freq_base": 1000.0}),
    "jina-v3": ("jina-bert-v3", {"rope.freq_base": 20000.0}),
    "modernbert": (
        "modern-bert",
        {
            "rope.freq_base": 160000.0, "rope.freq_base_swa": 10000.0,
            "attention.sliding_window": 20, "attention.sliding_window_pattern": 3,
        },
    ),
    "modernbert-score": (
        "modern-bert",
        {
            "rope.freq_base": 160000.0, "rope.freq_base_swa": 10000.0, "pooling_type": 4,
            "attention.sliding_window": 20, "classifier.pooling_type": 2,
        },
    ),
    "eurobert": ("eurobert", {"rope.freq_base": 10000.0, "attention.head_count_kv": 2}),
    "embedding-gemma": (
        "gemma-embedding",
        {
            "rope.freq_base": 1e6, "attention.sliding_window": 20, "attention.key_length": 24,
            "attention.value_length": 24, "attention.head_count_kv": 2,
        },
    ),
}  # fmt: skip
_RMS = {"eurobert": 1e-5, "gemma-embedding": 1e-6}


def tensors(folder: Path, arch: str, row: str) -> dict[str, np.ndarray]:
    """The checkpoint's, as a converter hands them to the table of names."""
    found = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        name = name.removeprefix("bert.").removeprefix("roberta.").removeprefix("model.")
        w = tensor.float().numpy()
        if name.startswith("pooler."):
            continue
        if arch == "modern-bert" and name.startswith("classifier."):
            name = name.replace("classifier", "classifier.out_proj")
        if name.startswith("embeddings.position_embeddings") and "roberta" in row:
            w = w[272:]  # behind that of its pad token
        if arch == "gemma-embedding" and "norm" in name:
            w = w + np.float32(1)
        found[name] = w
    return found


def add_vocabulary(writer: Any, tokenizer: Tokenizer) -> None:
    """BERT's, whose marks of words are turned around."""
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    controls = {"[PAD]", "[UNK]", "[CLS]", "[SEP]"}
    tokens = [
        t if t in controls else t[2:] if t.startswith("##") else f"▁{t}" for t, _ in vocabulary
    ]
    writer.add_tokenizer_model("bert")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if t in controls else 1 for t, _ in vocabulary])
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_sep_token_id(3)


def write(path: Path, folder: Path, row: str, *, pair_types: bool = True) -> Path:
    """The checkpoint of a row as a GGUF file."""
    arch, keys = FILES[row]
    sizes = SIZES | MODELS[row].config
    writer = gguf.GGUFWriter(path, arch)
    defaults = {
        "context_length": 256, "embedding_length": sizes["hidden_size"],
        "block_count": sizes["num_hidden_layers"],
        "feed_forward_length": sizes["intermediate_size"],
        "attention.head_count": sizes["num_attention_heads"],
        "attention.causal": False, "pooling_type": 1,
    }  # fmt: skip
    eps = {"layer_norm_rms_epsilon": _RMS[arch]} if arch in _RMS else {"layer_norm_epsilon": 1e-5}
    for key, value in {**defaults, **{f"attention.{k}": v for k, v in eps.items()}, **keys}.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
        add[type(value)](f"{arch}.{key}", value)
    writer.add_token_type_count(2 if pair_types else 1)
    add_vocabulary(writer, test_encoders.word_pieces(pair_types))
    kind = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch)
    names = gguf.get_tensor_name_map(kind, sizes["num_hidden_layers"])
    for name, tensor in tensors(folder, arch, row).items():
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert target is not None, name
        writer.add_tensor(target, np.ascontiguousarray(tensor))
    gguf_factory.finish(writer)
    return path


@pytest.mark.parametrize("row", FILES)
def test_a_file_is_its_checkpoint(row: str, tmp_path: Path) -> None:
    """Bit for bit, through its own tokenizer."""
    saved_models.write(tmp_path / "m", MODELS[row])
    pair_types = FILES[row][0] == "bert" and "roberta" not in row
    tokenizer = test_encoders.word_pieces(pair_types)
    tokenizer.no_truncation()
    tokenizer.save(str(tmp_path / "m" / "tokenizer.json"))
    (tmp_path / "m" / "tokenizer_config.json").write_text("{}")
    file = write(tmp_path / "m.gguf", tmp_path / "m", row, pair_types=pair_types)
    one, other = (LLM(path, cache=False, threads=1) for path in (file, tmp_path / "m"))
    if row.endswith("-score"):
        assert_same_bits(one.score(PAIRS), other.score(PAIRS))
    else:
        assert one.info()["pooling"] == "mean"
        assert_same_bits(one.embed(TEXTS), other.embed(TEXTS, pooling="mean"))


def test_a_head_without_its_pooler(tmp_path: Path) -> None:
    """Converters leave out what BERT's cross-encoders read, which would score wrongly."""
    saved_models.write(tmp_path / "m", MODELS["xlm-roberta-score"])
    path = tmp_path / "m" / "model.safetensors"
    stored = {k: v for k, v in load_file(path).items() if not k.startswith("classifier.dense")}
    save_file(stored, path, {"format": "pt"})
    file = write(tmp_path / "m.gguf", tmp_path / "m", "xlm-roberta-score")
    failure(lambda: LLM(file, cache=False), UnsupportedModelError, "cls.weight", "safetensors")
