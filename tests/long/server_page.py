"""The page in Chromium; see README.md."""

from __future__ import annotations

import base64
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


def content(page: Any, nth: int = 0) -> str:
    """What an answer says, before Markdown is read."""
    answers = "pathOf(chat).filter(one => one.role === 'assistant')"
    return str(page.evaluate(f"nth => {answers}[nth].content", nth))


def stream(*deltas: dict[str, Any], end: str = "data: [DONE]\n\n") -> str:
    """An answer as events, the last of which says why it ended."""
    choices = [{"index": 0, "delta": delta, "logprobs": None, "token_ids": [1]} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    return "".join(f"data: {json.dumps({'choices': [one]})}\n\n" for one in choices) + end


def answered(page: Any, *bodies: str) -> list[Any]:
    """Answers of a server that is not ours, the last of them again and again. Returns requests."""
    sent: list[Any] = []

    def handle(route: Any) -> None:
        body = bodies[min(len(sent), len(bodies) - 1)]
        sent.append(route.request.post_data_json)
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    page.route("**/v1/chat/completions", handle)
    return sent


def instead(page: Any, *contents: str, **more: str) -> None:
    """One answer of a server that is not ours: content in chunks."""
    answered(page, stream(*({"content": text} for text in contents), **more))


def test_an_answer(page: Any, server: ServerProcess) -> None:
    """As the server gives it; its request, copied, makes the same again."""
    settings(page, max_tokens="40", temperature="1")
    say(page, "def f(x):")
    answer(page)
    text = content(page)
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
    token = answer(page).locator(".t").nth(1)
    at = token.evaluate("one => one.token.at")
    token.click()
    rows = page.locator("#card tr")
    rows.nth(7).wait_for()  # the page asks for them when it is clicked
    assert rows.count() == 8
    body = {
        "messages": [{"role": "user", "content": "def f(x):"}],
        "max_tokens": 5,
        "temperature": 0,
    }
    found = server.post("/v1/chat/completions", **body, logprobs=True, top_logprobs=8).json()
    exact = [t["logprob"] for t in found["choices"][0]["logprobs"]["content"][at]["top_logprobs"]]
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
    answer(page)
    stopped = content(page)
    answer(page).get_by_role("button", name="Regenerate").click()
    answer(page)
    assert page.locator("article.assistant .version").text_content() == "2/2"
    page.get_by_role("button", name="Previous version").click()
    answer(page)
    assert content(page) == stopped
    page.locator("article.user").hover()
    page.get_by_role("button", name="Edit").click()
    assert page.input_value("#say") == "x = 1"
    say(page, "y = 2")
    answer(page)
    assert page.locator("article").count() == 2
    assert page.locator("article.user .version").text_content() == "2/2"
    page.get_by_role("button", name="Previous version").first.click()
    answer(page)
    assert content(page) == stopped


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
    settings(page, max_tokens="900", temperature="1", seed="7")
    say(page, "import os")
    page.locator("article.assistant .t").first.wait_for(state="attached")
    page.click("#new")
    assert page.locator("article").count() == 0
    page.locator("#list li.running button").first.click()
    page.locator("article.assistant .t").nth(10).wait_for(state="attached")
    page.reload()
    answer(page)
    text = content(page)
    body = {"messages": [{"role": "user", "content": "import os"}], "max_tokens": 900}
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
    """HTML, addresses of scripts, pictures of others, right-to-left: text, and nothing else."""
    text = "<script>document.title='x'</script>\n\n<img src=x onerror=alert(1)> "
    text += "\u202egnp.exe\u202c [bad](javascript:alert(1)) ![far](https://example.org/x.png)\n\n"
    text += "```html\n<b>code</b>\n```\nafter `<i>x</i>`"
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    instead(page, *text)
    say(page, "<img src=x onerror=alert(1)>")
    for _ in range(2):
        shown = answer(page).locator(".text")
        said = shown.text_content()
        assert "<script>document.title='x'</script>" in said
        assert "<img src=x onerror=alert(1)> \u202egnp.exe\u202c bad far" in said
        assert shown.locator("pre").text_content() == "<b>code</b>"
        assert shown.locator("p code").text_content() == "<i>x</i>"
        assert page.locator("article :is(img, script, b, i)").count() == 0
        assert page.locator("article a").evaluate_all("all => all.map(one => one.href)") == [
            "https://example.org/x.png"
        ]
        assert page.title() == "Sterna"
        page.reload()
        page.locator("#list button").first.click()
    assert not any("example.org" in url for url in asked)


MARKDOWN = """# Title

A **bold** word, *stress*, ~~gone~~, `code`, [a link](https://example.org "t"), \\(a_b*c*\\)
and a break &amp; more.

| a | b |
|---|--:|
| 1 | `2` |

- [x] done
- plain
  1. nested

> quoted
> twice

```python
def f(x):  # why
    return "x"
```
"""


def test_markdown(page: Any) -> None:
    """The same elements while it streams and after a reload; every token can be clicked."""
    instead(page, *MARKDOWN)  # one character a token: every prefix of it is drawn at some time
    say(page, "x")
    whole = answer(page).locator(".text")
    tree = "node => node.innerHTML.replace(/<span class=\"t\">([^<]*)<.span>/g, '$1')"
    streamed = whole.evaluate(tree)
    counts = {
        "h2": 1, "strong": 1, "em": 1, "del": 1, "code.math": 1, "th": 2, "td": 2, "td.right": 1,
        "li": 3, "li.task input:checked": 1, "ol li": 1, "blockquote p": 1, "pre .c-keyword": 2,
        "a[target=_blank][rel~=noopener]": 1, "br": 2,
    }  # fmt: skip
    assert {name: whole.locator(name).count() for name in counts} == counts
    assert whole.locator("code.math").text_content() == "\\(a_b*c*\\)"
    assert "a break & more" in whole.text_content()
    clicked = "all => all.map(one => [one.token.at, one.textContent])"
    tokens = whole.locator(".t").evaluate_all(clicked)
    assert all(MARKDOWN[at] == text for at, text in tokens)
    assert [text for _, text in tokens if text.strip()][:10] == list("TitleAbold")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    whole.get_by_role("button", name="Copy").click()
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert copied == 'def f(x):  # why\n    return "x"'
    page.reload()
    assert answer(page).locator(".text").evaluate(tree) == streamed


@pytest.mark.parametrize("part", ["_a", "> ", "1. ", "[", "```\n", "- a\n  ", "|a|b|\n", "**a "])
def test_markdown_that_is_slow_to_read(page: Any, part: str) -> None:
    """Texts that take a parser quadratic time, or all of its stack, still end."""
    instead(page, part * (100_000 // len(part)))
    say(page, "x")
    began = time.monotonic()
    answer(page)
    assert time.monotonic() - began < 20
    say(page, "y")
    answer(page, 1)


def test_reasoning(page: Any) -> None:
    """They are folded when the answer begins."""
    answered(page, stream({"reasoning_content": "hm"}, {"content": "yes"}))
    say(page, "x")
    answer(page)
    reasoning = page.locator("article.assistant details.reasoning")
    assert reasoning.get_attribute("open") is None
    reasoning.locator("summary").click()
    assert reasoning.locator(".text").is_visible()


def test_a_tool_call(page: Any) -> None:
    """It is shown, and its result, which a person writes, is sent."""
    call = {"index": 0, "id": "c1", "function": {"name": "look", "arguments": '{"a": '}}
    rest = {"index": 0, "function": {"arguments": "1}"}}
    sent = answered(
        page,
        stream({"content": "I look."}, {"tool_calls": [call]}, {"tool_calls": [rest]}),
        stream({"content": "Seen."}),
    )
    settings(page, tools='[{"type": "function", "function": {"name": "look"}}]')
    say(page, "x")
    assert answer(page).locator(".call pre").text_content() == '{\n  "a": 1\n}'
    answer(page).locator(".call textarea").fill("a bird")
    page.get_by_role("button", name="Send results").click()
    assert answer(page, 1).locator(".text").text_content() == "Seen."
    assert page.locator("article.tool").text_content() == "Result of looka bird"
    assert sent[0]["tools"][0]["function"]["name"] == "look"
    function = {"name": "look", "arguments": '{"a": 1}'}
    assert sent[1]["messages"][1:] == [
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "a bird"},
    ]


PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)


def test_files(page: Any) -> None:
    """A text becomes a block of code, a picture a part of its own; an edit keeps both."""
    sent = answered(page, stream({"content": "ok"}))
    files = [("a.txt", "text/plain", b"```\nx"), ("b.png", "image/png", PICTURE)]
    files.append(("c.bin", "application/octet-stream", b"\0\1"))
    picked = [{"name": n, "mimeType": kind, "buffer": data} for n, kind, data in files]
    page.set_input_files("#pick", picked)
    page.locator("#files li").nth(1).wait_for()
    page.get_by_text("c.bin is neither text nor an image.").wait_for()
    say(page, "see")
    answer(page)
    picture = {"url": "data:image/png;base64," + base64.b64encode(PICTURE).decode()}
    text = "a.txt:\n````\n```\nx\n````\n\nsee"
    parts = [{"type": "image_url", "image_url": picture}, {"type": "text", "text": text}]
    assert sent[0]["messages"] == [{"role": "user", "content": parts}]
    assert page.locator("#files li").count() == 0
    page.locator("article.user").hover()
    page.get_by_role("button", name="Edit").click()
    page.get_by_role("button", name="Remove a.txt").click()
    say(page, "again")
    answer(page)
    parts[1]["text"] = "again"
    assert sent[1]["messages"] == [{"role": "user", "content": parts}]


def test_continuing(page: Any, server: ServerProcess) -> None:
    """An answer that was cut off goes on where it ended."""
    settings(page, max_tokens="5", temperature="0")
    say(page, "def f(x):")
    answer(page)
    first = content(page)
    settings(page, max_tokens="9")
    answer(page).get_by_role("button", name="Continue").click()
    page.wait_for_function("before => pathOf(chat)[1].content.length > before", arg=len(first))
    answer(page)
    assert content(page).startswith(first)
    assert page.locator("article").count() == 2


def test_names_search_and_files_of_conversations(page: Any, tmp_path: Any) -> None:
    """Renamed, found, exported, and imported into another browser."""
    instead(page, "a *bird*")
    for text in ("one", "two"):
        page.click("#new")
        say(page, text)
        answer(page)
    page.once("dialog", lambda dialog: dialog.accept("Terns"))
    page.locator("#list li").first.hover()
    page.get_by_role("button", name="Rename").first.click()
    page.fill("#search", "tern")
    assert page.locator("#list li button:first-child").all_text_contents() == ["Terns"]
    page.fill("#search", "BIRD")
    assert page.locator("#list li").count() == 2
    page.get_by_role("button", name="More").click()
    with page.expect_download() as markdown:
        page.click("#export-markdown")
    assert markdown.value.suggested_filename == "Terns.md"
    written = markdown.value.path().read_text("utf-8")
    assert written == "# Terns\n\n## You\n\ntwo\n\n## Answer\n\na *bird*\n"
    page.get_by_role("button", name="More").click()
    with page.expect_download() as whole:
        page.click("#export-all")
    whole.value.save_as(tmp_path / "all.json")
    (tmp_path / "bad.json").write_text('{"conversations": [{"id": 1}]}')
    other = page.context.browser.new_context().new_page()
    other.goto(page.url)
    other.set_input_files("#pick-import", tmp_path / "bad.json")
    other.get_by_text("bad.json has no conversations").wait_for()
    other.set_input_files("#pick-import", tmp_path / "all.json")
    other.locator("#list li").nth(1).wait_for()
    other.get_by_role("button", name="Terns").click()
    assert other.locator("article.assistant em").text_content() == "bird"
    other.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessible(browser: Any, server: ServerProcess, scheme: str) -> None:
    """axe finds nothing, in the conversation and in both dialogs."""
    axe_core = pytest.importorskip("axe_playwright_python.base")
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)  # axe is a script of others
    page = context.new_page()
    page.goto(server.url)
    instead(page, MARKDOWN)
    say(page, "x")
    answer(page)
    page.evaluate(axe_core.AXE_FILE_PATH.read_text("utf-8"))
    for key in ("", "Control+,", "Control+/"):
        if key:
            page.keyboard.press(key)
        assert page.evaluate("axe.run()")["violations"] == []
        page.keyboard.press("Escape")
    context.close()


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
