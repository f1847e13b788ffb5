"""LoRA adapters on packed weights: they add the right values, change no other bit, and a request
may use those that it is allowed to."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import adapter_folders
import numpy as np
import pytest
from adapter_folders import added, parts_of
from helpers import ISAS, command, failed, failure

from sterna import LLM, loading
from sterna.checkpoints.directory import Checkpoint
from sterna.checkpoints.safetensors import write_safetensors
from sterna.engine import Adapter, Engine, Sequence, StepInput
from sterna.errors import (
    ModelFormatError,
    NonFiniteError,
    RequestError,
    SternaError,
    UnsupportedModelError,
)
from sterna.models import module_of

TOKENS = np.random.default_rng(3).integers(3, 250, 70).tolist()
#: Of one matrix for several layers, biases, factors, norms behind, heads of odd sizes, recurrent
#: layers, experts next to them, and names of a checkpoint that differ from the model's.
FLOATS = (
    "llama-bias", "llama-heads-of-20", "phi3", "gemma2", "gemma4", "granite", "minicpm", "olmo2",
    "glm4", "qwen3_5", "qwen3_5_moe", "gpt_oss",
)  # fmt: skip


@pytest.mark.parametrize("name", FLOATS)
def test_adds_what_merging_would(
    checkpoint: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    """y = W x + s B (A x) is (W + s B A) x, in every layer of every architecture."""
    folder = checkpoint(name)
    model = loading.load(folder, format="f32", head="f32")
    prefixes = getattr(module_of(model.json, folder), "PREFIXES", {})
    original = Checkpoint.open(folder)
    stored, ours = "", ""
    for old, new in prefixes.items():
        if any(tensor.startswith(old) for tensor in original.tensors):
            stored, ours = old, new
    config: dict[str, Any] = {"use_rslora": True, "rank_pattern": {"o_proj": 3}}
    path = adapter_folders.write(
        tmp_path / "adapter", parts_of(model), prefix=(ours, stored), alpha_pattern={"q_proj": 2},
        **config,
    )  # fmt: skip
    deltas = added(path)

    tensors: dict[str, Any] = {}
    for tensor, info in original.tensors.items():
        values = original.read(tensor)
        if tensor in deltas:
            assert info.dtype == "F32"
            values = values + deltas.pop(tensor)
        tensors[tensor] = values if info.dtype != "BF16" else ("BF16", values)
    assert not deltas, "all layers are tensors of the checkpoint"
    merged = tmp_path / "merged"
    shutil.copytree(folder, merged)
    write_safetensors(merged / "model.safetensors", tensors)

    engine = Engine(model, threads=2, kv_dtype="f32")
    adapter = Adapter.open(path, model)
    (got,) = engine.logits([TOKENS], adapter=adapter)
    whole = loading.load(merged, format="f32", head="f32")
    (expected,) = Engine(whole, threads=2, kv_dtype="f32").logits([TOKENS])
    (plain,) = engine.logits([TOKENS])
    scale = np.abs(expected).max()
    assert np.abs(got - expected).max() < 2e-4 * scale
    assert np.abs(plain - expected).max() > 1e-2 * scale


@pytest.mark.parametrize(
    ("name", "format"), [("bitnet-multiply", None), ("llama-256", "q4_0"), ("qwen3_5", "i8")]
)
def test_one_digest(
    checkpoint: Callable[[str], Path], tmp_path: Path, name: str, format: str | None
) -> None:
    """Bits are the same on all units, with all threads and chunks, alone and in a batch; rows
    without an adapter have the bits of a model without adapters."""
    model = loading.load(checkpoint(name), format=format, head="int8")
    parts = parts_of(model)
    some = [part for part in parts if "q_proj" in part.name or "down_proj" in part.name]
    folders = [
        adapter_folders.write(tmp_path / "all", parts, seed=1, r=5),
        adapter_folders.write(tmp_path / "some", some, seed=2, r=33),
    ]
    seen: dict[str, set[str]] = {"none": set(), "all": set(), "some": set()}
    for isa, threads in [*zip(ISAS, cycle((1, 3)), strict=False), (ISAS[-1], 2)]:
        engine = Engine(model, threads=threads, isa=isa, skip_zeros=True)
        every, few = (Adapter.open(folder, model) for folder in folders)
        plain = engine.logits([TOKENS])[0]
        seen["none"].add(_digest(plain))
        seen["all"].add(_digest(engine.logits([TOKENS], chunk=1, adapter=every)[0]))
        seen["some"].add(_digest(engine.logits([TOKENS], chunk=33, adapter=few)[0]))
        mixed = _mixed(engine, [every, None, few, every, None])
        for kind, rows in zip(("all", "none", "some", "all", "none"), mixed, strict=True):
            seen[kind].add(_digest(rows))
    assert [len(digests) for digests in seen.values()] == [1, 1, 1]
    assert len(set.union(*seen.values())) == 3


def _mixed(engine: Engine, adapters: list[Adapter | None]) -> list[np.ndarray]:
    """Logits of TOKENS with each adapter, in shared steps of sizes that differ."""
    sequences = [Sequence() for _ in adapters]
    parts: list[list[np.ndarray]] = [[] for _ in adapters]
    while any(s.length < len(TOKENS) for s in sequences):
        inputs, live = [], []
        for i, sequence in enumerate(sequences):
            tokens = TOKENS[sequence.length :][: 1 + 13 * i]
            if tokens:
                live.append(i)
                inputs.append(StepInput(sequence, tokens, len(tokens), adapter=adapters[i]))
        for i, output in zip(live, engine.run(inputs), strict=True):
            parts[i].append(output.logits)
    for sequence in sequences:
        engine.kv_cache.release(sequence)
    return [np.concatenate(rows) for rows in parts]


def _digest(logits: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(logits).tobytes()).hexdigest()


@pytest.fixture
def two(checkpoint: Callable[[str], Path], tmp_path: Path) -> tuple[Path, Path, Path]:
    """A model and two adapters of it."""
    folder = checkpoint("bitnet-multiply")
    parts = parts_of(loading.load(folder))
    one, other = (
        adapter_folders.write(tmp_path / name, parts, seed=seed)
        for name, seed in (("one", 1), ("other", 2))
    )
    return folder, one, other


def test_by_name(two: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Several at once, a default, and what was computed with one is never another's."""
    folder, one, other = two
    llm = LLM(folder, adapter={"one": one, "other": other}, threads=1)
    assert list(llm.adapters) == list(llm.info()["adapters"]) == ["one", "other"]
    prompt = TOKENS[:66]

    def answers(model: LLM, **options: Any) -> list[int]:
        return model.generate(prompt, max_tokens=8, temperature=0, **options).tokens

    names = [None, "one", "other", "one", "__base__"]
    got = [answers(llm, adapter=name) for name in names]
    fresh = LLM(folder, prefix_cache=False, threads=1)
    expected = [answers(fresh)]
    for path in (one, other):
        fresh.load_adapter("it", path)  # each in the place of the one before
        expected.append(answers(fresh, adapter="it"))
    assert got == [*expected, expected[1], expected[0]]
    assert len({tuple(tokens) for tokens in expected}) == 3
    # What another request has of the same prompt is found, and of the same adapter alone.
    done = llm.generate(prompt, max_tokens=1, adapter="one")
    assert done.stats.n_cached == len(prompt) - 1
    llm.load_adapter("again", shutil.copytree(one, tmp_path / "copy"))
    done = llm.generate(prompt, max_tokens=1, adapter="again")
    assert done.stats.n_cached == len(prompt) - 1, "it is the same, whatever its name"
    llm.load_adapter("third", adapter_folders.write(tmp_path / "3", parts_of(llm.engine.model)))
    assert llm.generate(prompt, max_tokens=1, adapter="third").stats.n_cached == 0

    default = LLM(folder, adapter=one, threads=1)
    assert answers(default) == expected[1]
    assert answers(default, adapter="__base__") == expected[0]
    assert np.array_equal(default.logits(prompt), fresh.logits(prompt, adapter="it")) is False
    assert np.array_equal(default.logits(prompt), llm.logits(prompt, adapter="one"))
    scores = [llm.logprobs(prompt, adapter=name) for name in ("one", "other")]
    assert not np.array_equal(*scores)
    told = default.prompt_logprobs(prompt)
    np.testing.assert_array_equal([t.logprob for t in told[1:] if t], scores[0])
    vectors = [llm.embed("a", pooling="mean", adapter=name) for name in names]
    assert np.array_equal(vectors[1], vectors[3])
    assert not np.array_equal(vectors[0], vectors[1])


