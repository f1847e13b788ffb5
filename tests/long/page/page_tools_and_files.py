"""Tool calls with the results that a person writes, and files next to a message."""

from __future__ import annotations

import base64
from typing import Any

from page_driver import PICTURE, answer, answered, say, settings, stream


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
