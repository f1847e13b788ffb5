#!/usr/bin/env python3
"""Round a float checkpoint's layers to powers of two and write them as published words.

    python examples/write_power_of_two.py SRC DST --encoding E3P2 --method denseshift3
    sterna perplexity --model DST --stdlib

DST is a Hugging Face style folder whose quantization_config says how the weights are stored
(docs/explanation/power-of-two.md); `sterna quantize --format pot4` writes Sterna's own packed form.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import numpy as np

from sterna import SternaError
from sterna.checkpoints.directory import Checkpoint
from sterna.checkpoints.packed_writer import ASSET_FILES
from sterna.checkpoints.safetensors import write_safetensors
from sterna.formats.pot_methods import METHODS, quantizer
from sterna.formats.power_of_two import error
from sterna.weights.storages.base import FLOATS, Floats
from sterna.weights.storages.power_of_two import description, tensors

DTYPES = {"uint8": "U8", "uint16": "U16", "float16": "F16", "float32": "F32"}


def values(checkpoint: Checkpoint, name: str) -> np.ndarray:
    bits = np.ascontiguousarray(checkpoint.read(name))
    format = FLOATS[checkpoint.info(name).dtype]
    return Floats(format, bits.view(np.uint16) if format == "f16" else bits).values()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("src", type=Path, help="a folder with float weights in safetensors")
    parser.add_argument("dst", type=Path)
    parser.add_argument("--encoding", default="E3P2", choices=("E3P2", "E5P1", "E8P1"))
    parser.add_argument("--method", default="nearest", choices=list(METHODS))
    parser.add_argument("--scale", default="row", help="tensor, row, or group:N (E3P2)")
    parser.add_argument("--zero", action="store_true", help="E3P2 with a zero")
    args = parser.parse_args()
    if args.dst.exists():
        parser.error(f"{args.dst} exists; name a new folder")
    try:
        write(args)
    except SternaError as e:
        parser.exit(2, f"{e}\n")


def write(args: argparse.Namespace) -> None:
    stored = description(args.encoding, args.scale, zero_free=not args.zero)
    rule = quantizer(args.method, stored.max_exponent, args.zero, args.encoding)

    checkpoint = Checkpoint.open(args.src)
    out: dict[str, tuple[str, np.ndarray]] = {}
    if "quantization_config" in checkpoint.config:
        raise SternaError(f"{args.src}: must be a model of float weights, but it is quantised")
    for name, info in checkpoint.tensors.items():
        if not name.endswith("_proj.weight"):
            out[name] = info.dtype, np.ascontiguousarray(checkpoint.read(name))
            continue
        weight = values(checkpoint, name)
        levels = rule(weight, args.scale)
        print(f"{name}: {error(weight, levels).snr_db:.1f} dB, {levels.zeros} zeros lost")
        for suffix, array in tensors(levels, stored).items():
            out[f"{name.removesuffix('weight')}{suffix}"] = DTYPES[str(array.dtype)], array

    args.dst.mkdir(parents=True)
    write_safetensors(args.dst / "model.safetensors", out, {"format": "pt"})
    config = checkpoint.config | {"quantization_config": stored.config()}
    (args.dst / "config.json").write_text(json.dumps(config, indent=2))
    for name in ASSET_FILES:
        if (args.src / name).is_file():
            shutil.copyfile(args.src / name, args.dst / name)


if __name__ == "__main__":
    main()