def test_unloading_in_use(two: tuple[Path, Path, Path]) -> None:
    """A request keeps the adapter that it began with, even when a later one has the same name."""
    folder, one, other = two
    llm = LLM(folder, adapter={"it": one}, threads=1)
    options: dict[str, Any] = {"max_tokens": 20, "temperature": 0, "ignore_eos": True}
    expected = llm.generate(TOKENS[:9], **options, adapter="it")
    stream = llm.stream(TOKENS[:9], **options, adapter="it")
    pieces = [next(stream) for _ in range(3)]
    done = stream.completion
    llm.load_adapter("it", other)
    beside: list[list[int]] = []
    thread = threading.Thread(
        target=lambda: beside.append(llm.generate(TOKENS[:9], **options, adapter="it").tokens)
    )
    thread.start()
    pieces += [next(stream) for _ in range(3)]
    thread.join()
    llm.unload_adapter("it")
    pieces += stream
    assert "".join(piece.text for piece in pieces) == expected.text
    assert done.tokens == expected.tokens
    assert beside[0] != expected.tokens
    failure(lambda: llm.generate("a", adapter="it"), RequestError, "adapter", "__base__", "'it'")
    failure(lambda: llm.unload_adapter("it"), RequestError, "adapter", "'it'")


@pytest.fixture(scope="module")
def of_nano(tmp_path_factory: pytest.TempPathFactory) -> tuple[LLM, Path]:
    """The built-in model without adapters, and one of it."""
    llm = LLM("nano", threads=1, prefix_cache=False)
    folder = tmp_path_factory.mktemp("nano") / "poet"
    return llm, adapter_folders.write(folder, parts_of(llm.engine.model)[:3], size=2.0)


