"""Texts a second of an encoder in int8, next to onnxruntime's CPU provider.

    python tests/long/encoder_speed.py --shape bge-small --threads 2

The model has random weights. transformers makes it, onnxruntime runs its export with weights
quantised to int8 (`quantize_dynamic`), on texts padded to the longest of the batch, as
sentence-transformers pads them. Sterna runs the saved checkpoint with --format i8. Rounds take
turns, and medians are shown. Needs onnx, onnxruntime and torch.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import transformers

from sterna import loading
from sterna.engine import Engine, embed

#: Width, layers, heads, width of the FFN.
SHAPES = {"bge-small": (384, 12, 12, 1536), "bge-base": (768, 12, 12, 3072)}
#: Fewest and most tokens of a text.
LENGTHS = {"32": (32, 32), "128": (128, 128), "8-128": (8, 128), "8-512": (8, 512)}
VOCAB, TEXTS = 30522, 64


class Hidden(torch.nn.Module):
    """A model's last hidden states."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Hidden states of padded texts."""
        hidden: torch.Tensor = self.model(ids, attention_mask=mask).last_hidden_state
        return hidden


def export(folder: Path, shape: str) -> Path:
    """Save a random model; return the file of its quantised export."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    width, layers, heads, inner = SHAPES[shape]
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=inner, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    model.save_pretrained(folder)
    ids = torch.ones((2, 16), dtype=torch.int64)
    axes = {name: {0: "texts", 1: "tokens"} for name in ("input_ids", "attention_mask", "hidden")}
    torch.onnx.export(
        Hidden(model), (ids, ids), str(folder / "model.onnx"), dynamo=False, opset_version=17,
        input_names=["input_ids", "attention_mask"], output_names=["hidden"], dynamic_axes=axes,
    )  # fmt: skip
    quantize_dynamic(folder / "model.onnx", folder / "int8.onnx", weight_type=QuantType.QInt8)
    return folder / "int8.onnx"


def their_embed(file: Path, threads: int) -> Callable[[list[np.ndarray]], np.ndarray]:
    """onnxruntime's: padded texts -> means of their tokens."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def run(texts: list[np.ndarray]) -> np.ndarray:
        ids = np.zeros((len(texts), max(map(len, texts))), np.int64)
        mask = np.zeros_like(ids)
        for i, text in enumerate(texts):
            ids[i, : len(text)], mask[i, : len(text)] = text, 1
        hidden = session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
        means = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
        return np.asarray(means / np.linalg.norm(means, axis=1, keepdims=True))

    return run


def main() -> None:
    """Parse the arguments, measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="bge-small")
    parser.add_argument("--lengths", choices=LENGTHS, nargs="*", default=list(LENGTHS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="keeps the model for the next time")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = a.folder or Path(temporary)
        file = folder / "int8.onnx" if (folder / "int8.onnx").exists() else export(folder, a.shape)
        theirs = their_embed(file, a.threads)
        engine = Engine(loading.load(folder, format="i8", cached=False), threads=a.threads)
        print(f"| {a.shape}, tokens of a text | onnxruntime int8 | Sterna i8 | ratio | cosine |")
        print("|---|---|---|---|---|")
        for name in a.lengths:
            row(name, a.rounds, theirs, lambda texts: embed(engine, texts, "mean", True))


def row(name: str, rounds: int, *runs: Callable[[list[np.ndarray]], np.ndarray]) -> None:
    """Print texts a second of each, and the least cosine of their vectors."""
    rng, (least, most) = np.random.default_rng(1), LENGTHS[name]
    texts = [rng.integers(0, VOCAB, n) for n in rng.integers(least, most + 1, TEXTS)]
    vectors = [run(texts) for run in runs]
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, taken in zip(runs, seconds, strict=True):
            begin = time.perf_counter()
            run(texts)
            taken.append(time.perf_counter() - begin)
    theirs, ours = (len(texts) / statistics.median(taken) for taken in seconds)
    ratio = ours / theirs
    cosine = (vectors[0] * vectors[1]).sum(1).min()
    print(f"| {name} | {theirs:.0f} | {ours:.0f} | {ratio:.2f} | {cosine:.4f} |", flush=True)


if __name__ == "__main__":
    main()
