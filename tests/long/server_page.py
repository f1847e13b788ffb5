"""The page in Chromium; see README.md."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from server_process import ServerProcess, serving

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
WAIT_MS = 30_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("page"), "nano") as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def context(browser: Any) -> Iterator[Any]:
    made = browser.new_context(viewport={"width": 1100, "height": 800})
    made.set_default_timeout(WAIT_MS)
    yield made
    made.close()


@pytest.fixture
def page(context: Any, server: ServerProcess) -> Iterator[Any]:
    """The page, on whose console nothing may be said."""
    made, said = context.new_page(), []
    made.on("pageerror", lambda error: said.append(str(error)))
    made.on("console", lambda m: said.append(m.text) if "Content Security" in m.text else None)
    made.goto(server.url)
    yield made
    assert said == []


def settings(page: Any, **values: str) -> None:
    page.keyboard.press("Control+,")
    for name, value in values.items():
        page.fill(f"#{name}", value)
    page.click("#close")


def say(page: Any, text: str) -> None:
    page.fill("#say", text)
    page.keyboard.press("Enter")


def answer(page: Any, nth: int = 0) -> Any:
    """An answer that has ended."""
    page.locator("article.assistant .tools").nth(nth).wait_for()
    return page.locator("article.assistant").nth(nth)


def instead(page: Any, *contents: str, end: str = "data: [DONE]\n\n") -> None:
    """Answers of a server that is not ours: content in chunks."""
    chunks = [
        {"choices": [{"index": 0, "delta": {"content": c}, "logprobs": None}]} for c in contents
    ]
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + end
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(status=200, content_type="text/event-stream", body=body),
    )


def test_an_answer(page: Any, server: ServerProcess) -> None:
    """As the server gives it; its request, copied, makes the same again."""
    settings(page, max_tokens="40", temperature="1")
    say(page, "def f(x):")
    text = answer(page).locator(".text").text_content()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answer(page).get_by_role("button", name="Copy as curl").click()
    copied = page.evaluate("() => navigator.clipboard.readText()")
    (body,) = re.findall(r"-d '(.*)'$", copied, re.DOTALL)
    again = server.post("/v1/chat/completions", **json.loads(body.replace("'\\''", "'")))
    assert again.json()["choices"][0]["message"]["content"] == text
    assert "first token after" in page.locator("#status").text_content()


def test_alternatives_of_a_token(page: Any, server: ServerProcess) -> None:
    settings(page, max_tokens="5", temperature="0")
    say(page, "def f(x):")
    answer(page).locator(".t").nth(2).click()
    rows = page.locator("#card tr")
    rows.nth(7).wait_for()  # the page asks for them when it is clicked
    assert rows.count() == 8
    body = {
        "messages": [{"role": "user", "content": "def f(x):"}],
        "max_tokens": 5,
        "temperature": 0,
    }
    found = server.post("/v1/chat/completions", **body, logprobs=True, top_logprobs=8).json()
    exact = [t["logprob"] for t in found["choices"][0]["logprobs"]["content"][2]["top_logprobs"]]
    shown = [float(rows.nth(i).locator("td").nth(2).text_content()) for i in range(8)]
    assert shown == exact
    page.keyboard.press("Escape")
    assert page.locator("#card").is_hidden()


def test_stop_edit_again(page: Any, server: ServerProcess) -> None:
    """What is stopped ends in the engine, too; a message that is edited begins anew."""
    settings(page, max_tokens="900")
    say(page, "x = 1")
    page.locator("article.assistant .t").first.wait_for(state="attached")
    page.keyboard.press("Escape")
    answer(page)
    until = time.monotonic() + 20
    while server.running():
        assert time.monotonic() < until
    settings(page, max_tokens="4")
    stopped = answer(page).locator(".text").text_content()
    answer(page).get_by_role("button", name="Regenerate").click()
    answer(page)
    assert page.locator("article.assistant .version").text_content() == "2/2"
    page.get_by_role("button", name="Previous version").click()
    assert answer(page).locator(".text").text_content() == stopped
    page.locator("article.user").hover()
    page.get_by_role("button", name="Edit").click()
    assert page.input_value("#say") == "x = 1"
    say(page, "y = 2")
    answer(page)
    assert page.locator("article").count() == 2
    assert page.locator("article.user .version").text_content() == "2/2"
    page.get_by_role("button", name="Previous version").first.click()
    assert answer(page).locator(".text").text_content() == stopped


def test_nothing_is_lost_by_editing(page: Any) -> None:
    """Neither by the arrow nor by Edit, before anything is sent, nor after a reload."""
    instead(page, "first")
    say(page, "one")
    answer(page)
    say(page, "two")
    answer(page, 1)
    page.press("#say", "ArrowUp")
    assert page.input_value("#say") == "two"
    assert page.locator("article").count() == 4
    page.keyboard.press("Escape")
    assert page.input_value("#say") == ""
    page.locator("article.user").first.hover()
    page.get_by_role("button", name="Edit").first.click()
    assert page.input_value("#say") == "one"
    page.reload()
    page.locator("article").nth(3).wait_for()
    assert page.locator("article.user .text").all_text_contents() == ["one", "two"]


def test_what_is_typed_stays(page: Any) -> None:
    """In its conversation, also where another is opened, and behind a reload."""
    instead(page, "x")
    say(page, "one")
    answer(page)
    page.fill("#say", "half a thought")
    page.click("#new")
    assert page.input_value("#say") == ""
    page.get_by_role("button", name="one", exact=True).click()
    assert page.input_value("#say") == "half a thought"
    page.wait_for_timeout(1500)
    page.reload()
    page.locator("article").nth(1).wait_for()
    assert page.input_value("#say") == "half a thought"


def test_an_answer_goes_on(page: Any, server: ServerProcess) -> None:
    """While another conversation is open; a reload makes it again, to the bit."""
    settings(page, max_tokens="400", temperature="1", seed="7")
    say(page, "import os")
    page.locator("article.assistant .t").first.wait_for(state="attached")
    page.click("#new")
    assert page.locator("article").count() == 0
    page.locator("#list li.running button").first.click()
    page.locator("article.assistant .t").nth(10).wait_for(state="attached")
    page.reload()
    text = answer(page).locator(".text").text_content()
    body = {"messages": [{"role": "user", "content": "import os"}], "max_tokens": 400}
    same = server.post("/v1/chat/completions", **body, temperature=1, seed=7).json()
    assert text == same["choices"][0]["message"]["content"]


def test_enter_queues(page: Any) -> None:
    """What is sent while an answer runs is asked behind it; stopped, it waits to be sent."""
    settings(page, max_tokens="100", temperature="1")
    # In one go, since the built-in model's answers are soon over.
    sends = "texts => { for (const text of texts) { $('say').value = text; send(); }"
    queued = page.evaluate(sends + " return chat.queue.length; }", ["one", "two", "three"])
    assert queued == 2
    answer(page, 2)
    assert page.locator("article.user .text").all_text_contents() == ["one", "two", "three"]
    assert page.locator("#queue li").count() == 0
    page.evaluate(sends + " stop(chat); }", ["four", "five"])
    page.get_by_role("button", name="Take back").click()
    assert page.input_value("#say") == "five"
    assert page.locator("#queue li").count() == 0


def test_a_failed_turn_is_not_sent(page: Any) -> None:
    """No empty message: the question that had no answer is joined with the next."""
    sent: list[Any] = []
    page.route(
        "**/v1/chat/completions",
        lambda route: (sent.append(route.request.post_data_json), route.fulfill(status=500)),
    )
    say(page, "one")
    answer(page).locator(".wrong").wait_for()
    say(page, "two")
    answer(page, 1).locator(".wrong").wait_for()
    assert sent[1]["messages"] == [{"role": "user", "content": "one\n\ntwo"}]


def test_deleting_can_be_undone(page: Any) -> None:
    instead(page, "x")
    say(page, "one")
    answer(page)
    page.locator("#list li").hover()
    page.get_by_role("button", name="Delete", exact=True).click()
    assert page.locator("#list li").count() == 0
    page.click("#toast button")
    assert page.locator("article").count() == 2
    page.locator("#list li").hover()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.locator("#toast").wait_for()  # then it is on disk
    page.reload()
    page.click("#bin summary")
    page.get_by_role("button", name="Restore").click()
    assert page.locator("article").count() == 2
    page.locator("#list li").hover()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.click("#purge")
    assert page.locator("#bin li").count() == 1
    page.once("dialog", lambda dialog: dialog.accept())
    page.click("#purge")
    page.locator("#bin").wait_for(state="hidden")
    page.reload()
    assert page.locator("#list li, #bin li").count() == 0


def test_a_full_store(page: Any) -> None:
    """It is said, and no conversation goes."""
    instead(page, "x")
    devtools = page.context.new_cdp_session(page)
    quota = {"origin": page.evaluate("origin"), "quotaSize": 1}
    devtools.send("Storage.overrideQuotaForOrigin", quota)
    for count, text in enumerate(("one", "two")):
        page.click("#new")
        say(page, text)
        page.get_by_text("storage is full").wait_for()
        assert page.locator("#list li").count() == count + 1


def test_conversations_of_an_earlier_page(page: Any) -> None:
    """They move from localStorage, in their order."""
    old = [
        {"id": name, "title": name, "messages": [
            {"role": "user", "content": name}, {"role": "assistant", "content": "y"}]}
        for name in ("newer", "older")
    ]  # fmt: skip
    page.evaluate("old => localStorage.setItem('sterna.talks', JSON.stringify(old))", old)
    page.reload()
    page.locator("#list li").nth(1).wait_for()
    assert page.locator("#list li button:first-child").all_text_contents() == ["newer", "older"]
    page.reload()
    page.get_by_role("button", name="older").click()
    assert page.locator("article").count() == 2
    assert page.evaluate("localStorage.getItem('sterna.talks')") is None


@pytest.mark.parametrize(("nbytes", "seen"), [(1e3, True), (1e15, False)])
def test_the_share_of_memory(page: Any, nbytes: float, seen: bool) -> None:
    """No more than all of it: weights that come from a cache have no share."""
    meta = {"bytes_per_token": nbytes, "bandwidth_gb_s": 0.1 if seen else 1.0}
    page.route(
        "**/v1/models",
        lambda route: route.fulfill(json={"data": [{"id": "nano", "meta": meta}]}),
    )
    page.reload()
    page.locator("#model option").wait_for(state="attached")
    settings(page, max_tokens="400", temperature="1", seed="7")
    say(page, "import os")
    answer(page)
    said = page.locator("#status").text_content()
    assert "first token after" in said
    assert ("of memory bandwidth" in said) == seen


def test_hostile_output(page: Any) -> None:
    """Markup, right-to-left, and lines that are none of code."""
    text = "<script>document.title='x'</script><img src=x onerror=alert(1)>\n"
    text += "\u202egnp.exe\u202c\n``not\n"
    instead(page, *text, "```html\n<b>code</b>\n", "```\nafter `x`")
    say(page, "<img src=x onerror=alert(1)>")
    shown = answer(page).locator(".text")
    assert shown.text_content() == f"{text}<b>code</b>\nafter `x`"
    assert shown.locator("pre").text_content() == "<b>code</b>\n"
    assert page.locator("article img, article script, article b").count() == 0
    assert page.title() == "Sterna"
    page.reload()
    page.locator("#list button").first.click()
    assert answer(page).locator(".text").text_content() == f"{text}<b>code</b>\nafter `x`"
    assert page.locator("article img, article script").count() == 0


def test_ten_megabytes(page: Any) -> None:
    """A part is shown and kept, Copy has all; conversations before it stay."""
    instead(page, "short")
    say(page, "little")
    answer(page)
    page.click("#new")
    page.unroute_all()
    instead(page, *(["word " * 2000] * 1000))
    say(page, "much")
    assert 400_000 < len(answer(page).locator(".text").text_content()) < 401_000
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answer(page).get_by_role("button", name="Copy", exact=True).click()
    assert page.evaluate("async () => (await navigator.clipboard.readText()).length") == 10_000_000
    page.reload()
    assert page.locator("#list li").count() == 2


@pytest.mark.parametrize("end", ["", 'data: {"error": {"message": "it broke"}}\n\n'])
def test_an_answer_that_breaks(page: Any, end: str) -> None:
    instead(page, "so far", end=end)
    say(page, "x")
    said = answer(page).locator(".wrong").text_content()
    assert said == f"Not finished: {'it broke' if end else 'the connection was lost'}."
    assert "so far" in answer(page).text_content()
    page.unroute_all()
    settings(page, max_tokens="2")
    page.get_by_role("button", name="Retry").click()
    page.locator("article.assistant .facts").wait_for()
    assert page.locator(".wrong").count() == 0


def test_without_a_server(page: Any) -> None:
    page.context.set_offline(True)
    say(page, "x")
    assert answer(page).locator(".wrong").text_content() == "The server cannot be reached."


def test_a_key(browser: Any, tmp_path: Any) -> None:
    """It is asked for where it is missing, and kept."""
    with serving(tmp_path, "nano", "--api-key", "sesame") as server:
        page = browser.new_context().new_page()
        page.goto(server.url)
        settings(page, key="sesame", max_tokens="3")
        page.locator("#model option").first.wait_for(state="attached")
        say(page, "x")
        assert answer(page).locator(".wrong").count() == 0


def test_two_tabs(context: Any, server: ServerProcess) -> None:
    """What one writes, the other lists; neither loses the other's."""
    pages = [context.new_page() for _ in range(2)]
    for page in pages:
        page.goto(server.url)
    settings(pages[0], max_tokens="3")
    pages[1].reload()
    for page, text in zip(pages, ("one", "two"), strict=True):
        say(page, text)
        answer(page)
    for page in pages:
        page.locator("#list li").nth(1).wait_for()
        assert sorted(page.locator("#list li button:first-child").all_text_contents()) == [
            "one",
            "two",
        ]


@pytest.mark.parametrize("width", [360, 1200])
def test_no_sideways_scrolling(page: Any, width: int) -> None:
    instead(page, "```\n" + "x" * 500 + "\n```\n" + "y" * 500)
    page.set_viewport_size({"width": width, "height": 700})
    say(page, "z" * 300)
    answer(page)
    wide: Callable[[str], int] = page.evaluate
    assert wide("() => document.scrollingElement.scrollWidth") <= width