PROMPT = "def read_lines(path):\n"


def test_commands(of_nano: tuple[LLM, Path], tmp_path: Path) -> None:
    """`--adapter DIR` of all requests, and NAME=DIR that lines of a file choose."""
    llm, folder = of_nano
    plain = llm.generate(PROMPT, max_tokens=8, temperature=0).text
    llm.load_adapter("poet", folder)
    adapted = llm.generate(PROMPT, max_tokens=8, temperature=0, adapter="poet").text
    assert adapted != plain
    asked = ("generate", "--max-tokens", "8", "--temperature", "0", "--threads", "1")
    assert command(*asked, "--adapter", str(folder), PROMPT).stdout == adapted
    lines = tmp_path / "lines"
    row = json.dumps({"prompt": PROMPT})
    lines.write_text(f'{row}\n{row[:-1]}, "adapter": "poet"}}\n{row[:-1]}, "adapter": "x"}}\n')
    done = command(*asked, "--adapter", f"poet={folder}", "--file", str(lines))
    one, two, three = map(json.loads, done.stdout.splitlines())
    assert (one["text"], two["text"]) == (plain, adapted)
    assert "'x'" in three["error"]
    failed(command(*asked, "--adapter", f"poet={folder}", PROMPT), "adapter", "leave NAME out")
    twice = ("--adapter", str(folder)) * 2
    failed(command(*asked, *twice, PROMPT), "adapter", "twice")
    failed(command(*asked, "--adapter", str(tmp_path / "x"), PROMPT), "adapter", "PEFT")
    failed(command("serve", "--adapter", f"nano={folder}"), "adapter", "'nano'", "twice")


