"""`accelerate` replaces the layers of models of others, and int8 gradients."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import ISAS, failure
from test_torch import K, M, activations, packed, same
from torch import nn
from transformers import AutoModelForCausalLM

import sterna.torch
from sterna import ops
from sterna.errors import NonFiniteError, RequestError
from sterna.torch import SternaLinear, accelerate, gradient, packed_tensors


@pytest.fixture
def eager() -> object:
    """transformers compiles pieces of its BitLinear; a test has no time for that."""
    with torch.compiler.set_stance("force_eager"):
        yield


def bitnet(folder: Path) -> nn.Module:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return nn.Module.float(model)  # parts of an offline one stay in bf16 otherwise


@pytest.mark.parametrize(
    "name", ["bitnet-divide", "bitnet-multiply", "bitnet-online", "bitnet-input-norms"]
)
@pytest.mark.usefixtures("eager")
def test_bitnet_of_transformers(name: str, checkpoint: Callable[[str], Path]) -> None:
    """Every layer as transformers computes it in float32, but for the rounding of its floats."""
    model = bitnet(checkpoint(name))
    plain = {n: m for n, m in model.named_modules() if type(m).__name__.endswith("BitLinear")}
    swaps = accelerate(model)
    assert {s.name for s in swaps.swapped} == set(plain)
    assert {s.format for s in swaps.swapped} == {"i2"}
    for layer_name, before in plain.items():
        after = model.get_submodule(layer_name)
        x = activations(7, before.in_features)
        with torch.no_grad():
            expected, got = before(x), after(x)
        # Sums of K products in another order. An activation on the next step would be 100 times it.
        size = float(expected.abs().max())
        assert float((got - expected).abs().max()) <= before.in_features * 2.0**-24 * size
    with torch.no_grad():
        text = model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, min_new_tokens=4)
    assert text.shape == (1, 7)


def small() -> nn.Module:
    model = nn.Sequential()
    model.add_module("first", nn.Linear(64, 48))
    model.add_module("again", model.first)  # one module at two places
    model.add_module("second", nn.Linear(48, 32, bias=False, dtype=torch.bfloat16))
    model.add_module("table", nn.Embedding(32, 48))
    model.add_module("head", nn.Linear(48, 32, bias=False))
    model.add_module("watched", nn.Linear(48, 32))
    model.head.weight = model.table.weight
    model.add_module("encoder", nn.TransformerEncoderLayer(48, 2, 16))
    model.watched.register_forward_hook(lambda *_: None)
    return model


def test_accelerate_says_what_it_did() -> None:
    """Linear layers with a format; those that are tied, or watched, stay."""
    model = small()
    before = model.first
    swaps = accelerate(model, "i8")
    assert [tuple(s) for s in swaps.swapped] == [
        ("first", "Linear", "i8"),
        ("second", "Linear", "i8"),
    ]
    assert {x.name: x.reason for x in swaps.left} == {
        "head": "its weight is that of table too",
        "watched": "it has hooks",
        "encoder.linear1": "torch's TransformerEncoderLayer reads its weight itself",
        "encoder.linear2": "torch's TransformerEncoderLayer reads its weight itself",
    }
    assert str(swaps) == (
        "swapped 2 of 6 linear layers: 2 Linear to i8; "
        "left head (Linear): its weight is that of table too; left watched (Linear): it has hooks; "
        "left 2 layers such as encoder.linear1 (Linear): torch's TransformerEncoderLayer reads its "
        "weight itself"
    )
    assert model.first is model.again
    x = activations(3, 64)
    weights = ops.quantize(before.weight.detach().numpy(), "i8")
    same(model.first(x), torch.from_numpy(ops.linear(x.numpy(), weights)) + before.bias.detach())
    assert model.first.bias is before.bias
    assert str(accelerate(model, "i8")).startswith("swapped 0 of 4")
    assert "no format given" in str(accelerate(small()))


def test_accelerate_swaps_all_or_none() -> None:
    """A layer that cannot be packed is named, and the model is what it was."""
    model = small()
    with torch.no_grad():
        model.second.weight[1, 2] = torch.nan
    message = failure(lambda: accelerate(model, "i8"), NonFiniteError, "second", "(1, 2) is nan")
    assert message.startswith("second: ")
    assert not [m for m in model.modules() if isinstance(m, SternaLinear)]
    failure(lambda: accelerate(small(), "q4_k"), RequestError, "first", "K=64")
    failure(lambda: accelerate(small(), "i3"), RequestError, "format")
    failure(lambda: accelerate(small().to("meta"), "i8"), RequestError, "first", "CPU", "meta")
    failure(lambda: accelerate(nn.Linear(2, 2), "i8"), RequestError, "SternaLinear.of")
    failure(lambda: accelerate("nano"), RequestError, "model", "str")  # type: ignore[arg-type]
    failure(lambda: SternaLinear.of(nn.Embedding(2, 2)), RequestError, "layer", "Embedding")
    failure(lambda: SternaLinear.of(nn.Linear(2, 2)), RequestError, "format", "must be given")
    assert sterna.torch.SternaLinear is SternaLinear


@pytest.mark.parametrize("format", ["i2", "i8", "pot4", "i4:g64"])
def test_gradients_in_bfloat16(format: str) -> None:
    """As near to the exact one as torch's own of that dtype: half a percent."""
    w = packed(format)
    x = activations(3, K).bfloat16().requires_grad_()
    out = activations(3, M, seed=5).bfloat16()
    SternaLinear(w)(x).backward(out)
    exact = out.double() @ torch.from_numpy(ops.dequantize(w)).double()
    assert x.grad is not None
    assert x.grad.dtype == torch.bfloat16
    assert float((x.grad.double() - exact).norm() / exact.norm()) < 5e-3


