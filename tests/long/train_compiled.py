"""`Settings.compiled`: torch.compile, which the suite runs without (20 s, and a compiler)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from test_train_loop import model, rows

from sterna.train.loop import TrainingOptions, _loss, _step
from sterna.train.loop import train as run


@pytest.fixture(autouse=True)
def compiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "0")  # conftest has it 1
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(disable=False):
        yield


def test_one_graph() -> None:
    """The loss of a step is one graph, with short products and rows of several examples."""
    one, other = model(), model()
    settings = TrainingOptions(1, batch=4, at_once=2, bf16=True)
    graph = torch.compile(_loss, dynamic=False, fullgraph=True, backend="aot_eager")
    losses = [_step(one, rows(), settings, 0, _loss), _step(other, rows(), settings, 0, graph)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for (name, p), (_, q) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=2e-2, atol=1e-4, msg=name)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_a_compiled_run(tmp_path: Path) -> None:
    """Its losses are those of one that is not compiled, but for the order of float sums."""
    found = []
    for compiled in (False, True):
        settings = TrainingOptions(6, 1e-3, 4, at_once=3, bf16=True, compiled=compiled)
        found.append(run(model(), rows(), settings, tmp_path / str(compiled)))
    assert found[1] == pytest.approx(found[0], rel=2e-3)
    assert found[1][-1] < found[1][0]
