"""Training of scales and vectors after rounding: less is lost, in the same bytes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import command, failed

from sterna import LLM, formats, loading
from sterna.convert import candidates
from sterna.convert.best_for_size import Fitted, Goal, best_for_size
from sterna.convert.one_format import in_one_format
from sterna.convert.recovery import Piece
from sterna.convert.running import Running, rows_of
from sterna.engine.divergence import divergence
from sterna.errors import RequestError
from sterna.formats import codec, weighted
from sterna.integrations.recovering import Distillation
from sterna.train import loop
from sterna.train.chats import Rows
from sterna.train.loop import TrainingOptions
from sterna.train.recovery import ScaledLinear, ScaledTable, ScaledWeight

TEXTS = [
    "".join(f"line {i} of a text about {i * i} things\n" for i in range(k, k + 40))
    for k in range(12)
]
OTHER = "def other(text):\n    return [word for word in text.split() if word]\n" * 4
FORMATS = ("t5:g32", "i2p:g32", "i4:g32")
ROUNDED = (*sorted({n for names in candidates.TARGETS.values() for n in names}), "i8", "nvfp4")
#: Kills itself when a share of the steps is done.
KILLED = """
import json, os, signal, sys
from sterna.convert import candidates
from sterna.convert.best_for_size import Goal, best_for_size
from sterna.integrations.recovering import Distillation

src, dst, texts, formats, share = sys.argv[1:]
candidates.TARGETS["sterna"] = json.loads(formats)

def progress(now, done, total):
    if now == "recovering" and done >= float(share) * total:
        os.kill(os.getpid(), signal.SIGKILL)

best_for_size(
    src, dst, Goal(bits=3.4), json.loads(texts), tokens=256, threads=1, progress=progress,
    recovery=Distillation(8, length=32, save_every=3),
)
"""


@pytest.fixture(autouse=True, scope="module")
def few_formats() -> Iterator[None]:
    """Choose from a few formats: their number says nothing about training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(candidates.TARGETS, "sterna", FORMATS)
        yield


def piece(name: str, M: int = 24) -> Piece:
    f = formats.get(name)
    K = max(2 * f.scales.block, 64)
    w = (np.random.default_rng(4).standard_normal((M, K)) * 0.05).astype(np.float32)
    levels, scales = weighted.rounded(f, w)
    return Piece("a", f, levels, f.check_scales(scales, M, K), table=False, trains=True)


@pytest.mark.parametrize("name", ROUNDED)
def test_trained_scales_are_numbers_of_the_format(name: str) -> None:
    """What the student computes with is what will be written, whatever was trained."""
    given = piece(name)
    weight = ScaledWeight(given)
    np.testing.assert_array_equal(weight.stored(), given.scales)
    with torch.no_grad():
        weight.change += torch.randn(weight.change.shape, generator=torch.manual_seed(1)) * 0.1
    stored = weight.stored()
    assert not np.array_equal(stored, given.scales)
    np.testing.assert_array_equal(given.format.check_scales(stored, *given.levels.shape), stored)
    real = torch.from_numpy(codec.real_values(given.format, given.levels, stored))
    x = torch.randn(5, real.shape[1], generator=torch.manual_seed(2))
    torch.testing.assert_close(ScaledLinear(weight, None)(x), x @ real.T)
    rows = torch.tensor([[3, 0], [3, 7]])
    torch.testing.assert_close(ScaledTable(weight)(rows), real[rows])


