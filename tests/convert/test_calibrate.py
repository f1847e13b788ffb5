"""`sterna quantize --calibrate`: what layers read, what rounding makes of it, what is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import checkpoint_factory as factory
import numpy as np
import pytest
import torch
from helpers import ISAS, command, failed
from transformers import AutoModelForCausalLM

from sterna import LLM, formats, loading, ops
from sterna.convert import calibrate, convert, parts_of
from sterna.errors import ModelFormatError, RequestError
from sterna.evaluate.perplexity import perplexity
from sterna.formats import weighted

TEXTS = [f"def f{i}(x):\n    return x + {i}\n" * 3 for i in range(6)]


def is_weighted(name: str) -> bool:
    try:
        weighted.check_weighted(formats.get(name))
    except RequestError:
        return False
    return True


WEIGHTED = [n for n in formats.names() if is_weighted(n)]
GROUPS = ["i2:tensor", "i2:row", "i2:g64", "i4:g32", "i8:g32", "pot4z:g32"]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return factory.write(tmp_path_factory.mktemp("models") / "llama", factory.RECIPES["llama-256"])


def test_squares_are_those_of_what_layers_read(llama: Path) -> None:
    """transformers' hooks see the same inputs, but for keys and values of 13 bits."""
    found = calibrate(llama, TEXTS, tokens=300, threads=1)
    model = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32).eval()
    sums: dict[str, torch.Tensor] = {}
    fused = {"q_proj": "qkv_proj", "gate_proj": "gate_up_proj"}
    for name, module in model.named_modules():
        kind = name.rpartition(".")[2]
        if not isinstance(module, torch.nn.Linear) or kind in ("lm_head", "k_proj", "v_proj"):
            continue
        key = name.replace(kind, fused.get(kind, kind))
        if kind != "up_proj":
            sums[key] = torch.zeros(module.in_features, dtype=torch.float64)

            def add(_: object, inputs: tuple[torch.Tensor], key: str = key) -> None:
                sums[key] += inputs[0][0].double().square().sum(0)

            module.register_forward_pre_hook(add)
    rows, encode = 0, LLM(llama, threads=1).tokenizer.encode
    for text in TEXTS:  # fewer than sixteen are read in order
        ids = encode(text)[: 300 - rows]
        rows += len(ids)
        with torch.no_grad():
            model(torch.tensor([ids]))
    assert found.keys() == sums.keys()
    for name, total in sums.items():
        np.testing.assert_allclose(found[name], (total / rows).numpy(), rtol=2e-3, err_msg=name)
    again = calibrate(llama, TEXTS, tokens=300, threads=2)
    assert all(np.array_equal(found[name], again[name]) for name in found)


