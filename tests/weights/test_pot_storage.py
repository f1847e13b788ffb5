"""Power-of-two weights on disk and in models: what is damaged, what is written, what is computed.

The layouts themselves, their logits and seeded damage are families of tests/support/families.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_factory import RECIPES, write
from families import FAMILIES
from families.base import before_layer
from helpers import assert_same_bits, command, failed, failure
from safetensors.torch import load_file
from test_against_transformers import tokens
from test_bad_checkpoints import edit_config, edit_tensor
from test_storages import Change, filled
from transformers import LlamaConfig, LlamaForCausalLM

import sterna.ops as ops
from sterna import LLM, formats, loading
from sterna.convert import convert
from sterna.errors import ModelFormatError, NonFiniteError, RequestError, SternaError
from sterna.formats.pot_methods import METHODS, quantizer
from sterna.formats.power_of_two import PotLevels, error
from sterna.weights.storages import power_of_two as storage

LAYER = "model.layers.1.mlp.up_proj"
EXAMPLE = Path(__file__).parents[2] / "examples" / "write_power_of_two.py"


def words(value: int) -> Change:
    """`filled` for uint16, of which torch indexes little."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        changed = tensor.numpy().copy()
        changed.flat[7] = value
        return torch.from_numpy(changed)

    return change


W, S = "weight", "weight_scale"
BAD: list[tuple[str, str, Change, type[SternaError], tuple[str, ...]]] = [
    ("pot-e5p1", W, filled(0x45), ModelFormatError, ("E5P1", "0x45 at [0, 7]")),
    ("pot-e8p1", W, words(0x8081), ModelFormatError, ("E8P1", "0x8081 at [0, 7]")),
    ("pot-e3p2-zero", W, filled(0x80), ModelFormatError, ("zeros", "-0 at [0, 15]")),
    ("pot-e3p2", W, lambda t: t[:, :-1], ModelFormatError, ("[256, 64]", "[256, 63]")),
    ("pot-e3p2", W, lambda t: t.to(torch.int8), ModelFormatError, ("U8", "I8")),
    ("pot-e3p2", W, lambda t: t.half(), ModelFormatError, ("U8", "F16")),
    ("pot-e8p1", W, lambda t: t.to(torch.uint8), ModelFormatError, ("U16", "U8")),
    ("pot-e3p2", S, lambda _: None, ModelFormatError, ("a tensor", "none of this name")),
    ("pot-e3p2", S, lambda t: t[:-1], ModelFormatError, ("[256]", "[255]")),
    ("pot-e3p2", S, lambda t: t.int(), ModelFormatError, ("row", "I32")),
    ("pot-e3p2", S, filled(float("nan")), NonFiniteError, ("finite",)),
    ("pot-e5p1", S, filled(float("inf")), NonFiniteError, ("finite",)),
    ("pot-e5p1", S, filled(0.0), ModelFormatError, ("positive", "0.0 at [7]")),
    ("pot-e3p2", S, filled(-0.5), ModelFormatError, ("both signs", "-0.5 at [7]", "bit")),
    ("pot-e3p2", S, lambda t: -t, ModelFormatError, ("positive", "at [0]")),
    ("pot-e3p2-groups", S, filled(-0.5), ModelFormatError, ("both signs", "at [1, 3]")),
    ("pot-e3p2-groups", S, lambda t: t.float() * 1.001, ModelFormatError, ("16 bits", "F16")),
    ("pot-e3p2-groups", S, lambda t: t[:, 1:], ModelFormatError, ("[256, 4]", "[256, 3]")),
    ("pot-e5p1", S, filled(1e30), ModelFormatError, ("2^128", "1.0000000150474662e+30")),
    ("pot-e3p2", S, filled(3e38), ModelFormatError, ("2^128", "e+38")),
    ("pot-e8p1", S, filled(3e38, 0), ModelFormatError, ("2^128",)),
]


