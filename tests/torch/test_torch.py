"""`sterna.torch`: the operator and its module have the bits of `ops.linear`."""

from __future__ import annotations

import copy
import gc
import io
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import ISAS, failure
from torch import nn
from transformers import AutoModelForCausalLM

import sterna.torch
from sterna import ops
from sterna.errors import NonFiniteError, RequestError
from sterna.torch import SternaLinear, accelerate, gradient, packed_tensors

# One scale, rows', groups', minima, super-blocks, floats, powers of two.
FORMATS = ("i2", "t5", "i8", "i2p", "i2:g64", "q4_1", "q4_k", "bf16", "f32", "pot8")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
M, K = 200, 256


def packed(format: str, m: int = M, k: int = K, seed: int = 1) -> ops.PackedWeight:
    return ops.quantize(np.random.default_rng(seed).normal(size=(m, k)), format)


def layer(format: str = "i2", bias: bool = False) -> SternaLinear:
    return SternaLinear(packed(format), torch.randn(M) if bias else None)


def activations(*shape: int, seed: int = 2) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def same(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal dtype, shape and bits."""
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


# ----------------------------------------------------------------------------------------- products


@pytest.mark.parametrize("format", FORMATS)
def test_the_bits_of_ops_linear(format: str) -> None:
    """Of every dtype and form of x, through the module and through torch's dispatch."""
    w = packed(format)
    module = SternaLinear(w)
    wide = activations(3, 2 * K)
    for x in (activations(K), activations(1, K), activations(2, 20, K), wide[:, ::2], wide[:0, :K]):
        for dtype in DTYPES:
            given = x.to(dtype)
            expected = torch.from_numpy(ops.linear(given.float().numpy(), w)).to(dtype)
            same(module(given), expected)
            same(torch.ops.sterna.linear(given, *packed_tensors(w), format, M, K), expected)


@pytest.mark.parametrize("format", FORMATS)
def test_gradient(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """grad W in float32, summed over parts of W: each sum of M terms within their rounding."""
    monkeypatch.setattr(gradient, "_CHUNK_BYTES", 4 * 128 * K)  # a tile or two at a time
    w = packed(format)
    x = activations(2, 3, K).requires_grad_()
    grad = activations(2, 3, M, seed=3)
    SternaLinear(w)(x).backward(grad)
    weights = torch.from_numpy(ops.dequantize(w)).double()
    exact, size = grad.double() @ weights, grad.double().abs() @ weights.abs()
    assert x.grad is not None
    assert ((x.grad.double() - exact).abs() <= M * 2.0**-24 * size).all()


def test_gradients_of_bias_and_low_precision() -> None:
    """The bias has one; x has its own dtype's; without need there is no graph."""
    module = SternaLinear(packed("i2"), nn.Parameter(torch.zeros(M, dtype=torch.bfloat16)))
    x = activations(4, K).bfloat16().requires_grad_()
    module(x).sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.bfloat16
    same(module.bias.grad, torch.full((M,), 4.0, dtype=torch.bfloat16))
    wide = SternaLinear(packed("i2"), nn.Parameter(torch.ones(M)))
    with torch.autocast("cpu", torch.bfloat16):  # which makes x short, and no layer's parameters
        y = wide(x)
    same(y, layer()(x) + torch.ones(M, dtype=torch.bfloat16))
    y.sum().backward()
    same(wide.bias.grad, torch.full((M,), 4.0))
    assert not layer()(activations(4, K)).requires_grad
    none = activations(4, K).requires_grad_()
    SternaLinear(packed("i2", m=0))(none).sum().backward()
    same(none.grad, torch.zeros(4, K))
    assert [name for name, _ in layer().named_parameters()] == []


def test_second_gradients_are_refused() -> None:
    """They would be those of float weights, and torch would warn of them and give 0."""
    x = activations(2, K).requires_grad_()
    (grad,) = torch.autograd.grad(layer()(x).square().sum(), x, create_graph=True)
    failure(lambda: grad.sum().backward(), RequestError, "sterna::linear", "second")


@pytest.mark.parametrize("format", ["i2", "q4_1", "bf16"])
def test_opcheck(format: str) -> None:
    """torch's own test: schema, fake kernel, autograd, tracing with shapes that vary."""
    tensors = packed_tensors(packed(format))
    for x in (activations(3, K), activations(2, 1, K).bfloat16().requires_grad_()):
        torch.library.opcheck(torch.ops.sterna.linear.default, (x, *tensors, format, M, K))
    y = activations(3, M)
    torch.library.opcheck(torch.ops.sterna.linear_backward.default, (y, *tensors, format, M, K))


def test_compile_and_export() -> None:
    """One graph without breaks, the same bits, the same gradients; and of an export."""
    module = layer(bias=True)
    x, twin = activations(3, K).requires_grad_(), activations(3, K).requires_grad_()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    expected = module(x)
    same(compiled(twin), expected)
    expected.sum().backward()
    compiled(twin).sum().backward()
    same(twin.grad, x.grad)
    rows = torch.export.Dim("rows")
    program = torch.export.export(module, (x.detach(),), dynamic_shapes=({0: rows},))
    assert "sterna.linear" in str(program.graph)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    again = torch.export.load(file).module()
    more = activations(5, K)
    same(again(more), module(more))


# -------------------------------------------------------------------------------------------- state


def saved(module: nn.Module) -> bytes:
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    return file.getvalue()


@pytest.mark.parametrize("format", ["i2", "q4_k", "bf16"])
def test_copies_and_states(format: str) -> None:
    """Copied, pickled, saved, converted: the same bits, and never half of it."""
    module, x = layer(format, bias=True), activations(3, K)
    expected = module(x)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        same(twin(x), expected)
        assert twin.codes.data_ptr() != module.codes.data_ptr()
    for assign in (False, True):
        other = SternaLinear(packed(format, seed=5), torch.zeros(M))
        other(x)  # the kernels' view of the codes before must not stay
        state = torch.load(io.BytesIO(saved(module)), weights_only=True)
        if assign:  # as from a file of another alignment
            raw = torch.empty(state["codes"].numel() + 4, dtype=torch.uint8)[4:]
            state["codes"] = raw.view(state["codes"].shape).copy_(state["codes"])
        other.load_state_dict(state, assign=assign)
        same(other(x), expected)
    low = copy.deepcopy(module).bfloat16()
    assert low.scale.dtype == module.scale.dtype
    assert low(x.bfloat16()).dtype == torch.bfloat16
    np.testing.assert_array_equal(ops.dequantize(module.packed), ops.dequantize(packed(format)))


def test_states_of_others() -> None:
    """Another format's, though its tensors have the same shapes, and damaged codes."""
    state = layer("i2p").state_dict()
    failure(lambda: layer("i2").load_state_dict(state), RequestError, "format", "i2p", "i2,")
    state = layer("i2").state_dict()
    state["codes"] = torch.full_like(state["codes"], 255)
    before = layer("i2")
    failure(lambda: before.load_state_dict(state), RequestError, "codes", "damaged")
    same(before(activations(1, K)), layer("i2")(activations(1, K)))


class _Rows(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> torch.Tensor:
        with torch.no_grad():
            return self.module(activations(K, seed=i))


def test_after_fork() -> None:
    """Workers of a DataLoader compute with what their parent has used."""
    rows = _Rows(layer())
    expected = torch.stack([rows[i] for i in range(4)])
    got = torch.cat(list(torch.utils.data.DataLoader(rows, batch_size=2, num_workers=2)))
    same(got, expected)


# --------------------------------------------------------------------------------------- refusals


def test_refusals() -> None:
    """One line each, with what was wanted and what was got."""
    module, x = layer(bias=True), activations(2, K)
    codes, scale = module.codes, module.scale

    def call(x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, k: int = K) -> None:
        torch.ops.sterna.linear(x, codes, scale, "i2", M, k)

    failure(lambda: module(x.double()), RequestError, "x", "float32", "float64")
    failure(lambda: module(x[:, 1:]), RequestError, "x", f"K={K}", f"(2, {K - 1})")
    failure(lambda: module(x.bfloat16()), RequestError, "bias", "bfloat16", "float32")
    failure(lambda: module(x * torch.nan), NonFiniteError, "x", "(0, 0) is nan")
    meta = layer().to("meta")
    failure(lambda: meta(x), RequestError, "codes", "on the CPU", "meta")
    failure(lambda: call(x.to("meta"), codes, scale), RequestError, "one device, the CPU", "meta")
    failure(lambda: call(x, codes[:1], scale), RequestError, "codes", "M, K = 200, 256")
    failure(lambda: call(x, codes, scale[:M]), RequestError, "scale", "(200,)")
    failure(lambda: call(x, codes, scale.half()), RequestError, "scale", "float32", "float16")
    failure(lambda: call(x, codes.t(), scale), RequestError, "codes", "contiguous")
    failure(lambda: call(x[:, :9], codes, scale, 9), RequestError, "codes", "M, K = 200, 9")
    frozen = scale.clone().requires_grad_()
    failure(lambda: call(x, codes, frozen), RequestError, "scale", "no gradient")
    odd = torch.zeros(codes.numel() + 4, dtype=torch.uint8)[4:].view(codes.shape)
    failure(lambda: call(x, odd, scale), RequestError, "codes", "multiple of 64 bytes")
    failure(lambda: SternaLinear(packed("i2"), torch.zeros(3)), RequestError, "bias", "(200,)")
    with pytest.raises(RequestError, match="format: must be one of"):
        torch.ops.sterna.linear(x, codes, scale, "i3", M, K)


# ------------------------------------------------------------------------------------------- models


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
    tensors = (*packed_tensors(w), format, M, K, True)
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
