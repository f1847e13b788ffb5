"""SmolLM2 in the types that its widths get from llama.cpp's quantiser, written by the gguf package.

Its rows of 576 are no whole super-blocks of 256, so that files called Q5_K_M hold Q5_1 and Q8_0,
those called Q3_K_M and Q4_K_M hold Q5_0 and Q4_0.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from sterna import LLM
from sterna.convert import convert

TEXT = "The capital of France is Paris. Water boils at 100 degrees, and freezes at"
#: The types of attention, of gate and up, of rows of 1,536, and of the table.
TYPES = {"attn": "Q5_1", "ffn_gate": "Q5_0", "ffn_up": "Q5_0", "ffn_down": "Q4_0", "token": "Q8_0"}


def rewritten(source: Path, target: Path) -> Path:
    """The file with its matrices rounded again by the gguf package, all keys as they are."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        inside = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], inside)
    for tensor in reader.tensors:
        if len(tensor.shape) == 1:
            writer.add_tensor(tensor.name, tensor.data)
            continue
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        kind = gguf.GGMLQuantizationType[next(t for n, t in TYPES.items() if n in tensor.name)]
        writer.add_tensor(tensor.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def divergence(p: np.ndarray, q: np.ndarray) -> float:
    """The mean KL of softmax(q) from softmax(p), in nats a token."""
    logs = [a - np.logaddexp.reduce(a, axis=1, keepdims=True) for a in (p.astype(float), q)]
    return float((np.exp(logs[0]) * (logs[0] - logs[1])).sum(axis=1).mean())


def test_a_requantised_file_runs(smollm2: Path, tmp_path: Path) -> None:
    """It keeps its types, and its logits are near those of the same weights in floats."""
    path = rewritten(smollm2, tmp_path / "m.gguf")
    packed = LLM(path, cache=False)
    tokens = packed.tokenizer.encode(TEXT)
    rows = packed.logits(tokens)
    formats = {str(w.format) for w in packed.engine.model.graph.weights()}
    assert formats == {t.lower() for t in TYPES.values()}
    exact = LLM(path, cache=False, format="f32", head="f32").logits(tokens)
    assert divergence(exact, rows) < 0.02
    original = LLM(smollm2, cache=False).logits(tokens)
    assert divergence(original, rows) < 0.4  # two roundings, the second without a search


def test_a_written_file_falls_back_by_tensor(smollm2: Path, tmp_path: Path) -> None:
    """Q4_K where rows are whole super-blocks, Q5_0 where they are not, Q8_0 for the head's Q6_K."""
    losses = convert(smollm2, path := tmp_path / "m.gguf", "gguf:Q4_K", "q6_k")
    of_layers = {(loss.K, loss.format) for loss in losses if ".layers." in loss.name}
    assert of_layers == {(576, "Q5_0"), (1536, "Q4_K")}
    types = {t.name: t.tensor_type.name for t in gguf.GGUFReader(path).tensors}
    assert types["token_embd.weight"] == "Q8_0"
    llm, original = LLM(path, cache=False), LLM(smollm2, cache=False)
    tokens = original.tokenizer.encode(TEXT)
    assert divergence(original.logits(tokens), llm.logits(tokens)) < 0.2
