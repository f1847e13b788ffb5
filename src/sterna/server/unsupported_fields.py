"""Fields of requests that no endpoint reads: which pass, since they change no answer, and which are
refused, since they would.

What an endpoint reads is in its struct; every other field that a public client is known to send has
a row here. `docs/fields.md` is this table, and a test compares both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from sterna.server.errors import invalid

__all__ = ["PROTOCOLS", "UnsupportedField", "drop_ignored", "unsupported_fields"]

PROTOCOLS = ("chat", "completions", "responses", "messages", "embeddings")
CHAT, TEXT, RESPONSES, MESSAGES = "chat", "completions", "responses", "messages"
BOTH = (CHAT, TEXT)


class UnsupportedField(NamedTuple):
    """A field. protocols: that may bring it, none: each; passes: the values that change nothing,
    None: any; why: what it is for, or what to use in its place."""

    name: str
    why: str
    protocols: tuple[str, ...] = ()
    passes: tuple[Any, ...] | None = None


def _any(names: str, why: str, *protocols: str) -> Iterator[UnsupportedField]:
    """Rows of fields that change no answer, whatever they are."""
    for name in names.split():
        yield UnsupportedField(name, why, protocols)


def _only(
    name: str, passes: tuple[Any, ...], why: str, *protocols: str
) -> Iterator[UnsupportedField]:
    """The row of a field that would change the answer, but for these values."""
    yield UnsupportedField(name, why, protocols, passes)


_ROWS = (
    *_any("user metadata service_tier safety_identifier", "who asks, and at what price"),
    *_any("client_metadata session_id request_id", "bookkeeping of a client"),
    *_any("store", "nothing is kept beyond /v1/responses", *BOTH, MESSAGES),
    *_any("prompt_cache_retention prompt_cache_options cache_control", "hints to a cache"),
    *_any("prompt_cache_breakpoint diagnostics inference_geo billing_policy", "hosting"),
    *_any("user_profile_id workspace_id access_programs betas speed", "hosting"),
    *_any("moderation", "reports on texts, and leaves them as they are"),
    *_any("verbosity", "a wish for the length, which no template here reads"),
    *_any("truncation", "a prompt is never cut: beyond the context it is an error", RESPONSES),
    *_any("context_management compaction", "a conversation is never cut: its client does that"),
    *_any("max_tool_calls", "bounds tools of a server, and none are run here", RESPONSES),
    *_any("include background_options", "asks for parts that answers here do not have", RESPONSES),
    *_any("stream_options", "events are the same", RESPONSES),
    *_any("fallbacks fallback_credit_token", "other models are asked by their names", MESSAGES),
    *_only("mcp_servers", ([],), "tools of other servers are not called"),
    *_only("container", (), "no code is run"),
    *_only("thread", (), "no conversation is kept in this protocol", MESSAGES),
    *_only("conversation", (), "use previous_response_id", RESPONSES),
    *_only("prompt", (), "no prompts are kept; use instructions", RESPONSES),
    *_only("image", (), "answers are texts", RESPONSES),
    *_only("top_logprobs", (0,), "use /v1/chat/completions", RESPONSES),
    *_only("audio", (), "answers are texts", CHAT),
    *_only("functions", ([],), "use tools", CHAT),
    *_only("function_call", ("auto", "none"), "use tool_choice", CHAT),
    *_only("web_search_options", (), "nothing is searched", CHAT),
    *_only("modalities", (["text"],), "answers are texts", CHAT),
    # vLLM
    *_any("kv_transfer_params ec_transfer_params media_io_kwargs mm_processor_kwargs",
          "one process has it all, and reads texts", *BOTH),
    *_any("length_penalty early_stopping", "of beam search, which is refused", *BOTH),
    *_any("spaces_between_special_tokens truncation_side return_token_offsets return_mm_kwargs"
          " routed_experts_prompt_start stream_interval guided_decoding_backend",
          "how it is computed or sent", *BOTH),
    *_only("use_beam_search", (False,), "answers are sampled", *BOTH),
    *_only("best_of", (1,), "use n", CHAT),
    *_only("include_stop_str_in_output", (False,), "answers end before it", *BOTH),
    *_only("skip_special_tokens", (True,), "use return_token_ids", *BOTH),
    *_only("truncate_prompt_tokens", (), "shorten the prompt", *BOTH),
    *_only("prompt_logprobs", (False,), "use echo with logprobs in completions", *BOTH),
    *_only("logprob_token_ids", (), "use top_logprobs", *BOTH),
    *_only("return_tokens_as_token_ids", (False,), "use return_token_ids", *BOTH),
    *_only("return_prompt_text", (False,), "use /apply-template", *BOTH),
    *_only("echo", (False,), "use continue_final_message", CHAT),
    *_only("add_special_tokens", (False,), "a template writes its own", CHAT),
    *_only("include_reasoning", (True,), "leave reasoning_content unread", CHAT),
    *_only("thinking_token_budget", (), "use max_tokens", *BOTH),
    *_only("repetition_detection", (), "use repetition_penalty", *BOTH),
    *_only("watermarking", (False,), "answers have no watermark", *BOTH),
    *_only("vllm_xargs", ({},), "no extensions are here", *BOTH),
    *_only("logits_processors", ([],), "use logit_bias", *BOTH),
    *_only("guided_json", (), "use structured_outputs.json", *BOTH),
    *_only("guided_regex", (), "use structured_outputs.regex", *BOTH),
    *_only("guided_choice", (), "use structured_outputs.choice", *BOTH),
    *_only("guided_grammar", (), "use structured_outputs.grammar", *BOTH),
    *_only("guided_whitespace_pattern", (), "use structured_outputs", *BOTH),
    # llama.cpp's server
    *_any("cache_prompt id_slot n_cache_reuse n_discard n_keep sse_ping_interval return_progress"
          " timings_per_token response_fields verbose backend_sampling t_max_prompt_ms",
          "how it is computed or sent", *BOTH),
    *_any("dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers",
          "of dry_multiplier", *BOTH),
    *_any("xtc_threshold", "of xtc_probability", *BOTH),
    *_any("mirostat_tau mirostat_eta", "of mirostat", *BOTH),
    *_any("dynatemp_exponent", "of dynatemp_range", *BOTH),
    *_any("adaptive_decay", "of adaptive_target", *BOTH),
    *_only("dry_multiplier", (0,), "use repetition_penalty", *BOTH),
    *_only("xtc_probability", (0,), "use min_p", *BOTH),
    *_only("mirostat", (0,), "use top_p", *BOTH),
    *_only("dynatemp_range", (0,), "use temperature", *BOTH),
    *_only("adaptive_target", (-1,), "use temperature", *BOTH),
    *_only("typical_p", (0, 1), "use top_p", *BOTH),
    *_only("top_n_sigma", (-1, 0), "use min_p", *BOTH),
    *_only("top_a", (0,), "use min_p", *BOTH),
    *_only("tfs_z", (1,), "use top_p", *BOTH),
    *_only("repeat_penalty", (1,), "use repetition_penalty", *BOTH),
    *_only("repeat_last_n", (-1, 64), "penalties see the whole text", *BOTH),
    *_only("min_keep", (0, 1), "use top_k", *BOTH),
    *_only("samplers", (), "samplers have one order", *BOTH),
    *_only("n_predict", (-1,), "use max_tokens", *BOTH),
    *_only("n_cmpl", (1,), "use n", *BOTH),
    *_only("n_indent", (0,), "use structured_outputs", *BOTH),
    *_only("n_probs", (0,), "use logprobs", *BOTH),
    *_only("post_sampling_probs", (False,), "use logprobs", *BOTH),
    *_only("return_tokens", (False,), "use return_token_ids", *BOTH),
    *_only("t_max_predict_ms", (-1, 0), "use timeout", *BOTH),
    *_only("grammar", ("",), "use structured_outputs.grammar", *BOTH),
    *_only("json_schema", ({},), "use structured_outputs.json", *BOTH),
    *_only("lora", ([],), "an adapter is asked by its name, in model", *BOTH),
    *_only("reasoning_format", ("auto", "deepseek"), "thoughts are in reasoning_content", CHAT),
    *_only("parse_tool_calls", (True,), "use tool_choice", CHAT),
    *_only("reasoning_budget_tokens", (-1,), "use max_tokens", CHAT),
    *_only("thinking_budget_tokens", (-1,), "use max_tokens", CHAT),
    *_any("reasoning_budget_message", "of reasoning_budget_tokens", CHAT),
    # Ollama, OpenRouter, DeepSeek, Qwen
    *_any("keep_alive", "see sterna serve --keep-alive"),
    *_any("provider route usage", "a router of services reads it", *BOTH),
    *_only("transforms", ([],), "a prompt is never cut", *BOTH),
    *_only("plugins", ([],), "no plugins are here", *BOTH),
    *_only("options", ({},), "write them as fields", *BOTH),
    *_only("num_ctx", (), "see sterna serve --context", *BOTH),
    *_only("think", (), "use chat_template_kwargs", CHAT),
    *_only("thinking", (), "use chat_template_kwargs", CHAT),
    *_only("enable_thinking", (), "use chat_template_kwargs", CHAT),
    *_only("thinking_budget", (), "use max_tokens", CHAT),
    *_only("reasoning", ({},), "use reasoning_effort", CHAT),
)  # fmt: skip


@cache
def unsupported_fields(protocol: str) -> Mapping[str, UnsupportedField]:
    """The rows of a protocol, by name."""
    return {row.name: row for row in _ROWS if not row.protocols or protocol in row.protocols}


def drop_ignored(body: dict[str, Any], protocol: str, read: frozenset[str]) -> dict[str, Any]:
    """A body without what changes nothing: null, and fields of the table. ApiError 400 for those
    whose value would change the answer.

    read: the fields that the protocol's endpoint reads, null or not.
    """
    kept, rows = {}, unsupported_fields(protocol)
    for name, value in body.items():
        row = None if name in read else rows.get(name)
        if value is None:
            continue
        if row is None:
            kept[name] = value
        elif row.passes is not None and value not in row.passes:
            raise invalid(name, f"would change the answer, and is not supported: {row.why}", value)
    return kept
