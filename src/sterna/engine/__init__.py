"""Runs models: an `Engine` computes steps, a `Scheduler` shares them among requests.

scheduling  which requests share a step: scheduler, fair queue, admission, costs
kv_cache    sequences and their pages: page pool, sliding windows, prefix and disk cache
decoding    the next tokens: sampling, masks, grammars, drafts, text
images      images of prompts: encoded next to steps, and their positions
"""

from __future__ import annotations

from sterna.engine.adapter import Adapter
from sterna.engine.decoding.sampling import DecidingLogits, Draw
from sterna.engine.embedding import classify, embed
from sterna.engine.engine import (
    KV_DTYPES,
    PREFILL_CHUNK,
    Engine,
    StepInput,
    StepOutput,
    checked_kv_dtype,
)
from sterna.engine.kv_cache.disk_cache import PrefixDiskCache
from sterna.engine.kv_cache.page_pool import PagePool
from sterna.engine.kv_cache.prefix_cache import PrefixCache, common_prefix_length
from sterna.engine.kv_cache.prefix_pack import PackText, PrefixPack, chain_names, write_pack
from sterna.engine.kv_cache.sequence import PAGE, Sequence
from sterna.engine.prompt_logprobs import (
    NextLogprobsRequest,
    PromptLogprobsRequest,
    log_probabilities,
    logprobs_draw,
    step_tokens,
)
from sterna.engine.request import Request
from sterna.engine.scheduling.engine_loop import EngineLoop
from sterna.engine.scheduling.events import Event
from sterna.engine.scheduling.scheduler import Scheduler
from sterna.engine.scheduling.scheduler_load import SchedulerLoad
from sterna.engine.scheduling.step_planner import StepLimits

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
    "NextLogprobsRequest",
    "PackText",
    "PagePool",
    "PrefixCache",
    "PrefixDiskCache",
    "PrefixPack",
    "PromptLogprobsRequest",
    "Request",
    "Scheduler",
    "SchedulerLoad",
    "Sequence",
    "StepInput",
    "StepLimits",
    "StepOutput",
    "chain_names",
    "checked_kv_dtype",
    "classify",
    "common_prefix_length",
    "embed",
    "log_probabilities",
    "logprobs_draw",
    "step_tokens",
    "write_pack",
]
