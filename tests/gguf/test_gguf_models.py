"""GGUF models run as the same weights in a checkpoint do: every type, architecture and storage."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import assert_same_bits, command, failed, failure
from waits import HANGS_S

gguf = pytest.importorskip("gguf", reason="needs the gguf package (pip install sterna[test])")

from checkpoint_factory import EOS, EOT, tokenizer  # noqa: E402
from gguf_factory import Tiny, build, finish, write  # noqa: E402
from gguf_models import MODELS, TEXT, floating, logits  # noqa: E402

from sterna import LLM, loading  # noqa: E402
from sterna.errors import ModelFormatError, RequestError, UnsupportedModelError  # noqa: E402


@pytest.fixture(autouse=True)
def no_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STERNA_I2S", raising=False)


def margins(rows: np.ndarray) -> np.ndarray:
    """How much the likeliest token is ahead of the next."""
    top = np.sort(rows, axis=1)
    return np.asarray(top[:, -1] - top[:, -2])


@pytest.mark.parametrize("name", MODELS)
def test_same_as_the_dequantised_checkpoint(name: str, tmp_path: Path) -> None:
    """Read as floats, the file gives the bits of the weights that the gguf package reads; in its
    own types it differs by the rounding of activations."""
    tiny = MODELS[name]
    floats = write(tmp_path / "x.gguf", tiny)
    reference = floating(tmp_path / "hf", tiny, floats)
    expected = logits(reference)
    exact = LLM(tmp_path / "x.gguf", format="f32", head="f32")
    assert_same_bits(logits(exact), expected)

    packed = LLM(tmp_path / "x.gguf")
    rows = logits(packed)
    spread = float(np.std(expected))
    error = np.abs(rows - expected).max(axis=1)
    assert np.median(error) < 0.15 * spread
    sure = margins(expected) > 2 * error
    assert sure.any()
    np.testing.assert_array_equal(rows.argmax(axis=1)[sure], expected.argmax(axis=1)[sure])
    assert exact.tokenizer.encode(TEXT) == reference.tokenizer.encode(TEXT)


def test_formats_are_the_files_own(tmp_path: Path) -> None:
    """A mixed file keeps each tensor's type."""
    write(tmp_path / "x.gguf", MODELS["mixed"])
    model = loading.load(tmp_path / "x.gguf")
    assert model.format == "q4_k"
    assert model.head == "q6_k"
    assert {w.format for w in model.graph.weights()} == {"q4_k", "q6_k"}
    assert model.n_params == sum(w.size for w in build(MODELS["mixed"])[1].values() if w.ndim == 2)


# ----------------------------------------------------------------------------- around the model


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    write(tmp_path / "mixed.gguf", MODELS["mixed"])
    return tmp_path / "mixed.gguf"


def test_generate_and_chat(mixed: Path) -> None:
    """The command line and the class; the template and the ends are the file's."""
    llm = LLM(mixed)
    done = llm.generate("The meaning", max_tokens=6)
    assert len(done.tokens) == 6 or done.finish_reason == "stop"
    ids = tokenizer()
    assert llm.tokenizer.eos_ids == tuple(sorted((ids.token_to_id(EOS), ids.token_to_id(EOT))))
    assert llm.context == 512
    assert llm.chat([{"role": "user", "content": "Hello"}], max_tokens=2).tokens
    result = command("generate", "--model", str(mixed), "--max-tokens", "6", "The meaning")
    assert result.exit_code == 0
    assert done.text.strip() in result.stdout


def test_split_files(tmp_path: Path) -> None:
    """Any part opens all, and so does the folder; a missing or misnamed one is named."""
    write(tmp_path / "whole.gguf", MODELS["mixed"])
    expected = logits(LLM(tmp_path / "whole.gguf"))
    (folder := tmp_path / "parts").mkdir()
    write(folder / "m.gguf", MODELS["mixed"], split_max_tensors=10, small_first_shard=True)
    parts = sorted(folder.glob("m-*.gguf"))
    assert [len(gguf.GGUFReader(part).tensors) for part in parts][:2] == [0, 10]
    for named in (parts[0], parts[-1], folder):
        assert_same_bits(logits(LLM(named)), expected)
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(b"")
    failure(
        lambda: LLM(tmp_path), RequestError, "one GGUF model", "m-00001-of-00002.gguf, whole.gguf"
    )
    renamed = tmp_path / "other.gguf"
    renamed.write_bytes(parts[1].read_bytes())
    failure(lambda: LLM(renamed), ModelFormatError, "other.gguf", "split.count", "part 2 of 3")
    stored = [part.read_bytes() for part in parts]
    parts[1].write_bytes(stored[2])  # of the same split, but another part
    failure(lambda: LLM(folder), ModelFormatError, parts[1].name, "part 2 of 3", "part 3 of 3")
    write(tmp_path / "n.gguf", MODELS["F16"], split_max_tensors=8)  # of another model
    parts[1].write_bytes((tmp_path / "n-00003-of-00003.gguf").read_bytes())
    failure(lambda: LLM(folder), ModelFormatError, parts[1].name)
    parts[1].unlink()
    failure(lambda: LLM(parts[0]), ModelFormatError, parts[1].name, "part 2 of 3")
    parts[0].unlink()
    failure(lambda: LLM(folder), ModelFormatError, parts[0].name, "part 1 of 3")


