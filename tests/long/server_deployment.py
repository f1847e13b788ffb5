"""Proxies, systemd and containers as docs/how-to/deploy.md has them, on the real things.

The configurations are those of the page, with ports and paths of this test in place of theirs.
"""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from server_process import ServerProcess, serving

ROOT = Path(__file__).parent.parent.parent
DOCS = (ROOT / "docs/how-to/deploy.md").read_text()
NAME = "llm.example.org"
LONG = {"prompt": "x = 1\n", "max_tokens": 900, "ignore_eos": True, "n": 8, "stream": True}


def block(language: str, beginning: str) -> str:
    """A block of the page by its first line."""
    (found,) = re.findall(rf"```{language}\n({re.escape(beginning)}\n.*?)```", DOCS, re.DOTALL)
    return str(found)


def needs(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"needs {program}")
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


@pytest.fixture(scope="module")
def proxied(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[ServerProcess, httpx.Client]]:
    """A server behind nginx with TLS, and a client that trusts its certificate."""
    nginx, folder = needs("nginx"), tmp_path_factory.mktemp("proxy")
    pem, key, port = folder / "cert.pem", folder / "key.pem", free_port()
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj",
         f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}", "-keyout", key, "-out", pem],
        check=True, capture_output=True,
    )  # fmt: skip
    with serving(folder, "nano", "--allowed-host", NAME, "--api-key", "sesame") as server:
        conf = block("nginx", "server {").replace("listen 443 ssl;", (
            f"listen 127.0.0.1:{port} ssl; ssl_certificate {pem}; ssl_certificate_key {key};"
        )).replace("127.0.0.1:8080", f"127.0.0.1:{server.port}")  # fmt: skip
        temporary = "".join(
            f"{kind}_temp_path {folder}/{kind};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        file = folder / "nginx.conf"
        file.write_text(
            f"daemon off; pid {folder}/pid; error_log stderr; events {{}}\n"
            f"http {{ access_log off; {temporary}\n{conf}\n}}\n"
        )
        subprocess.run([nginx, "-t", "-c", file], check=True)
        process = subprocess.Popen([nginx, "-c", file])
        try:
            trust = ssl.create_default_context(cafile=str(pem))
            transport = httpx.HTTPTransport(verify=trust)
            client = httpx.Client(
                transport=transport, base_url=f"https://127.0.0.1:{port}", timeout=60,
                headers={"host": NAME, "authorization": "Bearer sesame"},
            )  # fmt: skip
            for _ in range(100):
                with socket.socket() as sock:
                    if sock.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            yield server, client
        finally:
            process.terminate()
            process.wait()


EXTENSIONS = {"extensions": {"sni_hostname": NAME}}


def test_through_nginx(proxied: tuple[ServerProcess, httpx.Client]) -> None:
    """Answers, keys and names are those of the server behind."""
    server, client = proxied
    body = {"prompt": "a = ", "max_tokens": 8, "temperature": 0}
    answer = client.post("/v1/completions", json=body, **EXTENSIONS)
    own = httpx.post(f"{server.url}/v1/completions", json=body, headers=dict(client.headers))
    assert answer.json()["choices"] == own.json()["choices"]
    wrong = client.get("/v1/models", headers={"authorization": "Bearer x"}, **EXTENSIONS)
    assert wrong.status_code == 401


def test_events_come_as_they_are_made(proxied: tuple[ServerProcess, httpx.Client]) -> None:
    """The first is read while the engine still works; a client that disconnects ends its answer."""
    server, client = proxied
    with client.stream("POST", "/v1/completions", json=LONG, **EXTENSIONS) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: {")
        assert running(server)
    until = time.monotonic() + 30
    while running(server):
        assert time.monotonic() < until
        time.sleep(0.02)
    assert "finish=cancelled" in server.log


def running(server: ServerProcess) -> int:
    auth = {"authorization": "Bearer sesame"}
    text = httpx.get(f"{server.url}/metrics", headers=auth).text
    found = re.findall(r"^sterna_num_requests_\w+\{.*\} (\S+)$", text, re.MULTILINE)
    return sum(int(float(value)) for value in found)


def test_units(tmp_path: Path) -> None:
    """systemd finds nothing wrong with the service, with and without the socket."""
    analyze = needs("systemd-analyze")
    service = block("ini", "# /etc/systemd/system/sterna.service")
    (tmp_path / "sterna.service").write_text(service.replace("/opt/sterna/bin/sterna", "/bin/true"))
    (tmp_path / "sterna.socket").write_text(block("ini", "# /etc/systemd/system/sterna.socket"))
    for unit in ("sterna.service", "sterna.socket"):
        done = subprocess.run(
            [analyze, "verify", "--man=no", str(tmp_path / unit)], capture_output=True, text=True
        )
        said = [line for line in done.stderr.splitlines() if "sterna" in line]
        assert said == []
        assert done.returncode == 0, done.stderr


def test_dockerfile() -> None:
    """hadolint finds nothing but that the compiler may be of any version, as it may."""
    hadolint = needs("hadolint")
    done = subprocess.run(
        [hadolint, "--no-color", "--ignore", "DL3008", ROOT / "Dockerfile"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")
