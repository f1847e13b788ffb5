"""GGUF files that Sterna writes: read by Sterna, by the gguf package, and by llama.cpp."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import checkpoint_factory as factory
import gguf
import numpy as np
import pytest
from helpers import add_token_beyond, failure
from llama_cpp_module import last_line
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers import models as tokenizer_models
from tokenizers.trainers import BpeTrainer

from sterna import LLM, formats, loading, ops
from sterna.convert import convert
from sterna.convert.gguf_export import TYPES
from sterna.errors import ModelFormatError, RequestError, UnsupportedModelError
from sterna.formats import codec
from sterna.formats.ggml_blocks import from_ggml
from sterna.gguf.block_encoding import ENCODERS, blocks_of
from sterna.gguf.hashes import HASHES

# Seeds whose greedy tokens lead by LEAD nats or more: rounding alone cannot turn them.
LEAD = 0.3
FLOAT = replace(factory.RECIPES["llama-256"], seed=2)
TERNARY = replace(factory.RECIPES["llama-256"], weights="divide", seed=311)
ROPE = replace(
    factory.RECIPES["llama3-rope"], hidden=256, intermediate=512, heads=4, kv_heads=2, seed=24
)
TIED = replace(FLOAT, tied=True, seed=1)
COARSE = replace(FLOAT, seed=6)  # leads in Q4_0
SOURCES = {"float": FLOAT, "coarse": COARSE, "ternary": TERNARY, "rope": ROPE, "tied": TIED}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sources")
    for name, recipe in SOURCES.items():
        factory.write(root / name, recipe)
    return root


# ---------------------------------------------------------------------------------------- blocks


#: Types that the package rounds as well; others it only reads.
ROUNDED_BY_GGUF = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "tq2_0")


@pytest.mark.parametrize("name", ENCODERS)
def test_blocks_are_those_of_the_gguf_package(name: str) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((5, 512)).astype(np.float32)
    values[1] = 0
    values[2, :256] = np.where(values[2, :256] > 0, 1, -1)
    weight = ops.pack(*codec.by_rule(formats.get(name), values), format=name)
    got, kind = blocks_of(name, *ops.unpack(weight)), gguf.GGMLQuantizationType[name.upper()]
    np.testing.assert_array_equal(gguf.quants.dequantize(got, kind), ops.dequantize(weight))
    if name in ROUNDED_BY_GGUF:
        np.testing.assert_array_equal(got, gguf.quants.quantize(values, kind))
    back = blocks_of(name, *ops.unpack(from_ggml(name, got)))  # any block, and back
    np.testing.assert_array_equal(back, got)


@pytest.mark.parametrize("name", ENCODERS)
def test_all_levels_come_back(name: str) -> None:
    f = formats.get(name)
    assert f.codebook is not None
    levels = np.resize(f.codebook.array, (3, 512))
    values = np.random.default_rng(7).standard_normal((3, 512)).astype(np.float32)
    scales = ops.unpack(ops.quantize(values, name))[1]
    weight = ops.pack(levels, scales, format=name)
    blocks = blocks_of(name, levels, scales)
    back = from_ggml(name, blocks)
    np.testing.assert_array_equal(back.codes, weight.codes)
    np.testing.assert_array_equal(back.scale, weight.scale)
    with pytest.raises(RequestError, match="format: must be one of"):
        blocks_of("q1_0", levels, scales)


# ---------------------------------------------------------------------------- read by Sterna


@pytest.mark.parametrize(
    ("source", "type"),
    [("float", type) for type in TYPES]
    + [(source, type) for source in ("rope", "tied") for type in ("F32", "BF16", "Q8_0", "Q4_K")]
    # A packed directory does not make floats of what rounds activations.
    + [("ternary", type) for type in ("Q8_0", "Q4_0", "Q4_1", "TQ2_0")],
)
def test_a_written_file_is_the_same_model_as_a_packed_directory(
    sources: Path, tmp_path: Path, source: str, type: str
) -> None:
    head = "q8_0" if type in ("Q4_0", "TQ2_0") else TYPES[type]
    losses = convert(sources / source, tmp_path / "m.gguf", f"gguf:{type}", head)
    convert(sources / source, tmp_path / "m", TYPES[type], head)
    got = loading.load(tmp_path / "m.gguf", cached=False)
    want = loading.load(tmp_path / "m")
    assert got.config.attention == want.config.attention
    assert got.config.tied == want.config.tied
    assert got.weights.modules.keys() == want.weights.modules.keys()
    for name, weight in want.weights.modules.items():
        assert got.weights.modules[name].format == weight.format
        np.testing.assert_array_equal(got.weights.modules[name].codes, weight.codes, err_msg=name)
        np.testing.assert_array_equal(got.weights.modules[name].scale, weight.scale, err_msg=name)
    for name, tensor in want.weights.tensors.items():
        np.testing.assert_array_equal(got.weights.tensors[name], tensor, err_msg=name)
    assert {loss.format for loss in losses} <= {type, head.upper()}


def test_ternary_scales_that_are_halves_lose_nothing(tmp_path: Path) -> None:
    """A scale that f16 has makes TQ2_0 exact; the factory's bf16 scales are rounded."""
    src = factory.write(tmp_path / "m", replace(TERNARY, weights="multiply"))
    losses = convert(src, tmp_path / "a.gguf", "gguf:TQ2_0")
    layers = [loss for loss in losses if loss.format == "TQ2_0"]
    assert {loss.format for loss in losses if loss not in layers} == {"Q4_K", "Q6_K"}  # tables
    assert len(layers) == 7 * TERNARY.layers
    assert all(loss.relative_rms <= 2.0**-11 for loss in layers)
    second_losses = convert(tmp_path / "a.gguf", tmp_path / "b.gguf", "gguf:TQ2_0")
    assert all(loss.exact for loss in second_losses)
    reader = [gguf.GGUFReader(tmp_path / f"{name}.gguf") for name in "ab"]
    for a, b in zip(reader[0].tensors, reader[1].tensors, strict=True):
        assert (a.name, a.tensor_type) == (b.name, b.tensor_type)
        np.testing.assert_array_equal(a.data, b.data)


