"""`sterna.torch.export_checkpoint`: what torch trained is what Sterna runs, bit for bit."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import assert_same_bits, failure
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from sterna import LLM, loading
from sterna.engine import Engine
from sterna.errors import NonFiniteError, RequestError
from sterna.torch import accelerate, export_checkpoint

TOKENS = [[5, 6, 7, 8, 9, 10]]
LAYERS = 14
SMALL = LlamaConfig(
    vocab_size=16,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
)
EXAMPLE = Path(__file__).parents[2] / "examples" / "finetune_bitnet.py"
QUERY = "model.layers.0.self_attn.q_proj"


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    """transformers compiles pieces of its BitLinear; a test has no time for that."""
    with torch.compiler.set_stance("force_eager"):
        yield


def bitnet(folder: Path) -> nn.Module:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return nn.Module.float(model)  # parts of an offline one stay in bf16 otherwise


def logits(folder: Path) -> np.ndarray:
    return Engine(loading.load(folder, cached=False), threads=1).logits(TOKENS)[0]


@pytest.mark.parametrize("name", ["bitnet-divide", "bitnet-multiply", "bitnet-input-norms"])
def test_there_and_back(name: str, checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """A checkpoint through transformers, and through accelerate: its own bits in Sterna."""
    source = checkpoint(name)
    model, expected = bitnet(source), logits(source)
    made = export_checkpoint(model, tmp_path / "plain")
    assert made.n_layers == LAYERS
    assert made.difference < 1e-5  # of float32; another level or scale somewhere would be 1e-2
    assert_same_bits(logits(tmp_path / "plain"), expected)
    with torch.no_grad():  # transformers reads it too
        before, after = (
            m(torch.tensor(TOKENS)).logits for m in (model, bitnet(tmp_path / "plain"))
        )
    torch.testing.assert_close(after, before, rtol=0, atol=1e-5 * float(before.abs().max()))
    accelerate(model)
    export_checkpoint(model, tmp_path / "accelerated")
    assert_same_bits(logits(tmp_path / "accelerated"), expected)


def test_after_training(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Masters after a few steps: the bits of the masters that save_pretrained writes, and text."""
    source = checkpoint("bitnet-online")
    model = bitnet(source).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(3):
        loss = model(torch.tensor(TOKENS), labels=torch.tensor(TOKENS)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    made = export_checkpoint(model, tmp_path / "out", AutoTokenizer.from_pretrained(source))
    assert model.training
    assert "14 low-bit layers" in str(made)
    assert made.difference < 1e-5
    model.save_pretrained(tmp_path / "masters")
    assert_same_bits(logits(tmp_path / "out"), logits(tmp_path / "masters"))
    assert not np.array_equal(logits(tmp_path / "out"), logits(source))
    assert LLM(str(tmp_path / "out")).generate("abc", max_tokens=3).text is not None


def test_example(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Chats learnt by heart in torch are answered so in Sterna."""
    spec = importlib.util.spec_from_file_location("finetune_bitnet", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    ask = {"role": "user", "content": "Hello"}
    chat = [ask, {"role": "assistant", "content": "Good day"}]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": chat}) + "\n")
    source, out = checkpoint("bitnet-online"), tmp_path / "out"
    example.main([str(source), str(tmp_path / "chats.jsonl"), str(out), "--epochs=40", "--lr=0.01"])
    answer = LLM(str(out)).chat([ask], max_tokens=8, temperature=0).text
    assert answer.strip() == "Good day"


def test_refusals(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Named, and nothing is written."""
    model = bitnet(checkpoint("bitnet-online"))
    out = tmp_path / "out"
    failure(lambda: export_checkpoint(nn.Linear(2, 2), out), RequestError, "model", "Linear")
    floats = LlamaForCausalLM(SMALL)
    failure(lambda: export_checkpoint(floats, out), RequestError, "save_pretrained")
    accelerate(floats, "i8")
    failure(lambda: export_checkpoint(floats, out), RequestError, "q_proj", "i8", "ternary")
    with torch.no_grad():
        model.get_submodule(QUERY).weight[3, 2] = torch.nan
    failure(lambda: export_checkpoint(model, out), NonFiniteError, QUERY)
    with torch.no_grad():
        model.get_submodule(QUERY).weight[3, 2] = 0
        model.model.norm.weight[0] = torch.inf
    failure(lambda: export_checkpoint(model, out), NonFiniteError, "model.norm.weight")
    assert not list(tmp_path.iterdir())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with torch.no_grad():
        model.model.norm.weight[0] = 1
    failure(lambda: export_checkpoint(model, tmp_path / "full"), RequestError, "empty folder")
