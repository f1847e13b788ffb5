"""`sterna.train`: the forward pass of training is that of inference; gradients are the papers'."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import ISAS, assert_same_bits, failure
from test_hadamard import rotated_rows
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from sterna import loading, ops, train
from sterna.engine import Engine
from sterna.errors import NonFiniteError, RequestError
from sterna.formats.power_of_two import from_latents
from sterna.torch import SternaLinear

Make = Callable[[nn.Linear], train.QuantLinear]
MAKES: dict[str, Make] = {
    "bitlinear": train.BitLinear.of,
    "pareto-1": lambda layer: train.ParetoLinear.of(layer, bits=1),
    "pareto-1.58": lambda layer: train.ParetoLinear.of(layer, bits=1.58),
    "pareto-2": lambda layer: train.ParetoLinear.of(layer, bits=2),
    "pareto-3": lambda layer: train.ParetoLinear.of(layer, bits=3),
    "pareto-4": lambda layer: train.ParetoLinear.of(layer, bits=4),
    "groups": train.GroupTernaryLinear.of,
    "hadamard": lambda layer: train.GroupTernaryLinear.of(layer, rotation=train.Rotation(64)),
    "deepshift-q": train.DeepShiftQLinear.of,
    "deepshift-ps": train.DeepShiftPSLinear.of,
    "denseshift": train.DenseShiftLinear.of,
    "s3": train.S3Linear.of,
}
FORMATS = {
    "bitlinear": "i2", "pareto-1": "i1", "pareto-1.58": "i2", "pareto-2": "i2p", "pareto-3": "i4",
    "pareto-4": "i4", "groups": "i2:g128", "hadamard": "i2:g128", "deepshift-q": "pot4z",
    "deepshift-ps": "pot4z", "denseshift": "pot4", "s3": "pot4z",
}  # fmt: skip
SMALL = LlamaConfig(
    vocab_size=32, hidden_size=128, intermediate_size=128, num_hidden_layers=1,
    num_attention_heads=2, max_position_embeddings=64,
)  # fmt: skip
TOKENS = torch.tensor([[1, 5, 9, 3, 3, 20, 7]])
QUERY = "model.layers.0.self_attn.q_proj"


def trained(make: Make, steps: int = 2) -> LlamaForCausalLM:
    torch.manual_seed(3)
    model = LlamaForCausalLM(SMALL)
    assert len(train.prepare(model, make)) == 7
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for _ in range(steps):
        model(TOKENS, labels=TOKENS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@pytest.mark.parametrize("name", MAKES)
def test_training_is_inference(name: str, tmp_path: Path) -> None:
    """Training, eval and the exported weight have the same bits on every unit, after some steps."""
    before = trained(MAKES[name], 0).get_submodule(QUERY)
    model = trained(MAKES[name])
    layer = model.get_submodule(QUERY)
    after = dict(layer.named_parameters())
    assert not any(torch.equal(p, after[name]) for name, p in before.named_parameters())
    made = train.export(model, tmp_path / "out")
    assert made.n_layers == 7
    assert made.difference < 2e-2  # one activation may round to its neighbour in an order of torch
    loaded = loading.load(tmp_path / "out", cached=False)
    assert loaded.format == FORMATS[name]
    weight = loaded.weights.modules["model.layers.0.self_attn.o_proj"]
    layer = model.get_submodule("model.layers.0.self_attn.o_proj")
    assert isinstance(layer, train.QuantLinear)
    assert_same_bits(ops.dequantize(weight), layer.rounded().values.detach().numpy())
    x = torch.randn(5, 128)
    training = layer(x)
    assert training.requires_grad
    with torch.no_grad():
        assert torch.equal(layer.eval()(x), training)
    rows = x if layer.rotation is None else layer.rotation(x)
    for isa in ISAS:
        assert_same_bits(ops.linear(rows.numpy(), weight, isa=isa), training.detach().numpy())
        logits = Engine(loaded, isa=isa, threads=1, kv_dtype="f32").logits(TOKENS.tolist())[0]
        if isa == ISAS[0]:
            first = logits
        assert_same_bits(logits, first)


def test_rotations_have_the_bits_of_the_engine() -> None:
    """The order of sums is that of the kernels; a rotation and its weights change no product."""
    x, w = torch.randn(4, 256), torch.randn(4, 256)
    signs = np.where(np.arange(256) % 3, np.float32(1), np.float32(-1))
    rotation = train.Rotation(32, signs)
    for isa in ISAS:
        rows = rotated_rows(x.numpy(), rotation, False, isa)
        assert_same_bits(rotation(x).numpy(), np.ascontiguousarray(rows))
    torch.testing.assert_close(rotation(x) @ rotation(w).t(), x @ w.t(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(rotation(x).norm(), x.norm())
    failure(lambda: train.Rotation(24)(x), RequestError, "rotation", "K=256", "24")


@pytest.mark.parametrize(
    ("bits", "n", "h"), [(1.58, 1.5, 0.0), (2, 2.0, 0.5), (3, 0, 0), (1, 0, 0)]
)
def test_gradients_of_pareto(bits: float, n: float, h: float) -> None:
    """The gradients of the papers' cases, written out: below the range, above it, within."""
    torch.manual_seed(1)
    layer = train.ParetoLinear(torch.randn(6, 64), bits=bits)
    with torch.no_grad():
        layer.weight_clip_val.mul_(0.5 if bits != 1 else 1)  # so that some weights are clipped
    out = torch.randn(6, 64)
    layer.rounded().values.backward(out)
    v = (layer.weight / layer.weight_clip_val).detach()
    if bits == 1:
        of_alpha, top, within = v.sign(), 1.0, v.abs() <= 1
    elif bits == 3:
        level = v.round().clamp(-4, 3)
        within = (v >= -4) & (v <= 3)
        of_alpha, top = torch.where(within, level - v, level), 3.0
    else:
        level = ((v.clamp(-0.99, 0.99) * n - h).round() + h) / n
        within = v.abs() <= 0.99
        of_alpha, top = torch.where(within, level - v, level), (n - h) / n
    assert bool(within.any())
    assert not bool(within.all())
    expected = (of_alpha * out).sum(1, keepdim=True) / (64 * 6 * top) ** 0.5
    torch.testing.assert_close(layer.weight_clip_val.grad, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer.weight.grad, out * within, rtol=1e-5, atol=1e-6)


