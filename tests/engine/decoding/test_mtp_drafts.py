"""MTP layers: what they compute, where they are kept, and that their drafts change no token."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_factory import QWEN3_5, RECIPES, config
from checkpoint_factory.mtp import FILE, copying, mtp_tensors, write_mtp
from helpers import assert_same_bits, failure
from histories import Histories
from safetensors.torch import load_file, save_file
from test_drafts import facts, free
from test_qwen3_5 import PROMPT, engine
from test_qwen3_5_gguf import INSIDE, write_gguf
from test_requests import PARAMS, params_of, prompt
from transformers import AutoModelForCausalLM

from sterna import LLM, loading
from sterna.convert import convert
from sterna.engine import PAGE, Engine, Request, Sequence
from sterna.engine.decoding import mtp_drafts as mtp_module
from sterna.engine.decoding.mtp_drafts import MtpDrafts
from sterna.engine.decoding.speculation import MOST_DRAFTS, Speculation
from sterna.engine.engine import StepInput
from sterna.engine.scheduling.step_costs import StepCosts
from sterna.errors import ModelFormatError
from sterna.graph.ops import RouteOp
from sterna.sampling_params import SamplingParams

GREEDY = SamplingParams()
NEXTN = {
    "fc": "nextn.eh_proj", "pre_fc_norm_embedding": "nextn.enorm",
    "pre_fc_norm_hidden": "nextn.hnorm", "norm": "nextn.shared_head_norm",
}  # fmt: skip


@pytest.fixture(scope="module")
def random(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose MTP layer knows nothing."""
    return write_mtp(tmp_path_factory.mktemp("mtp") / "random", QWEN3_5)


@pytest.fixture(scope="module")
def agreeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose layers add nothing, so that a token's successor is that of its embedding, which
    the MTP layer hands on."""
    folder = write_mtp(tmp_path_factory.mktemp("mtp") / "agreeing", QWEN3_5, copying(QWEN3_5))
    weights = load_file(folder / FILE)
    for name, w in weights.items():
        if name.endswith(
            ("o_proj.weight", "out_proj.weight", "down_proj.weight", "model.norm.weight")
        ):
            w.zero_()
    save_file(weights, folder / FILE, {"format": "pt"})
    return folder


def hidden_states(e: Engine, tokens: list[int]) -> np.ndarray:
    """The head's input for each token."""
    (output,) = e.run([StepInput(Sequence(), tokens, return_hidden_states=True)])
    assert output.hidden_states is not None
    return output.hidden_states


def predicted(e: Engine, tokens: list[int]) -> np.ndarray:
    """Logits of the MTP layer at each token but the first."""
    assert e.mtp is not None
    step_input = StepInput(
        Sequence(),
        tokens[1:],
        len(tokens) - 1,
        previous_hidden_states=hidden_states(e, tokens)[:-1],
    )
    return e.mtp.run([step_input])[0].logits.copy()


# ------------------------------------------------------------------------------- what it computes