@pytest.mark.parametrize("name", ["i4:g32", "q4_1", "q4_k", "q6_k", "i8"])
def test_gradients_are_those_of_the_weights(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sterna.train.recovery.CHUNK", 1000)  # several chunks of rows
    given = piece(name)
    weight = ScaledWeight(given)
    M, K = given.levels.shape
    x = torch.randn(2, 3, K, generator=torch.manual_seed(2), requires_grad=True)
    of_y = torch.randn(2, 3, M, generator=torch.manual_seed(3))
    ScaledLinear(weight, None)(x).backward(of_y)
    assert weight.change.grad is not None
    found = [weight.change.grad.clone(), x.grad]
    weight.change.grad = x.grad = None
    scales = weight.scales()  # [parts, M, groups]
    real = torch.from_numpy(given.levels).unflatten(1, (scales.shape[2], -1)) * scales[0][..., None]
    if len(scales) > 1:
        real = real + scales[1][..., None]
    (x @ real.flatten(1).T).backward(of_y)
    for got, expected in zip(found, (weight.change.grad, x.grad), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert float(weight.change.grad.abs().max()) > 0


@pytest.mark.parametrize("name", ["i4:g32", "q4_1", "q4_k", "i8"])
def test_scales_and_minima_have_one_learning_rate(name: str, tmp_path: Path) -> None:
    """A step of Adam moves each as far, whether a format has minima or not."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = ScaledLinear(ScaledWeight(piece(name)), None)

        def get_input_embeddings(self) -> None:
            return None

        get_output_embeddings = get_input_embeddings

    def loss(model: Model, tokens: torch.Tensor, *_: object) -> torch.Tensor:
        return model.layer(torch.ones(1, model.layer.scaled.K)).square().sum() * len(tokens)

    model, tokens = Model(), torch.ones(1, 4, dtype=torch.long)
    rows = Rows(tokens, torch.arange(4)[None], tokens, 0)
    options = TrainingOptions(1, 0.01, warmup=0)
    loop.train(model, rows, options, tmp_path, loss=loss)
    change = model.layer.scaled.change.detach().abs()
    assert float(change.max()) == pytest.approx(0.001, rel=0.01)


def test_powers_of_two_stay() -> None:
    assert not ScaledWeight(piece("mxfp4")).change.requires_grad


def make(src: Path, dst: Path, steps: int, **options: object) -> Fitted:
    recovery = Distillation(steps, lr=0.02, length=64) if steps else None
    return best_for_size(
        src, dst, Goal(bits=3.4), TEXTS, tokens=256, threads=1, recovery=recovery, **options
    )


def lost(src: Path, dst: Path, texts: list[str], count: int) -> float:
    """Mean KL divergence of the next tokens of the first rows of texts."""
    a, b = Running.of(src, 1), Running.of(dst, 1)
    rows = rows_of(a.model, texts, 64, count)
    kl = [divergence(a.logits(row)[:-1], b.logits(row)[:-1]).mean() for row in rows]
    return float(np.mean(kl))


@pytest.mark.parametrize("arch", ["llama", "qwen2"])  # with a tied head, with biases
def test_less_is_lost_in_as_many_bytes(
    checkpoint: Callable[[str], Path], tmp_path: Path, arch: str
) -> None:
    src = checkpoint(arch)
    plain, trained = tmp_path / "plain", tmp_path / "trained"
    before, after = make(src, plain, 0), make(src, trained, 40)
    found = after.recovered
    assert found is not None
    assert found.fell
    assert found.after < 0.95 * found.before
    assert lost(src, trained, [OTHER], 2) < 0.97 * lost(src, plain, [OTHER], 2)
    # The same formats and levels; scales and norms are others.
    assert [row["format"] for row in before.rows] == [row["format"] for row in after.rows]
    a, b = (loading.load(path, cached=False).weights for path in (plain, trained))
    assert all(np.array_equal(w.codes, b.modules[name].codes) for name, w in a.modules.items())
    assert all(w.scale.nbytes == b.modules[name].scale.nbytes for name, w in a.modules.items())
    assert not all(np.array_equal(w.scale, b.modules[name].scale) for name, w in a.modules.items())
    assert not any(np.array_equal(v, b.tensors[name]) for name, v in a.tensors.items())


def test_what_is_reported_holds_for_the_written_model(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    src, out = checkpoint("llama"), tmp_path / "out"
    found = make(src, out, 20).recovered
    assert found is not None
    assert lost(src, out, TEXTS, found.tokens // 63) == pytest.approx(found.after, rel=0.02)


def test_what_does_not_help_is_left_out(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Steps of a hundred times the size spoil the model, so none is taken."""
    src, plain, out = checkpoint("llama"), tmp_path / "plain", tmp_path / "out"
    make(src, plain, 0)
    recovery = Distillation(4, lr=3.0, length=64)
    fitted = best_for_size(
        src, out, Goal(bits=3.4), TEXTS, tokens=256, threads=1, recovery=recovery
    )
    assert fitted.recovered is not None
    assert not fitted.recovered.fell
    assert files(plain) == files(out)


def test_the_rate_that_regains_most_is_taken(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of four rates spoils the model, and the third moves it too little."""
    monkeypatch.setattr("sterna.integrations.recovering.RATES", (3.0, 0.02, 1e-6, 1e-7))
    src, out, done = checkpoint("llama"), tmp_path / "out", list[tuple[int, int]]()
    found = best_for_size(
        src,
        out,
        Goal(bits=3.4),
        TEXTS,
        tokens=256,
        threads=1,
        recovery=Distillation(12, length=64),
        progress=lambda stage, *of: done.append(of) if stage == "recovering" else None,
    ).recovered
    assert found is not None
    assert found.lr == 0.02
    assert found.fell
    assert lost(src, out, TEXTS, found.tokens // 63) == pytest.approx(found.after, rel=0.02)
    steps = [*range(1, 37), *range(49, 61)]  # of trials and training; the last needs no trial
    assert done == [(step, 60) for step in steps]


def test_files_for_llama_cpp(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(candidates.TARGETS, "gguf", ("q4_0", "q4_1", "q8_0"))
    src, sizes = checkpoint("llama"), list[int]()
    for steps in (0, 30):
        out = tmp_path / f"{steps}.gguf"
        recovery = Distillation(steps, lr=0.01, length=64) if steps else None
        fitted = best_for_size(
            src, out, Goal(bits=4.8), TEXTS, target="gguf", tokens=256, threads=1, recovery=recovery
        )
        sizes.append(out.stat().st_size)
    assert fitted.recovered is not None
    assert fitted.recovered.fell
    assert sizes[0] == sizes[1]
    plain, trained = (lost(src, tmp_path / f"{n}.gguf", TEXTS, 4) for n in (0, 30))
    assert trained < 0.97 * plain  # of the held-out rows, the first
    assert LLM(out, threads=1, cache=False).generate("a", max_tokens=2)


@pytest.mark.filterwarnings("ignore:.*was not trained for")
@pytest.mark.parametrize(("format", "head"), [("t5:g32", None), ("i2", "i4:g32")])
def test_one_format_for_all(
    format: str, head: str | None, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Scales of groups and of rows; the embedding stays of floats unless it is to be rounded."""
    src, out = checkpoint("llama"), tmp_path / "out"
    recovery = Distillation(40, lr=0.02, length=64)
    _, found = in_one_format(src, out, format, TEXTS, recovery, head=head, tokens=256, threads=1)
    assert found.fell
    assert found.after < 0.9 * found.before
    # What is reported holds for the written model, so it has what was trained, head included.
    assert lost(src, out, TEXTS, found.tokens // 63) == pytest.approx(found.after, rel=0.02)
    written = loading.load(out, cached=False).weights.modules
    layers = {str(w.format) for name, w in written.items() if ".layers." in name}
    tables = {str(w.format) for name, w in written.items() if ".layers." not in name}
    assert layers == {format}
    assert tables == {head or "f32"}


def test_one_format_on_the_command_line(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    src, out, text = checkpoint("llama"), tmp_path / "out", tmp_path / "text"
    text.write_text("".join(TEXTS))
    asked = ("--format", "i4", "--scales", "group:32", "--recover", "3", "--threads", "1")
    asked = (*asked, "--calibrate", str(text), "--calibrate-tokens", "256")
    *rows, last = json.loads(command("quantize", str(src), str(out), *asked, "--json").stdout)
    assert {row["to"] for row in rows if ".layers." in row["tensor"]} == {"i4:g32"}
    assert last["recovered"]["steps"] == 3
    shown = command("quantize", str(src), str(out), *asked, "--force").stdout
    assert "recover: 3 steps, learning rate " in shown
    assert not out.with_name("out.unfinished").exists()


@pytest.mark.parametrize(("share", "kept"), [(0.3, 11), (0.9, 35)])  # a trial; the training
def test_a_killed_run_goes_on_to_the_same_bytes(
    checkpoint: Callable[[str], Path], tmp_path: Path, share: float, kept: int
) -> None:
    """At most four rates are tried for eight steps each, then one is trained for eight."""
    src, whole, killed = checkpoint("llama"), tmp_path / "whole", tmp_path / "killed"
    recovery = Distillation(8, length=32, save_every=3)
    steps = list[tuple[str, int]]()

    def run(dst: Path) -> None:
        best_for_size(
            src,
            dst,
            Goal(bits=3.4),
            TEXTS,
            tokens=256,
            threads=1,
            recovery=recovery,
            progress=lambda stage, done, total: steps.append((stage, done)),
        )

    run(whole)
    given = (str(src), str(killed), json.dumps(TEXTS), json.dumps(FORMATS), str(share))
    made = subprocess.run(
        [sys.executable, "-c", KILLED, *given], capture_output=True, text=True, check=False
    )
    assert made.returncode == -signal.SIGKILL, made.stderr
    assert not killed.exists()
    in_all = [done for stage, done in steps if stage == "recovering"]
    steps.clear()
    run(killed)
    left = [done for stage, done in steps if stage == "recovering"]
    assert left == [done for done in in_all if done > kept]  # states are those of three steps
    assert files(whole) == files(killed)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_cannot_be_trained_is_refused_first(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    src, out = checkpoint("llama"), tmp_path / "o"
    asked = ("quantize", str(src), str(out))
    failed(command(*asked, "--recover", "9", "--format", "bf16"), "recover: must", "with integer")
    failed(command(*asked, "--recover", "9", "--format", "gguf:Q4_0"), "with --for gguf")
    failed(command(*asked, "--recover", "9", "--codebook", "learn"), "--codebook: must be left out")
    with pytest.raises(RequestError, match=r"without experts, but .* has model\.layers\.0"):
        make(checkpoint("mixtral"), out, 5)
    with pytest.raises(RequestError, match=r"from a model of floats, but .* is packed"):
        make(make_packed(src, tmp_path), out, 5)
    with pytest.raises(RequestError, match="of transformers, by which it is trained"):
        make(checkpoint("gpt2"), out, 5)
    with pytest.raises(RequestError, match="text of 128 tokens at least"):
        best_for_size(
            src,
            out,
            Goal(bits=3.4),
            ["short " * 20],
            threads=1,
            recovery=Distillation(5, length=64),
        )
    monkeypatch.delitem(sys.modules, "sterna.integrations.recovering")
    monkeypatch.setitem(sys.modules, "torch", None)
    failed(command(*asked, "--bpw", "3", "--recover", "10"), "pip install 'sterna[train]'")
    assert not out.exists()


def make_packed(src: Path, folder: Path) -> Path:
    from sterna.convert import convert

    convert(src, folder / "packed", "i4:g32", threads=1)
    return folder / "packed"
