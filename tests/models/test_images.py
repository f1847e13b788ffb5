"""Models that see images, against transformers: the tower's rows, logits and tokens; and the same
bits however a prompt is computed."""

from __future__ import annotations

import inspect
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import seeing_models
import torch
from helpers import failure
from safetensors.torch import load_file, save_file
from seeing_images import Image, place
from seeing_models import SEEING, Seeing
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen3_5_of_transformers
from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen3_vl_of_transformers

from sterna import LLM, loading
from sterna.engine import Engine, Sequence, StepInput
from sterna.engine.images.image_encoder import ImageEncoder
from sterna.engine.images.prompt_images import PromptImages
from sterna.errors import RequestError, UnsupportedModelError
from sterna.models import qwen3_5, qwen3_vl
from sterna.models.config_fields import Fields
from sterna.models.towers import axes_of
from sterna.outputs import Completion

NAMES = list(SEEING)
#: One of each kind of caches: windows, rotations by three coordinates, recurrent states, others.
CACHES = ["gemma3", "gemma4", "gemma4-together", "llava", "qwen3-vl", "qwen3_5"]
#: One of each encoder, and of each projector.
TOWERS = [
    "gemma3", "gemma4", "gemma4-together", "llava", "llava-next", "mistral3-bias", "qwen2-vl",
    "qwen2.5-vl", "qwen3-vl", "smolvlm",
]  # fmt: skip