class Reference:
    """The published formula in float32."""

    def __init__(self, folder: Path) -> None:
        self.w = {n: w.float().numpy() for n, w in load_file(folder / FILE).items()}

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * (1 + self.w[f"{name}.weight"])

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.w[f"{name}.weight"].T

    def __call__(self, tokens: list[int], h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """h' and logits of tokens [n], each paired with the row h of the token before it."""
        e = self.norm(self.w["model.embed_tokens.weight"][tokens], "mtp.pre_fc_norm_embedding")
        h = self.norm(h, "mtp.pre_fc_norm_hidden")
        x = self.linear(np.concatenate([e, h], -1), "mtp.fc")
        x = x + self.attention(self.norm(x, "mtp.layers.0.input_layernorm"))
        y = self.norm(x, "mtp.layers.0.post_attention_layernorm")
        gate, up = (self.linear(y, f"mtp.layers.0.mlp.{n}_proj") for n in ("gate", "up"))
        x = x + self.linear(gate / (1 + np.exp(-gate)) * up, "mtp.layers.0.mlp.down_proj")
        h = self.norm(x, "mtp.norm")
        return h, self.linear(h, "lm_head")

    def attention(self, x: np.ndarray) -> np.ndarray:
        name, n, (heads, kv, width) = "mtp.layers.0.self_attn", len(x), (4, 2, 32)
        q, gate = np.split(self.linear(x, f"{name}.q_proj").reshape(n, heads, 2 * width), 2, -1)
        k, v = (self.linear(x, f"{name}.{p}_proj").reshape(n, kv, width) for p in "kv")
        q, k = (self.rotated(self.norm(y, f"{name}.{p}_norm")) for y, p in ((q, "q"), (k, "k")))
        k, v = (np.repeat(y, heads // kv, 1) for y in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(width)
        scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        out = np.einsum("hij,jhd->ihd", shares / shares.sum(-1, keepdims=True), v)
        return self.linear((out / (1 + np.exp(-gate))).reshape(n, -1), f"{name}.o_proj")

    def rotated(self, x: np.ndarray) -> np.ndarray:
        """The first quarter of each head, by the positions."""
        half = x.shape[-1] // 8
        angles = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(half) / half)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        a, b = x[..., :half], x[..., half : 2 * half]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], -1)


def test_against_the_formula(random: Path) -> None:
    """Of the rows that transformers gives, too; and what is predicted step by step from there."""
    e = engine(loading.load(random), deterministic=True)
    reference = AutoModelForCausalLM.from_pretrained(random, dtype=torch.float32).eval()
    rows = hidden_states(e, PROMPT)
    with torch.no_grad():
        expected = reference.model(torch.tensor([PROMPT])).last_hidden_state[0].numpy()
    assert np.abs(rows - expected).max() <= 1e-3 * np.abs(expected).max()
    formula = Reference(random)
    _, logits = formula(PROMPT[1:], rows[:-1])
    got = predicted(e, PROMPT)
    assert np.abs(got - logits).max() <= 1e-4 * np.abs(logits).max()
    history, first = np.array(PROMPT[:50], np.int32), 7
    layer = MtpDrafts(e, GREEDY.native, 50)
    layer.observe(history, first, rows[first:30])
    layer.observe(history, 28, rows[28:49])
    drafts, tokens, told_rows = layer.propose(history, 5), PROMPT[first + 1 : 50], rows[first:49]
    for draft in drafts:
        h, logits = formula(tokens, told_rows)
        assert draft == int(logits[-1].argmax())
        tokens, told_rows = [*tokens, draft], np.concatenate([told_rows, h[-1:]])
    assert len(drafts) == 5
    assert layer.propose(history, 5) == []  # nothing new was heard


def test_parts_and_company_change_nothing(random: Path) -> None:
    """Hidden states, however a text is cut and batched; logits, whoever asks for hidden states."""
    e = engine(loading.load(random))
    whole, alone = hidden_states(e, PROMPT), Sequence()
    parts = []
    for at in range(0, 60, 20):
        inputs = [
            StepInput(Sequence(), PROMPT[:3], 1),
            StepInput(alone, PROMPT[at : at + 20], 1, return_hidden_states=True),
        ]
        first, output = e.run(inputs)
        assert first.hidden_states is None
        assert output.hidden_states is not None
        parts.append(output.hidden_states)
    assert_same_bits(np.concatenate(parts), whole[:60])
    assert_same_bits(output.logits, e.logits([PROMPT[:60]])[0][-1:])


# ------------------------------------------------------------------------------- where it is kept


