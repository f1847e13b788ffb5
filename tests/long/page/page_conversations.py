"""Conversations: kept, found, renamed, moved to another browser, deleted and restored."""

from __future__ import annotations

from typing import Any

from page_driver import answer, instead, say, settings
from server_process import ServerProcess


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


def test_two_tabs(context: Any, server: ServerProcess) -> None:
    """Each page lists what the other writes; neither loses the other's conversations."""
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
