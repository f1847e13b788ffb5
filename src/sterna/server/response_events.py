"""Output items and stream events of OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from sterna.outputs import AnswerParser, Delta, Piece
from sterna.server.active_request import ActiveRequest
from sterna.server.custom_tools import CUSTOM
from sterna.server.errors import ApiError
from sterna.server.logprob_format import ContentLogprobs
from sterna.server.response_tools import ResponseTools
from sterna.server.sse import event

__all__ = ["ResponseEventStream", "output_items", "response_status", "response_usage"]


#: Of each kind of calls: the prefix of its ids, its type, its text's field, and its events.
_CALLS = {
    "tool_calls": ("fc", "function_call", "arguments", "response.function_call_arguments"),
    CUSTOM: ("ctc", "custom_tool_call", "input", "response.custom_tool_call_input"),
}


def response_usage(active: ActiveRequest) -> dict[str, Any]:
    """Return the `usage` of a response."""
    usage = active.usage()
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cache_write_tokens": 0, **usage["prompt_tokens_details"]},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {
            "reasoning_tokens": usage["completion_tokens_details"]["reasoning_tokens"]
        },
        "total_tokens": usage["total_tokens"],
    }


def response_status(reason: str) -> str:
    """Return the status of a response. reason: the finish reason of its answer."""
    words = {"length": "incomplete", "cancelled": "cancelled", "deadline": "incomplete"}
    return words.get(reason, "completed")


def _item_status(reason: str) -> str:
    """Return the status of the last item."""
    return "completed" if response_status(reason) == "completed" else "incomplete"


def output_items(
    message: dict[str, Any],
    id: str,
    reason: str,
    logprobs: list[dict[str, Any]],
    tools: ResponseTools,
) -> list[dict[str, Any]]:
    """Make output items of a chat message.

    reason: finish reason; only the last item may be cut. logprobs: those of the content.
    """
    items = []
    if message.get("reasoning_content"):
        items.append(_item("reasoning_content", id, 0, message["reasoning_content"]))
    if message["content"]:
        items.append(_item("content", id, len(items), message["content"], logprobs=logprobs))
    for call in message.get("tool_calls", ()):
        custom = call.get("custom")
        kind, said = (CUSTOM, custom) if custom else ("tool_calls", call["function"])
        text = said["input" if custom else "arguments"]
        items.append(_item(kind, id, len(items), text, call["id"], named=tools.named(said["name"])))
    if items and "status" in items[-1]:
        items[-1]["status"] = _item_status(reason)
    return items


def _item(
    kind: str,
    id: str,
    index: int,
    text: str,
    call: str = "",
    status: str = "completed",
    logprobs: Sequence[dict[str, Any]] = (),
    named: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Make an item. named: the fields that name the tool of a call."""
    if kind in _CALLS:
        prefix, type, field, _ = _CALLS[kind]
        place = {"type": type, "id": f"{prefix}_{id}_{index}", "call_id": call}
        return {**place, **(named or {}), field: text, "status": status}
    if kind == "reasoning_content":
        parts = [{"type": "reasoning_text", "text": text}] if text else []
        return {"type": "reasoning", "id": f"rs_{id}_{index}", "summary": [], "content": parts}
    parts = [_part(text, logprobs)] if text else []
    return {
        "type": "message",
        "id": f"msg_{id}_{index}",
        "role": "assistant",
        "content": parts,
        "status": status,
    }


