"""Texts a second of all-MiniLM-L6-v2, next to sentence-transformers with torch and with ONNX.

    python tests/long/minilm_speed.py --threads 1

sentence-transformers runs the model in float32 by torch, and its export to ONNX with weights
quantised to int8 (`quantize_dynamic`, a scale for each channel) by onnxruntime; it tokenizes, pads
and pools as it always does. Sterna runs the same folder. Each library has a process of its own;
rounds take turns, one batch of texts each, and medians are shown. With one thread, seconds are
those of the process on a core, so other work of the machine counts little; with more threads they
are a clock's. Needs sentence-transformers, onnx and onnxruntime.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import onnxruntime
import sentence_transformers
import torch
from encoder_speed import Hidden

sys.path.insert(0, str(Path(__file__).parents[1] / "real"))
import assets
import texts

from sterna import LLM

Embed = Callable[[list[str]], np.ndarray]


def samples(count: int) -> dict[str, list[str]]:
    """Texts by a name of their lengths: passages, questions, and both mixed."""
    words = " ".join(texts.TEXTS.values()).split()
    passages = [" ".join(words[7 * i % 90 :][:80]) for i in range(count)]
    questions = [" ".join(words[11 * i % 150 :][:9]) for i in range(count)]
    mixed = [passage if i % 4 == 0 else questions[i] for i, passage in enumerate(passages)]
    return {"questions": questions, "passages": passages, "one passage to three questions": mixed}


class Session(torch.nn.Module):
    """onnxruntime in the place of sentence-transformers' transformer."""

    def __init__(self, model: torch.nn.Module, file: Path, threads: int) -> None:
        super().__init__()
        from onnxruntime.quantization import QuantType, quantize_dynamic

        ids = torch.ones((2, 16), dtype=torch.int64)
        names = ("input_ids", "attention_mask", "hidden")
        torch.onnx.export(
            Hidden(model), (ids, ids), str(file), dynamo=False, opset_version=17,
            input_names=names[:2], output_names=names[2:],
            dynamic_axes={name: {0: "texts", 1: "tokens"} for name in names},
        )  # fmt: skip
        quantised = file.with_suffix(".int8.onnx")
        quantize_dynamic(file, quantised, per_channel=True, weight_type=QuantType.QInt8)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(
            quantised, options, providers=["CPUExecutionProvider"]
        )

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Add the hidden states of the padded texts."""
        given = {name: features[name].numpy() for name in ("input_ids", "attention_mask")}
        return features | {"token_embeddings": torch.from_numpy(self.session.run(None, given)[0])}


def torch_float32(folder: Path, threads: int) -> Embed:
    """sentence-transformers as it is."""
    torch.set_num_threads(threads)
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    return lambda given: np.asarray(model.encode(given, batch_size=len(given)))


def onnx_int8(folder: Path, threads: int) -> Embed:
    """sentence-transformers with onnxruntime for its transformer."""
    torch.set_num_threads(threads)
    model = sentence_transformers.SentenceTransformer(
        str(folder), device="cpu", model_kwargs={"attn_implementation": "eager"}
    )
    with tempfile.TemporaryDirectory() as work:
        session = Session(model[0].auto_model.eval(), Path(work) / "model.onnx", threads)
    model[0].forward = session.forward
    return lambda given: np.asarray(model.encode(given, batch_size=len(given)))


def sterna(folder: Path, threads: int, **options: str) -> Embed:
    """`LLM.embed`."""
    return LLM(folder, threads=threads, cache=False, **options).embed


#: What embeds texts; the first is what the others' vectors are compared with.
RUNS: dict[str, Callable[[Path, int], Embed]] = {
    "torch float32": torch_float32,
    "ONNX int8": onnx_int8,
    "Sterna `f32`": partial(sterna, format="f32"),
    "Sterna `bf16`": partial(sterna, format="bf16"),
    "Sterna `q8_0`": partial(sterna, format="q8_0"),
    "Sterna `i8`, int8x2": partial(sterna, format="i8", activations="int8x2"),
    "Sterna `i8`": partial(sterna, format="i8"),
}


def work(name: str, folder: Path, threads: int, told: Connection) -> None:
    """Answer each list of texts with its vectors and seconds, in a process of its own."""
    clock = time.process_time if threads == 1 else time.perf_counter
    embed = RUNS[name](folder, threads)
    while given := told.recv():
        begin = clock()
        vectors = embed(given)
        told.send((vectors, clock() - begin))


def main() -> None:
    """Parse the arguments, measure, and print a table for each kind of texts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--texts", type=int, default=64)
    a = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    workers: dict[str, Connection] = {}
    for name in RUNS:
        workers[name], other = context.Pipe()
        arguments = (name, assets.minilm(), a.threads, other)
        context.Process(target=work, args=arguments, daemon=True).start()
    for kind, given in samples(a.texts).items():
        vectors: dict[str, np.ndarray] = {}
        seconds: dict[str, list[float]] = {name: [] for name in RUNS}
        for turn in range(a.rounds + 1):
            for name, told in workers.items():
                told.send(given)
                vectors[name], taken = told.recv()
                if turn:  # the first warms up
                    seconds[name].append(taken)
        rows(kind, vectors, seconds)
    for told in workers.values():
        told.send([])


def rows(name: str, vectors: dict[str, np.ndarray], seconds: dict[str, list[float]]) -> None:
    """Print texts a second, ratios (medians of each round's), and the least cosine."""
    base, onnx = seconds["torch float32"], seconds["ONNX int8"]
    print(f"\n| {name} | texts a second | of torch | of ONNX int8 | least cosine |")
    print("|---|---|---|---|---|")
    for run, taken in seconds.items():
        rate = len(vectors[run]) / statistics.median(taken)
        ratios = (
            statistics.median(theirs / own for theirs, own in zip(other, taken, strict=True))
            for other in (base, onnx)
        )
        of_torch, of_onnx = ratios
        cosine = (vectors[run] * vectors["torch float32"]).sum(1).min()
        print(f"| {run} | {rate:.0f} | {of_torch:.2f} | {of_onnx:.2f} | {cosine:.4f} |", flush=True)


if __name__ == "__main__":
    main()
