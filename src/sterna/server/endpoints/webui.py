"""GET /: a web page to chat with the models, in one self-contained file."""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from sterna.server.routing import Endpoint

FOLDER = Path(__file__).parent.parent / "webui"
#: The parts of the script, in order.
SCRIPTS = (
    "tree", "text", "markdown", "files", "calls", "view", "alternatives", "requests", "transfer",
    "store", "main",
)  # fmt: skip
#: Libraries of others, which come before it (their licences: webui/vendor/LICENSES.md).
LIBRARIES = ("marked", "prism")


@lru_cache(maxsize=1)
def _page() -> tuple[bytes, str]:
    """Return the page with its style and script inlined, and a policy that allows only these."""
    style = "\n" + _text("style.css")
    libraries = "\n".join(["", *(_text(f"vendor/{name}.js") for name in LIBRARIES)])
    script = "\n".join(['\n"use strict";', *(_text(f"{name}.js") for name in SCRIPTS)])
    page = _text("index.html")
    for tag, content in (("style", style), ("script", libraries), ("script", script)):
        page = page.replace(f"<{tag}></{tag}>", f"<{tag}>{content}</{tag}>", 1)
    policy = (
        "default-src 'none'",
        f"script-src {_hash(libraries)} {_hash(script)}",
        f"style-src {_hash(style)}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
    return page.encode(), "; ".join(policy)


def _text(name: str) -> str:
    return (FOLDER / name).read_text("utf-8")


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


async def page(request: Request) -> Response:
    """Return the page, which has nothing that needs a key."""
    data, policy = _page()
    headers = {"content-security-policy": policy, "cache-control": "no-cache"}
    return Response(data, headers=headers, media_type="text/html; charset=utf-8")


ENDPOINTS = [Endpoint("GET", "/", page, "A web page to chat with the models.", is_open=True)]