def test_a_token_beyond_the_embedding_stays_out(sources: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sources / "float", tmp_path / "m")
    for out in ("before", "after"):
        convert(folder, tmp_path / f"{out}.gguf", "gguf:F32")
        add_token_beyond(folder, "<image>")
    assert (tmp_path / "before.gguf").read_bytes() == (tmp_path / "after.gguf").read_bytes()


def test_generation_tokenizer_and_template_travel(sources: Path, tmp_path: Path) -> None:
    convert(sources / "float", tmp_path / "m.gguf", "gguf:F32")
    want, got = LLM(sources / "float", cache=False), LLM(tmp_path / "m.gguf", cache=False)
    text = "def read_lines(path):\n    return 12 files, it's  ünïcode 漢字"
    assert got.tokenizer.encode(text) == want.tokenizer.encode(text)
    answers = [llm.generate(text, max_tokens=8, temperature=0).tokens for llm in (want, got)]
    assert answers[0] == answers[1]
    messages = [{"role": "user", "content": "hello"}]
    chats = [llm.chat(messages, max_tokens=4, temperature=0).tokens for llm in (want, got)]
    assert chats[0] == chats[1]


def sentencepiece_like() -> Tokenizer:
    """A BPE with byte fallback as Llama 2's tokenizer.json has it."""
    marks = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    trained = Tokenizer(tokenizer_models.BPE())
    trained.normalizer = normalizers.Sequence(marks)
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trained.train_from_iterator(
        [factory.CORPUS] * 3, BpeTrainer(vocab_size=120, show_progress=False)
    )
    learnt = json.loads(trained.to_str())["model"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    first = [token for token in learnt["vocab"] if token not in tokens]
    vocab = {token: i for i, token in enumerate([*tokens, *first])}
    tok = Tokenizer(
        tokenizer_models.BPE(
            vocab, [tuple(m) for m in learnt["merges"]], unk_token="<unk>", fuse_unk=True,
            byte_fallback=True,
        )
    )  # fmt: skip
    tok.normalizer = normalizers.Sequence(marks)
    tok.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1),
        ]
    )
    tok.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tok


