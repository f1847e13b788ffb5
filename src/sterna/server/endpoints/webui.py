"""GET /: a web page to chat with the models, in one self-contained file, and its reader of PDFs."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from sterna.server.routing import Endpoint

FOLDER = Path(__file__).parent.parent / "webui"
#: The parts of the script, in order.
SCRIPTS = (
    "tree",
    "text",
    "math",
    "footnotes",
    "markdown",
    "files",
    "pdf",
    "calls",
    "welcome",
    "view",
    "alternatives",
    "requests",
    "transfer",
    "store",
    "main",
)
#: Libraries of others, which come before it (their licences: webui/vendor/LICENSES.md).
LIBRARIES = ("marked", "prism", "katex")
_FACE = re.compile(r"@font-face\{[^}]*?url\(fonts/([\w-]+\.woff2)\)[^}]*\}")
_SOURCES = re.compile(r"src:[^;}]*")
#: The reader of PDFs runs in a worker, loaded when a PDF is attached, that can load nothing else.
PDF_READER = {
    "/page/pdf-reader.mjs": "pdf-reader.mjs",
    "/page/pdf.mjs": "vendor/pdf.mjs",
    "/page/pdf.worker.mjs": "vendor/pdf.worker.mjs",
}


class _File(NamedTuple):
    """A file that browsers may keep as long as its tag is the same."""

    data: bytes
    kind: str
    policy: str

    def response(self, request: Request) -> Response:
        """Return the file, or 304 to a browser that has it."""
        tag = f'"{hashlib.sha256(self.data).hexdigest()[:32]}"'
        headers = {"content-security-policy": self.policy, "cache-control": "no-cache", "etag": tag}
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(self.data, headers=headers, media_type=f"{self.kind}; charset=utf-8")


@lru_cache(maxsize=1)
def _page() -> _File:
    """Return the page with its style and script inlined, and a policy that allows only these."""
    style = f"\n{_formula_style()}\n{_text('style.css')}"
    libraries = "\n".join(["", *(_text(f"vendor/{name}.js") for name in LIBRARIES)])
    script = "\n".join(['\n"use strict";', *(_text(f"{name}.js") for name in SCRIPTS)])
    page = _text("index.html")
    for tag, content in (("style", style), ("script", libraries), ("script", script)):
        page = page.replace(f"<{tag}></{tag}>", f"<{tag}>{content}</{tag}>", 1)
    policy = (
        "default-src 'none'",
        f"script-src {_hash(libraries)} {_hash(script)}",
        f"style-src {_hash(style)}",
        "worker-src 'self'",
        "connect-src 'self'",
        "img-src data:",
        "font-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
    return _File(page.encode(), "text/html", "; ".join(policy))


def _formula_style() -> str:
    """Return KaTeX's style with the fonts in it, without those that are not shipped."""

    def inlined(face: re.Match[str]) -> str:
        font = FOLDER / "vendor" / "fonts" / face[1]
        if not font.exists():
            return ""
        data = base64.b64encode(font.read_bytes()).decode()
        return _SOURCES.sub(f'src:url(data:font/woff2;base64,{data}) format("woff2")', face[0])

    return _FACE.sub(inlined, _text("vendor/katex.css"))


@lru_cache(maxsize=len(PDF_READER))
def _pdf_part(path: str) -> _File:
    data = (FOLDER / PDF_READER[path]).read_bytes()
    return _File(data, "text/javascript", "default-src 'none'; script-src 'self'")


def _text(name: str) -> str:
    return (FOLDER / name).read_text("utf-8")


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


async def page(request: Request) -> Response:
    """Return the page, which has nothing that needs a key."""
    return _page().response(request)


async def pdf_part(request: Request) -> Response:
    """Return a script of the page's reader of PDFs."""
    return _pdf_part(request.scope["path"]).response(request)


ENDPOINTS = [
    Endpoint("GET", "/", page, "A web page to chat with the models.", is_open=True),
    *(
        Endpoint("GET", path, pdf_part, "A part of the page that reads PDFs.", is_open=True)
        for path in PDF_READER
    ),
]