def test_gradients_of_products() -> None:
    """Of x and of the masters: floats' of what was rounded, straight through the rounding."""
    layer = train.BitLinear(torch.randn(8, 64))
    x, out = torch.randn(2, 3, 64, requires_grad=True), torch.randn(2, 3, 8)
    layer(x).backward(out)
    values = layer.rounded().values.detach()
    step = x.detach().abs().amax(-1, keepdim=True) / 127
    seen = (x.detach() / step).round() * step
    torch.testing.assert_close(x.grad, out @ values)
    torch.testing.assert_close(layer.weight.grad, torch.einsum("abm,abk->mk", out, seen))


def test_latents_of_powers_of_two() -> None:
    """The layers compute equations 1 to 4, for any of their parameters."""
    torch.manual_seed(2)
    for make, T in ((train.DenseShiftLinear, 3), (train.S3Linear, 2)):
        layer = make(torch.randn(16, 32))
        for p in layer.parameters():
            nn.init.normal_(p)
        nn.init.uniform_(layer.scale, 0.5, 2)
        arrays = {name: p.detach().numpy() for name, p in layer.named_parameters()}
        shifts = [arrays[f"w_{t}"] for t in range(1, T + 1)]
        meant = from_latents(arrays["w_sign"], shifts, arrays.get("w_sparse"), arrays["scale"])
        assert_same_bits(layer.rounded().values.detach().numpy(), meant.values())
        assert_same_bits(ops.dequantize(layer.packed()), meant.values())


def test_a_state_of_pareto_is_a_checkpoint_of_paretoq(tmp_path: Path) -> None:
    """`save_pretrained` with w_bits in config.json gives the bits of the export."""
    for bits, w_bits in ((1, 1), (1.58, 0), (2, 2), (3, 3), (4, 4)):
        model = trained(lambda layer, b=bits: train.ParetoLinear.of(layer, bits=b), 1)
        train.export(model, tmp_path / f"{bits}")
        model.config.w_bits = w_bits
        model.save_pretrained(tmp_path / f"{bits}-latents")
        found = [
            Engine(loading.load(tmp_path / name, cached=False), threads=1).logits([[1, 2, 3]])[0]
            for name in (f"{bits}", f"{bits}-latents")
        ]
        assert_same_bits(*found)


def test_input_norms(tmp_path: Path) -> None:
    """A norm before each layer is exported with it, and changes the result."""
    torch.manual_seed(4)
    model = LlamaForCausalLM(SMALL)

    def make(layer: nn.Linear) -> train.QuantLinear:
        norm = nn.RMSNorm(layer.in_features, eps=1e-6)
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        return train.BitLinear(layer.weight, rms_norm=norm)

    train.prepare(model, make)
    assert train.export(model, tmp_path / "out").difference < 2e-2
    model.get_submodule(QUERY).rms_norm = None
    failure(lambda: train.export(model, tmp_path / "two"), RequestError, "rms_norm", "6 of 7")


def test_states_and_copies() -> None:
    """A copy and a state dict have the bits; a new value is packed anew."""
    layer, x = train.BitLinear(torch.randn(16, 64)).eval(), torch.randn(2, 64)
    with torch.no_grad():
        first = layer(x)
        other = copy.deepcopy(layer)
        other.load_state_dict(layer.state_dict())
        assert torch.equal(other(x), first)
        layer.weight.mul_(-1)
        assert torch.equal(layer(x), -first)
        assert torch.equal(other(x), first)


