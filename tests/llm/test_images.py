"""Conversations about images: what reaches the engine, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import saved_models
import seeing_folders
from image_families import noise
from model_configs import MODELS
from seeing_folders import data_url, png

from sterna import LLM, Conversation
from sterna.errors import ContextError, ModelFormatError, RequestError
from sterna.images import PromptImage
from sterna.llm.async_llm import AsyncLLM

OPTIONS: dict[str, Any] = {"max_tokens": 6, "temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seeing_folders.write(tmp_path_factory.mktemp("seeing"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, threads=1, cache=False)


def asking(*images: Any, text: str = "What?") -> list[dict[str, Any]]:
    parts = [{"type": "image", "image": image} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def test_every_source_and_spelling_is_the_same_prompt(llm: LLM, tmp_path: Path) -> None:
    data = png()
    file = tmp_path / "a.png"
    file.write_bytes(data)
    source = {"type": "base64", "media_type": "image/png"}
    parts: list[dict[str, Any]] = [
        {"type": "image", "image": data},
        {"type": "image", "image": str(file)},
        {"type": "image", "image": file},
        {"type": "image", "image": noise(30, 40)},
        {"type": "image", "image": np.asarray(noise(30, 40))},
        {"type": "image", "image": io.BytesIO(data)},
        {"type": "image", "path": str(file)},
        {"type": "image", "url": data_url(data)},
        {"type": "image_url", "image_url": {"url": data_url(data)}},
        {"type": "image_url", "image_url": data_url(data)},
        {"type": "input_image", "image_url": data_url(data)},
        {"type": "image", "source": {**source, "data": base64.b64encode(data).decode()}},
    ]
    found = set()
    for part in parts:
        said = [{"role": "user", "content": [part, {"type": "text", "text": "What?"}]}]
        prompt = llm.renderer.prepare(said)
        (image,) = prompt.images
        found.add((tuple(prompt.tokens), image.image.digest, image.positions.tobytes()))
    assert len(found) == 1


def test_tokens_stand_where_the_template_has_the_image(llm: LLM) -> None:
    said = asking(png(), png(seed=1), text="and")
    text = llm.chat_prompt(said)
    assert text.count("<start_of_image>") == 2
    prompt = llm.renderer.prepare(said)
    assert prompt.text == text
    assert llm.chat_tokens(said) == prompt.tokens
    soft = llm.tokenizer.token_id("<image_soft_token>")
    at = [i for i, id in enumerate(prompt.tokens) if id == soft]
    assert np.concatenate([one.positions for one in prompt.images]).tolist() == at
    assert [len(one.positions) for one in prompt.images] == [16, 16]
    before = llm.tokenizer.decode(prompt.tokens[: at[0]], skip_special=False)
    assert before.endswith("user: \n\n<start_of_image>")


def test_answers_depend_on_the_image(llm: LLM) -> None:
    first, again = (llm.chat(asking(png()), **OPTIONS) for _ in range(2))
    assert first.tokens == again.tokens
    assert again.stats.n_cached > 16  # the image's positions among them

    def likelihood(seed: int) -> float:
        return llm.chat(asking(png(seed=seed)), **OPTIONS, logprobs=1).logprobs[0].logprob

    assert likelihood(0) == likelihood(0)
    assert len({likelihood(seed) for seed in (0, 1, 2)}) == 3
    assert "".join(p.text for p in llm.chat_stream(asking(png()), **OPTIONS)) == first.text


def test_conversations_go_on_about_an_image(llm: LLM) -> None:
    talk = Conversation(llm)
    first = talk.ask(asking(png())[0]["content"], **OPTIONS)
    second = talk.ask("And now?", **OPTIONS)
    assert second.stats.n_cached >= first.stats.n_prompt
    assert second.tokens == llm.chat(talk.messages[:-1], **OPTIONS).tokens
    assert talk.undo() == "And now?"
    assert talk.undo() == "What?"


def test_many_at_once(llm: LLM) -> None:
    alone = [llm.chat(asking(png(seed=seed)), **OPTIONS).tokens for seed in range(3)]

    async def together() -> list[Any]:
        async with AsyncLLM(llm) as engine:
            streams = [engine.submit_chat(asking(png(seed=seed)), **OPTIONS) for seed in range(3)]
            return [(await stream.result())[0].tokens for stream in streams]

    assert asyncio.run(together()) == alone


def test_a_template_of_text_alone(tmp_path: Path) -> None:
    """Its images are on lines of their own."""
    llm = LLM(seeing_folders.write(tmp_path, seeing_folders.TEXT_TEMPLATE), threads=1, cache=False)
    assert llm.chat_prompt(asking(png())) == "user: <start_of_image>\nWhat?\nassistant: "
    (image,) = llm.renderer.prepare(asking(png())).images
    assert isinstance(image, PromptImage)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a <start_of_image> b", "once for each of 1 images, but has it 2 times"),
        ("a <image_soft_token> b", "the text must not have <image_soft_token>"),
    ],
)
def test_texts_that_stand_for_images(llm: LLM, text: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        llm.chat(asking(png(), text=text), **OPTIONS)


def test_refusals(llm: LLM) -> None:
    with pytest.raises(RequestError, match="must be PNG"):
        llm.chat(asking(b"no image"), **OPTIONS)
    with pytest.raises(RequestError, match=r"content\[0\]: must have an image"):
        llm.chat([{"role": "user", "content": [{"type": "image"}]}], **OPTIONS)
    with pytest.raises(RequestError, match="at most 64 in a request, but got 65"):
        llm.chat(asking(*[png(1, 1)] * 65), **OPTIONS)
    with pytest.raises((ContextError, RequestError), match="context"):
        llm.chat(asking(*[png(1, 1)] * 40), **OPTIONS)


@pytest.mark.parametrize(
    ("file", "fields", "rule"),
    [
        ("preprocessor_config", {"size": {"height": 64, "width": 64}}, r"pixels \[1, 3, 56, 56\]"),
        ("preprocessor_config", {"size": None}, r"got \[1, 3, 224, 224\]"),
        (
            "preprocessor_config",
            {"image_processor_type": "Qwen2VLImageProcessor", "size": {"longest_edge": 5000}},
            "pixels",
        ),
        ("preprocessor_config", {"image_processor_type": "PixtralImageProcessor"}, "pixels"),
        ("processor_config", {"image_seq_length": 7}, "16 tokens, .* and 7 by the processor"),
        ("config", {"mm_tokens_per_image": 10}, "16 tokens, .* and 10 by the processor"),
        ("config", {"image_token_index": 5}, "the token of images: expected 270, .* got 5"),
    ],
)
def test_files_of_two_models(
    file: str, fields: dict[str, Any], rule: str, folder: Path, tmp_path: Path
) -> None:
    """Settings of another model's images are refused before the tower runs."""
    mixed = shutil.copytree(folder, tmp_path / "mixed")
    path = mixed / f"{file}.json"
    given = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**given, **fields}))
    with pytest.raises(ModelFormatError, match=rf"mixed: .*{rule}.* one model$"):
        LLM(mixed, threads=1, cache=False).chat(asking(png()), **OPTIONS)


def test_a_model_of_text_names_one_that_sees() -> None:
    with pytest.raises(RequestError, match=r"^image: nano reads only text; use .* Gemma 3"):
        LLM("nano", threads=1).chat(asking(png()), **OPTIONS)


@pytest.mark.parametrize("name", ["llama4-vision"])
@pytest.mark.filterwarnings("ignore:.*are skipped, a vision tower")
def test_towers_that_do_not_run(name: str, tmp_path: Path) -> None:
    """Their texts run, and say why they refuse images."""
    saved_models.write(tmp_path, MODELS[name])
    llm = LLM(tmp_path, threads=1, cache=False, chat_template="chatml")
    llm.chat([{"role": "user", "content": "a"}], max_tokens=1)
    with pytest.raises(RequestError, match=r"^image: .* has a vision tower that Sterna does not"):
        llm.chat(asking(noise(3, 4)))


def test_a_packed_copy_sees(llm: LLM, folder: Path, tmp_path: Path) -> None:
    from sterna.loading.model import save

    save(llm.model, tmp_path / "packed")
    packed = LLM(tmp_path / "packed", threads=1)
    said = asking(png())
    assert packed.chat(said, **OPTIONS).tokens == llm.chat(said, **OPTIONS).tokens