@pytest.fixture(scope="module", params=NAMES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model of transformers, what it is, and its folder."""
    folder = tmp_path_factory.mktemp(request.param)
    return seeing_models.write(folder, SEEING[request.param]), SEEING[request.param], folder


def opened(folder: Path, tower_format: str | None = "f32", **options: Any) -> Engine:
    options = {"threads": 1, "kv_dtype": "f32", "deterministic": True, **options}
    return Engine(loading.load(folder, cached=False, tower_format=tower_format), **options)


def encoder_of(engine: Engine) -> ImageEncoder:
    assert engine.image_encoder is not None
    return engine.image_encoder


def logits(
    engine: Engine, seeing: Seeing, prompt: list[int], images: list[Image], chunk: int = 512
) -> np.ndarray:
    """Of all tokens, float32 [n, vocab]."""
    placed = PromptImages(prompt, place(prompt, images, seeing.token), encoder_of(engine), 512)
    sequence, rows = Sequence(), []
    while sequence.length < len(prompt):
        end = placed.end_of_step(sequence.length, min(len(prompt), sequence.length + chunk))
        part = prompt[sequence.length : end]
        (output,) = engine.run([StepInput(sequence, part, len(part), images=placed)])
        rows.append(output.logits)
    return np.concatenate(rows)


@torch.no_grad()
def test_rows_of_images(saved: Any) -> None:
    model, seeing, folder = saved
    images = seeing.images(3)
    encoder = encoder_of(opened(folder))
    expected = seeing.rows(model, images)
    got = np.concatenate([encoder.rows(image) for image in images])
    for image in images:
        tower, n = encoder.tower, len(image.pixels)
        assert tower.encoder.shape(n, image.grid) == image.pixels.shape
        assert tower.tokens(n, image.grid) == image.tokens
    assert np.linalg.norm(got - expected) / np.linalg.norm(expected) < 1e-4


@pytest.mark.parametrize("saved", TOWERS, indirect=True)
def test_rows_of_integers(saved: Any) -> None:
    """They differ little from floats, and have the same bits on every unit."""
    _, seeing, folder = saved
    (image,) = seeing.images(1)
    expected = encoder_of(opened(folder)).rows(image)
    for name in (None, "i8"):
        encoder = encoder_of(opened(folder, name, isa="scalar"))
        for graph in (encoder.tower.encoder.graph, encoder.tower.projector):
            for op in graph.linears:
                fits = name is None and op.weight.K % 32 == 0
                assert op.weight.format.name == ("q8_0" if fits else "i8")
        got = encoder.rows(image)
        lengths = np.linalg.norm(got, axis=1) * np.linalg.norm(expected, axis=1)
        assert ((got * expected).sum(1) / lengths).min() > 0.98
        assert np.array_equal(encoder_of(opened(folder, name, threads=3)).rows(image), got)


@pytest.mark.parametrize("count", [1, 3])
@torch.no_grad()
def test_logits_and_tokens(saved: Any, count: int) -> None:
    """Images between texts."""
    model, seeing, folder = saved
    images = seeing.images(count)
    prompt = seeing.prompt(images)
    arguments = seeing.arguments(prompt, images)
    expected = model(**arguments).logits[0].numpy()
    got = logits(opened(folder), seeing, prompt, images)
    assert np.abs(got - expected).max() / expected.std() < 1e-3
    llm = LLM(folder, cache=False, kv_dtype="f32", tower_format="f32", deterministic=True)
    tokens = model.generate(**arguments, max_new_tokens=12, do_sample=False, eos_token_id=None)
    assert answer(llm, seeing, prompt, images) == tokens[0, len(prompt) :].tolist()


def answer(llm: LLM, seeing: Seeing, prompt: list[int], images: list[Image]) -> list[int]:
    return answered(llm, seeing, prompt, images).tokens


def answered(llm: LLM, seeing: Seeing, prompt: list[int], images: list[Image]) -> Completion:
    options = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    placed = place(prompt, images, seeing.token)
    stream = llm.start(llm.requests.make(prompt, options, images=placed))
    for _ in stream:
        pass
    return stream.completion


def test_no_split_changes_a_bit(saved: Any) -> None:
    """Nor do threads; with the default keys and values."""
    _, seeing, folder = saved
    images = seeing.images(2)
    prompt = seeing.prompt(images)
    engine = opened(folder, None, kv_dtype="i16")
    expected = logits(engine, seeing, prompt, images)
    for chunk in (1, 7, 20):
        assert np.array_equal(logits(engine, seeing, prompt, images, chunk), expected)
    other = opened(folder, None, kv_dtype="i16", threads=3)
    assert np.array_equal(logits(other, seeing, prompt, images, 33), expected)


@pytest.mark.parametrize("saved", CACHES, indirect=True)
def test_a_known_image_is_not_encoded_again(
    saved: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second question finds it in memory, and after a restart on disk; another image is found
    nowhere."""
    _, seeing, folder = saved
    encoded = []
    monkeypatch.setattr(
        ImageEncoder, "_keep", lambda self, *kept, old=ImageEncoder._keep: (
            encoded.append(kept), old(self, *kept)
        )[1],
    )  # fmt: skip
    images = seeing.images(1)
    images.append(replace(images[0], pixels=-images[0].pixels))
    prompt = [*range(100), *seeing.prompt(images[:1]), *range(64)]
    llm = LLM(folder, cache=False, cache_disk=tmp_path)
    first = answer(llm, seeing, prompt, images[:1])
    encoder_of(llm.engine)._kept.clear()
    assert answer(llm, seeing, prompt, images[:1]) == first
    assert len(encoded) == 1
    done = answered(llm, seeing, prompt, images[1:])
    other = done.tokens
    assert len(encoded) == 2
    assert done.stats.n_cached < 110
    assert llm.engine_loop.scheduler.cache._disk is not None
    llm.engine_loop.scheduler.cache._disk.flush()
    again = LLM(folder, cache=False, cache_disk=tmp_path)
    for image, expected in ((images[1], other), (images[0], first)):
        assert answer(again, seeing, prompt, [image]) == expected
    # Recurrent states and windows of the end are in no file, if it was reached in one step.
    assert len(encoded) == 2 or again.engine.kv_cache.needs_snapshots
    fresh = LLM(folder, cache=False, prefix_cache=False)
    assert answer(fresh, seeing, prompt, images[1:]) == other


def test_the_identity_covers_the_tower(saved: Any, tmp_path: Path) -> None:
    """Its format, and weights that are in no graph: positions, a class token, ends of lines."""
    _, _, folder = saved
    identity = opened(folder).identity
    assert opened(folder).identity == identity != opened(folder, "i8").identity
    tensors = load_file(folder / "model.safetensors")
    shutil.copytree(folder, tmp_path / "other")
    for name, tensor in tensors.items():
        if name.endswith(("position_embedding.weight", "class_embedding", "pos_embed.weight",
                          "image_newline")):  # fmt: skip
            other = tmp_path / "other"
            save_file({**tensors, name: tensor + 1}, other / "model.safetensors", {"format": "pt"})
            assert opened(other).identity != identity, name


@pytest.mark.parametrize("saved", ["gemma3"], indirect=True)
def test_positions_that_do_not_fit(saved: Any) -> None:
    _, seeing, folder = saved
    images = seeing.images(1)
    prompt = seeing.prompt(images)
    placed = place(prompt, images, seeing.token)
    encoder = encoder_of(opened(folder))
    with pytest.raises(RequestError, match="the prompt has it"):
        PromptImages([*prompt, seeing.token], placed, encoder, 512)


def test_the_cached_copy_sees_too(saved: Any, tmp_path: Path) -> None:
    """A packed directory has the tower's weights."""
    _, seeing, folder = saved
    model = loading.load(folder, cached=False)
    loading.save(model, tmp_path / "packed")
    images = seeing.images(1)
    one, other = (opened(path, None) for path in (folder, tmp_path / "packed"))
    assert np.array_equal(*(encoder_of(engine).rows(images[0]) for engine in (one, other)))
    assert one.identity == other.identity


@pytest.mark.parametrize("family", [qwen3_vl, qwen3_5])
@pytest.mark.parametrize("sections", [[4, 2, 2], [2, 3, 3], [0, 0, 8], [0, 8, 0], [8, 0, 0], None])
def test_the_axis_of_each_pair(family: Any, sections: list[int] | None) -> None:
    """As the class of transformers cuts them, however the sections lie; its own where none are."""
    kind = {
        qwen3_vl: qwen3_vl_of_transformers.Qwen3VLTextRotaryEmbedding,
        qwen3_5: qwen3_5_of_transformers.Qwen3_5TextRotaryEmbedding,
    }[family]
    axis = torch.arange(3)[:, None, None, None].expand(3, 1, 1, 8).clone()
    stub = SimpleNamespace(mrope_section=sections or family.SECTIONS)
    expected = kind.recomposition_frequencies(stub, axis)[0, 0, :8].tolist()
    rope = {} if sections is None else {"mrope_section": sections}
    assert axes_of(Fields({}, Path()), rope, family.SECTIONS, 8) == expected
    default = {**rope, "mrope_interleaved": False}
    failure(
        lambda: axes_of(Fields({}, Path("c")), default, family.SECTIONS, 8),
        UnsupportedModelError, "mrope_interleaved",
    )  # fmt: skip


@pytest.mark.parametrize("family", [qwen3_vl, qwen3_5])
def test_sections_that_a_file_leaves_out(family: Any) -> None:
    source = inspect.getsource(
        {qwen3_vl: qwen3_vl_of_transformers, qwen3_5: qwen3_5_of_transformers}[family]
    )
    assert f'get("mrope_section", {family.SECTIONS})' in source
