"""A browser, and the page of a server of the built-in model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from page_driver import CHROMIUM, sync_api
from server_process import ServerProcess, serving

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
