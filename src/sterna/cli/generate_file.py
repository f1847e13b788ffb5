"""`sterna generate --file`: answers a file of prompts, in its order."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from sterna.cli.progress import progress_bar
from sterna.errors import ModelFormatError, RequestError, SternaError, shown
from sterna.files.reading import read_file
from sterna.files.writing import writing

if TYPE_CHECKING:
    from sterna.engine import Request
    from sterna.llm import LLM

__all__ = ["generate_file"]

MAX_BYTES = 1 << 32
#: Fields of a line that are no options of `LLM.generate`.
OURS = ("id", "prompt", "messages")


def generate_file(llm: LLM, path: Path, output: Path | None, options: dict[str, Any]) -> None:
    """Write an answer to each line of a file, one JSON object per line, in the same order.

    Lines: {"prompt": a text or token ids} or {"messages": [...]}, options of `LLM.generate`, which
    override the given ones, and "id", which is copied to the row. Rows: index, id, text,
    finish_reason, prompt_tokens and generated_tokens, or index, id and error; where the text has
    reasoning or tool calls, also content, reasoning and tool_calls. output: rows of an interrupted
    run stay, and new ones follow; None: stdout. RequestError at the end if lines had errors.
    """
    lines = [line for line in bytes(read_file(path, MAX_BYTES)).splitlines() if line.strip()]
    failed = 0
    with _rows(output) as (out, first), progress_bar(path.name, "prompts", 1) as update:
        update(first, len(lines))
        for i, row in enumerate(_answers(llm, path, lines, first, options), first + 1):
            out.write((json.dumps(row, ensure_ascii=False) + "\n").encode("utf-8", "replace"))
            out.flush()
            failed += "error" in row
            update(i, len(lines))
    if failed:
        raise RequestError(f"{path}: lines must be answerable, but {failed} have errors; see those")


@contextlib.contextmanager
def _rows(output: Path | None) -> Iterator[tuple[BinaryIO, int]]:
    """Open the output; yields it, and the number of rows in it. Removes a half-written row."""
    if output is None:
        yield sys.stdout.buffer, 0
        return
    if output.exists() and not output.is_file():  # a device or a pipe, which has no rows to keep
        with writing(output, 0) as file:
            yield file, 0
        return
    try:
        file = open(output, "r+b" if output.exists() else "w+b")  # noqa: SIM115
    except OSError as error:
        raise RequestError(
            f"output: must be writable, but {shown(str(output))} is not: {error.strerror}"
        ) from None
    with file:
        data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        count = whole.count(b"\n")
        for i, line in enumerate(whole.splitlines()):
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict) and row.get("index") == i:
                    continue
            raise RequestError(
                f"output: must have rows of this command or none, but line {i + 1} of "
                f"{shown(str(output))} is another; name another file"
            )
        file.truncate(len(whole))
        file.seek(len(whole))
        yield file, count


def _answers(
    llm: LLM, path: Path, lines: list[bytes], first: int, options: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the lines from `first` on, in order, as soon as earlier ones are done."""
    waiting: dict[int, dict[str, Any]] = {}
    places: dict[int, tuple[int, dict[str, Any]]] = {}

    def asked() -> Iterator[Request]:
        for i in range(first, len(lines)):
            row: dict[str, Any] = {"index": i}
            try:
                request = _request(llm, path, lines[i], row, options)
            except SternaError as error:
                waiting[i] = {**row, "error": str(error)}
                continue
            places[request.id] = (i, row)
            yield request

    following = first
    for request in llm.engine_loop.finished(asked()):
        i, row = places.pop(request.id)
        waiting[i] = row | _row(request)
        while following in waiting:
            yield waiting.pop(following)
            following += 1
    while following in waiting:
        yield waiting.pop(following)
        following += 1


def _request(
    llm: LLM, path: Path, line: bytes, row: dict[str, Any], options: dict[str, Any]
) -> Request:
    """Make the request of a line, and put its id into the row."""
    from sterna.files.jsonfile import parse_json

    try:
        asked = parse_json(line, path)
    except ModelFormatError as error:
        raise RequestError(f"line: must be JSON, but {error}") from None
    if not isinstance(asked, dict):
        raise RequestError(f"line: must be a JSON object, but got {shown(asked)}")
    if "id" in asked:
        row["id"] = asked["id"]
    if ("prompt" in asked) == ("messages" in asked):
        raise RequestError("line: must have either a prompt or messages")
    own = {name: value for name, value in asked.items() if name not in OURS}
    chat, options = "messages" in asked, {**options, **own}
    if chat:
        from sterna.llm.chat_request import ChatRequest

        return llm.requests.make_chat(ChatRequest.of_options(asked["messages"], options))[0]
    prompt: Any = asked["prompt"]
    return llm.requests.make(prompt, options)


def _row(request: Request) -> dict[str, Any]:
    if request.error is not None:
        return {"error": str(request.error)}
    done = request.completion
    parts = {"content": done.content, "reasoning": done.reasoning, "tool_calls": done.tool_calls}
    parsed = parts if done.reasoning or done.tool_calls else {}
    return {
        "text": done.text,
        **{name: part for name, part in parsed.items() if part},
        "finish_reason": done.finish_reason,
        "prompt_tokens": done.stats.n_prompt,
        "generated_tokens": done.stats.n_generated,
    }
