"""The server's log on stderr: a line for each request and each notice, as text or as JSON."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

__all__ = ["log_fields", "log_to_stderr", "request_id"]

_log = logging.getLogger("sterna.server")

#: The id of the request that is being answered, "" outside of one.
request_id: ContextVar[str] = ContextVar("request_id", default="")


def log_to_stderr(form: str) -> None:
    """Write the log to stderr; form: text or json."""
    formatter = _JsonLine() if form == "json" else logging.Formatter("%(message)s")
    for name in ("sterna.server", "sterna.engine", "uvicorn.error"):
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.StreamHandler(sys.stderr))
        for handler in logger.handlers:
            handler.setFormatter(formatter)
        logger.propagate = False
    _log.setLevel(logging.INFO)
    # Our own log has these lines already.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)


def log_fields(fields: Mapping[str, Any]) -> None:
    """Log a line of named values."""
    text = " ".join(f"{name}={_plain(value)}" for name, value in fields.items())
    _log.info("%s", text, extra={"fields": fields})


class _JsonLine(logging.Formatter):
    """A JSON object for each record, with the id of its request if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {"time": round(time.time(), 3), "level": record.levelname.lower()}
        fields = getattr(record, "fields", None)
        if fields is None:
            fields = {"message": record.getMessage()}
            if id := request_id.get():
                fields["id"] = id
        if record.exc_info:
            fields = {**fields, "exception": self.formatException(record.exc_info)}
        return json.dumps({**line, **fields})


def _plain(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and " " not in text else repr(text)
