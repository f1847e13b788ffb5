"""A server of SmolLM2 with a template of tools, behind a recorder for each test.

With `STERNA_RECORD=1`, the requests of a test that passes become the contract of its client in
`tests/clients`. `STERNA_URL` is a server that runs already, for environments without Sterna.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import httpx
import pytest
from asking import SAID, SAME, version_of
from contracts import FOLDER, written
from recorder import Recorder

#: In the manner of Qwen 2.5's.
TEMPLATE = Path(__file__).parent / "template.jinja"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "client(name, *packages): whose requests a test records")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, object]:
    report = yield
    if report.when == "call":
        item.stash[PASSED] = report.passed
    return report


PASSED = pytest.StashKey[bool]()


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if "STERNA_URL" in os.environ:
        yield os.environ["STERNA_URL"]
        return
    from assets import smollm2
    from server_process import serving

    folder = tmp_path_factory.mktemp("clients")
    options = ["--chat-template", str(TEMPLATE), "--served-name", "smol", "--allow-origin", "*"]
    with serving(folder, str(smollm2()), *options) as running:
        yield running.url


@pytest.fixture
def server(url: str, request: pytest.FixtureRequest) -> Iterator[Recorder]:
    recorder = Recorder(url)
    yield recorder
    recorder.close()
    mark = request.node.get_closest_marker("client")
    passed = request.node.stash.get(PASSED, False)
    if "STERNA_RECORD" in os.environ and mark and passed and recorder.exchanges:
        name, *packages = mark.args
        FOLDER.mkdir(exist_ok=True)
        versions = {each.removeprefix("npm:"): version_of(each) for each in packages}
        file = request.node.originalname.removeprefix("test_")
        written(file, name, versions, recorder.exchanges)


@pytest.fixture(scope="session")
def expected(url: str) -> str:
    asked = {"messages": SAID, **SAME}
    answer = httpx.post(f"{url}/v1/chat/completions", json=asked, timeout=60).json()
    text: str = answer["choices"][0]["message"]["content"]
    assert "France" in text or "Paris" in text
    return text