def test_a_layer_in_two_places_stays_one() -> None:
    """Both places get it, and gradients of both reach its masters."""
    one = nn.Linear(64, 64)
    model = nn.Sequential(one, nn.ReLU(), one)
    assert train.prepare(model, train.BitLinear.of) == ["0"]
    assert model[0] is model[2]
    assert isinstance(model[0], train.BitLinear)
    x = torch.randn(2, 64)
    model(x).square().sum().backward()
    both = model[0].weight.grad.clone()
    model[0].weight.grad = None
    model[2](model[1](model[0](x).detach())).square().sum().backward()
    assert not torch.equal(both, model[0].weight.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dtypes_may_be_mixed(dtype: torch.dtype) -> None:
    """Masters in float32 and activations in 16 bits, or the other way round: y has x's dtype."""
    weight, bias, x = torch.randn(16, 64), torch.randn(16), torch.randn(3, 64)
    wide, narrow = (train.BitLinear(weight.to(t), bias.to(t)) for t in (torch.float32, dtype))
    for layer, given in ((wide, x.to(dtype)), (narrow, x)):
        y = layer(given.requires_grad_())
        assert y.dtype == given.dtype
        y.float().sum().backward()
        assert given.grad.dtype == given.dtype
        assert layer.weight.grad.dtype == layer.weight.dtype
        with torch.no_grad():
            assert torch.equal(layer.eval()(given), y)


@pytest.mark.parametrize("name", MAKES)
def test_scales_of_zero(name: str) -> None:
    """Weights that are all 0, and trained scales that became 0: finite, or refused by name."""
    zeros = nn.Linear(128, 16, bias=False)
    nn.init.zeros_(zeros.weight)
    layer, x = MAKES[name](zeros), torch.randn(2, 128).requires_grad_()
    y = layer(x)
    y.sum().backward()
    assert bool(y.isfinite().all())
    assert all(bool(p.grad.isfinite().all()) for p in layer.parameters() if p.grad is not None)
    trained_scale = next((s for s in ("scale", "weight_clip_val") if hasattr(layer, s)), None)
    if trained_scale is None:
        return
    with torch.no_grad():
        getattr(layer, trained_scale).zero_()
    if trained_scale == "scale":
        failure(lambda: layer(x), RequestError, "scale", "row 0")
    else:  # counts as the smallest
        assert bool(layer(x).isfinite().all())


def test_refusals(tmp_path: Path) -> None:
    """Each names the module or tensor, the rule and the value."""
    out = tmp_path / "out"
    model = trained(train.S3Linear.of, 0)
    query = model.get_submodule(QUERY)
    with torch.no_grad():
        query.scale[3] = 0
    failure(lambda: train.export(model, out), RequestError, QUERY, "scale", "row 3")
    with torch.no_grad():
        query.scale[3] = 1
        query.w_2[1, 2] = torch.nan
    failure(lambda: train.export(model, out), NonFiniteError, QUERY, "w_2", "(1, 2)", "nan")
    failure(lambda: query(torch.ones(1, 128)), NonFiniteError, "w_2")
    assert not out.exists()
    failure(lambda: train.export(LlamaForCausalLM(SMALL), out), RequestError, "prepare")
    failure(lambda: train.export(nn.Linear(2, 2), out), RequestError, "Linear")
    tied = nn.ModuleDict({"a": nn.Linear(64, 64), "b": nn.Linear(64, 64)})
    tied["b"].weight = tied["a"].weight
    failure(lambda: train.prepare(tied, train.BitLinear.of), RequestError, "a", "b", "weight")
    assert type(tied["a"]) is nn.Linear
    failure(lambda: train.prepare(model, train.BitLinear.of), RequestError, "none")
    nowhere = nn.ModuleDict({"a": nn.Linear(64, 64, device="meta")})
    failure(lambda: train.prepare(nowhere, train.BitLinear.of), RequestError, "a", "meta")
    failure(lambda: query(torch.ones(1, 128, device="meta")), RequestError, "x", "cpu", "meta")
    other = train.BitLinear(torch.randn(16, 64))
    failure(lambda: other(torch.ones(1, 64).double()), RequestError, "x", "float64")
    with pytest.raises(RuntimeError, match="floating point"):  # torch's own, of codes
        SternaLinear(other.packed()).codes.requires_grad_()
    for call, word in (
        (lambda: train.ParetoLinear(torch.ones(2, 2), bits=5), "bits"),
        (lambda: train.DeepShiftQLinear(torch.ones(2, 2), bits=8), "bits"),
        (lambda: train.DenseShiftLinear(torch.ones(2, 2), T=9), "T"),
        (lambda: train.GroupTernaryLinear(torch.ones(2, 96), group=64), "64"),
        (lambda: train.BitLinear(torch.ones(2)), "weight"),
        (lambda: train.BitLinear.of(nn.ReLU()), "ReLU"),
    ):
        failure(call, RequestError, word)
