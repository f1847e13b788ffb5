"""Time to encode an image and to the first token about it, next to llama.cpp's multimodal tool.

    python tests/long/tower_speed.py --text gemma-3-270m-q4_k_m.gguf --llama-cpp llama-mtmd-cli

The tower has the shape of Gemma 3's (SigLIP-400M at 896 x 896) and random weights in float16. A few
of its norms' weights are 16 times as large as the others, as those of trained encoders are. The
text is a GGUF file of Gemma 3, which gets a token for images if it has none. Formats take turns;
medians are shown, the share of the unit's peak that the encoder's multiplications reach, and the
least cosine of a token's row to those of float32. Needs gguf and Pillow.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from PIL import Image

from sterna import LLM, _native, formats
from sterna.bench.machine import peak_kind

F32 = np.ndarray[Any, np.dtype[np.float32]]
WIDTH, INNER, HEADS, EDGE, PATCH = 1152, 4304, 16, 896, 14
TOKEN = "<image_soft_token>"
QUESTION = "describe"
OUTLIERS, TIMES = 0.01, 16.0  # of the norms' weights


def with_token(text: Path, to: Path) -> int:
    """Copy a text with a token for images; returns its width."""
    reader = gguf.GGUFReader(text)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    tokens = fields["tokenizer.ggml.tokens"]
    added = TOKEN not in tokens
    writer = gguf.GGUFWriter(to, fields["general.architecture"])
    for name, field in reader.fields.items():
        value = fields[name]
        if added and name.startswith("tokenizer.ggml.") and isinstance(value, list):
            extra: dict[str, Any] = {"tokens": TOKEN, "scores": 0.0, "token_type": 3}
            if (last := name.rpartition(".")[2]) in extra:
                value = [*value, extra[last]]
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind, *items = field.types
        writer.add_key_value(name, value, kind, items[0] if items else None)
    for tensor in reader.tensors:
        data = tensor.data
        if added and tensor.name == "token_embd.weight":
            data = np.concatenate([data, data[-1:]])
        writer.add_tensor(tensor.name, np.ascontiguousarray(data), raw_dtype=tensor.tensor_type)
    finish(writer)
    return int(fields["gemma3.embedding_length"])


def finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors(layers: int, width: int) -> Iterator[tuple[str, F32]]:
    """Tensors of the tower, by llama.cpp's names."""
    rng = np.random.default_rng(0)

    def matrix(name: str, *shape: int) -> tuple[str, F32]:
        values = rng.standard_normal(shape, np.float32)
        return name, values / np.float32(np.prod(shape[1:]) ** 0.5)

    def vector(name: str, size: int, around: float = 0.0) -> tuple[str, F32]:
        values = rng.standard_normal(size, np.float32) * np.float32(0.1) + np.float32(around)
        if around:
            values[rng.random(size) < OUTLIERS] *= TIMES
        return name, values

    yield matrix("v.patch_embd.weight", WIDTH, 3, PATCH, PATCH)
    yield vector("v.patch_embd.bias", WIDTH)
    yield matrix("v.position_embd.weight", (EDGE // PATCH) ** 2, WIDTH)
    for i in range(layers):
        p = f"v.blk.{i}"
        sizes = {f"attn_{n}": (WIDTH, WIDTH) for n in ("q", "k", "v", "out")}
        sizes |= {"ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}
        for name, (M, K) in sizes.items():
            yield matrix(f"{p}.{name}.weight", M, K)
            yield vector(f"{p}.{name}.bias", M)
        for name in ("ln1", "ln2"):
            yield vector(f"{p}.{name}.weight", WIDTH, 1.0)
            yield vector(f"{p}.{name}.bias", WIDTH)
    yield vector("v.post_ln.weight", WIDTH, 1.0)
    yield vector("v.post_ln.bias", WIDTH)
    yield matrix("mm.input_projection.weight", WIDTH, width)
    yield "mm.soft_emb_norm.weight", np.ones(WIDTH, np.float32)


def write_tower(path: Path, layers: int, width: int) -> None:
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_clip_projector_type("gemma3")
    writer.add_clip_has_vision_encoder(True)
    writer.add_vision_block_count(layers)
    writer.add_vision_embedding_length(WIDTH)
    writer.add_vision_feed_forward_length(INNER)
    writer.add_vision_head_count(HEADS)
    writer.add_vision_image_size(EDGE)
    writer.add_vision_patch_size(PATCH)
    writer.add_vision_projection_dim(width)
    writer.add_vision_attention_layernorm_eps(1e-6)
    writer.add_vision_image_mean([0.5, 0.5, 0.5])
    writer.add_vision_image_std([0.5, 0.5, 0.5])
    writer.add_vision_use_gelu(True)
    for name, values in tensors(layers, width):
        matrix = values.ndim > 1 and "position" not in name
        writer.add_tensor(name, values.astype(np.float16) if matrix else values)
    finish(writer)


def picture(path: Path, seed: int) -> Path:
    """Save waves, edges and noise."""
    y, x = np.mgrid[:EDGE, :EDGE]
    waves = 127 + 100 * np.sin(x[..., None] / (13, 47, 101)) * np.cos(y[..., None] / (37, 19, 71))
    noise = np.random.default_rng(seed).integers(-25, 25, (EDGE, EDGE, 3))
    Image.fromarray(np.clip(waves + noise, 0, 255).astype(np.uint8)).save(path)
    return path


class Ours:
    """Sterna with the tower in a format, and the seconds that were measured."""

    def __init__(self, folder: Path, format: str, threads: int) -> None:
        self.format = format
        self.llm = LLM(
            folder / "text.gguf", mmproj=folder / "mmproj.gguf", threads=threads, cache=False,
            tower_format=format, chat_template="gemma",
        )  # fmt: skip
        self.encoded, self.first, self.second = list[float](), list[float](), list[float]()

    def rows(self, image: Path) -> F32:
        """Rows of an image's tokens; notes the seconds."""
        encoder = self.llm.engine.image_encoder
        assert encoder is not None
        (processed,) = self.llm.renderer.images.processor.process([Image.open(image)])
        begin = time.perf_counter()
        found = encoder.rows(processed)
        self.encoded.append(time.perf_counter() - begin)
        return found

    def peak_share(self, layers: int) -> float:
        """Multiplications of the layers in a second, of those of the unit's best instruction."""
        patches = (EDGE // PATCH) ** 2
        macs = patches * layers * (4 * WIDTH**2 + 2 * WIDTH * INNER + 2 * WIDTH * patches)
        isa = self.llm.engine.isa
        kind, products = peak_kind(formats.get(self.format), isa)
        peak = max(_native.peak_gops(isa, self.llm.engine.threads, kind) for _ in range(5))
        return 2 * macs / statistics.median(self.encoded) / 1e9 / (peak / products)

    def ask(self, image: Path) -> None:
        """Ask two questions about an image."""
        for question, taken in ((QUESTION, self.first), ("what else is there?", self.second)):
            parts = [{"type": "image", "image": str(image)}, {"type": "text", "text": question}]
            begin = time.perf_counter()
            self.llm.chat([{"role": "user", "content": parts}], max_tokens=1, temperature=0)
            taken.append(time.perf_counter() - begin)


class Theirs:
    """llama.cpp's tool, a process for each question, and the seconds that it says.

    To the first token it says those of the image, without the question's own tokens.
    """

    def __init__(self, tool: str, folder: Path, threads: int) -> None:
        self.command = [
            tool, "-m", str(folder / "text.gguf"), "--mmproj", str(folder / "mmproj.gguf"),
            "-t", str(threads), "-n", "1", "--temp", "0", "-lv", "4",
            "--chat-template", "gemma",
        ]  # fmt: skip
        self.encoded, self.first = list[float](), list[float]()

    def ask(self, image: Path) -> None:
        """Ask a question about an image."""
        command = [*self.command, "--image", str(image), "-p", QUESTION]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        said = ran.stdout + ran.stderr
        encoded = sum(map(int, re.findall(r"batch encoding done in (\d+) ms", said))) / 1e3
        decoded = sum(map(int, re.findall(r"image decoded .* in (\d+) ms", said))) / 1e3
        self.encoded.append(encoded)
        self.first.append(encoded + decoded)


def quality(folder: Path, formats: list[str], threads: int) -> dict[str, float]:
    """The least cosine of a token's row to that of float32, by formats."""
    image, found = picture(folder / "quality.png", 0), dict[str, F32]()
    for name in ("f32", *formats):
        rows = Ours(folder, name, threads).rows(image)
        found[name] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return {name: float((found["f32"] * found[name]).sum(1).min()) for name in formats}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, required=True, help="a GGUF file of Gemma 3")
    parser.add_argument("--formats", nargs="*", default=["f16", "q8_0", "i8"])
    parser.add_argument("--layers", type=int, default=27)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quality", action="store_true", help="cosines, too")
    parser.add_argument("--llama-cpp", help="llama-mtmd-cli")
    parser.add_argument("--folder", type=Path, help="keeps the files for the next time")
    return parser.parse_args()


def main() -> None:
    """Parse the arguments, measure, and print the table."""
    a = arguments()
    with tempfile.TemporaryDirectory() as temporary:
        folder = a.folder or Path(temporary)
        if not (folder / "mmproj.gguf").exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_tower(folder / "mmproj.gguf", a.layers, with_token(a.text, folder / "text.gguf"))
        cosines = quality(folder, a.formats, a.threads) if a.quality else {}
        every = [Ours(folder, name, a.threads) for name in a.formats]
        theirs = Theirs(a.llama_cpp, folder, a.threads) if a.llama_cpp else None
        for i in range(a.rounds):
            image = picture(folder / "image.png", i)
            for one in every:
                one.ask(image)
                one.rows(picture(folder / "other.png", i + a.rounds))
            if theirs:
                theirs.ask(image)
        print("| tower | unit | image encoded | first token | second question | of peak | cosine |")
        print("|---|---|---|---|---|---|---|")
        for one in every:
            shares = (one.peak_share(a.layers), cosines.get(one.format))
            row(one.format, one.llm.engine.isa, [one.encoded, one.first, one.second], shares)
        if theirs:
            row("llama.cpp, f16", "its own", [theirs.encoded, theirs.first])


def row(
    name: str, unit: str, measured: list[list[float]],
    shares: tuple[float | None, float | None] = (None, None),
) -> None:  # fmt: skip
    """Print the medians of what was measured, the share of the peak, and the cosine."""
    said = [f"{statistics.median(one):.2f} s" for one in measured if one]
    said += [""] * (3 - len(said))
    said += ["" if share is None else f"{share:.4f}" for share in shares]
    print(f"| {name} | {unit} | {' | '.join(said)} |", flush=True)


if __name__ == "__main__":
    main()
