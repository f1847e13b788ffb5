"""The training loop's ways to be faster change no forward bits, and no gradient by much."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Literal

import pytest
import torch
from helpers import assert_same_bits, failure
from test_train import MAKES, SMALL
from torch import nn
from transformers import LlamaForCausalLM

from sterna import train
from sterna.errors import RequestError
from sterna.train.bf16_product import is_exact
from sterna.train.chats import Example, Rows, rows_of
from sterna.train.loop import TrainingOptions, _loss, _step
from sterna.train.loop import train as run
from sterna.train.round_per_step import round_per_step


def rows(count: int = 6) -> Rows:
    """Examples of other lengths, two in a row, so that positions begin again."""
    made = [Example([3 + i, 4 + i, 5 + i, 6], [True] * 4) for i in range(2 * count)]
    return rows_of([*made, Example([7, 8, 9], [True] * 3)], 8)


def model(make: object = train.BitLinear.of) -> LlamaForCausalLM:
    torch.manual_seed(3)
    made = LlamaForCausalLM(SMALL)
    train.prepare(made, make)
    return made


@pytest.mark.parametrize("name", MAKES)
def test_short_products_have_the_bits_of_kernels(name: str) -> None:
    """Of each quantiser with exact sums; others keep their product. Gradients: bfloat16's."""
    torch.manual_seed(5)
    layer = MAKES[name](nn.Linear(256, 96, bias=name == "pareto-3"))
    assert is_exact(layer.rounded()) == (name not in ("groups", "hadamard"))
    x = torch.randn(2, 5, 256) * torch.logspace(-9, 3, 10).reshape(2, 5, 1)
    x[0, 0], x[1, 1, 7] = 0, 1e4
    out = torch.randn(2, 5, 96)
    found = []
    for bf16 in (False, True):
        layer.zero_grad()
        seen = x.clone().requires_grad_()
        with round_per_step(layer, bf16):
            y = layer(seen)
            y.backward(out)
        assert layer.held is None
        found.append((y.detach(), seen.grad, {n: p.grad for n, p in layer.named_parameters()}))
    y = layer(x.clone().requires_grad_())
    for other, _, _ in found:
        assert_same_bits(other.numpy(), y.detach().numpy())
    (_, of_x, plain), (_, short_x, short) = found
    assert torch.linalg.vector_norm(of_x - short_x) < 6e-3 * torch.linalg.vector_norm(of_x)
    for key, grad in plain.items():
        apart = torch.linalg.vector_norm(grad - short[key])
        assert apart <= 6e-3 * torch.linalg.vector_norm(grad), key
    assert torch.backends.mkldnn.matmul.fp32_precision != "bf16"


def test_sums_that_floats_do_not_hold() -> None:
    """Levels of 8 bits, wider than 1,032, are left to the kernels."""
    narrow, wide = (train.ParetoLinear.of(nn.Linear(k, 4), bits=4) for k in (64, 20_000))
    assert is_exact(narrow.rounded())
    assert not is_exact(wide.rounded())


def test_rows_in_parts_have_the_gradients_of_the_whole() -> None:
    """Also where parts have other numbers of tokens that are trained, and the last is smaller."""
    whole, parts = model(), model()
    losses = [
        _step(one, rows(), TrainingOptions(9, batch=5, at_once=n), 1, _loss)
        for one, n in ((whole, 0), (parts, 2))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    for (name, p), (_, q) in zip(whole.named_parameters(), parts.named_parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-6, msg=name)


def test_epochs_have_each_row_once() -> None:
    """For any batch, and across the edges of epochs."""
    from sterna.train.loop import _rows_of_step

    for batch in (1, 4, 7, 23):
        settings = TrainingOptions(10, batch=batch)
        order = torch.cat([_rows_of_step(7, settings, step) for step in range(-(-28 // batch))])
        for epoch in order[:28].split(7):
            assert sorted(epoch.tolist()) == list(range(7))
        assert not torch.equal(order[:7], order[7:14])


def test_schedules() -> None:
    """A rise to one; a fall to a tenth, to none, or to zero."""
    ends: list[tuple[Literal["cosine", "none", "line"], float]]
    ends = [("cosine", 0.1), ("none", 1.0), ("line", 0.01)]
    for fall, last in ends:
        settings = TrainingOptions(105, warmup=5 / 105, fall=fall)
        assert settings.part(0) == pytest.approx(0.2)
        assert settings.part(4) == settings.part(5) == 1
        assert settings.part(104) == pytest.approx(last, abs=1e-3)
    assert TrainingOptions(4, warmup=0, fall="line").part(0) == 1


def test_a_run_begins_where_another_is(tmp_path: Path) -> None:
    """Parameters and moments are the other's, rates its own; then it resumes as any run does."""
    first, second, third = model(), model(), model()
    run(first, rows(), TrainingOptions(3, 1e-2, 2, muon=0.02), tmp_path / "a")
    settings = TrainingOptions(4, 1e-3, 1, muon=0.01, fall="line", warmup=0)
    losses = run(second, rows(3), settings, tmp_path / "b", 2, start=tmp_path / "a")
    state = torch.load(tmp_path / "b" / "state.pt", weights_only=True)
    assert [o["param_groups"][0]["highest"] for o in state["optimizers"]] == [1e-3, 0.01]
    assert int(state["optimizers"][0]["state"][0]["step"]) == 7
    copy_of = copy.deepcopy(first)
    assert losses[0] == pytest.approx(_step(copy_of, rows(3), settings, 0, _loss), rel=1e-6)
    (tmp_path / "a" / "state.pt").unlink()  # what was begun needs it no more
    assert run(third, rows(3), settings, tmp_path / "b", start=tmp_path / "a") == losses
    failure(lambda: run(third, rows(), settings, tmp_path / "c", start=tmp_path / "a"),
            RequestError, "state.pt")  # fmt: skip
    other = LlamaForCausalLM(SMALL)
    failure(lambda: run(other.requires_grad_(False), rows(), settings, tmp_path / "c",
                        start=tmp_path / "b"), RequestError, "layers")  # fmt: skip