def test_every_dress_of_a_checkpoint(tmp_path: Path) -> None:
    """Packed folders and GGUF files have it, as the checkpoint does."""
    recipe = replace(RECIPES["qwen3_5-interval"], dtype=torch.float32, config={
        **RECIPES["qwen3_5-interval"].config, "attention_bias": False,
    })  # fmt: skip
    folder, mtp = write_mtp(tmp_path / "hf", recipe), mtp_tensors(recipe)
    model = loading.load(folder)
    expected = predicted(engine(model), PROMPT)
    loading.save(model, tmp_path / "saved")
    convert(folder, tmp_path / "converted", None)

    def change(keys: dict[str, Any], file: dict[str, np.ndarray]) -> None:
        keys["qwen35.block_count"] = recipe.layers + 1
        keys["qwen35.nextn_predict_layers"] = 1
        for name, w in mtp.items():
            inside = name.removeprefix("mtp.").removesuffix(".weight")
            to = NEXTN.get(inside) or INSIDE[inside.removeprefix("layers.0.") + ".weight"]
            plus_one = 1 if w.ndim == 1 else 0
            file[f"blk.{recipe.layers}.{to.removesuffix('.weight')}.weight"] = w.numpy() + plus_one

    file = write_gguf(tmp_path / "m.gguf", recipe, change)
    for path in (tmp_path / "saved", tmp_path / "converted", file):
        assert_same_bits(predicted(engine(loading.load(path)), PROMPT), expected)


def test_another_kind_is_skipped(tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    """With a warning, and the model has its bits."""
    folder = write_mtp(tmp_path / "m", QWEN3_5)
    sizes = {**config(QWEN3_5), "mtp_num_hidden_layers": 2}
    (folder / "config.json").write_text(json.dumps(sizes))
    with pytest.warns(RuntimeWarning, match=r"15 tensors mtp\.\* .* of a kind"):
        model = loading.load(folder)
    assert model.mtp is None
    expected = engine(loading.load(checkpoint("qwen3_5"))).logits([PROMPT])[0]
    assert_same_bits(engine(model).logits([PROMPT])[0], expected)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("fc", (96, 96)), ("norm", (95,)), ("layers.0.self_attn.q_proj", (128, 96)),
        ("layers.0.mlp.down_proj", None), ("pre_fc_norm_hidden", None),
    ],
)  # fmt: skip
def test_bad_input(name: str, shape: tuple[int, ...] | None, tmp_path: Path) -> None:
    """A line that names the file, the tensor, the rule and the value."""
    folder, tensor = write_mtp(tmp_path / "m", QWEN3_5), f"mtp.{name}.weight"
    weights = load_file(folder / FILE)
    del weights[tensor]
    if shape:
        weights[tensor] = torch.zeros(shape)
    save_file(weights, folder / FILE, {"format": "pt"})
    if name == "layers.0.mlp.down_proj":  # a layer without FFN
        assert loading.load(folder).mtp is not None
    else:
        failure(lambda: loading.load(folder), ModelFormatError, tensor, "shape")


# ------------------------------------------------------------------------------------- its drafts