def test_a_split_of_other_counts(tmp_path: Path) -> None:
    """A count that the parts do not add up to is refused, and tensors that two parts have."""
    write(tmp_path / "m.gguf", MODELS["mixed"], split_max_tensors=8)
    first, second, _ = sorted(tmp_path.glob("m-*.gguf"))
    whole = first.read_bytes()
    at = whole.index(b"split.tensors.count") + len("split.tensors.count") + 4
    first.write_bytes(whole[:at] + b"\x11" + whole[at + 1 :])
    failure(lambda: LLM(first), ModelFormatError, first.name, "split.tensors.count", "got 17")
    first.write_bytes(whole)
    names, others = ({t.name for t in gguf.GGUFReader(part).tensors} for part in (first, second))
    one, other = next((a, b) for a in sorted(names) for b in sorted(others) if len(a) == len(b))
    second.write_bytes(second.read_bytes().replace(other.encode(), one.encode()))
    failure(lambda: LLM(first), ModelFormatError, second.name, one, "each tensor in one file")


def test_the_cache(mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second start reads the packed copy: the same bits, tokenizer and template."""
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path / "cache"))
    first = LLM(mixed)
    store = first.engine.model.store
    assert store is not None
    entry = store.wait(HANGS_S)
    assert entry is not None
    second = LLM(mixed)
    assert second.engine.model.path == entry
    assert_same_bits(logits(second), logits(first))
    message = [{"role": "user", "content": "Hello"}]
    assert second.chat_tokens(message) == first.chat_tokens(message)
    assert second.tokenizer.eos_ids == first.tokenizer.eos_ids
    assert second.tokenizer.bos_id == first.tokenizer.bos_id
    os.utime(mixed, (1, 1))
    assert LLM(mixed).engine.model.path == mixed


def test_formats_that_would_round_again(mixed: Path) -> None:
    """Quantised weights are kept, or made floats; anything else is refused with a reason."""
    for options in ({"format": "q8_0"}, {"format": "i2"}, {"head": "int8"}, {"head": "q8_0"}):
        failure(lambda o=options: LLM(mixed, **o), RequestError, next(iter(options)), "round")
    failure(lambda: LLM(mixed, head="exact"), RequestError, "exact", "token_embd")
    assert LLM(mixed, format="bf16", head="bf16").info()["format"] == "bf16"
    assert LLM(mixed, head="q6_k").info()["head"] == "q6_k"


def test_floats_take_any_format(tmp_path: Path) -> None:
    """They round as a float checkpoint's do."""
    write(tmp_path / "x.gguf", MODELS["F16"])
    for format in ("q4_k", "i8", "bf16"):
        assert LLM(tmp_path / "x.gguf", format=format, head="int8").info()["format"] == format


def test_defaults_of_sampling(tmp_path: Path) -> None:
    """general.sampling applies where a request sets nothing."""
    keys = {"general.sampling.temp": 0.5, "general.sampling.top_k": 7}
    write(tmp_path / "x.gguf", Tiny(layers=1, keys=keys))
    params = LLM(tmp_path / "x.gguf").requests.make([1], {}).params
    assert (params.temperature, params.top_k) == (0.5, 7)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({}, "general.architecture"),
    "experts": ({"llama.expert_count": 8}, "ffn_gate"),
    "softcap": ({"llama.attn_logit_softcapping": 30.0}, "softcapping"),
    "partial rotation": ({"llama.rope.dimension_count": 32}, "rope.dimension_count"),
    "tokenizer": ({"tokenizer.ggml.model": "rwkv"}, "rwkv"),
    "pre": ({"tokenizer.ggml.pre": "chameleon"}, "chameleon"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_sound_but_unsupported(case: str, tmp_path: Path) -> None:
    """A key that would change the answer is refused, not ignored."""
    keys, word = REFUSED[case]
    tiny = Tiny("rwkv6" if case == "architecture" else "llama", layers=1, keys=keys)
    write(tmp_path / "x.gguf", tiny)
    failure(lambda: LLM(tmp_path / "x.gguf"), UnsupportedModelError, "x.gguf", word)


def test_the_nearest_architectures(tmp_path: Path) -> None:
    """Are named where a file has one that is not known: its tensors tell, and then its name."""
    for name, known in (("llama9", "llama,"), ("gemma9", "gemma,")):
        write(tmp_path / "x.gguf", Tiny(name, layers=1))
        nearest = f"nearest by its tensors: {known}"
        failure(lambda: LLM(tmp_path / "x.gguf"), UnsupportedModelError, nearest)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("glm-dsa", "deepseek32"), ("mistral4", "deepseek2"), ("plm", "minicpm3"),
        ("qwen3vlmoe", "qwen3moe"), ("llada-moe", "olmoe"),
        ("afmoe", "glm4moe"), ("nomic-bert-moe", "nomic-bert"),
    ],
)  # fmt: skip
def test_the_tensors_of_others_tell_their_kin(name: str, expected: str, tmp_path: Path) -> None:
    """Files with the tensors that the gguf package lists for an architecture."""
    kind = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == name)
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", name)
    if "bert" in name:
        writer.add_causal_attention(False)
    for tensor in gguf.MODEL_TENSORS[kind]:
        stored = gguf.TENSOR_NAMES[tensor].format(bid=0)
        writer.add_tensor(f"{stored}.weight", np.ones((32, 32), np.float32))
    finish(writer)
    said = failure(lambda: LLM(tmp_path / "x.gguf"), UnsupportedModelError, f"'{name}'")
    nearest = said.partition("nearest by its tensors: ")[2].partition(")")[0].split(", ")
    assert expected in nearest
    assert len(nearest) == 3


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no eps": ({"llama.attention.layer_norm_rms_epsilon": None}, "rms_epsilon"),
    "text for a number": ({"llama.block_count": "2"}, "llama.block_count"),
    "other heads": ({"llama.attention.head_count": 8}, "attn_q"),
    "another width": ({"llama.embedding_length": 128}, "token_embd"),
    "one layer too many": ({"llama.block_count": 3}, "blk.2"),
    "layers that differ": ({"llama.attention.head_count_kv": [2, 1]}, "head_count_kv"),
    "bos beyond": ({"tokenizer.ggml.bos_token_id": 5000}, "bos_token_id"),
    "merges of one": ({"tokenizer.ggml.merges": ["ab"]}, "merges"),
    "types too few": ({"tokenizer.ggml.token_type": [1, 1]}, "token_type"),
    "no heads": ({"llama.attention.head_count": 0}, "head_count"),
}


