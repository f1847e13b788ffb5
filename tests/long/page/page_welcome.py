"""The first page, a model that has no chat template, and conversations of attachments alone."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from page_driver import answer, answered, content, file, say, settings, stream, with_models
from server_process import ServerProcess, serving

import sterna


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """`base` has no chat template, and `bare` no sampling of its own."""
    folder = tmp_path_factory.mktemp("models")
    for name, lacks in (
        ("base", ("chat_template.jinja", "generation_config.json")),
        ("bare", ("generation_config.json",)),
    ):
        shutil.copytree(Path(sterna.__file__).parent / "data" / "nano", folder / name)
        for one in lacks:
            (folder / name / one).unlink()
    models = [str(folder / name) for name in ("base", "bare")]
    with serving(tmp_path_factory.mktemp("plain"), *models) as running:
        yield running


def test_the_first_page(page: Any) -> None:
    """It names the model and its context, and says what one can do; a starter is sent."""
    sent = answered(page, stream({"content": "ok"}))
    hello = page.locator("#hello")
    hello.get_by_text("reads text, 1,024 tokens at a time").wait_for()
    assert hello.locator("h2").text_content() == "nano"
    assert "Drop a text or a PDF here, or paste it." in hello.text_content()
    starters = hello.locator(".starters button")
    assert starters.count() == 3
    first = starters.first.text_content()
    starters.first.click()
    answer(page)
    assert sent[0]["messages"] == [{"role": "user", "content": first}]
    page.click("#new")
    assert hello.is_visible()


def test_first_pages_of_other_models(page: Any) -> None:
    with_models(
        page,
        seeing={"capabilities": ["completion", "vision"], "meta": {"context": 4096}},
        vectors={"capabilities": ["embedding"], "meta": {"context": 512}},
        later={"loaded": False},
    )
    hello = page.locator("#hello")
    assert "reads text and images, 4,096 tokens" in hello.text_content()
    assert "Drop a text, a PDF or an image here" in hello.text_content()
    page.select_option("#model", "vectors")
    assert "It makes embeddings and writes no text" in hello.text_content()
    assert hello.locator("button").count() == 0
    say(page, "x")
    page.get_by_text(
        "vectors makes embeddings and writes no text: choose another model."
    ).wait_for()
    assert page.locator("article").count() == 0
    page.select_option("#model", "later")
    assert "is not loaded yet" in hello.text_content()


def test_a_model_without_a_template(context: Any, plain: ServerProcess) -> None:
    """The page says so, and continues texts: sampled, from where they end, with alternatives."""
    page = context.new_page()
    page.goto(plain.url)
    page.get_by_text("This model has no chat template").wait_for()
    assert "--chat-template" in page.locator("#hello").text_content()
    assert page.get_attribute("#say", "placeholder") == "Write how a text begins"
    settings(page, max_tokens="8", system="Be brief.")
    say(page, "import os, sys")
    answer(page)
    first = content(page)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    answer(page).get_by_role("button", name="Copy as curl").click()
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert "/v1/completions" in copied
    (text,) = re.findall(r"-d '(.*)'$", copied, re.DOTALL)
    body = json.loads(text.replace("'\\''", "'"))
    assert body["prompt"] == "import os, sys"
    assert (body["temperature"], body["min_p"]) == (0.8, 0.05)
    assert "system" not in body
    assert plain.post("/v1/completions", **body).json()["choices"][0]["text"] == first
    answer(page).get_by_role("button", name="Continue").click()
    page.wait_for_function("before => pathOf(chat)[1].content.length > before", arg=len(first))
    answer(page)
    whole = content(page)
    assert whole.startswith(first)
    answer(page).locator(".t").last.click()
    page.locator("#card tr.drawn").wait_for()
    page.keyboard.press("Escape")
    say(page, "def f(x):")
    answer(page, 1)
    glue = "" if whole.endswith(("\n", " ")) else "\n"
    body = page.evaluate("bodyOf(chat, pathOf(chat).at(-1))")
    start = "" if first[:1].isspace() else "\n"
    assert body["prompt"] == f"import os, sys{start}{whole}{glue}def f(x):"
    page.close()


def test_another_answer_is_another_text(context: Any, plain: ServerProcess) -> None:
    """Where nobody sets a temperature."""
    page = context.new_page()
    page.goto(plain.url)
    page.select_option("#model", "bare")
    settings(page, max_tokens="24")
    say(page, "import os, sys")
    answer(page)
    said = {content(page)}
    for version in ("2/2", "3/3", "4/4"):
        answer(page).get_by_role("button", name="Regenerate").click()
        page.locator("article.assistant .version").get_by_text(version).wait_for()
        answer(page)
        said.add(content(page))
    assert len(said) > 1
    page.close()


def test_titles_of_attachments(page: Any) -> None:
    """Their names, before and after they are sent alone."""
    sent = answered(page, stream({"content": "ok"}))
    page.set_input_files("#pick", [file("a.txt", b"x = 1"), file("b.txt", b"y = 2")])
    title = page.locator("#list li button:first-child")
    title.get_by_text("a.txt, b.txt").wait_for()
    page.click("#go")
    answer(page)
    assert title.text_content() == "a.txt, b.txt"
    assert page.locator("article.user .text").is_hidden()
    assert sent[0]["messages"][0]["content"] == "a.txt:\n```\nx = 1\n```\n\nb.txt:\n```\ny = 2\n```"