@pytest.mark.parametrize(("family", "suffix", "change", "kind", "expected"), BAD)
def test_bad_tensors(
    family: str,
    suffix: str,
    change: Change,
    kind: type[SternaError],
    expected: tuple[str, ...],
    tmp_path: Path,
) -> None:
    """The error names the file, the tensor, the element and the value."""
    folder = FAMILIES[family].write(tmp_path / "model")
    edit_tensor(folder, f"{LAYER}.{suffix}", change)
    failure(lambda: LLM(folder), kind, "model.safetensors", f"{LAYER}.{suffix}", *expected)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"encoding": "E4P2"}, ("encoding", "E3P2 or E5P1 or E8P1", "E4P2")),
        ({"encoding": None}, ("encoding", "E3P2 or")),
        ({"encoding": ["E3P2"]}, ("encoding",)),
        ({"zero_free": "yes"}, ("zero_free", "true or false", "yes")),
        ({"encoding": "E5P1", "zero_free": False}, ("only E3P2 may have a zero",)),
        ({"scale": 3}, ("scale", "tensor, row or group:N")),
        ({"scale": "column"}, ("group:N", "column")),
        ({"scale": "group:48"}, ("multiple of 32", "group:48")),
        ({"scale": "group:0"}, ("multiple of 32",)),
        ({"scale": "group:٣٢"}, ("multiple of 32",)),
        ({"scale": "group:96"}, ("groups of 96", "K=128")),
        ({"encoding": "E5P1", "scale": "group:32"}, ("only E3P2", "groups", "row")),
        ({"modules_to_not_convert": "lm_head"}, ("modules_to_not_convert",)),
    ],
)
def test_bad_configs(values: dict[str, Any], expected: tuple[str, ...], tmp_path: Path) -> None:
    """The error names the field."""
    folder = FAMILIES["pot-e3p2"].write(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    edit_config(folder, quantization_config=config | values)
    failure(lambda: LLM(folder), ModelFormatError, *expected)


def test_layers_that_are_not_converted(tmp_path: Path) -> None:
    """They are floats, while others are words; floats that should be words are refused."""
    folder = FAMILIES["pot-e3p2"].write(tmp_path / "model")
    rows = torch.randn(256, 128)
    edit_tensor(folder, f"{LAYER}.weight", lambda _: rows)
    edit_tensor(folder, f"{LAYER}.weight_scale", lambda _: None)
    failure(lambda: LLM(folder), ModelFormatError, f"{LAYER}.weight")
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    edit_config(folder, quantization_config=config | {"modules_to_not_convert": [LAYER]})
    modules = loading.load(folder, cached=False).weights.modules
    assert modules["model.layers.1.mlp.gate_up_proj.0"].format == "pot4"
    assert_same_bits(ops.dequantize(modules["model.layers.1.mlp.gate_up_proj.1"]), rows.numpy())


def test_large_exponents(tmp_path: Path) -> None:
    """E8P1 reaches 2^255: what is above 2^127 goes into the scale, if that leaves room below."""
    folder = FAMILIES["pot-e8p1"].write(tmp_path / "model")
    name = "model.layers.0.self_attn.o_proj"
    before = ops.dequantize(loading.load(folder, cached=False).weights.modules[name])

    def raised(by: int) -> Change:
        return lambda t: torch.from_numpy(t.numpy() + np.uint16(by << 7))

    edit_tensor(folder, f"{name}.weight", raised(110))
    edit_tensor(folder, f"{name}.weight_scale", lambda t: t * 2.0**-110)
    after = ops.dequantize(loading.load(folder, cached=False).weights.modules[name])
    np.testing.assert_allclose(after, before, rtol=1e-3)  # the scale was subnormal
    edit_tensor(folder, f"{name}.weight_scale", lambda t: t * 2.0**100 * 2.0**40)
    failure(lambda: LLM(folder), ModelFormatError, "2^128")
    edit_tensor(folder, f"{name}.weight", lambda t: torch.from_numpy(t.numpy() | 0x7F80))
    edit_tensor(folder, f"{name}.weight", words(0))
    failure(lambda: LLM(folder), ModelFormatError, "span of 253")


@pytest.mark.parametrize(
    ("encoding", "scale", "zero_free", "method"),
    [
        ("E3P2", "row", True, "nearest"),
        ("E3P2", "tensor", False, "s3"),
        ("E3P2", "group:32", True, "denseshift3"),
        ("E5P1", "row", True, "deepshift-q5"),
        ("E8P1", "tensor", True, "nearest"),
    ],
)
def test_writing(encoding: str, scale: str, zero_free: bool, method: str, tmp_path: Path) -> None:
    """Sterna reads the example's file: the same weights as the quantiser's, to the bit."""
    src = write(tmp_path / "src", RECIPES["llama-256"])
    arguments = ["--encoding", encoding, "--scale", scale, "--method", method]
    arguments += [] if zero_free else ["--zero"]
    made = subprocess.run(
        [sys.executable, EXAMPLE, src, tmp_path / "dst", *arguments],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"{LAYER}.weight: " in made.stdout
    stored = storage.description(encoding, scale, zero_free=zero_free)
    rule = quantizer(method, stored.max_exponent, not zero_free, encoding)
    levels = rule(load_file(src / "model.safetensors")[f"{LAYER}.weight"].numpy(), scale)
    if levels.scale.ndim == 2:
        half = levels.scale.astype(np.float16).astype(np.float32)
        levels = PotLevels(levels.signs, levels.exponents, half)
    modules = loading.load(tmp_path / "dst", cached=False).weights.modules
    got = ops.dequantize(modules["model.layers.1.mlp.gate_up_proj"])[512:]
    assert_same_bits(got + np.float32(0), levels.values() + np.float32(0))


def test_the_example_writes_over_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE, tmp_path, tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "exists" in done.stderr


def test_writing_what_does_not_fit() -> None:
    """A zero where there is none, exponents or scales that are not the encoding's."""
    ones = np.ones((2, 32), np.int8), np.zeros((2, 32), np.uint8)
    signs = ones[0].copy()
    signs[1, 3] = 0
    pot4 = storage.description("E3P2")
    for levels, expected in (
        (PotLevels(signs, ones[1], np.ones(2, np.float32)), ("(1, 3)", "no zero")),
        (PotLevels(ones[0], ones[1] + np.uint8(8), np.ones(2, np.float32)), ("(0, 0)", "is 8")),
        (PotLevels(*ones, np.float32(1)), ("scale", "(2,)", "()")),
    ):
        failure(lambda levels=levels: storage.tensors(levels, pot4), RequestError, *expected)
    large = PotLevels(*ones, np.full((2, 1), 1e6, np.float32))
    groups = storage.description("E3P2", "group:32")
    failure(lambda: storage.tensors(large, groups), NonFiniteError, "(0, 0)")
    failure(lambda: storage.description("E9"), RequestError, "E3P2", "E9")
    failure(lambda: storage.description("E8P1", zero_free=False), RequestError, "only E3P2")


FORMATS = ("pot4", "pot4z", "pot4:g32", "pot8", "pot16")


def fits(format: str, method: str) -> bool:
    """Whether the format has the method's levels."""
    try:
        formats.with_method(formats.get(format), method)
    except RequestError:
        return False
    return True


def test_which_methods_fit() -> None:
    """S3 needs a zero; all others go anywhere."""
    for format in FORMATS:
        expected = {m for m in METHODS if "z" in format or not m.startswith("s3")}
        expected -= {"deepshift-q5"} if format.startswith("pot4") else set()
        assert {m for m in METHODS if fits(format, m)} == expected


CASES = [(f, m) for f in FORMATS for m in METHODS if fits(f, m)]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny float Llama."""
    return write(tmp_path_factory.mktemp("models") / "llama", RECIPES["llama-96"])


@pytest.mark.parametrize(("format", "method"), CASES)
def test_quantized_models(format: str, method: str, llama: Path, tmp_path: Path) -> None:
    """Weights are the quantiser's; logits are those of a float Llama that has these weights.

    Formats for int8 activations are compared with a Llama that rounds the inputs of layers as they
    do: where a sum of floats differs in its last bit, an input may be rounded to the next step.
    """
    losses = convert(llama, tmp_path / "packed", format, method=method)
    model = loading.load(tmp_path / "packed", threads=1)
    stored = load_file(llama / "model.safetensors")
    by_name = {loss.name: loss for loss in losses}
    base = formats.get(format)
    for name, tensor in stored.items():
        if not name.endswith("_proj.weight"):
            continue
        module, _, part = name.removesuffix(".weight").rpartition(".")
        joined = {"q": "qkv", "k": "qkv", "v": "qkv", "gate": "gate_up", "up": "gate_up"}
        kind = part.removesuffix("_proj")
        packed = model.weights.modules[f"{module}.{joined.get(kind, kind)}_proj"]
        first = {"k": 96, "v": 128, "up": 160}.get(kind, 0)
        got = ops.dequantize(packed)[first : first + len(tensor)]
        if not base.scales.group:
            zero, top = format == "pot4z", {"pot4": 7, "pot4z": 6}.get(format, 31)
            levels = quantizer(method, top, zero, format)(tensor.numpy(), "row")
            np.testing.assert_array_equal(got, levels.values())
            loss = by_name[name.removesuffix(".weight")]
            assert loss.snr_db == pytest.approx(error(tensor.numpy(), levels).snr_db)
        stored[name] = torch.from_numpy(got)
    config = json.loads((llama / "config.json").read_text())
    reference = LlamaForCausalLM(LlamaConfig(**config)).eval().float()
    reference.load_state_dict(stored)
    if base.integer:
        for name, layer in reference.model.layers.named_modules():
            if name.endswith("_proj"):
                layer.register_forward_pre_hook(before_layer(None, 0, True, base.scales.group))
    (ids,) = tokens(1, 24)
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).logits[0].numpy()
    llm = LLM(tmp_path / "packed", head="f32", kv_dtype="f32", threads=1, deterministic=True)
    wrong = np.abs(llm.logits(ids) - expected).max() / expected.std()
    assert wrong < (0.1 if base.integer else 1e-4)


@pytest.mark.parametrize("format", FORMATS)
def test_scales_of_both_signs(format: str) -> None:
    """The sign of a weight is its own: a row of negative scale would be a mistake in the making."""
    shape = (64, 2) if ":" in format else (64,)
    scale = np.ones(shape, np.float32)
    for value, words in ((-1, ("some are negative", "is -1.0")), (0, ("positive", "is 0.0"))):
        scale[3] = value
        call = lambda: ops.pack(np.ones((64, 64)), scale, format=format)  # noqa: E731
        if ":" in format and value == 0:  # as it is for a group that zeros are nearer to
            np.testing.assert_array_equal(ops.dequantize(call())[3], 0)
        else:
            failure(call, RequestError, format, "(3", *words)


def test_methods_by_command(llama: Path, tmp_path: Path) -> None:
    """--method of `sterna quantize`, and of ops.quantize; where it has no meaning it is refused."""
    out = tmp_path / "out"
    result = command(
        "quantize", str(llama), str(out), "--format", "pot4z", "--method", "s3", "--json"
    )
    rows = json.loads(result.output)
    snr = [row["snr_db"] for row in rows if row["tensor"].endswith("q_proj")]
    assert all(12 < value < 16 for value in snr)
    for words in (
        ("--format", "pot4", "--method", "s3"),
        ("--format", "pot4", "--method", "s5"),
        ("--format", "i4", "--method", "nearest"),
        ("--format", "gguf:Q8_0", "--method", "nearest"),
    ):
        name = str(tmp_path / ("m.gguf" if "gguf" in words[1] else "m"))
        failed(command("quantize", str(llama), name, *words), "method")
    w = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    packed = ops.quantize(w, "pot8", method="denseshift2")
    assert len(np.unique(np.abs(ops.unpack(packed)[0]))) == 3
    failure(lambda: ops.quantize(w, "i2", method="nearest"), RequestError, "method", "i2")
