"""The page's messages if an answer fails, or a server is away or wants a key."""

from __future__ import annotations

from typing import Any

import pytest
from page_driver import answer, instead, say, settings
from server_process import serving


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
