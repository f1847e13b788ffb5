"""Time to encode an image and to the first token about it, next to llama.cpp's multimodal tool.

    python tests/long/tower_speed.py --text gemma-3-270m-q4_k_m.gguf --llama-cpp llama-mtmd-cli
    python tests/long/tower_speed.py --model qwen3-vl --llama-cpp llama-mtmd-cli

The tower has random weights in float16 and the shape of Gemma 3's (SigLIP-400M at 896 x 896) or of
Qwen3-VL's (at 1,024 x 1,024). Gemma 3's text is a GGUF file, which gets a token for images if it
has none, and Qwen3-VL's is random (tower_files.py). Formats take turns; medians are shown, the
share of the unit's peak that the encoder's multiplications reach, and the least cosine of a token's
row to those of float32. Needs gguf and Pillow.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import tower_files
from PIL import Image
from tower_files import SHAPES, Shape

from sterna import LLM, _native, formats
from sterna.bench.machine import peak_kind

F32 = np.ndarray[Any, np.dtype[np.float32]]
QUESTION = "describe"


def picture(path: Path, seed: int, edge: int) -> Path:
    """Save waves, edges and noise."""
    y, x = np.mgrid[:edge, :edge]
    waves = 127 + 100 * np.sin(x[..., None] / (13, 47, 101)) * np.cos(y[..., None] / (37, 19, 71))
    noise = np.random.default_rng(seed).integers(-25, 25, (edge, edge, 3))
    Image.fromarray(np.clip(waves + noise, 0, 255).astype(np.uint8)).save(path)
    return path


class Ours:
    """Sterna with the tower in a format, and the seconds that were measured."""

    def __init__(self, folder: Path, shape: Shape, format: str, threads: int) -> None:
        self.format, self.shape = format, shape
        self.llm = LLM(
            folder / "text.gguf", mmproj=folder / "mmproj.gguf", threads=threads, cache=False,
            tower_format=format, chat_template=shape.template,
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
        d, patches = self.shape.width, self.shape.patches
        macs = patches * layers * (4 * d**2 + 2 * d * self.shape.inner + 2 * d * patches)
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

    def __init__(self, tool: str, folder: Path, shape: Shape, threads: int) -> None:
        self.command = [
            tool, "-m", str(folder / "text.gguf"), "--mmproj", str(folder / "mmproj.gguf"),
            "-t", str(threads), "-n", "1", "--temp", "0", "-lv", "4",
            "--chat-template", shape.template,
        ]  # fmt: skip
        self.encoded, self.first = list[float](), list[float]()

    def ask(self, image: Path) -> None:
        """Ask a question about an image."""
        command = [*self.command, "--image", str(image), "-p", QUESTION]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, errors="replace")
        said = ran.stdout + ran.stderr
        encoded = sum(map(int, re.findall(r"batch encoding done in (\d+) ms", said))) / 1e3
        decoded = sum(map(int, re.findall(r"image decoded .* in (\d+) ms", said))) / 1e3
        self.encoded.append(encoded)
        self.first.append(encoded + decoded)


def quality(folder: Path, shape: Shape, formats: list[str], threads: int) -> dict[str, float]:
    """The least cosine of a token's row to that of float32, by formats."""
    image, found = picture(folder / "quality.png", 0, shape.edge), dict[str, F32]()
    for name in ("f32", *formats):
        rows = Ours(folder, shape, name, threads).rows(image)
        found[name] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return {name: float((found["f32"] * found[name]).sum(1).min()) for name in formats}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=[*SHAPES], default="gemma3")
    parser.add_argument("--text", type=Path, help="a GGUF file of Gemma 3")
    parser.add_argument("--formats", nargs="*", default=["f16", "q8_0", "i8"])
    parser.add_argument("--layers", type=int, help="the first of the tower's; all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quality", action="store_true", help="cosines, too")
    parser.add_argument("--llama-cpp", help="llama-mtmd-cli")
    parser.add_argument("--folder", type=Path, help="keeps the files for the next time")
    return parser.parse_args()


def main() -> None:
    """Parse the arguments, measure, and print the table."""
    a = arguments()
    shape = SHAPES[a.model]
    layers = a.layers or shape.all_layers
    with tempfile.TemporaryDirectory() as temporary:
        folder = a.folder or Path(temporary)
        if not (folder / "mmproj.gguf").exists():
            tower_files.write(folder, a.model, layers, a.text)
        cosines = quality(folder, shape, a.formats, a.threads) if a.quality else {}
        every = [Ours(folder, shape, name, a.threads) for name in a.formats]
        theirs = Theirs(a.llama_cpp, folder, shape, a.threads) if a.llama_cpp else None
        for i in range(a.rounds):
            image = picture(folder / "image.png", i, shape.edge)
            for one in every:
                one.ask(image)
                one.rows(picture(folder / "other.png", i + a.rounds, shape.edge))
            if theirs:
                theirs.ask(image)
        print("| tower | unit | image encoded | first token | second question | of peak | cosine |")
        print("|---|---|---|---|---|---|---|")
        for one in every:
            shares = (one.peak_share(layers), cosines.get(one.format))
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
