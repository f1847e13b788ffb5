"""docs/reference/fields.md: what becomes of each field of a request, from structs and table.

python tests/support/field_page.py # writes the page
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sterna.server.endpoints.chat import ChatCompletionRequest
from sterna.server.endpoints.completions import CompletionRequest
from sterna.server.endpoints.embeddings import EmbeddingRequest
from sterna.server.endpoints.messages import MessagesRequest
from sterna.server.endpoints.responses import ResponsesRequest
from sterna.server.unsupported_fields import PROTOCOLS, unsupported_fields

PAGE = Path(__file__).parents[2] / "docs/reference/fields.md"
BODIES: dict[str, Any] = {
    body.protocol: body
    for body in (
        ChatCompletionRequest,
        CompletionRequest,
        ResponsesRequest,
        MessagesRequest,
        EmbeddingRequest,
    )
}
HEAD = """# Fields of requests

What becomes of each field, by endpoint: **used**; **passes** with any value, since it changes no
answer; or passes only with the values that are named (null always), and is else an error 400 with
its name in `param`, since it would change the answer. A field without a place here is refused as
`unknown_parameter`: a server that passes over what it does not know answers another question than
it was asked.

This page is written by `python tests/support/field_page.py` from `sterna/server/fields.py` and what
the endpoints read; a test holds them to each other, and to the request types of the packages
`openai` and `anthropic`.

`-1` is no limit for `max_tokens` (and its other names) and `top_k`, and no seed for `seed`;
`top_p: 0` is greedy.

"""


def read_by(protocol: str) -> tuple[str, ...]:
    """The fields that an endpoint reads."""
    found: tuple[str, ...] = BODIES[protocol].__struct_fields__
    return found


def _verdict(protocol: str, name: str) -> str:
    if name in read_by(protocol):
        return "**used**"
    row = unsupported_fields(protocol).get(name)
    if row is None:
        return ""
    if row.passes is None:
        return "passes"
    return ", ".join(f"`{json.dumps(value)}`" for value in row.passes) or "`null`"


def page() -> str:
    """The page's text."""
    why = {
        name: row.why
        for protocol in PROTOCOLS
        for name, row in unsupported_fields(protocol).items()
    }
    read = {name for protocol in PROTOCOLS for name in read_by(protocol)}
    lines = [f"| field | {' | '.join(PROTOCOLS)} | where it is not read |"]
    lines.append("|---" * (len(PROTOCOLS) + 2) + "|")
    for name in sorted({*why, *read}):
        cells = [_verdict(protocol, name) for protocol in PROTOCOLS]
        lines.append(f"| `{name}` | {' | '.join(cells)} | {why.get(name, '')} |")
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
