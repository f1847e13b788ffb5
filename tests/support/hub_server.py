"""A server on loopback that speaks the Hub's routes, and misbehaves as told."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

LFS_BYTES = 1 << 16  # larger files are stored as the Hub stores large ones


def commit_of(files: Mapping[str, bytes]) -> str:
    """A commit's name, made of its contents."""
    digest = hashlib.sha1()
    for path, data in sorted(files.items()):
        digest.update(f"{path}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def folder_files(folder: Path) -> dict[str, bytes]:
    """The files of a folder, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@dataclass
class Request:
    """A client's request."""

    path: str
    range: str | None
    token: str | None


@dataclass
class Hub:
    """The repositories of a server, and how it fails.

    `cuts`: path -> bytes after which the connection is dropped, one for each request; `damaged`:
    paths whose contents are not those of the metadata; `longer`: with bytes to spare; `stalled`:
    whose second half never comes; `status`: path (or "api") -> HTTP status, with its X-Error-Code;
    `redirect`: another server's address that serves the files. `about`: repository -> what its
    listing says besides its files.
    """

    repos: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    refs: dict[tuple[str, str], str] = field(default_factory=dict)
    cuts: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    damaged: set[str] = field(default_factory=set)
    status: dict[str, tuple[int, str]] = field(default_factory=dict)
    longer: set[str] = field(default_factory=set)
    stalled: set[str] = field(default_factory=set)
    ranges: bool = True
    redirect: str = ""
    api_body: bytes | None = None
    extra: list[dict[str, object]] = field(default_factory=list)
    about: dict[str, dict[str, object]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    url: str = ""

    def add(self, repo: str, files: Mapping[str, bytes], revision: str = "main") -> str:
        """Publishes a commit under a revision; its name."""
        commit = commit_of(files)
        self.repos.setdefault(repo, {})[commit] = dict(files)
        self.refs[repo, revision] = commit
        return commit

    def fetched(self, path: str) -> list[str | None]:
        """The ranges of the requests for a file; None for the whole."""
        return [r.range for r in self.requests if r.path.endswith(f"/{path}")]


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Runs the server on a free port of loopback; sets `hub.url`."""

    class Handler(_Handler):
        state = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: Hub

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the tests read `requests`."""

    def do_GET(self) -> None:
        hub, address = self.state, urlsplit(self.path)
        path = unquote(address.path)
        token = self.headers.get("Authorization")
        if path.startswith("/api/") and not path.startswith("/api/models/"):
            return self._fail(404, "")  # the package's own questions
        hub.requests.append(Request(path, self.headers.get("Range"), token))
        if path.startswith("/api/models/"):
            assert parse_qs(address.query.lower()) == {"blobs": ["true"]}
            self._api(path.removeprefix("/api/models/"))
        else:
            self._file(path)

    def _api(self, path: str) -> None:
        hub = self.state
        if hub.api_body is not None:
            return self._send(200, hub.api_body)
        if "api" in hub.status:
            return self._fail(*hub.status["api"])
        repo, _, revision = path.partition("/revision/")
        if repo not in hub.repos:
            return self._fail(401, "RepoNotFound")
        commit = self._commit(repo, revision)
        if commit is None:
            return self._fail(404, "RevisionNotFound")
        body = listing(repo, commit, hub.repos[repo][commit], hub.extra, hub.about.get(repo, {}))
        self._send(200, body, {"Content-Type": "application/json"})

    def _commit(self, repo: str, revision: str) -> str | None:
        hub = self.state
        commits = [commit for commit in hub.repos[repo] if len(revision) > 6]
        short = [commit for commit in commits if commit.startswith(revision)]
        return hub.refs.get((repo, revision)) or (short[0] if short else None)

    def _file(self, address: str) -> None:
        hub = self.state
        org, name, _, commit, path = address.lstrip("/").split("/", 4)
        if path in hub.status:
            return self._fail(*hub.status[path])
        data = hub.repos.get(f"{org}/{name}", {}).get(commit, {}).get(path)
        if data is None:
            return self._fail(404, "EntryNotFound")
        if hub.redirect:
            return self._send(302, b"", {"Location": hub.redirect + address})
        if path in hub.damaged:
            data = data[:-1] + bytes([data[-1] ^ 1])
        if path in hub.longer:
            data += b"more"
        asked, headers, status = self.headers.get("Range"), {}, 200
        if asked and hub.ranges:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last or len(data)) + 1, len(data))
            headers = {"Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"}
            data, status = data[begin:end], 206
        cut = hub.cuts[path].pop(0) if hub.cuts[path] else None
        if path in hub.stalled:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            self.rfile.read(1)  # until the client has had enough
            self.close_connection = True
            return
        self._send(status, data, headers, cut)

    def _fail(self, status: int, code: str) -> None:
        self._send(status, b'{"error": "refused"}', {"X-Error-Code": code} if code else {})

    def _send(
        self, status: int, data: bytes, headers: Mapping[str, str] = {}, cut: int | None = None
    ) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(data[:cut])
        if cut is not None:
            self.close_connection = True


def listing(
    repo: str,
    commit: str,
    files: Mapping[str, bytes],
    extra: Sequence[Mapping[str, object]] = (),
    about: Mapping[str, object] = {},
) -> bytes:
    """The Hub's answer about a commit."""
    siblings = [*(_sibling(path, data) for path, data in files.items()), *extra]
    info = {"id": repo, "modelId": repo, "sha": commit, "siblings": siblings, **about}
    return json.dumps(info).encode()


def _sibling(path: str, data: bytes) -> dict[str, object]:
    git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    row: dict[str, object] = {"rfilename": path, "size": len(data), "blobId": git}
    if len(data) > LFS_BYTES:
        sha = hashlib.sha256(data).hexdigest()
        row["lfs"] = {"size": len(data), "sha256": sha, "pointerSize": 134}
    return row
