"""A server for the files that ask nothing of it but its protocols."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from server_process import ServerProcess, serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """`nano` without options; a file whose tests need some has its own."""
    with serving(tmp_path_factory.mktemp("server"), "nano") as running:
        yield running
