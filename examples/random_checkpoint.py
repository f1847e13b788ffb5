#!/usr/bin/env python3
"""Write a packed BitNet checkpoint of random weights, in the layout of the published 2B model.

    python examples/random_checkpoint.py FOLDER      # 1.2 GB
    python examples/time_load.py FOLDER              # seconds until ready to generate

It has the sizes and the file layout of microsoft/bitnet-b1.58-2B-4T and nano's tokenizer: good for
timing, not for reading.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import numpy as np

from sterna.bench.random_models import SHAPES
from sterna.checkpoints.resolve import BUILT_IN
from sterna.checkpoints.safetensors import write_safetensors


def bf16(values: np.ndarray) -> tuple[str, np.ndarray]:
    return "BF16", (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=None, help="fewer layers, for a quick look")
    args = parser.parse_args()
    shape = SHAPES["bitnet-2b"]
    rng = np.random.default_rng(0)
    config = shape.config() | {
        "model_type": "bitnet",
        "hidden_act": "relu2",
        "num_hidden_layers": args.layers or shape.layers,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "quantization_config": {
            "quant_method": "bitnet",
            "linear_class": "autobitlinear",
            "quantization_mode": "offline",
        },
    }
    d, ff, kv = shape.hidden, shape.intermediate, shape.hidden // shape.heads * shape.kv_heads

    def packed(m: int, k: int) -> np.ndarray:  # four codes 0..2 a byte
        codes = rng.integers(0, 3, (4, m // 4, k), dtype=np.uint8)
        return codes[0] | codes[1] << 2 | codes[2] << 4 | codes[3] << 6

    tensors: dict = {
        "model.embed_tokens.weight": bf16(
            rng.standard_normal((shape.vocab, d), dtype=np.float32) * 0.02
        ),
        "model.norm.weight": bf16(np.ones(d)),
    }
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        sizes = {"self_attn.q": (d, d), "self_attn.k": (kv, d), "self_attn.v": (kv, d),
                 "self_attn.o": (d, d), "mlp.gate": (ff, d), "mlp.up": (ff, d),
                 "mlp.down": (d, ff)}  # fmt: skip
        for name, (m, k) in sizes.items():
            tensors[f"{p}{name}_proj.weight"] = packed(m, k)
            tensors[f"{p}{name}_proj.weight_scale"] = bf16(np.array([k**-0.5]))
        for norm in ("input_layernorm", "post_attention_layernorm", "self_attn.attn_sub_norm"):
            tensors[f"{p}{norm}.weight"] = bf16(np.ones(d))
        tensors[f"{p}mlp.ffn_sub_norm.weight"] = bf16(np.ones(ff))

    args.out.mkdir(parents=True, exist_ok=True)
    write_safetensors(args.out / "model.safetensors", tensors, {"format": "pt"})
    (args.out / "config.json").write_text(json.dumps(config, indent=2))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(BUILT_IN["nano"] / name, args.out / name)


if __name__ == "__main__":
    main()
