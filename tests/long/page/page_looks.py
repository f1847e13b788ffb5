"""How the page looks: for axe in light and dark, and on narrow and wide screens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from page_driver import MARKDOWN, answer, instead, say
from server_process import ServerProcess


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


@pytest.mark.parametrize("width", [360, 1200])
def test_no_sideways_scrolling(page: Any, width: int) -> None:
    instead(page, "```\n" + "x" * 500 + "\n```\n" + "y" * 500)
    page.set_viewport_size({"width": width, "height": 700})
    say(page, "z" * 300)
    answer(page)
    wide: Callable[[str], int] = page.evaluate
    assert wide("() => document.scrollingElement.scrollWidth") <= width