def _part(text: str, logprobs: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": [*logprobs]}


class ResponseEventStream:
    """The events of one response, numbered.

    body: returns the response in its present state. finish: returns the final response, given the
    finish reason, the parser and the message.
    """

    def __init__(
        self,
        active: ActiveRequest,
        parser: AnswerParser,
        logprobs: ContentLogprobs,
        tools: ResponseTools,
        body: Callable[[], dict[str, Any]],
        finish: Callable[[str, AnswerParser, dict[str, Any]], dict[str, Any]],
    ) -> None:
        self._active, self._parser, self._body, self._finish = active, parser, body, finish
        self._logprobs, self._tools = logprobs, tools
        self._number, self._index = 0, -1
        self._open: Delta | None = None
        self._text = ""
        self._entries: list[dict[str, Any]] = []  # log-probabilities of the open item
        self._message: dict[str, Any] = {"content": ""}

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield all events."""
        yield self._event("response.created", response=self._body())
        yield self._event("response.in_progress", response=self._body())
        async for _, piece in self._active.pieces():
            for data in self._deltas(self._parser.feed(piece.text), piece):
                yield data
        (done,) = self._active.completions
        rest = self._deltas(self._parser.end(), None)
        for data in (*rest, *self._close(_item_status(done.finish_reason))):
            yield data
        body = self._finish(done.finish_reason, self._parser, self._message)
        kind = "response.completed" if body["status"] == "completed" else "response.incomplete"
        yield self._event(kind, response=body)

    def ping(self) -> bytes:
        """Make an event that says that the response goes on: clients do not count comments, and
        give up."""
        return self._event("response.in_progress", response=self._body())

    def error_event(self, error: ApiError) -> bytes:
        """Make the last event of a stream that fails."""
        return self._event("error", message=error.message, code=error.code, param=error.param)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return event({"type": kind, "sequence_number": self._number - 1, **fields}, kind)

    def _deltas(self, deltas: list[Delta], piece: Piece | None) -> list[bytes]:
        events = []
        entries = self._logprobs.take(piece, deltas, self._parser.unread)
        for delta in deltas:
            if self._open is None or self._open.kind != delta.kind or delta.id:
                events += self._close() + self._begin(delta)
            if delta.text:
                self._text += delta.text
                name = {
                    "content": "response.output_text.delta",
                    "reasoning_content": "response.reasoning_text.delta",
                    **{kind: f"{call[3]}.delta" for kind, call in _CALLS.items()},
                }[delta.kind]
                place = self._location(delta.kind)
                if delta.kind == "content":
                    place["logprobs"] = entries
                    self._entries += entries
                    entries = []  # they go with the first content of a piece
                events.append(self._event(name, **place, delta=delta.text))
        return events

    def _begin(self, delta: Delta) -> list[bytes]:
        self._index, self._open, self._text = self._index + 1, delta, ""
        self._entries = []
        item = self._item("in_progress")
        events = [self._event("response.output_item.added", output_index=self._index, item=item)]
        if delta.kind == "content":
            place = self._location(delta.kind)
            events.append(self._event("response.content_part.added", **place, part=_part("")))
        return events

    def _close(self, status: str = "completed") -> list[bytes]:
        if self._open is None:
            return []
        kind, item, place = self._open.kind, self._item(status), self._location(self._open.kind)
        events = []
        if kind == "content":
            (part,) = item["content"] or [_part("")]
            ended = {"text": self._text, "logprobs": part["logprobs"]}
            events.append(self._event("response.output_text.done", **place, **ended))
            events.append(self._event("response.content_part.done", **place, part=part))
            self._message["content"] += self._text
        elif kind == "reasoning_content":
            events.append(self._event("response.reasoning_text.done", **place, text=self._text))
            before = self._message.get("reasoning_content") or ""
            self._message["reasoning_content"] = before + self._text
        else:
            events.append(self._close_call(self._open, place))
        events.append(self._event("response.output_item.done", output_index=self._index, item=item))
        self._open = None
        return events

    def _close_call(self, call: Delta, place: dict[str, Any]) -> bytes:
        field, events = _CALLS[call.kind][2:]
        named: dict[str, Any] = {"name": call.name, field: self._text}
        kind = "custom" if call.kind == CUSTOM else "function"
        made = {"id": call.id, "type": kind, kind: named}
        self._message.setdefault("tool_calls", []).append(made)
        return self._event(
            f"{events}.done", **place, **self._tools.named(call.name), **{field: self._text}
        )

    def _item(self, status: str) -> dict[str, Any]:
        assert self._open is not None
        opened, named = self._open, self._tools.named(self._open.name)
        return _item(
            opened.kind,
            self._active.id,
            self._index,
            self._text,
            opened.id,
            status,
            self._entries,
            named,
        )

    def _location(self, kind: str) -> dict[str, Any]:
        place: dict[str, Any] = {
            "item_id": self._item("in_progress")["id"],
            "output_index": self._index,
        }
        if kind not in _CALLS:
            place["content_index"] = 0
        return place