def test_squares_of_integer_layers_and_of_experts(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Floats before they are rounded; all units have the same bits; experts share theirs."""
    for name in ("bitnet-multiply", "qwen3_moe"):
        path = checkpoint(name)
        made = []
        for isa in {ISAS[0], ISAS[-1]}:
            monkeypatch.setenv("STERNA_ISA", isa)
            made.append(calibrate(path, TEXTS[:2], tokens=256, threads=2))
        weights = loading.load(path, cached=False).weights.modules
        assert {n.removesuffix(".0").removesuffix(".1") for n in weights} >= made[0].keys()
        assert any("experts" in n for n in made[0]) == (name == "qwen3_moe")
        for n, squares in made[0].items():
            assert squares.min() >= 0 < squares.max()
            assert np.array_equal(squares, made[-1][n])


@pytest.mark.parametrize("name", WEIGHTED + GROUPS)
def test_rounding_never_gets_worse(name: str) -> None:
    """Weighted errors are at most those of the format's own rounding; levels are the format's."""
    f = formats.get(name)
    rng = np.random.default_rng(5)
    w = (rng.standard_normal((8, 512)) * 0.05).astype(np.float32)
    w[:, ::37] *= 6
    w[2] = 0
    squares = np.exp(2 * rng.standard_normal(512)).astype(np.float32)
    squares[:3] = 0
    made = weighted.rounded(f, w, squares=squares)
    packed = ops.pack(*made, format=f)
    real = ops.dequantize(packed)
    plain = ops.dequantize(ops.pack(*weighted.rounded(f, w), format=f))
    errors = [(np.square(x - w).astype(np.float64) * squares).sum() for x in (real, plain)]
    assert errors[0] < 0.995 * errors[1]
    assert np.array_equal(ops.unpack(packed)[0], made[0])
    nothing = weighted.rounded(f, w, squares=np.zeros(512, np.float32))
    assert np.array_equal(nothing[0], weighted.rounded(f, w)[0])


def test_command_tells_the_gain(llama: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(TEXTS * 8))
    asked = ["--calibrate", str(text), "--calibrate-tokens", "512", "--threads", "1"]
    out = tmp_path / "out"
    result = command("quantize", str(llama), str(out), "--format", "q4_0", *asked, "--json")
    *rows, gain = json.loads(result.stdout)
    assert {row["to"] for row in rows} == {"q4_0", "f32"}
    held_out = parts_of(text, llama).held_out
    for name, model in {"source": llama, "calibrated": out}.items():
        llm = LLM(model, threads=1, cache=False)
        texts, left = [], 128
        for piece in held_out:
            left -= len(llm.tokenizer.encode(piece))
            if left >= 0 or not texts:
                texts.append(piece)
        size = min(512, llm.context)
        expected = perplexity(llm, texts, context=size, stride=size)
        assert gain[f"perplexity_{name}"] == expected.perplexity
        assert gain["held_out_tokens"] == expected.n_tokens
    assert 0 < gain["kl_calibrated"] < 2
    assert gain["kl_plain"] != gain["kl_calibrated"]
    convert(llama, tmp_path / "plain", "q4_0")
    weights = [loading.load(x, cached=False).weights.modules for x in (out, tmp_path / "plain")]
    assert any(not np.array_equal(a.codes, weights[1][n].codes) for n, a in weights[0].items())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "plain", "text.txt"]  # no more
    file = str(tmp_path / "m.gguf")
    told = command("quantize", str(llama), file, "--format", "gguf:Q4_0", *asked).stdout
    assert "tokens that were held out: perplexity " in told.splitlines()[-1]
    kept = command("quantize", "nano", str(tmp_path / "t5"), "--format", "t5", *asked).stdout
    assert "nothing was rounded" in kept.splitlines()[-1]
    convert(llama, tmp_path / "f16.gguf", "gguf:F16")
    from_gguf = calibrate(tmp_path / "f16.gguf", TEXTS, tokens=256)
    for name, squares in calibrate(llama, TEXTS, tokens=256).items():
        np.testing.assert_allclose(from_gguf[name], squares, rtol=0.05, err_msg=name)


def test_the_best_for_a_size_tells_its_loss(llama: Path, tmp_path: Path) -> None:
    """--bpw measures on the held-out part what it has estimated; --recover, too."""
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text("".join(TEXTS * 8))
    asked = ["--calibrate", str(text), "--calibrate-tokens", "512", "--threads", "1"]
    (row,) = json.loads(
        command("quantize", str(llama), str(out), "--bpw", "9", *asked, "--json").stdout
    )
    lost = row["held_out"]
    assert 0 < lost["kl"] < 0.1
    assert lost["perplexity"] == pytest.approx(lost["perplexity_source"], rel=0.1)
    again = command("quantize", str(llama), str(out), "--bpw", "9", *asked, "--force").stdout
    assert f"perplexity {lost['perplexity_source']:.4f} before" in again.splitlines()[-1]
    trained = ("--format", "q4_0", "--recover", "1", *asked, "--force", "--json")
    *_, row = json.loads(command("quantize", str(llama), str(out), *trained).stdout)
    assert row["held_out"]["held_out_tokens"] == lost["held_out_tokens"]
    assert row["held_out"]["kl"] > lost["kl"]


@pytest.mark.parametrize("name", ["bert", "qwen3-score"])
def test_a_model_that_predicts_no_tokens_is_rounded_by_a_text(
    checkpoint: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    """An encoder, and a classifier: the report has no perplexity."""
    text = tmp_path / "text.txt"
    text.write_text("".join(TEXTS * 8))
    asked = ["--calibrate", str(text), "--calibrate-tokens", "256", "--threads", "1"]
    for how in (("--format", "q4_0"), ("--bpw", "9")):
        out = tmp_path / how[0]
        result = command("quantize", str(checkpoint(name)), str(out), *how, *asked)
        assert result.exit_code == 0, result.output
        assert "predicts no tokens" in result.stdout or how[0] == "--bpw"
        assert (out / "config.json").exists()


def test_what_calibration_refuses(llama: Path, tmp_path: Path) -> None:
    text, lines = tmp_path / "t.txt", tmp_path / "t.jsonl"
    text.write_text("".join(TEXTS))
    asked = ("quantize", str(llama), str(tmp_path / "o"), "--calibrate", str(text), "--format")
    for format in ("bf16", "pot8", "gguf:F16"):
        failed(command(*asked, format), "calibrate: ", "integer levels")
    failed(command(*asked, "pot4", "--method", "denseshift3"), "denseshift3 rounds in one way")
    text.write_text("one line")
    failed(command(*asked, "i4"), "must have five lines at least")
    lines.write_text('{"text": "a"}\n{"text": 3}\n')
    with pytest.raises(ModelFormatError, match="line 2"):
        parts_of(lines, llama)
    chat = {"messages": [{"role": "user", "content": "Hello"}]}
    lines.write_text((json.dumps(chat) + "\n") * 10)
    parts = parts_of(lines, "nano")
    assert (len(parts.used), len(parts.held_out)) == (8, 2)
    assert "Hello" in parts.held_out[0]
    with pytest.raises(RequestError, match="must have a text"):
        calibrate(llama, [], tokens=256)
    assert not (tmp_path / "o").exists()
