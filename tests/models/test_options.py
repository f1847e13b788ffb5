"""Each option that a model's file passes to shared layers counts, whatever stands next to it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from digests import Drawn

from sterna import formats
from sterna.engine import Engine
from sterna.loading import tracing
from sterna.models import llama
from sterna.models.options import AttentionOptions, Factors, Norms, QKNorm

SIZES = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 128, "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
ADDS = ("post_norm1", "post_norm2")
#: The kinds of norms, which decide how a half's result is added, and how logits are made.
KINDS = {
    "rms": Norms(), "adds": Norms(post=ADDS), "layer": Norms(layer_norm=True),
    "layer-adds": Norms(layer_norm=True, post=ADDS), "after": Norms(pre=(None, None), post=ADDS),
}  # fmt: skip
HEADS = QKNorm()
OPTIONS: dict[str, dict[str, Any]] = {
    "embedding": {"factors": Factors(embedding=2.0)},
    "residual": {"factors": Factors(residual=0.5)},
    "logits": {"factors": Factors(logits=0.5)},
    "logits_cap": {"factors": Factors(logits_cap=2.0)},
    "head_bias": {"head_bias": True},
    "bias": {"attention": AttentionOptions(bias=True)},
    "qk_norm": {"attention": AttentionOptions(qk_norm=HEADS)},
    "v_norm": {"attention": AttentionOptions(qk_norm=HEADS, v_norm=True)},
    "scale": {"attention": AttentionOptions(scale=0.7)},
    "cap": {"attention": AttentionOptions(cap=0.5)},
    "slopes": {"attention": AttentionOptions(slopes=(0.5, 0.25, 0.125, 1.0))},
    "sinks": {"attention": AttentionOptions(sinks=True)},
    "clip": {"attention": AttentionOptions(clip=0.1)},
}


def logits(monkeypatch: pytest.MonkeyPatch, **options: Any) -> np.ndarray:
    """Of Llama's graph with options, and weights that depend on the order of requests alone."""
    module = SimpleNamespace(
        ARCHITECTURES=llama.ARCHITECTURES, ACTIVATION="silu", TERNARY=False,
        DEFAULTS=llama.DEFAULTS, build=lambda m: llama.build(m, **options),
    )  # fmt: skip
    monkeypatch.setattr(tracing, "module_of", lambda *_: module)
    source = Named(formats.get("f32"), formats.get("f32"))
    model = tracing.from_weights(dict(SIZES), Path("config.json"), lambda _: source)
    engine = Engine(model, threads=1, kv_dtype="f32", deterministic=True)
    return engine.logits([list(range(1, 13))])[0]


class Named(Drawn):
    """The weights of a name are the same whatever else is asked for."""

    def vector(self, name: str, *shape: int) -> np.ndarray:
        self._begin(name)
        return super().vector(name, *shape)

    def matrix(self, name: str, parts: Any) -> Any:
        self._begin(name)
        return super().matrix(name, parts)

    def table(self, name: str, M: int, K: int) -> Any:
        self._begin(name)
        return super().table(name, M, K)

    def _begin(self, name: str) -> None:
        self._words = np.random.Philox(key=sum(name.encode()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_counts(kind: str, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits are others with it, for each kind of norms."""
    plain, changed = {"norms": KINDS[kind]}, {"norms": KINDS[kind], **OPTIONS[option]}
    if option == "v_norm":
        plain["attention"] = AttentionOptions(qk_norm=HEADS)
    base = logits(monkeypatch, **plain)
    assert (logits(monkeypatch, **plain) == base).all()
    moved = np.abs(logits(monkeypatch, **changed) - base).max() / base.std()
    assert moved > 1e-3, f"{option} does not count with the norms {kind}"


def test_kinds_of_norms_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """As do 1 + weight, and LayerNorms without a weight or a bias."""
    kinds = [
        *KINDS.values(), Norms(plus_one=True), Norms(post=ADDS, plus_one=True),
        Norms(layer_norm=True, plus_one=True), Norms(layer_norm=True, weight=False),
        Norms(layer_norm=True, bias=False),
    ]  # fmt: skip
    made = [logits(monkeypatch, norms=norms) for norms in kinds]
    for i, one in enumerate(made):
        assert all(np.abs(one - other).max() > 1e-3 for other in made[:i]), kinds[i]
