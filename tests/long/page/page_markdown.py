"""The page renders an answer's text as Markdown, and never as anything unsafe."""

from __future__ import annotations

import time
from typing import Any

import pytest
from page_driver import MARKDOWN, answer, instead, say


def test_markdown(page: Any) -> None:
    """The same elements while it streams and after a reload; every token can be clicked."""
    instead(page, *MARKDOWN)  # one character a token: every prefix of it is drawn at some time
    say(page, "x")
    whole = answer(page).locator(".text")
    tree = "node => node.innerHTML.replace(/<span class=\"t\">([^<]*)<.span>/g, '$1')"
    streamed = whole.evaluate(tree)
    counts = {
        "h2": 1, "strong": 1, "em": 1, "del": 1, ".katex": 1, "th": 2, "td": 2, "td.right": 1,
        "li": 3, "li.task input:checked": 1, "ol li": 1, "blockquote p": 1, "pre .c-keyword": 2,
        "a[target=_blank][rel~=noopener]": 1, "br": 2,
    }  # fmt: skip
    assert {name: whole.locator(name).count() for name in counts} == counts
    assert whole.locator(".katex annotation").text_content() == "a_b*c*"
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
    page.locator("#list li").nth(1).wait_for()
    assert page.locator("#list li").count() == 2
