"""Images are encoded in slices next to steps: other requests go on, and nothing is left behind."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeing_models
from seeing_images import Image, place
from seeing_models import SEEING

from sterna import LLM
from sterna.engine.images import image_encoder as module
from sterna.engine.images.encoding_costs import EncodingCosts
from sterna.engine.images.image_encoder import ImageEncoder
from sterna.engine.images.image_encoding import ImageEncoding
from sterna.engine.request import Request
from sterna.errors import NonFiniteError

GREEDY = {"temperature": 0, "ignore_eos": True}
ROWS = 5  # of a slice


@pytest.fixture(scope="module", params=["gemma3", "qwen2.5-vl", "qwen3-vl", "idefics3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model's settings, and its folder."""
    folder = tmp_path_factory.mktemp(request.param)
    seeing_models.write(folder, SEEING[request.param])
    return SEEING[request.param], folder


class Seen:
    """A model's requests, whose images are encoded a few rows at a time."""

    def __init__(self, model: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch) -> None:
        self.seeing, folder = model
        self.llm = LLM(folder, cache=False, prefix_cache=False, threads=1)
        self.scheduler = self.llm.engine_loop.scheduler
        encoder = self.llm.engine.image_encoder
        assert encoder is not None
        self.encoder: ImageEncoder = encoder
        monkeypatch.setattr(
            EncodingCosts, "rows", lambda _, following, ms, least: ROWS if least else 0
        )

    def text(self, tokens: int = 100) -> Request:
        return self._add(list(range(9)), max_tokens=tokens)

    def about(self, *images: Image) -> Request:
        prompt = self.seeing.prompt(list(images))
        return self._add(
            prompt, max_tokens=4, images=place(prompt, list(images), self.seeing.token)
        )

    def _add(self, prompt: list[int], images: Any = (), **options: Any) -> Request:
        request = self.llm.requests.make(prompt, {**GREEDY, **options}, images=images)
        self.scheduler.add(request)
        return request

    def step(self, *requests: Request) -> None:
        assert self.scheduler.step()
        for request in requests:
            list(request.pieces())

    def answer(self, *requests: Request) -> list[list[int]]:
        for _ in range(3000):
            if all(request.finished for request in requests):
                return [request.completion.tokens for request in requests]
            self.step(*requests)
        raise AssertionError("they do not end")


@pytest.fixture
def seen(model: Any, monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(model, monkeypatch)


def test_no_slicing_changes_a_bit(seen: Seen) -> None:
    (image,) = seen.seeing.images(1)
    expected = seen.encoder.rows(image)
    rng = np.random.default_rng(0)
    for most in (1, 7, 1000):
        encoding = ImageEncoding(seen.encoder._programs, image)
        while encoding.following is not None:
            encoding.run(int(rng.integers(1, most + 1)))
        assert np.array_equal(encoding.rows(), expected)


def test_others_get_a_token_next_to_each_slice(seen: Seen) -> None:
    image = seen.seeing.images(1)[0]
    (expected,) = seen.answer(seen.about(image))
    seen.encoder._kept.clear()
    text, about, slices = seen.text(400), seen.about(image), 0
    seen.step(text, about)
    while about.n_drawn == 0:
        before, busy = text.n_drawn, seen.encoder.encoding is not None
        seen.step(text, about)
        slices += busy
        assert text.n_drawn > before
    assert slices > 10
    assert seen.answer(about) == [expected]


def test_a_cancelled_image_leaves_nothing(seen: Seen) -> None:
    about, pool = seen.about(*seen.seeing.images(1)), seen.llm.engine.kv_cache.pool
    while seen.encoder.encoding is None:
        seen.step(about)
    encoding = weakref.ref(seen.encoder._now)
    assert seen.scheduler.load.image_bytes > 0
    seen.scheduler.cancel(about)
    gc.collect()
    assert encoding() is None
    assert seen.scheduler.load.image_bytes == 0
    assert pool.free == pool.count


def test_another_who_waits_for_it_keeps_it(seen: Seen) -> None:
    image = seen.seeing.images(1)[0]
    first, second = seen.about(image), seen.about(image)
    while seen.encoder.encoding is None:
        seen.step(first, second)
    encoding = seen.encoder._now
    seen.scheduler.cancel(first)
    assert seen.encoder._now is encoding
    seen.answer(second)
    assert seen.encoder.encoded == 1


def test_many_images_with_room_for_one(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is encoded at a time, and none twice while somebody needs it."""
    images = seen.seeing.images(5)
    groups = [images[:2], images[2:3], images[3:], images[1:2]]
    expected = [seen.answer(seen.about(*group))[0] for group in groups]
    seen.encoder._kept.clear()
    encoded = seen.encoder.encoded
    monkeypatch.setattr(module, "MOST_KEPT", 1)
    assert seen.answer(*(seen.about(*group) for group in groups)) == expected
    assert seen.encoder.encoded - encoded <= sum(map(len, groups))


def test_an_interrupt_or_an_error_ends_it(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    image = seen.seeing.images(1)[0]
    (expected,) = seen.answer(seen.about(image))
    seen.encoder._kept.clear()
    about, run = seen.about(image), ImageEncoding.run
    while seen.encoder.encoding is None:
        seen.step(about)

    def interrupted(self: Any, n_rows: int) -> None:
        self._pass.run(n_rows)
        self.broken = True
        raise KeyboardInterrupt

    monkeypatch.setattr(ImageEncoding, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        seen.step(about)
    monkeypatch.setattr(ImageEncoding, "run", run)
    assert seen.answer(about) == [expected]
    bad, text = seen.about(replace(image, pixels=image.pixels * np.nan)), seen.text(4)
    with pytest.raises(NonFiniteError, match="of an image"):
        seen.answer(bad, text)
    assert seen.encoder.encoding is None
    seen.answer(text)
