"""Real weights from file to file: rounded, packed, written as GGUF, and read by llama.cpp."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import checkpoint_factory as factory
import llama_cpp_process
import pytest
import texts

from sterna import LLM, formats
from sterna.convert import convert
from sterna.convert.best_for_size import Goal, best_for_size
from sterna.convert.gguf_mixtures import type_in
from sterna.evaluate.perplexity import perplexity
from sterna.gguf.file import GgufFile

# Formats of a float checkpoint, and by how much each may raise the perplexity of the four texts:
# about one and a half times what was measured. Of q4_0 it is a file that llama.cpp reads, too.
ROUNDED = {"q8_0": 1.01, "q4_0": 1.4, "iq4_nl": 1.3}
# Types that are written, and how far llama.cpp's log-probabilities may be from ours: layers of
# whole numbers round their inputs on both sides, floats on neither.
APART = {"F16": 0.02, "Q8_0": 0.35, "Q4_0": 0.35, "Q4_K_M": 0.5}


@pytest.fixture(scope="module")
def floats(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 as a file of floats, which hold the file's values to 2**-11 of each."""
    path = tmp_path_factory.mktemp("floats") / "smollm2.gguf"
    convert(smollm2, path, "gguf:F16")
    return path


@cache
def measured(model: Path, **options: object) -> float:
    """Perplexity of the four texts, of 64 tokens of each."""
    llm = LLM(model, context=64, cache=False, **options)
    cut = [llm.tokenizer.decode(llm.tokenizer.encode(text)[:64]) for text in texts.TEXTS.values()]
    return perplexity(llm, cut).perplexity


@pytest.mark.parametrize("format", ["q8_0", "iq4_nl"])
def test_rounded_floats(format: str, floats: Path, tmp_path: Path) -> None:
    """Written, read back, and as good as opening the floats in this format, which is the same."""
    convert(floats, tmp_path / "m", format, "q8_0")
    check_rounded(format, tmp_path / "m", floats)


def check_rounded(format: str, model: Path, floats: Path) -> None:
    kept = measured(model)
    print(format, kept, measured(floats))
    assert measured(floats) * 0.98 < kept < measured(floats) * ROUNDED[format]


def test_a_packed_file_is_the_file(smollm2: Path, tmp_path: Path) -> None:
    convert(smollm2, tmp_path / "m")
    assert measured(tmp_path / "m") == measured(smollm2)


def test_a_mixture_has_the_types_of_a_published_one(gemma3: Path) -> None:
    """Of each matrix of a layer, in the Q4_K_M that llama.cpp's quantiser made."""
    tensors = GgufFile(gemma3).tensors
    layers = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("blk."))
    found = {name: t for name, t in tensors.items() if name.startswith("blk.") and len(t.shape) > 1}
    assert len(found) == 7 * layers
    for name, tensor in found.items():
        type = formats.get(type_in("Q4_K_M", name, layers).lower())
        assert formats.fitting(type, tensor.shape[-1]).name == tensor.dtype.lower(), name


# ------------------------------------------------------------------------------ read by llama.cpp


@pytest.mark.parametrize("type", APART)
def test_llama_cpp_reads_what_we_write(type: str, floats: Path, tmp_path: Path) -> None:
    """It says of each token of our answers nearly what we say."""
    path, n = floats, 8
    if type != "F16":
        path = tmp_path / "written.gguf"
        convert(floats, path, f"gguf:{type}")
    ours = LLM(path, context=512, cache=False)
    prompts = [ours.tokenizer.encode(prompt) for prompt in texts.PROMPTS]
    theirs = llama_cpp_process.greedy(path, prompts, n)
    agreed = 0
    for prompt, answer in zip(prompts, theirs, strict=True):
        mine = ours.generate(prompt, max_tokens=n, temperature=0, repetition_penalty=1, logprobs=5)
        for one, (token, logprob) in zip(mine.logprobs, answer, strict=False):
            told = dict(one.top).get(token)
            assert told is not None, (one, token)
            assert math.isclose(told, logprob, abs_tol=APART[type]), (one, token, logprob)
            if one.token != token:
                break
            agreed += 1
    print(type, agreed)
    assert agreed >= len(prompts) * n // 2
    if type == "Q4_0":
        check_rounded("q4_0", path, floats)


def test_llama_cpp_reads_a_chosen_mixture(tmp_path: Path) -> None:
    """What `--bpw --for gguf` writes: several types in a file, one for each matrix."""
    src, path, n = tmp_path / "m", tmp_path / "m.gguf", 10
    factory.write(src, replace(factory.RECIPES["llama-256"], seed=6))  # its answers lead by far
    fitted = best_for_size(
        src, path, Goal(bits=6.5), [texts.PROSE], target="gguf", tokens=128, threads=1
    )
    types = {tensor.dtype for tensor in GgufFile(path).tensors.values()} - {"F32"}
    assert len(types) > 1
    assert {row["format"].upper() for row in fitted.rows} == types
    ours = LLM(path, context=256, cache=False)
    prompt = ours.tokenizer.encode("def read_lines(path):")
    asked = {"n_predict": n, "temperature": 0, "ignore_eos": True, "return_tokens": True}
    (theirs,) = llama_cpp_process.completions(path, [{"prompt": prompt, **asked}])
    mine = ours.generate(prompt, max_tokens=n, temperature=0, repetition_penalty=1)
    assert mine.tokens == theirs["tokens"]
