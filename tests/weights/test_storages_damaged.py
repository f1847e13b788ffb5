"""Seeded damage to small checkpoints of every family: a model that loads, or a typed error.

STERNA_FUZZ sets the number of mutations over all families; 20,000 take about four minutes.
"""

from __future__ import annotations

import json
import os
import random
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES
from work import bounded_calls

from sterna import loading
from sterna.errors import SternaError

MUTATIONS = max(int(os.environ.get("STERNA_FUZZ", "256")) // len(FAMILIES), 16)  # of each
MOST_CALLS = 2_000_000  # fifty times those of the sound file
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 5, 16, 17, 63, 2**24, 2**31, 2**64, 1e-30, 1e300, 0.5,
    "", "x", [], [0], {}, "silu", "relu2", ["BitNetForCausalLM"], ["LlamaForCausalLM"],
    {"quant_method": "bitnet"},
    {"quant_method": "bitnet", "linear_class": "autobitlinear"},
    {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"},
    {"rope_type": "llama3", "factor": 0},
]  # fmt: skip
WORDS = [0, 1, 0x7C00, 0x7F80, 0x7FFF, 0x8000, 0xFFFF, 0x0001, 0x3C00]  # zeros, NaN, infinities
KEYS = (
    "quantization_config",
    "w_bits",
    "share_embedding",
    "head_dim",
    "attention_bias",
    "rope_scaling",
)


def damaged_config(text: bytes, rng: random.Random) -> bytes:
    """One or two fields changed, added or removed."""
    config = json.loads(text)
    for _ in range(rng.randint(1, 2)):
        key = rng.choice([*config, *KEYS])
        if rng.random() < 0.1:
            config.pop(key, None)
        else:
            config[key] = rng.choice(VALUES)
    return json.dumps(config).encode()


def damaged_weights(data: bytes, rng: random.Random) -> bytes:
    """Renamed, retyped or reshaped tensors, words of the data, or any bytes at all."""
    (size,) = struct.unpack("<Q", data[:8])
    header, body = data[8 : 8 + size], bytearray(data[8 + size :])
    kind = rng.randrange(4)
    if kind == 0:
        for _ in range(rng.randint(1, 40)):
            at = 2 * rng.randrange(len(body) // 2)
            body[at : at + 2] = struct.pack("<H", rng.choice(WORDS))
        return data[:8] + header + bytes(body)
    if kind == 1:
        whole = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            whole[rng.randrange(len(whole) if rng.random() < 0.3 else 8 + size)] = rng.randrange(
                256
            )
        return bytes(whole)
    if kind == 2:
        return data[: rng.randrange(len(data))]
    tensors = json.loads(header)
    name = rng.choice([n for n in tensors if n != "__metadata__"])
    info = tensors.pop(name)
    change = rng.randrange(4)
    if change == 0:
        info["dtype"] = rng.choice(["U8", "I8", "F16", "BF16", "F32", "I64", "F8_E4M3", "BOOL"])
    elif change == 1:
        info["shape"] = rng.choice(
            [info["shape"][::-1], [1, *info["shape"]], info["shape"][:1], []]
        )
    elif change == 2:
        name = rng.choice(
            [name + "_scale", name.replace("weight", "weight_clip_val"), "x", name[:-1]]
        )
    tensors[name] = info
    changed = json.dumps(tensors).encode()
    return struct.pack("<Q", len(changed)) + changed + bytes(body)


DAMAGE: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "config.json": damaged_config,
    "model.safetensors": damaged_weights,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_damage(family: str, tmp_path: Path) -> None:
    """No other exception, no warning of arithmetic, no wait."""
    folder = FAMILIES[family].write(tmp_path / "model")
    sound = {name: (folder / name).read_bytes() for name in DAMAGE}
    refused = 0
    for seed in range(MUTATIONS):
        rng = random.Random(f"{family} {seed}")
        name = rng.choice(list(DAMAGE))
        (folder / name).write_bytes(DAMAGE[name](sound[name], rng))
        try:
            with warnings.catch_warnings(), bounded_calls(MOST_CALLS):
                warnings.simplefilter("error")
                # What the head is said to be may be what was damaged; both are sound models.
                warnings.filterwarnings("ignore", ".*tie_word_embeddings is true")
                model = loading.load(folder, cached=False, threads=1)
                assert model.n_params > 0
        except SternaError:
            refused += 1
        except BaseException as error:
            raise AssertionError(f"{family}, seed {seed}, {name}: {error!r}") from error
        (folder / name).write_bytes(sound[name])
    assert refused > MUTATIONS // 4