@pytest.mark.parametrize("kind", ["random", "agreeing"])
def test_drafts_change_no_token(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any parameters and cuts, also where hidden states are taken in small parts."""
    monkeypatch.setattr(mtp_module, "PREFILL_CHUNK", 16)
    llm = LLM(request.getfixturevalue(kind), threads=1, speculate="off")

    def run(i: int, cut: int, drafting: bool) -> Any:
        params, start = replace(params_of(i), max_tokens=30), [*prompt(i), *PROMPT[: 9 * i]]
        sources = [MtpDrafts(llm.engine, params.native, len(start))] if drafting else []
        asked = Request(
            start, params, llm.tokenizer, context=llm.context,
            speculation=Speculation(sources, llm.engine.kv_cache),
        )  # fmt: skip
        while not asked.ended:
            (output,) = llm.engine.run([asked.step_input(cut, MOST_DRAFTS, free)])
            asked.receive(output)
        list(asked.pieces())
        llm.engine.kv_cache.release(asked.sequence)
        return asked.completion

    accepted = 0
    for i, cut in zip(range(len(PARAMS)), itertools.cycle((512, 3))):
        plain, done = run(i, cut, False), run(i, cut, True)
        assert facts(plain) == facts(done)
        assert done.stats.n_drafted > 0
        accepted += done.stats.n_accepted
    assert kind == "random" or accepted > 50


OPTIONS: dict[str, Any] = {"max_tokens": 100, "ignore_eos": True, "temperature": 1.0, "seed": 4}


def test_an_llm_has_it_by_itself(
    agreeing: Path, random: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it agrees, most drafts are right, also behind what a cache has; else there are few."""
    monkeypatch.setattr(StepCosts, "knows", lambda self, tokens: False)  # the usual, by no clock
    for folder, agrees in ((agreeing, True), (random, False)):
        plain, llm = (LLM(folder, threads=1, speculate=s) for s in ("off", "auto"))
        for _ in range(2):
            start = PROMPT[: 2 * PAGE + 9]
            a, b = plain.generate(start, **OPTIONS), llm.generate(start, **OPTIONS)
            assert facts(a) == facts(b)
            if agrees:
                assert b.stats.n_accepted > 70
                assert b.stats.n_accepted > 0.95 * b.stats.n_drafted
            else:
                assert 0 < b.stats.n_drafted < 20
        assert b.stats.n_cached > 0
        assert (
            LLM(folder, threads=1, speculate="lookup").generate(start, **OPTIONS).tokens == a.tokens
        )


def test_where_its_pages_are_few(agreeing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins anew; the answer is the same."""
    monkeypatch.setattr(StepCosts, "knows", lambda self, tokens: False)  # the usual, by no clock
    llm = LLM(agreeing, threads=1)
    kv_cache = llm.engine.kv_cache
    nbytes = kv_cache.bytes_per_position * PAGE * (5 + 3 * kv_cache.pool.state_pages)
    expected = llm.generate(PROMPT[:40], **OPTIONS)
    llm._attach(Engine(llm.engine.model, threads=1, kv_bytes=nbytes), None)
    assert llm.engine.mtp is not None
    held = [Sequence() for _ in range(llm.engine.mtp.kv_cache.pool.count)]
    row = np.ones((1, QWEN3_5.hidden), np.float32)
    llm.engine.mtp.run([StepInput(one, [1], previous_hidden_states=row) for one in held])
    done = llm.generate(PROMPT[:40], **OPTIONS)
    assert facts(done) == facts(expected)
    assert done.stats.n_drafted == 0  # it rests
    del held
    assert llm.generate(PROMPT[:40], **OPTIONS).stats.n_drafted > 0


def test_numbers_that_are_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Are no error of the answer: there are no drafts."""
    monkeypatch.setattr(StepCosts, "knows", lambda self, tokens: False)  # the usual, by no clock
    mtp = mtp_tensors(QWEN3_5)
    mtp["mtp.norm.weight"] = torch.full((QWEN3_5.hidden,), 3e38)
    mtp["mtp.layers.0.mlp.down_proj.weight"] *= 1e9
    folder = write_mtp(tmp_path / "m", QWEN3_5, mtp)
    llm = LLM(folder, threads=1, cache=False)
    done = llm.generate(PROMPT[:40], **OPTIONS)
    assert facts(done) == facts(
        LLM(folder, threads=1, speculate="off").generate(PROMPT[:40], **OPTIONS)
    )
    assert done.stats.n_drafted == 0


def test_of_a_model_of_experts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its layer has experts, too; the answer is that without drafts."""
    monkeypatch.setattr(StepCosts, "knows", lambda self, tokens: False)  # the usual, by no clock
    recipe = RECIPES["qwen3_5_moe"]
    folder = write_mtp(tmp_path / "m", recipe)
    llm = LLM(folder, threads=1)
    assert llm.engine.mtp is not None
    assert any(isinstance(op, RouteOp) for op in llm.engine.mtp.model.graph.ops)
    done = llm.generate(PROMPT[:40], **OPTIONS)
    assert facts(done) == facts(
        LLM(folder, threads=1, speculate="off").generate(PROMPT[:40], **OPTIONS)
    )
    assert done.stats.n_drafted > 0


def test_histories(random: Path, agreeing: Path) -> None:
    """Many requests side by side, each as alone."""
    accepted = 0
    for folder, seeds in ((random, range(2)), (agreeing, range(9, 14))):
        llm = LLM(folder, threads=1)
        histories = Histories(llm, 6 + 7 * llm.engine.kv_cache.pool.state_pages)
        for seed in seeds:
            histories.run(seed)
        accepted += histories.accepted
    assert accepted > 10
