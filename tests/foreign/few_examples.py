"""A pytest plugin for emulated machines: a tenth of hypothesis' cases; of tests, if asked for."""

from __future__ import annotations

import pytest
from hypothesis import settings

TENTH = "_hypothesis_internal_use_settings"  # where hypothesis keeps a test's settings


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --tenth."""
    parser.addoption("--tenth", action="store_true", help="run each tenth test alone")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Replaces the number of cases; a test without cases of its own stays as it is."""
    if config.getoption("--tenth"):
        items[:] = items[::10]
    for test in {getattr(item, "obj", None) for item in items}:
        chosen = getattr(test, TENTH, None)
        if chosen is not None:
            setattr(test, TENTH, settings(chosen, max_examples=max(1, chosen.max_examples // 10)))