@pytest.mark.parametrize("format", ["i1", "i2", "i2p", "i4", "i8", "t5"])
def test_int8_gradients(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of integers: within what rounding to 127 steps loses, with the same bits."""
    monkeypatch.setattr(gradient, "_CHUNK_BYTES", 512 * K)  # a tile or two at a time
    monkeypatch.setattr(gradient, "_MOST_ROWS", 96)  # of several sums
    w = packed(format)
    out = activations(5, M, seed=3)
    found = []
    for isa in {ISAS[0], ISAS[-1]}:
        monkeypatch.setenv("STERNA_ISA", isa)
        x = activations(5, K).requires_grad_()
        SternaLinear(w, int8_gradient=True)(x).backward(out)
        assert x.grad is not None
        found.append(x.grad)
    same(found[0], found[-1])
    exact = out.double() @ torch.from_numpy(ops.dequantize(w)).double()
    error = float((found[0].double() - exact).norm() / exact.norm())
    assert 1e-4 < error < 2e-2


def test_int8_gradients_are_those_of_an_operator() -> None:
    """By torch's own rules, which look at no format."""
    tensors = (*packed_tensors(packed("i2")), "i2", M, K, True)
    wanted = activations(3, K).requires_grad_()
    torch.library.opcheck(torch.ops.sterna.linear.default, (wanted, *tensors))


def test_int8_gradients_of_no_rows() -> None:
    """An output of no columns has a gradient of zeros."""
    empty = ops.pack(np.zeros((0, K), np.int8), np.float32(1), format="i2")
    x = activations(2, K).requires_grad_()
    SternaLinear(empty, int8_gradient=True)(x).sum().backward()
    assert x.grad is not None
    assert not x.grad.any()


def test_int8_gradients_follow_their_weights() -> None:
    """W^T is made once, again where codes are written to, and goes when they go."""
    gc.collect()
    out, before = activations(2, M, seed=3), len(gradient._kept)

    def found(layer: SternaLinear) -> torch.Tensor:
        x = activations(2, K).requires_grad_()
        layer(x).backward(out)
        assert x.grad is not None
        return x.grad

    layer = SternaLinear(packed("i2"), int8_gradient=True)
    first = found(layer)
    kept = gradient._kept[layer.codes]
    same(first, found(layer))
    assert gradient._kept[layer.codes] is kept
    with torch.no_grad():
        layer.codes.copy_(SternaLinear(packed("i2", seed=9)).codes)
    assert not torch.equal(first, found(layer))
    assert gradient._kept[layer.codes] is not kept
    assert len(gradient._kept) == before + 1
    del layer
    gc.collect()
    assert len(gradient._kept) == before


def test_int8_gradients_are_refused() -> None:
    """By name, before anything is computed, for floats and for scales in groups."""
    for format in ("bf16", "q4_1", "i4:g64", "pot4"):
        w = packed(format)
        failure(lambda w=w: SternaLinear(w, int8_gradient=True), RequestError, "int8_gradient")
        late = SternaLinear(w)
        late.int8_gradient = True
        failure(
            lambda late=late: late(activations(2, K)), RequestError, "int8_gradient", w.format.name
        )
    model = nn.Sequential(nn.Linear(64, 32))
    assert accelerate(model, "i8", int8_gradient=True).swapped
    assert model[0].int8_gradient