def test_served(of_nano: tuple[LLM, Path], tmp_path: Path) -> None:
    """Clients see an adapter as a model: by its name, with its answers and its fingerprint."""
    from server_process import serving

    from sterna.llm import receipt

    llm, folder = of_nano
    llm.load_adapter("poet", folder)
    with serving(tmp_path, "nano", "--adapter", str(folder), "--threads", "1") as server:
        rows = server.http.get("/v1/models").json()["data"]
        assert [row["id"] for row in rows] == ["nano", "poet"]
        assert rows[1]["parent"] == "nano"
        assert rows[1]["meta"]["adapter_digest"] == llm.adapters["poet"].digest
        told = {}
        for name, adapter in (("nano", None), ("poet", "poet"), ("nano", None)):
            body = {"model": name, "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
            done = server.post("/v1/completions", **body, logprobs=1, echo=True).json()
            assert done["model"] == name
            expected = llm.generate(PROMPT, max_tokens=8, temperature=0, adapter=adapter)
            assert done["choices"][0]["text"] == PROMPT + expected.text
            scores = llm.logprobs(llm.tokenizer.encode(PROMPT), adapter=adapter)
            np.testing.assert_allclose(
                done["choices"][0]["logprobs"]["token_logprobs"][1 : len(scores) + 1], scores
            )
            assert done["system_fingerprint"] == receipt.fingerprint(llm, adapter)
            told[name] = done["system_fingerprint"]
        assert len(set(told.values())) == 2
        assert server.post("/v1/completions", model="x", prompt="a").status_code == 404


Q = "base_model.model.model.layers.0.self_attn.q_proj"
CONFIGS: list[tuple[dict[str, Any], type[SternaError], list[str]]] = [
    ({"peft_type": "IA3"}, UnsupportedModelError, ["peft_type", "LORA", "IA3"]),
    ({"use_dora": True}, UnsupportedModelError, ["use_dora", "True"]),
    ({"modules_to_save": ["lm_head"]}, UnsupportedModelError, ["modules_to_save", "lm_head"]),
    ({"bias": "lora_only"}, UnsupportedModelError, ["bias", "none", "lora_only"]),
    ({"target_parameters": ["experts.down"]}, UnsupportedModelError, ["target_parameters"]),
    ({"fan_in_fan_out": True}, UnsupportedModelError, ["fan_in_fan_out"]),
    ({"of_the_future": {"a": 1}}, UnsupportedModelError, ["of_the_future"]),
    ({"init_lora_weights": "pissa_niter_4"}, UnsupportedModelError, ["init_lora", "pissa"]),
    ({"alpha_pattern": {"(a+)+": 1}}, UnsupportedModelError, ["alpha_pattern", "(a+)+"]),
    ({"r": 0}, ModelFormatError, ["adapter_config.json", "r", "1..4096", "0"]),
    ({"r": True}, ModelFormatError, ["r", "1..4096", "True"]),
    ({"r": 5}, ModelFormatError, ["q_proj.lora_A.weight", "rank 5", "4"]),
    ({"lora_alpha": "big"}, ModelFormatError, ["lora_alpha", "a number", "big"]),
    ({"lora_alpha": 1e300}, ModelFormatError, ["lora_alpha", "1e+300"]),
    ({"rank_pattern": [1]}, ModelFormatError, ["rank_pattern", "an object"]),
    ({"use_rslora": "yes"}, ModelFormatError, ["use_rslora", "yes"]),
]


@pytest.mark.parametrize(("config", "error", "words"), CONFIGS)
def test_refused_configs(
    two: tuple[Path, Path, Path], config: dict[str, Any], error: type[SternaError], words: list[str]
) -> None:
    """An adapter that computes anything else is refused by its file and field."""
    folder, one, _ = two
    file = one / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | config))
    failure(lambda: Adapter.open(one, loading.load(folder)), error, *words)


