"""`sterna.integrations.transformers`: folders both ways, floats rounded while opened, generate."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_same_bits, failure
from transformers import AutoModel, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from sterna import LLM, loading
from sterna.engine import Engine
from sterna.errors import ModelFormatError, RequestError
from sterna.integrations.transformers import SternaConfig, delegate
from sterna.torch import SternaLinear
from sterna.torch.packed_layers import open_layers

TOKENS = [[5, 6, 7, 8, 9, 10]]


def packed(source: Path, to: Path) -> Path:
    loading.save(loading.load(source, cached=False), to)
    return to


def logits(folder: Path) -> np.ndarray:
    return Engine(loading.load(folder, cached=False), threads=1, kv_dtype="f32").logits(TOKENS)[0]


def torch_logits(model: torch.nn.Module) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(TOKENS)).logits[0].float().numpy()


@pytest.mark.parametrize("name", ["bitnet-multiply", "bitnet-input-norms", "qwen2"])
def test_a_packed_folder_both_ways(
    name: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Opened: the engine's logits, but for the order of float sums; saved again: its bits."""
    folder = packed(checkpoint(name), tmp_path / "packed")
    expected = logits(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert sum(isinstance(m, SternaLinear) for m in model.modules()) == 14
    difference = np.abs(torch_logits(model) - expected).max() / np.abs(expected).max()
    assert difference < 1e-5
    if name != "qwen2":  # whose floats are no levels
        model.save_pretrained(tmp_path / "again", safe_serialization=True, push_to_hub=False)
        assert_same_bits(logits(tmp_path / "again"), expected)
        failure(lambda: model.save_pretrained(tmp_path, push_to_hub=True), RequestError, "push")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, "auto"])
def test_a_packed_folder_in_short_floats(
    dtype: Any,
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scales stay float32, whatever dtype a model opens in; "auto" is bfloat16 here. Its tied head
    is tied, and transformers takes none of it for damage."""
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    folder = packed(checkpoint("bitnet-input-norms"), tmp_path / "packed")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    expected = logits(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    assert caplog.messages == []
    assert model.lm_head.weight is model.model.embed_tokens.weight
    layers = [m for m in model.modules() if isinstance(m, SternaLinear)]
    assert {layer.scale.dtype for layer in layers} == {torch.float32}
    floats = {p.dtype for p in model.parameters()}
    assert floats == {torch.bfloat16 if dtype == "auto" else dtype}
    assert np.abs(torch_logits(model) - expected).max() / np.abs(expected).max() < 0.05


def test_floats_are_rounded(tmp_path: Path) -> None:
    """The head stays, unless it is named; the result runs in Sterna."""
    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=32, hidden_size=64, intermediate_size=96, num_hidden_layers=1,
        num_attention_heads=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path / "floats")
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path / "floats", dtype=torch.float32, quantization_config=SternaConfig("i8")
    )
    assert type(model.lm_head) is torch.nn.Linear
    assert sum(isinstance(m, SternaLinear) for m in model.modules()) == 7
    model.save_pretrained(tmp_path / "packed")
    got = logits(tmp_path / "packed")
    np.testing.assert_allclose(torch_logits(model), got, atol=2e-2 * np.abs(got).max())


def test_generate_is_delegated(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Padded prompts of different lengths: the tokens that LLM writes of each alone."""
    folder = packed(checkpoint("bitnet-multiply"), tmp_path / "packed")
    llm = LLM(str(folder), threads=1)
    model = delegate(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), llm)
    rows, mask = torch.tensor([[0, 0, 5, 6], [9, 8, 7, 6]]), torch.tensor([[0, 0, 1, 1], [1] * 4])
    got = model.generate(rows, attention_mask=mask, max_new_tokens=6, do_sample=False)
    assert torch.equal(got[:, :4], rows)
    ends = model.generation_config.eos_token_id
    for row, prompt in zip(got, ([5, 6], [9, 8, 7, 6]), strict=True):
        alone = llm.generate(prompt, max_tokens=6, temperature=0, stop_token_ids=ends).tokens
        assert row[4 : 4 + len(alone)].tolist() == alone
    torch.manual_seed(3)
    first = model.generate(rows, max_new_tokens=4, do_sample=True, top_k=5)
    torch.manual_seed(3)
    assert torch.equal(first, model.generate(rows, max_new_tokens=4, do_sample=True, top_k=5))
    failure(lambda: model.generate(rows, num_beams=4), RequestError, "num_beams", "4")
    failure(lambda: model.generate(rows, logits_processor=[1]), RequestError, "logits_processor")
    failure(lambda: model.generate(), RequestError, "input_ids")
    failure(lambda: delegate(model, "nano"), RequestError, "llm", "str")


def test_refusals(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Another device, another format, experts, a folder that lacks what transformers has."""
    open_model = AutoModelForCausalLM.from_pretrained
    folder = packed(checkpoint("bitnet-multiply"), tmp_path / "packed")
    for device in ("cuda:0", 0, "disk", torch.device("meta")):
        failure(lambda d=device: open_model(folder, device_map={"": d}), RequestError, "device_map")
    for placed in ("auto", "cpu", {"": torch.device("cpu")}):
        assert open_model(folder, device_map=placed).device.type == "cpu"
    failure(lambda: AutoModel.from_pretrained(folder), RequestError, "AutoModelForCausalLM")
    failure(lambda: SternaConfig("i3"), RequestError, "i3")
    failure(
        lambda: open_model(checkpoint("qwen2"), quantization_config=SternaConfig()),
        RequestError, "format",
    )  # fmt: skip
    failure(lambda: open_layers(checkpoint("mixtral")), RequestError, "experts")
    config = json.loads((folder / "config.json").read_text())
    config["attention_bias"] = True
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFormatError):  # its hash says that it was changed
        open_model(folder)
