"""Leaves this folder out where sterna-papers is not installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("sterna_papers") else ["test_*.py"]


def pytest_report_header() -> str | None:
    """Says so."""
    return "papers: not installed (pip install ./papers)" if collect_ignore_glob else None
