"""Tool calls with the results that a person writes, and files next to a message."""

from __future__ import annotations

import base64
from typing import Any

from page_driver import PICTURE, answer, answered, file, say, settings, stream, with_models


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
    with_models(page, nano={"capabilities": ["completion", "vision"]})
    sent = answered(page, stream({"content": "ok"}))
    other = file("c.bin", b"\0\1", "application/octet-stream")
    page.set_input_files(
        "#pick", [file("a.txt", b"```\nx"), file("b.png", PICTURE, "image/png"), other]
    )
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


BLIND = {"capabilities": ["completion"], "meta": {"context": 400}}
SEEING = {"capabilities": ["completion", "vision"], "meta": {"context": 400}}


def test_a_picture_for_a_model_that_does_not_see(page: Any) -> None:
    """It is refused where it would be attached, also when it is pasted."""
    page.locator("#hello .label").get_by_text("reads text, ").wait_for()
    page.set_input_files("#pick", [file("b.png", PICTURE, "image/png"), file("a.txt", b"x = 1")])
    page.get_by_text("b.png is an image, but nano reads text only.").wait_for()
    labels = page.locator("#files li").all_text_contents()
    assert labels == ["a.txt · 4 tokens×"]


def test_a_conversation_with_a_picture_goes_on(page: Any) -> None:
    """With a model that does not see, by the picture's name; with one that does, it is sent."""
    with_models(page, seeing=SEEING, blind=BLIND)
    sent = answered(page, stream({"content": "ok"}))
    page.set_input_files("#pick", [file("b.png", PICTURE, "image/png")])
    page.locator("#files li").wait_for()
    page.keyboard.press("Control+,")
    page.click("#close")
    page.click("#go")
    answer(page)
    assert [part["type"] for part in sent[0]["messages"][0]["content"]] == ["image_url"]
    note = page.get_by_text("blind reads text only: it does not get the image.")
    assert note.count() == 0
    page.select_option("#model", "blind")
    note.wait_for()
    say(page, "and now?")
    answer(page, 1)
    assert [message["content"] for message in sent[1]["messages"]] == [
        "(image: b.png)", "ok", "and now?",
    ]  # fmt: skip
    page.select_option("#model", "seeing")
    answer(page, 1).get_by_role("button", name="Regenerate").click()
    page.locator("article.assistant .version").wait_for()
    assert sent[2]["messages"][0]["content"][0]["type"] == "image_url"
    assert page.locator("#list li button:first-child").text_content() == "b.png"


def pdf(*lines: str) -> bytes:
    """A PDF of one page, with these lines of text."""
    shown = " ".join(f"({line}) Tj T*" for line in lines)
    content = f"BT /F 12 Tf 14 TL 50 700 Td {shown} ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    data, offsets = b"%PDF-1.4\n", []
    for number, one in enumerate(objects, 1):
        offsets.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, one)
    table = b"".join(b"%010d 00000 n \n" % at for at in offsets)
    head = b"xref\n0 6\n0000000000 65535 f \n" + table
    return data + head + b"trailer\n<< /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % len(data)


def test_the_text_of_a_pdf(page: Any) -> None:
    """It is read in the browser, and sent as a text; one of pictures or of noise is refused."""
    sent = answered(page, stream({"content": "ok"}))
    kind = "application/pdf"
    whole = file("terns.pdf", pdf("Arctic terns fly", "from pole to pole."), kind)
    page.set_input_files("#pick", [whole, file("scan.pdf", pdf(), kind)])
    page.get_by_text("scan.pdf has no text: its pages are pictures.").wait_for()
    page.set_input_files("#pick", [file("noise.pdf", b"%PDF-1.4 noise", kind)])
    page.get_by_text("noise.pdf cannot be read: ").wait_for()
    page.click("#go")
    answer(page)
    text = "terns.pdf:\n```\nArctic terns fly\nfrom pole to pole.\n```"
    assert sent[0]["messages"] == [{"role": "user", "content": text}]


def test_a_text_that_the_model_cannot_read_at_once(page: Any) -> None:
    """It is refused with the numbers, also where the server would refuse its bytes."""
    page.locator("#hello .label").get_by_text("reads text, ").wait_for()
    page.set_input_files("#pick", [file("long.txt", b"one two three\n" * 2000)])
    page.get_by_text(" tokens, but nano reads ").wait_for()
    page.set_input_files("#pick", [file("longer.txt", b"one two three\n" * 200_000)])
    page.get_by_text("longer.txt has about 700,000 tokens, but nano reads ").wait_for()
    assert page.locator("#files li").count() == 0