def write_sentencepiece(folder: Path) -> Path:
    factory.write(folder, FLOAT)
    tok = sentencepiece_like()
    tok.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    size = tok.get_vocab_size()
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows = tensors[name]
        tensors[name] = rows.repeat(-(-size // len(rows)), 1)[:size].contiguous()
    save_file(tensors, folder / "model.safetensors")
    config |= {"vocab_size": size, "bos_token_id": 1, "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(config))
    settings = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "add_bos_token": True,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_a_sentencepiece_tokenizer(tmp_path: Path) -> None:
    src = write_sentencepiece(tmp_path / "m")
    convert(src, tmp_path / "m.gguf", "gguf:Q8_0")
    got = LLM(tmp_path / "m.gguf", cache=False).tokenizer
    want = sentencepiece_like()
    for text in ("def read_lines(path):", "  two  spaces", "Ünïcode 漢字 🐦", "a"):
        assert got.encode(text)[-len(want.encode(text).ids) :] == want.encode(text).ids


# --------------------------------------------------------------------- read by the gguf package


def test_a_model_keeps_the_name_of_its_file(sources: Path, tmp_path: Path) -> None:
    """A folder gives its own; a GGUF file has one, whatever it is called now."""
    first, second = tmp_path / "first.gguf", tmp_path / "second.gguf"
    convert(sources / "rope", first, "gguf:F16")
    convert(first.rename(tmp_path / "other.gguf"), second, "gguf:Q8_0")
    assert gguf.GGUFReader(second).fields["general.name"].contents() == "rope"


def test_the_gguf_package_reads_it(sources: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    convert(sources / "rope", path, "gguf:Q8_0")
    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["general.architecture"] == "llama"
    assert fields["general.file_type"] == gguf.LlamaFileType.MOSTLY_Q8_0
    assert fields["llama.attention.head_count_kv"] == 2
    assert fields["tokenizer.ggml.pre"] == "gpt-2"
    assert fields["tokenizer.ggml.add_bos_token"] is True
    assert fields["tokenizer.chat_template"] == factory.CHAT_TEMPLATE
    assert len(fields["tokenizer.ggml.tokens"]) == fields["llama.vocab_size"]
    by_name = {t.name: t for t in reader.tensors}
    assert "rope_freqs.weight" in by_name
    assert by_name["output_norm.weight"].tensor_type == gguf.GGMLQuantizationType.F32
    # q is in the order of interleaved rotations: rows of both halves of a head alternate
    from safetensors.numpy import load_file

    q = load_file(sources / "rope" / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"]
    permuted = q.reshape(4, 2, 32, 256).swapaxes(1, 2).reshape(q.shape)
    blocks = gguf.quants.quantize(permuted, gguf.GGMLQuantizationType.Q8_0)
    np.testing.assert_array_equal(by_name["blk.0.attn_q.weight"].data, blocks)
    hashes = fields[HASHES]
    for hash, t in zip(hashes, reader.tensors, strict=True):
        shape = [int(size) for size in reversed(t.shape)]
        named = f"{t.name} {t.tensor_type.name} {shape}\n".encode()
        assert hash == hashlib.sha256(named + t.data.tobytes()).hexdigest()


# -------------------------------------------------------------------------- read by llama.cpp

LLAMA_CPP = """
import json, sys
import llama_cpp
from llama_cpp import llama_cpp as native
defaults = native.llama_model_default_params
def plain():
    # Without repacking for matrix units: what llama.cpp's AMX code needs, not every host grants.
    params = defaults()
    params.use_extra_bufts = False
    return params
native.llama_model_default_params = plain
model = llama_cpp.Llama(sys.argv[1], n_ctx=256, n_threads=1, verbose=False)
prompt = model.tokenize(sys.argv[2].encode())
tokens = [t for t, _ in zip(model.generate(prompt, temp=0.0, top_k=1), range(int(sys.argv[3])))]
print(json.dumps([prompt, tokens]))
"""


@pytest.mark.parametrize(
    ("source", "type"),
    [
        ("float", "F32"), ("float", "F16"), ("float", "BF16"), ("float", "Q8_0"),
        ("coarse", "Q4_0"), ("rope", "F16"), ("tied", "Q8_0"), ("ternary", "TQ2_0"),
        ("ternary", "Q4_0"), ("sentencepiece", "F16"),
    ],
)  # fmt: skip
def test_llama_cpp_gives_the_same_greedy_tokens(
    sources: Path, tmp_path: Path, source: str, type: str
) -> None:
    src = sources / source
    if source == "sentencepiece":
        src = write_sentencepiece(tmp_path / "m")
    path, prompt, count = tmp_path / "m.gguf", "def read_lines(path):", 16
    convert(src, path, f"gguf:{type}")
    tokens, theirs = json.loads(last_line(LLAMA_CPP, str(path), prompt, str(count)))
    llm = LLM(path, cache=False)
    assert list(llm.tokenizer.encode(prompt)) == tokens
    ours = llm.generate(tokens, max_tokens=count, temperature=0, logprobs=2)
    assert len(ours.tokens) > 4
    if source != "sentencepiece":
        tops = [token.top for token in ours.logprobs]
        assert min(first[1] - second[1] for first, second in tops) >= LEAD
    assert list(ours.tokens) == theirs[: len(ours.tokens)]


# ------------------------------------------------------------------------------------- refusals


def test_refusals(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dst = tmp_path / "m.gguf"
    with pytest.raises(UnsupportedModelError, match="architecture must be one of"):
        convert("nano", dst, "gguf:F16")
    with pytest.raises(RequestError, match="gguf: must be one of F32"):
        convert(sources / "float", dst, "gguf:Q9_0")
    with pytest.raises(RequestError, match="head"):
        convert(sources / "float", dst, "gguf:F16", "i4")
    strange = factory.write(tmp_path / "strange", FLOAT)
    document: dict[str, Any] = json.loads((strange / "tokenizer.json").read_text())
    document["pre_tokenizer"] = {"type": "Whitespace"}
    (strange / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(UnsupportedModelError, match="split text"):
        convert(strange, dst, "gguf:F16")
    bpe = document["model"]
    document["model"] = {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0.0]]}
    (strange / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(UnsupportedModelError, match="BPE"):
        convert(strange, dst, "gguf:F16")
    del bpe["vocab"]
    document["model"] = bpe
    (strange / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(ModelFormatError, match="tokenizer"):
        convert(strange, dst, "gguf:F16")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(RequestError, match=r"pip install 'sterna\[gguf\]'"):
        convert(sources / "float", dst, "gguf:F16")
    assert not dst.exists()
    assert not list(tmp_path.glob(".*"))


def test_rows_that_are_no_blocks_at_all_become_f16(tmp_path: Path) -> None:
    """llama.cpp's quantiser does so too."""
    src = factory.write(tmp_path / "m", replace(FLOAT, intermediate=272))
    losses = convert(src, tmp_path / "m.gguf", "gguf:Q4_0")
    by_name = {loss.name.rpartition(".")[2]: loss.format for loss in losses}
    assert (by_name["down_proj"], by_name["up_proj"]) == ("F16", "Q4_0")
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    types = {t.name: t.tensor_type.name for t in reader.tensors}
    assert types["blk.1.ffn_down.weight"] == "F16"


#: Types of layers, of an embedding that makes no logits, and of a table that does: the rules of
#: llama.cpp's quantiser (`llama-quantize --pure` for layers).
TABLES = [
    ("Q4_0", "Q4_0", "Q6_K"), ("Q5_1", "Q5_1", "Q6_K"), ("Q4_K", "Q4_K", "Q6_K"),
    ("Q2_K", "Q2_K", "Q6_K"), ("IQ4_NL", "IQ4_NL", "Q6_K"), ("TQ2_0", "Q4_K", "Q6_K"),
    ("Q8_0", "Q8_0", "Q8_0"), ("BF16", "BF16", "BF16"),
]  # fmt: skip


@pytest.mark.parametrize(("type", "embedding", "head"), TABLES)
def test_tables_of_floats(
    sources: Path, tmp_path: Path, type: str, embedding: str, head: str
) -> None:
    for source, expected in (("float", (embedding, head)), ("tied", (head, None))):
        convert(sources / source, path := tmp_path / f"{source}.gguf", f"gguf:{type}")
        types = {t.name: t.tensor_type.name for t in gguf.GGUFReader(path).tensors}
        assert (types["token_embd.weight"], types.get("output.weight")) == expected
        assert types["blk.0.attn_q.weight"] == type
        again = tmp_path / f"{source}-again.gguf"
        convert(path, again, f"gguf:{type}")  # what is quantised stays as it is
        assert {t.name: t.tensor_type.name for t in gguf.GGUFReader(again).tensors} == types


def test_a_full_disk_leaves_the_old_file(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from test_convert_safely import Full

    from sterna.files import writing

    path = tmp_path / "m.gguf"
    convert(sources / "float", path, "gguf:Q8_0")
    whole = path.read_bytes()
    with pytest.raises(RequestError, match="--force"):
        convert(sources / "float", path, "gguf:Q8_0")
    fdopen = writing.os.fdopen
    monkeypatch.setattr(writing.os, "fdopen", lambda *a, **k: Full(fdopen(*a, **k)))
    for point in range(10):
        Full.room = len(whole) * point // 10
        with pytest.raises(RequestError, match=r"bytes.*free disk space"):
            convert(sources / "float", path, "gguf:Q8_0", force=True)
        assert path.read_bytes() == whole
        assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]


def test_what_opens_a_text_stays_from_file_to_file(sources: Path, tmp_path: Path) -> None:
    """BOS is written as the tokenizer does it, also where no word of a config says so."""
    first, second = tmp_path / "first.gguf", tmp_path / "second.gguf"
    convert(sources / "float", first, "gguf:F16")
    convert(first, second, "gguf:F16")
    tokenizers = [LLM(path, threads=1).tokenizer for path in (sources / "float", first, second)]
    assert len({tuple(t.encode("Hello there")) for t in tokenizers}) == 1
    assert len({t.eos_ids for t in tokenizers}) == 1


def test_names_say_what_is_written(sources: Path, tmp_path: Path) -> None:
    failure(lambda: convert(sources / "float", tmp_path / "x", "gguf:F16"), RequestError, ".gguf")
    failure(lambda: convert(sources / "float", tmp_path / "x.gguf", "q8_0"), RequestError, "folder")
    failure(lambda: convert(sources / "float", tmp_path / "x", 5), RequestError, "format", "5")
