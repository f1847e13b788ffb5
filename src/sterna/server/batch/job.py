"""`Batch`: the status of one batch."""

from __future__ import annotations

import time
from typing import Any

import msgspec

__all__ = ["ENDPOINTS", "Batch"]

#: The endpoints that a batch may use.
ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/decide",
    "/v1/embeddings",
    "/v1/responses",
)
ENDED = ("failed", "completed", "expired", "cancelled")


class Batch(msgspec.Struct):
    """OpenAI's fields of a batch, and the key of its owner. Times are in seconds since 1970."""

    id: str
    key: str
    endpoint: str
    input_file_id: str
    completion_window: str
    expires_at: int
    created_at: int
    status: str = "validating"
    metadata: dict[str, str] | None = None
    errors: dict[str, Any] | None = None
    model: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    output_expires_s: int | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0

    @property
    def running(self) -> bool:
        """Whether its input is being checked or its requests answered."""
        return self.status in ("validating", "in_progress")

    @property
    def ended(self) -> bool:
        """Whether its status is final."""
        return self.status in ENDED

    def set_status(self, status: str) -> None:
        """Set the status and its time."""
        self.status = status
        setattr(self, f"{status}_at", int(time.time()))

    def body(self) -> dict[str, Any]:
        """Return the batch as a client gets it."""
        fields = msgspec.structs.asdict(self)
        counts = {name: fields.pop(name) for name in ("total", "completed", "failed")}
        for name in ("key", "output_expires_s"):
            del fields[name]
        return {"object": "batch", **fields, "request_counts": counts}
