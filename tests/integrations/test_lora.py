"""`sterna.integrations.peft`: adapters over packed weights are trained, kept apart, and merged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import failure
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import sterna.integrations.transformers  # noqa: F401
from sterna import LLM, loading, train
from sterna.checkpoints.resolve import resolve
from sterna.errors import NonFiniteError, RequestError
from sterna.torch import accelerate

peft: Any = pytest.importorskip("peft", reason="needs the peft package")
adapters: Any = pytest.importorskip("sterna.integrations.peft", reason="needs the peft package")

TOKENS = torch.tensor([[5, 6, 7, 8, 9, 10], [3, 4, 5, 6, 7, 8]])


def base(checkpoint: Callable[[str], Path], tmp_path: Path) -> Any:
    folder = tmp_path / "packed"
    if not folder.exists():
        loading.save(loading.load(checkpoint("bitnet-multiply"), cached=False), folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def adapted(model: Any, seed: int = 1) -> Any:
    torch.manual_seed(seed)
    made = peft.get_peft_model(model, adapters.lora_config(model, r=4, lora_alpha=8))
    optimizer = torch.optim.AdamW([p for p in made.parameters() if p.requires_grad], lr=2e-2)
    losses = []
    for _ in range(4):
        loss = made(TOKENS, labels=TOKENS).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    return made.eval()


def logits(model: Any, **options: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS, **options).logits


def test_adapters(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Trained over frozen codes, saved, loaded again, switched off, and mixed within a batch."""
    plain = logits(base(checkpoint, tmp_path))
    made = adapted(base(checkpoint, tmp_path))
    trained = logits(made)
    assert all("lora" in name for name, p in made.named_parameters() if p.requires_grad)
    with made.disable_adapter():
        assert torch.equal(logits(made), plain)
    made.save_pretrained(tmp_path / "one")
    again = adapters.load_adapter(base(checkpoint, tmp_path), tmp_path / "one")
    assert torch.equal(logits(again), trained)
    mixed = logits(again, adapter_names=["default", "__base__"])
    torch.testing.assert_close(mixed[0], trained[0], rtol=0, atol=1e-2 * trained.abs().max())
    torch.testing.assert_close(mixed[1], plain[1], rtol=0, atol=1e-2 * plain.abs().max())
    assert not torch.allclose(trained, plain, atol=1e-2 * float(plain.abs().max()))


def test_in_the_engine(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """`LLM(..., adapter=)` computes what PEFT does: logits of a trained adapter, and on nano, whose
    base is a real model, the same greedy tokens."""
    made = adapted(base(checkpoint, tmp_path))
    made.save_pretrained(tmp_path / "one")
    llm = LLM(tmp_path / "packed", adapter=tmp_path / "one", threads=1, kv_dtype="f32")
    expected = logits(made)[0].numpy()
    scale = abs(expected).max()
    off = abs(llm.logits(TOKENS[0].tolist()) - expected).max(axis=1) / scale
    assert off[0] < 1e-4  # of later ones an activation may lie at the edge of two integers
    assert off.max() < 3e-2
    without = llm.logits(TOKENS[0].tolist(), adapter="__base__")
    assert abs(without - expected)[0].max() > 1e-2 * scale

    folder = tmp_path / "nano"
    loading.save(loading.load(resolve("nano"), cached=False), folder)
    made = adapted(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
    made.save_pretrained(tmp_path / "of-nano")
    llm = LLM(folder, adapter=tmp_path / "of-nano", threads=1)
    prompt = llm.tokenizer.encode("def read_lines(path):\n")
    with torch.no_grad():
        told = made.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False)
    tokens = told[0, len(prompt) :].tolist()
    done = llm.generate(prompt, max_tokens=16, temperature=0)
    assert done.tokens == tokens[: len(done.tokens)]
    assert len(done.tokens) > 4
    assert llm.generate(prompt, max_tokens=16, adapter="__base__").tokens != done.tokens


def test_merging_is_lossy_and_says_so(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """In i8 the merged model is the adapted one, nearly; it is exported, and says what was lost."""
    made = adapted(base(checkpoint, tmp_path))
    failure(made.merge_adapter, RequestError, "merge", "rounds")
    expected = logits(made)
    model, lost = adapters.merge(made, "i8")
    assert 0 < lost < 0.02
    got = logits(model)
    torch.testing.assert_close(got, expected, rtol=0, atol=5e-2 * float(expected.abs().max()))
    assert train.export(model, tmp_path / "merged").n_layers == 14
    assert loading.load(tmp_path / "merged", cached=False).format == "i8"


def test_refusals(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """An adapter of another base, floats, an adapter that diverged."""
    made = adapted(base(checkpoint, tmp_path))
    made.save_pretrained(tmp_path / "one")
    config = LlamaConfig(
        vocab_size=32, hidden_size=64, intermediate_size=96, num_hidden_layers=1,
        num_attention_heads=2,
    )  # fmt: skip
    other = LlamaForCausalLM(config)
    failure(lambda: adapters.lora_config(other), RequestError, "SternaLinear")
    accelerate(other, "i8", skip=("lm_head",))
    failure(lambda: adapters.load_adapter(other, tmp_path / "one"), RequestError, "one", "shape")
    failure(lambda: adapters.load_adapter(other, tmp_path / "none"), RequestError, "none")
    failure(lambda: adapters.merge(other, "i8"), RequestError, "PeftModel")
    with torch.no_grad():
        next(p for n, p in made.named_parameters() if "lora_B" in n).fill_(torch.nan)
    failure(lambda: adapters.merge(made, "i8"), NonFiniteError, "q_proj")
