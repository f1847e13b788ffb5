"""Generates docs/reference/clients.md: what recorded clients ask for.

python tests/support/client_page.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from contracts import FORMS, contracts, forms

__all__ = ["PAGE", "page"]

PAGE = Path(__file__).parents[2] / "docs/reference/clients.md"
HEAD = """# Clients

The requests of these clients were recorded while they ran against `sterna serve`. Every test run
replays them, and checks the answers against the types of the packages `openai` and `anthropic`.
Texts, ids and names of machines are replaced by others of the same kind; the fields are those that
the clients send by default.

- plain: a whole answer, without tools and schemas;
- stream: events;
- tools: the client defines tools, calls come back, and results are sent;
- schema: the answer must follow a JSON schema;
- both: tools and a schema in one request;
- reasoning: the client requests reasoning, or sends reasoning back.

✓ means that such a request was recorded and is answered; – means that the client sent none.
[Agents](../how-to/agents.md) shows how to point agents at a server.

LM Studio's packages (`lmstudio`, `@lmstudio/sdk`) use a protocol of their own over WebSockets, and
do not find this server. It answers LM Studio's HTTP endpoints, `/api/v0`.

"""


def page() -> str:
    """The page's text."""
    lines = [f"| client | version | endpoints | {' | '.join(FORMS)} |"]
    lines.append("|---" * (len(FORMS) + 3) + "|")
    for _, contract in sorted(contracts(), key=lambda one: one[1]["client"].lower()):
        lines.append(_row(contract))
    return HEAD + "\n".join(lines) + "\n"


def _row(contract: dict[str, Any]) -> str:
    asked = contract["requests"]
    paths = {one["path"].partition("?")[0] for one in asked}
    paths = {path.removeprefix("/v1/") for path in paths if path.startswith("/v1/")}
    found = {form for one in asked for form in forms(one.get("body"))}
    versions = ", ".join(f"{name} {version}" for name, version in contract["versions"].items())
    cells = ["✓" if form in found else "–" for form in FORMS]
    return f"| {' | '.join([contract['client'], versions, ', '.join(sorted(paths)), *cells])} |"


if __name__ == "__main__":
    PAGE.write_text(page())
