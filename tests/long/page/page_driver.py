"""The actions of a person on the page, and a server that answers as a test wants."""

from __future__ import annotations

import base64
import json
import os
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")


def settings(page: Any, **values: str) -> None:
    page.keyboard.press("Control+,")
    for name, value in values.items():
        page.fill(f"#{name}", value)
    page.click("#close")


def say(page: Any, text: str) -> None:
    page.fill("#say", text)
    page.keyboard.press("Enter")


def answer(page: Any, nth: int = 0) -> Any:
    """An answer that has ended."""
    page.locator("article.assistant .tools").nth(nth).wait_for()
    return page.locator("article.assistant").nth(nth)


def content(page: Any, nth: int = 0) -> str:
    """The text of an answer, before Markdown is read."""
    answers = "pathOf(chat).filter(one => one.role === 'assistant')"
    return str(page.evaluate(f"nth => {answers}[nth].content", nth))


def stream(
    *deltas: dict[str, Any], end: str = "data: [DONE]\n\n", usage: dict[str, Any] | None = None
) -> str:
    """An answer as events, the last of which says why it ended."""
    choices = [{"index": 0, "delta": delta, "logprobs": None, "token_ids": [1]} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    events: list[dict[str, Any]] = [{"choices": [one]} for one in choices]
    events += [{"choices": [], "usage": usage}] if usage else []
    return "".join(f"data: {json.dumps(one)}\n\n" for one in events) + end


def answered(page: Any, *bodies: str) -> list[Any]:
    """Answers of a server that is not ours, the last of them again and again. Returns requests."""
    sent: list[Any] = []

    def handle(route: Any) -> None:
        body = bodies[min(len(sent), len(bodies) - 1)]
        sent.append(route.request.post_data_json)
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    page.route("**/v1/chat/completions", handle)
    return sent


def instead(page: Any, *contents: str, **more: str) -> None:
    """One answer of a server that is not ours: content in chunks."""
    answered(page, stream(*({"content": text} for text in contents), **more))


def with_models(page: Any, **rows: dict[str, Any]) -> None:
    """A server that is not ours lists models: by id, the rest of a row of /v1/models."""
    listed = [{"id": id, "meta": {}, **row} for id, row in rows.items()]
    page.route("**/v1/models", lambda route: route.fulfill(json={"data": listed}))
    page.reload()
    page.locator("#model option").nth(len(rows) - 1).wait_for(state="attached")


def file(name: str, data: bytes, kind: str = "text/plain") -> Any:
    """A file to pick."""
    return {"name": name, "mimeType": kind, "buffer": data}


MARKDOWN = """# Title

A **bold** word, *stress*, ~~gone~~, `code`, [a link](https://example.org "t"), \\(a_b*c*\\)
and a break &amp; more.

| a | b |
|---|--:|
| 1 | `2` |

- [x] done
- plain
  1. nested

> quoted
> twice

```python
def f(x):  # why
    return "x"
```
"""


PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