@pytest.mark.parametrize("case", WRONG)
def test_metadata_that_does_not_fit(case: str, tmp_path: Path) -> None:
    """The key or the tensor is named."""
    keys, word = WRONG[case]
    write(tmp_path / "x.gguf", Tiny(keys=keys))
    failure(lambda: LLM(tmp_path / "x.gguf"), ModelFormatError, "x.gguf", word)


def test_a_tensor_that_no_graph_reads(tmp_path: Path) -> None:
    """One layer's worth of tensors more than the metadata says."""
    write(tmp_path / "x.gguf", Tiny(keys={"llama.block_count": 1}))
    failure(lambda: LLM(tmp_path / "x.gguf"), UnsupportedModelError, "blk.1.")


def test_bitnet_template(tmp_path: Path) -> None:
    """Files of BitNet hold another model's template."""
    keys = {"tokenizer.chat_template": "wrong", "tokenizer.ggml.pre": None}
    write(tmp_path / "x.gguf", replace(MODELS["bitnet-b1.58"], keys=keys))
    llm = LLM(tmp_path / "x.gguf")
    text = llm.tokenizer.decode(llm.chat_tokens([{"role": "user", "content": " Hi "}]))
    assert text == "User: HiAssistant: "


def test_floats_of_bitnet_are_doubted(tmp_path: Path) -> None:
    """Their converter divided by what it should have multiplied with."""
    write(tmp_path / "x.gguf", replace(MODELS["bitnet-b1.58"], types={"": "F16"}))
    with pytest.warns(RuntimeWarning, match="I2_S"):
        LLM(tmp_path / "x.gguf")


def test_a_folder_of_gguf_alone(mixed: Path) -> None:
    """It opens as the file; a file that is not there is named."""
    texts = [
        command("generate", "--model", str(path), "x", "--max-tokens", "4")
        for path in (mixed, mixed.parent)
    ]
    assert [text.exit_code for text in texts] == [0, 0]
    assert texts[0].output == texts[1].output
    failed(command("generate", "--model", str(mixed.with_name("no.gguf")), "x"), "no.gguf")
