"""Leaves this folder out where sterna-papers is not installed."""

from importlib.util import find_spec

import pytest

from sterna import formats

collect_ignore_glob = [] if find_spec("sterna_papers") else ["test_*.py"]


def pytest_report_header() -> str | None:
    """Says so."""
    return "papers: not installed (pip install ./papers)" if collect_ignore_glob else None


@pytest.fixture(autouse=True)
def no_lookup_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Formats that a test registers are gone after it: other tests ask for all names."""
    monkeypatch.setattr(formats, "_REGISTERED", {})
