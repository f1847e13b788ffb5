"""GET /: a page to talk to the models, one file without anything from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import lru_cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from sterna.server.routing import Endpoint

FILE = Path(__file__).parent.parent / "page.html"


@lru_cache(maxsize=1)
def _page() -> tuple[bytes, str]:
    """The file, and the policy that lets its own style and script run and nothing else."""
    data = FILE.read_bytes()

    def own(tag: bytes) -> str:
        (inside,) = re.findall(rb"<%b>(.*?)</%b>" % (tag, tag), data, re.DOTALL)
        return f"'sha256-{base64.b64encode(hashlib.sha256(inside).digest()).decode()}'"

    return data, "; ".join(
        (
            "default-src 'none'",
            f"script-src {own(b'script')}",
            f"style-src {own(b'style')}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        )
    )


async def page(request: Request) -> Response:
    """The page; it holds nothing that a key protects."""
    data, policy = _page()
    headers = {"content-security-policy": policy, "cache-control": "no-cache"}
    return Response(data, headers=headers, media_type="text/html; charset=utf-8")


ENDPOINTS = [Endpoint("GET", "/", page, "A page to talk to the models.", is_open=True)]
