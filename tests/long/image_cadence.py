"""Milliseconds between the tokens of four streams while an image is encoded, and without one.

    STERNA_ISA=avx512 python tests/long/image_cadence.py --threads 2

The model has random weights: Gemma 3's text with 16 layers of width 1,024 in i8, and SigLIP-400M of
27 layers in bf16, which encodes 896 x 896 pixels to 256 tokens. Needs torch and transformers.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

from sterna import LLM
from sterna.engine.request import Request
from sterna.images import ProcessedImage, PromptImage

sys.path.append(str(Path(__file__).parents[1] / "support"))
import saved_models

TEXT = {
    "hidden_size": 1024, "num_hidden_layers": 16, "intermediate_size": 4096, "head_dim": 128,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 320, "pad_token_id": 0,
    "max_position_embeddings": 4096,
}  # fmt: skip
VISION = {
    "model_type": "siglip_vision_model", "hidden_size": 1152, "num_hidden_layers": 27,
    "intermediate_size": 4304, "num_attention_heads": 16, "image_size": 896, "patch_size": 14,
}  # fmt: skip
IMAGE_TOKEN, TOKENS, STREAMS = 270, 256, 4
GREEDY = {"temperature": 0, "ignore_eos": True}


def save(folder: Path, layers: int) -> None:
    """Save a random checkpoint whose tower has so many layers."""
    config = transformers.Gemma3Config(
        text_config=TEXT, vision_config={**VISION, "num_hidden_layers": layers},
        mm_tokens_per_image=TOKENS, image_token_index=IMAGE_TOKEN,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.Gemma3ForConditionalGeneration(config)
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.empty(one.shape, dtype=torch.bfloat16).normal_(std=0.02, generator=generator)
        for name, one in model.state_dict().items()
        if name != "lm_head.weight"
    }
    config.architectures = ["Gemma3ForConditionalGeneration"]
    config.save_pretrained(folder)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    saved_models.tokenizer().save(str(folder / "tokenizer.json"))


def about_an_image(llm: LLM) -> Request:
    """Queue a question about random pixels."""
    pixels = np.random.default_rng(0).standard_normal((1, 3, 896, 896)).astype(np.float32)
    at = np.arange(4, 4 + TOKENS, dtype=np.int32)
    prompt = [*range(4), *[IMAGE_TOKEN] * TOKENS, *range(12)]
    images = [PromptImage(ProcessedImage(pixels, None, TOKENS), at)]
    request = llm.requests.make(prompt, {**GREEDY, "max_tokens": 2}, images=images)
    llm.engine_loop.add(request)
    return request


def gaps(llm: LLM, streams: list[Request], until: Callable[[list[float]], bool]) -> list[float]:
    """Run until something is so; return milliseconds between the tokens of each stream."""
    last, found = {one: time.perf_counter() for one in streams}, list[float]()
    while not until(found):
        for event in llm.engine_loop.step() or []:
            if event.tokens and event.request in last:
                now = time.perf_counter()
                found.append((now - last[event.request]) * 1e3)
                last[event.request] = now
        for one in streams:
            list(one.pieces())
    return found


def shown(what: str, found: list[float]) -> None:
    """Print percentiles."""
    p50, p99 = np.percentile(found, [50, 99])
    print(f"{what:28} p50 {p50:6.1f}  p99 {p99:6.1f}  max {max(found):6.1f} ms, {len(found)} gaps")


def main() -> None:
    """Parse the arguments, measure, and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=27)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        save(Path(name), options.layers)
        llm = LLM(name, format="i8", cache=False, prefix_cache=False, threads=options.threads)
        encoder = llm.engine.image_encoder
        assert encoder is not None
        began = time.perf_counter()
        alone = about_an_image(llm)
        gaps(llm, [], lambda _: alone.ended)
        print(f"{llm.engine.isa}: first token alone {time.perf_counter() - began:6.2f} s")
        encoder._kept.clear()
        streams = [
            llm.requests.make([i] * 20, {**GREEDY, "max_tokens": 3000}) for i in range(STREAMS)
        ]
        for one in streams:
            llm.engine_loop.add(one)
        gaps(llm, streams, lambda found: len(found) >= 10 * STREAMS)
        shown("streams alone", gaps(llm, streams, lambda found: len(found) >= 100 * STREAMS))
        began, about = time.perf_counter(), about_an_image(llm)
        shown(
            "while an image is encoded",
            gaps(llm, streams, lambda _: about.missing_image() is None),
        )
        shown("while its prompt is computed", gaps(llm, streams, lambda _: about.ended))
        print(f"first token next to them {time.perf_counter() - began:6.2f} s")
        print(f"encoder's memory at the end {encoder.nbytes / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
