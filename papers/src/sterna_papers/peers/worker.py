"""A participant's process: `python -m sterna_papers.peers.worker MODULE`.

The process reads lines of JSON from stdin and answers each with a line on stdout; what a library
prints goes to stderr. The first line has the options, and every further one is
{"do": "check" | "time", "case": index}. MODULE has `create(options) -> (version, format, head,
parts)`.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from importlib import import_module
from typing import Any

from sterna_papers.peers.case import Case, Missing, Options, Part

__all__ = ["main"]


def _answer(request: dict[str, Any], cases: list[tuple[Case, Part]]) -> dict[str, Any]:
    case, part = cases[request["case"]]
    if request["do"] == "check":
        ok, how = part.check(case)
        work = getattr(part, "work", lambda _: None)(case)
        return {"ok": bool(ok), "how": how, "bytes": part.weight_bytes(case), "work": work}
    seconds, ok = part.time(case)
    return {"ok": bool(ok), "seconds": seconds, "joules": getattr(part, "joules", None)}


def _failure(error: BaseException) -> dict[str, Any]:
    if isinstance(error, Missing):
        return {"error": str(error)}
    return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


def main() -> None:
    """Serve requests until stdin ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def reply(value: dict[str, Any]) -> None:
        replies.write(json.dumps(value) + "\n")
        replies.flush()

    given = json.loads(sys.stdin.readline())
    lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    try:
        create = import_module(sys.argv[1]).create
        version, format, head, parts = create(Options(**{**given, **lists}))
    except Exception as error:  # any failure of a peer is a row of the report
        reply(_failure(error))
        return
    cases = [(case, part) for part in parts for case in part.cases]
    shared = {"version": version, "format": format, "head": head}
    reply({**shared, "cases": [asdict(case) for case, _ in cases]})
    for line in sys.stdin:
        try:
            reply(_answer(json.loads(line), cases))
        except Exception as error:
            reply(_failure(error))


if __name__ == "__main__":
    main()
