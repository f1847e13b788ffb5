"""Requests, the sequences and pages that they hold, and the engine that computes their steps."""

from __future__ import annotations

from sterna.engine.adapters import Adapter
from sterna.engine.embedding import embed
from sterna.engine.engine import KV_DTYPES, PREFILL_CHUNK, Engine, StepInput, StepOutput
from sterna.engine.engine_loop import EngineLoop
from sterna.engine.pages import PagePool
from sterna.engine.prefix import PrefixCache, in_common
from sterna.engine.request import Request
from sterna.engine.sampling import DecidingLogits, Draw
from sterna.engine.scheduler import Event, Scheduler
from sterna.engine.scheduler_load import SchedulerLoad
from sterna.engine.scoring import Scoring, log_probabilities, scoring_draw, step_tokens
from sterna.engine.sequence import PAGE, Sequence
from sterna.engine.store import PrefixStore

__all__ = [
    "KV_DTYPES",
    "PAGE",
    "PREFILL_CHUNK",
    "Adapter",
    "DecidingLogits",
    "Draw",
    "Engine",
    "EngineLoop",
    "Event",
    "PagePool",
    "PrefixCache",
    "PrefixStore",
    "Request",
    "Scheduler",
    "SchedulerLoad",
    "Scoring",
    "Sequence",
    "StepInput",
    "StepOutput",
    "embed",
    "in_common",
    "log_probabilities",
    "scoring_draw",
    "step_tokens",
]