def test_refused_tensors(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Tensors that no layer has, of another shape, of another kind, of NaN, or missing."""
    model = loading.load(checkpoint("bitnet-multiply"))
    parts = parts_of(model)[:1]
    K, M = parts[0].K, parts[0].M
    ones = np.ones((4, K), np.float32)
    cases: list[tuple[dict[str, Any], type[SternaError], list[str]]] = [
        ({f"{Q}.lora_magnitude_vector": ones}, UnsupportedModelError, ["DoRA"]),
        ({"base_model.model.lm_head.weight": ones}, UnsupportedModelError, ["lm_head.weight"]),
        ({f"{Q}.lora_B.bias": ones[0]}, UnsupportedModelError, ["q_proj.lora_B.bias", "bias of B"]),
        ({"model.x.lora_A.weight": ones}, UnsupportedModelError, ["base_model.model."]),
        ({f"{Q[:-6]}k_proj.lora_A.weight": ones}, ModelFormatError, ["k_proj.lora_B.weight"]),
        ({f"{Q}.lora_A.weight": ones[:, :-1]}, RequestError, [f"[4, {K}]", f"[4, {K - 1}]"]),
        ({f"{Q}.lora_B.weight": ones[:, :4]}, RequestError, [f"[{M}, 4]", "model that it was"]),
        ({f"{Q}.lora_A.weight": ones.astype(np.int32)}, ModelFormatError, ["lora_A", "I32"]),
        ({f"{Q}.lora_A.weight": ones[0]}, ModelFormatError, ["lora_A.weight", "matrix"]),
        ({f"{Q}.lora_A.weight": ones * np.nan}, NonFiniteError, ["lora_A.weight", "NaN"]),
        (
            {f"{Q.replace('.0.', '.9.')}.lora_{h}.weight": ones[:, :4] for h in "AB"},
            RequestError, ["layers.9", "BitNetForCausalLM", "none of this name"],
        ),
    ]  # fmt: skip
    for i, (extra, error, words) in enumerate(cases):
        folder = adapter_folders.write(tmp_path / str(i), parts)
        tensors = Checkpoint(folder, {}, [_file(folder)])
        known = {name: tensors.read(name) for name in tensors.tensors} | extra
        write_safetensors(folder / "adapter_model.safetensors", known)
        failure(lambda f=folder: Adapter.open(f, model), error, str(folder), *words)
    empty = tmp_path / "empty"
    failure(lambda: Adapter.open(empty, model), RequestError, "adapter", "empty")
    empty.mkdir()
    failure(lambda: Adapter.open(empty, model), ModelFormatError, "adapter_config.json")
    (empty / "adapter_config.json").write_text("{}")
    (empty / "adapter_model.bin").write_text("")
    failure(lambda: Adapter.open(empty, model), ModelFormatError, "pickled", "safe_serialization")


def _file(folder: Path) -> Any:
    from sterna.checkpoints.safetensors import SafetensorsFile

    return SafetensorsFile(folder / "adapter_model.safetensors")


def test_refused_arguments(two: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Names and paths; a base of another name is said, and one of other layers refused."""
    folder, one, _ = two
    failure(lambda: LLM(folder, adapter=5), RequestError, "adapter", "5")
    failure(lambda: LLM(folder, adapter={"": one}), RequestError, "adapter", "name")
    llm = LLM(folder, threads=1)
    failure(lambda: llm.load_adapter("__base__", one), RequestError, "__base__")
    failure(lambda: llm.load_adapter("a\nb", one), RequestError, "printable")
    failure(lambda: llm.load_adapter("a", tmp_path / "none"), RequestError, "none")
    failure(lambda: llm.generate("a", adapter=3), RequestError, "adapter", "3")
    parts = parts_of(llm.engine.model)
    other = adapter_folders.write(tmp_path / "x", parts, base_model_name_or_path="org/other")
    with pytest.warns(RuntimeWarning, match="trained on org/other, but the model is"):
        llm.load_adapter("x", other)
    failure(lambda: LLM("nano", adapter=one, threads=1), RequestError, "q_proj.lora_A", "shape")
