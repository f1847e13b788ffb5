"""Generates docs/reference/fields.md: what each endpoint does with each field of a request.

python tests/support/field_page.py
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

The tables say how each endpoint treats each field of a request:

- **used**: the endpoint reads it;
- passes: ignored with any value, because it cannot change an answer;
- values: ignored with these values (and with null), and refused with any other, because it would
  change the answer. The error is a 400 with the field in `param`.

A field that is not in this table is left out: the header `x-sterna-warning` and the log name it,
and `/metrics` counts it (`sterna_unknown_fields_total`). With `--strict-requests`, it is a 400 with
the code `unknown_parameter`.

`-1` means no limit for `max_tokens` (under all its names) and `top_k`, and no seed for `seed`.
`top_p: 0` means greedy.

`python tests/support/field_page.py` generates this page from `sterna/server/unsupported_fields.py`
and from the structs of the endpoints. A test compares it with both, and with the request types of
the packages `openai` and `anthropic`.

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
    lines = [f"| field | {' | '.join(PROTOCOLS)} | note |"]
    lines.append("|---" * (len(PROTOCOLS) + 2) + "|")
    for name in sorted({*why, *read}):
        cells = [_verdict(protocol, name) for protocol in PROTOCOLS]
        lines.append(f"| `{name}` | {' | '.join(cells)} | {why.get(name, '')} |")
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
