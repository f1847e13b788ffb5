"""Fields that clients send and no endpoint reads: some are ignored, others are refused.

A field is ignored if it cannot change an answer, and refused if it would. The fields that an
endpoint reads are in its struct; this table has all others that public clients are known to send.
Any further field is ignored with a warning. `docs/reference/fields.md` is generated from both, and
a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from sterna.server.errors import NO_THREADS, invalid

__all__ = ["PROTOCOLS", "UnsupportedField", "drop_ignored", "unsupported_fields"]

PROTOCOLS = ("chat", "completions", "responses", "messages", "embeddings")
CHAT, TEXT, RESPONSES, MESSAGES = "chat", "completions", "responses", "messages"
BOTH = (CHAT, TEXT)
ITEMS = (RESPONSES, MESSAGES)  #: protocols that sample by few fields
ALL = (*BOTH, *ITEMS)


class UnsupportedField(NamedTuple):
    """A field that is not read.

    Attributes:
        why: its purpose, or the field to use instead.
        protocols: where it may occur; () is everywhere.
        passes: the values that are ignored; None is any.
        code: code of the error that refuses others.
    """

    name: str
    why: str
    protocols: tuple[str, ...] = ()
    passes: tuple[Any, ...] | None = None
    code: str | None = None


def _any(names: str, why: str) -> Iterator[UnsupportedField]:
    """Yield fields that are ignored with any value, everywhere."""
    for name in names.split():
        yield UnsupportedField(name, why)


def _only(
    names: str, passes: tuple[Any, ...], why: str, *protocols: str
) -> Iterator[UnsupportedField]:
    """Yield fields that are ignored with these values, and refused with others."""
    for name in names.split():
        yield UnsupportedField(name, why, protocols, passes)


NO_EFFECT = "affects how it is computed or sent, not the answer"
_BUDGETS = "reasoning_budget_tokens thinking_budget_tokens thinking_token_budget thinking_budget"

_ROWS = (
    *_any("user metadata service_tier safety_identifier", "accounting"),
    *_any("client_metadata session_id request_id", "bookkeeping of a client"),
    *_any("store", "only /v1/responses stores anything"),
    *_any("prompt_cache_retention prompt_cache_options cache_control", "hints to a cache"),
    *_any("prompt_cache_breakpoint diagnostics inference_geo billing_policy", "hosting"),
    *_any("user_profile_id workspace_id access_programs betas speed", "hosting"),
    *_any("moderation", "does not change texts"),
    *_any("verbosity", "no chat template reads it"),
    *_any("truncation", "prompts are not truncated here; one that is too long is an error"),
    *_any("context_management compaction", "conversations are never truncated; clients do that"),
    *_any("max_tool_calls", "limits built-in tools, and none are run"),
    *_any("include background_options", "asks for parts that responses do not have"),
    *_any("stream_options", "the events are the same"),
    *_any("fallbacks fallback_credit_token", "models are chosen by name"),
    *_only("mcp_servers", ([],), "MCP servers are not called"),
    *_only("container", (), "no code is run"),
    UnsupportedField("thread", "conversations are not stored", (MESSAGES,), (), NO_THREADS),
    *_only("prompt", (), "prompts are not stored; use instructions", RESPONSES),
    # Fields that another protocol names differently or lacks
    *_any(
        "dry_allowed_length dry_base dry_penalty_last_n dry_sequence_breakers xtc_threshold"
        " dynatemp_exponent mirostat_tau mirostat_eta repeat_last_n",
        "belongs to a sampler",
    ),
    *_any("prediction priority prompt_cache_key", "affects when it is computed, not the answer"),
    *_only("messages", (), "use /v1/chat/completions", TEXT),
    *_only("input instructions system", (), "use prompt", TEXT),
    *_only("messages", (), "use input", RESPONSES),
    *_only("input instructions system prompt", (), "use messages", CHAT),
    *_only("system", (), "use instructions", RESPONSES),
    *_only("input instructions prompt", (), "use messages and system", MESSAGES),
    *_only("background", (False,), "use /v1/responses", *BOTH, MESSAGES),
    *_only("continue_final_message", (False,), "use /v1/chat/completions", TEXT, *ITEMS),
    *_only("add_generation_prompt", (True,), "use /v1/chat/completions", TEXT, *ITEMS),
    *_only("chat_template chat_template_kwargs", ({},), "use /v1/chat/completions", TEXT),
    *_only("parallel_tool_calls", (True, False), "use /v1/chat/completions", TEXT),
    *_only("parallel_tool_calls", (True,), "use tool_choice.disable_parallel_tool_use", MESSAGES),
    *_only(
        "add_special_tokens echo return_token_ids", (False,), "use /v1/chat/completions", *ITEMS
    ),
    *_only("best_of", (1,), "use /v1/chat/completions", *ITEMS),
    *_only("logprobs", (False,), "use top_logprobs", RESPONSES),
    *_only("logprobs top_logprobs", (False, 0), "use /v1/chat/completions", MESSAGES),
    *_only("timeout", (), "use /v1/chat/completions", *ITEMS),
    *_only("cache_salt", (), "use prompt_cache_key", RESPONSES),
    *_only("cache_salt", (), "use /v1/chat/completions", MESSAGES),
    *_only("suffix", ("",), "use /v1/completions", CHAT, *ITEMS),
    *_only("previous_response_id conversation", (), "use /v1/responses", *BOTH, MESSAGES),
    *_only("max_output_tokens", (), "use max_tokens", *BOTH, MESSAGES),
    *_only("max_completion_tokens", (), "use max_tokens", TEXT, MESSAGES),
    *_only("max_tokens max_completion_tokens n_predict", (), "use max_output_tokens", RESPONSES),
    *_only("n_predict", (-1,), "use max_tokens", MESSAGES),
    *_only("stop_sequences", ([],), "use stop", *BOTH),
    *_only("stop", ([],), "use stop_sequences", MESSAGES),
    *_only("stop stop_sequences", ([],), "use /v1/chat/completions", RESPONSES),
    *_only("top_logprobs", (0,), "use logprobs", TEXT),
    *_only("tools functions documents", ([],), "use /v1/chat/completions", TEXT),
    *_only("tool_choice function_call", ("auto", "none"), "use /v1/chat/completions", TEXT),
    *_only("text output_config output_format", ({},), "use response_format", *BOTH),
    *_only("output_config output_format", ({},), "use text.format", RESPONSES),
    *_only("response_format", ({"type": "text"},), "use text.format", RESPONSES),
    *_only("response_format text", ({"type": "text"},), "use output_config.format", MESSAGES),
    *_only("reasoning_effort reasoning thinking", ("none", {}), "use /v1/chat/completions", TEXT),
    *_only("reasoning_budget_tokens thinking_budget_tokens", (), "use max_tokens", TEXT),
    *_only("thinking_token_budget thinking_budget", (), "use max_tokens", TEXT),
    *_only("reasoning_effort", (), "use reasoning.effort", RESPONSES),
    *_only("reasoning_effort reasoning", (), "use output_config.effort", MESSAGES),
    *_only(_BUDGETS, (), "use thinking.budget_tokens", MESSAGES),
    *_only(_BUDGETS, (), "use reasoning.effort", RESPONSES),
    *_only("thinking think enable_thinking", (), "use chat_template_kwargs", RESPONSES),
    *_only("think enable_thinking", (), "use thinking", MESSAGES),
    *_only("n repetition_penalty repeat_penalty", (1,), "use /v1/chat/completions", *ITEMS),
    *_only("typical_p", (1,), "use /v1/chat/completions", *ITEMS),
    *_only("min_p presence_penalty frequency_penalty", (0,), "use /v1/chat/completions", *ITEMS),
    *_only("min_tokens dry_multiplier mirostat", (0,), "use /v1/chat/completions", *ITEMS),
    *_only("xtc_probability dynatemp_range", (0,), "use /v1/chat/completions", *ITEMS),
    *_only("top_k", (0, -1), "use /v1/chat/completions", RESPONSES),
    *_only("top_n_sigma", (-1,), "use /v1/chat/completions", *ITEMS),
    *_only("logit_bias", ({},), "use /v1/chat/completions", *ITEMS),
    *_only("bad_words stop_token_ids documents", ([],), "use /v1/chat/completions", *ITEMS),
    *_only("ignore_eos", (False,), "use /v1/chat/completions", *ITEMS),
    *_only("samplers allowed_token_ids chat_template", (), "use /v1/chat/completions", *ITEMS),
    *_only("structured_outputs grammar json_schema", (), "use /v1/chat/completions", *ITEMS),
    *_only("image", (), "answers are text", RESPONSES),
    *_only("audio", (), "answers are text", CHAT),
    *_only("functions", ([],), "use tools", CHAT),
    *_only("function_call", ("auto", "none"), "use tool_choice", CHAT),
    *_only("web_search_options", (), "there is no web search", CHAT),
    *_only("modalities", (["text"],), "answers are text", CHAT),
    # vLLM
    *_any("kv_transfer_params ec_transfer_params", "there is one process"),
    *_only("media_io_kwargs", ({},), "images are read as the checkpoint's files say", *ALL),
    *_only("mm_processor_kwargs", ({},), "images are read as the checkpoint's files say", *ALL),
    *_any("length_penalty early_stopping", "belongs to beam search, which is refused"),
    *_any("spaces_between_special_tokens truncation_side return_token_offsets", NO_EFFECT),
    *_any("return_mm_kwargs routed_experts_prompt_start stream_interval", NO_EFFECT),
    *_any("guided_decoding_backend", NO_EFFECT),
    *_only("use_beam_search", (False,), "there is no beam search", *ALL),
    *_only("best_of", (1,), "use n", CHAT),
    *_only("include_stop_str_in_output", (False,), "answers end before the stop string", *ALL),
    *_only("skip_special_tokens", (True,), "use return_token_ids", *BOTH),
    *_only("truncate_prompt_tokens", (), "shorten the prompt", *ALL),
    *_only("prompt_logprobs", (False,), "use echo with logprobs in completions", *BOTH),
    *_only("logprob_token_ids", (), "use top_logprobs", *BOTH),
    *_only("return_tokens_as_token_ids", (False,), "use return_token_ids", *BOTH),
    *_only("return_prompt_text", (False,), "use /apply-template", *BOTH),
    *_only("echo", (False,), "use continue_final_message", CHAT),
    *_only("add_special_tokens", (False,), "the chat template adds its own", CHAT),
    *_only("include_reasoning", (True,), "ignore reasoning_content", CHAT),
    *_only("repetition_detection", (), "use repetition_penalty", *ALL),
    *_only("watermarking", (False,), "there are no watermarks", *ALL),
    *_only("vllm_xargs", ({},), "there are no extensions", *ALL),
    *_only("logits_processors", ([],), "use logit_bias", *ALL),
    *_only("guided_json", (), "use structured_outputs.json", *ALL),
    *_only("guided_regex", (), "use structured_outputs.regex", *ALL),
    *_only("guided_choice", (), "use structured_outputs.choice", *ALL),
    *_only("guided_grammar", (), "use structured_outputs.grammar", *ALL),
    *_only("guided_whitespace_pattern", (), "use structured_outputs", *ALL),
    # llama.cpp's server
    *_any("cache_prompt n_cache_reuse n_discard n_keep sse_ping_interval", NO_EFFECT),
    *_any("return_progress timings_per_token response_fields verbose", NO_EFFECT),
    *_any("backend_sampling t_max_prompt_ms", NO_EFFECT),
    *_any("adaptive_decay", "belongs to adaptive_target"),
    *_only("adaptive_target", (-1,), "use temperature", *ALL),
    *_only("top_a", (0,), "use min_p", *ALL),
    *_only("tfs_z", (1,), "use top_p", *ALL),
    *_only("min_keep", (0, 1), "use top_k", *BOTH),
    *_only("n_predict", (-1,), "use max_tokens", *BOTH),
    *_only("n_cmpl", (1,), "use n", *BOTH),
    *_only("n_indent", (0,), "use structured_outputs", *BOTH),
    *_only("n_probs", (0,), "use logprobs", *BOTH),
    *_only("post_sampling_probs", (False,), "use logprobs", *BOTH),
    *_only("return_tokens", (False,), "use return_token_ids", *BOTH),
    *_only("t_max_predict_ms", (-1, 0), "use timeout", *BOTH),
    *_only("lora", ([],), "use /v1/chat/completions", *ITEMS),
    UnsupportedField("id_slot", "affects how it is computed, not the answer", ITEMS),
    *_only("reasoning_format", ("auto", "deepseek"), "reasoning is in reasoning_content", CHAT),
    *_only("parse_tool_calls", (True,), "use tool_choice", CHAT),
    *_any("reasoning_budget_message", "belongs to reasoning_budget_tokens"),
    # Ollama, OpenRouter, DeepSeek, Qwen
    *_any("keep_alive", "see sterna serve --keep-alive"),
    *_any("provider route usage", "for routers of other services"),
    *_only("transforms", ([],), "prompts are never truncated", *ALL),
    *_only("plugins", ([],), "there are no plugins", *ALL),
    *_only("options", ({},), "use the fields of their names", *ALL),
    *_only("num_ctx", (), "see sterna serve --context", *ALL),
    *_only("think", (), "use chat_template_kwargs", CHAT),
    *_only("thinking", (), "use chat_template_kwargs", CHAT),
    *_only("enable_thinking", (), "use chat_template_kwargs", CHAT),
    *_only("reasoning", ({},), "use reasoning_effort", CHAT),
)


@cache
def unsupported_fields(protocol: str) -> Mapping[str, UnsupportedField]:
    """Return the unread fields of a protocol, by name."""
    return {row.name: row for row in _ROWS if not row.protocols or protocol in row.protocols}


def drop_ignored(body: dict[str, Any], protocol: str, read: frozenset[str]) -> dict[str, Any]:
    """Return the body without nulls and ignored fields. ApiError 400 for a refused value.

    read: the fields that the endpoint reads.
    """
    fields, rows = {}, unsupported_fields(protocol)
    for name, value in body.items():
        row = None if name in read else rows.get(name)
        if value is None:
            continue
        if row is None:
            fields[name] = value
        elif row.passes is not None and value not in row.passes:
            rule = f"would change the answer, and is not supported: {row.why}"
            raise invalid(name, rule, value, row.code)
    return fields
