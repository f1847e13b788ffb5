"""`sterna.torch`: the operator and its module have the bits of `ops.linear`."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from helpers import failure
from torch import nn

from sterna import ops
from sterna.errors import NonFiniteError, RequestError
from sterna.torch import SternaLinear, gradient, packed_tensors

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
