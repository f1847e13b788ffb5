"""Jina embeddings v2 as GGUF files of llama.cpp's converter: the vectors of their checkpoints."""

from __future__ import annotations

from pathlib import Path

import jina_models
import numpy as np
import pytest
import test_encoders
from helpers import assert_same_bits, failure
from jina_models import KINDS, fields
from test_encoders_as_gguf import TEXTS, add_vocabulary

from sterna import LLM
from sterna.errors import UnsupportedModelError

gguf = pytest.importorskip("gguf", reason="needs the gguf package")
ARCH = "jina-bert-v2"


def write(path: Path, kind: str, made: dict[str, np.ndarray], *, apart: bool = False) -> Path:
    """A checkpoint's tensors as a file; apart: gate and up as two, as converters of 2024 did."""
    sizes = fields(kind)
    writer = gguf.GGUFWriter(path, ARCH)
    writer.add_context_length(sizes["max_position_embeddings"])
    writer.add_embedding_length(sizes["hidden_size"])
    writer.add_block_count(sizes["num_hidden_layers"])
    writer.add_feed_forward_length(sizes["intermediate_size"])
    writer.add_head_count(sizes["num_attention_heads"])
    writer.add_layer_norm_eps(sizes["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_token_type_count(2)
    add_vocabulary(writer, test_encoders.word_pieces(True))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.JINA_BERT_V2, sizes["num_hidden_layers"])
    for name, w in made.items():
        name = name.removeprefix("bert.")
        if name.startswith("pooler."):
            continue  # as converters do
        parts = {name: w}
        if apart and "gated_layer" in name:
            first, second = np.split(w, 2)
            gate, up = (second, first) if kind == "code" else (first, second)
            block = name.partition("mlp.")[0]
            parts = {
                f"{block}mlp.gated_layers_w.weight": gate, f"{block}mlp.gated_layers_v.weight": up
            }  # fmt: skip
        for part, tensor in parts.items():
            target = names.get_name(part, try_suffixes=(".weight", ".bias"))
            assert target is not None, part
            writer.add_tensor(target, np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def vectors(path: Path) -> np.ndarray:
    llm = LLM(path, cache=False, threads=1, kv_dtype="f32", deterministic=True)
    return llm.embed(TEXTS, pooling="mean")


@pytest.mark.parametrize(
    ("kind", "apart"), [*((kind, False) for kind in KINDS), ("gated", True), ("code", True)]
)
def test_a_file_is_its_checkpoint(kind: str, apart: bool, tmp_path: Path) -> None:
    """Its vectors, by the same tokens."""
    made = jina_models.write(tmp_path / "m", kind, fields(kind))
    test_encoders.word_pieces(True).save(str(tmp_path / "m" / "tokenizer.json"))
    got = vectors(write(tmp_path / "m.gguf", kind, made, apart=apart))
    assert_same_bits(got, vectors(tmp_path / "m"))


def test_a_cross_encoder_without_its_pooler(tmp_path: Path) -> None:
    """Is refused: converters leave it out."""
    config = fields("gated", architectures=["JinaBertForSequenceClassification"], num_labels=1)
    made = jina_models.write(tmp_path / "m", "gated", config)
    path = write(tmp_path / "m.gguf", "gated", made)
    failure(lambda: LLM(path, cache=False), UnsupportedModelError, "cls", "safetensors")
