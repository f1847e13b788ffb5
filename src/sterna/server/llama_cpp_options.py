"""llama.cpp's defaults of /completion and /infill, and the settings that it reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sterna.errors import shown
from sterna.llm import LLM
from sterna.sampling_params import SAMPLERS, SamplingParams
from sterna.server.sampling_fields import SamplingFields, sampling_options

__all__ = ["completion_options", "default_options", "generation_settings"]

#: llama.cpp's defaults where they differ from those of `LLM.generate`. A model's own come first, as
#: there. Its order of samplers is said, since it has the temperature last.
DEFAULTS: Mapping[str, Any] = {
    "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_last_n": 64,
    "dry_penalty_last_n": 64, "samplers": SAMPLERS,
}  # fmt: skip
#: The settings that are options of `LLM.generate`, and these options.
SETTINGS: Mapping[str, str] = {
    **{
        name: name
        for name in (
            "seed", "temperature", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p",
            "top_n_sigma", "xtc_probability", "xtc_threshold", "typical_p", "repeat_last_n",
            "presence_penalty", "frequency_penalty", "dry_multiplier", "dry_base",
            "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers", "mirostat",
            "mirostat_tau", "mirostat_eta", "ignore_eos", "samplers",
        )
    },
    "repeat_penalty": "repetition_penalty", "n_probs": "logprobs",
}  # fmt: skip
#: The settings that have one value here.
FIXED: Mapping[str, Any] = {
    "n_keep": 0, "n_discard": 0, "min_keep": 0, "grammar_lazy": False, "grammar_triggers": [],
    "preserved_tokens": [], "chat_format": "Content-only", "reasoning_format": "deepseek",
    "reasoning_in_content": False, "generation_prompt": "", "adaptive_target": -1.0,
    "adaptive_decay": 0.9, "speculative.types": "none", "timings_per_token": False,
    "post_sampling_probs": False, "backend_sampling": False,
}  # fmt: skip


def default_options(llm: LLM) -> dict[str, Any]:
    """Return the options of a request that sets none."""
    return {name: value for name, value in DEFAULTS.items() if name not in llm.defaults}


def completion_options(
    body: SamplingFields, llm: LLM, n_probs: int, warn: Callable[[str], None]
) -> dict[str, Any]:
    """Return the options of `LLM.generate` for a request. ApiError 400.

    warn: is told of unknown samplers, which are left out, as llama.cpp does.
    """
    for name in dict.fromkeys(body.samplers or ()):
        if name not in SAMPLERS:
            warn(f"samplers: {shown(name)} is unknown, and was left out")
    if body.samplers is not None:
        body.samplers = [name for name in body.samplers if name in SAMPLERS]
    return {**default_options(llm), **sampling_options(body, llm, None, n_probs)}


def generation_settings(
    llm: LLM, options: Mapping[str, Any], lora: Sequence[Mapping[str, Any]] = (), *,
    stream: bool = False, grammar: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Return the settings of a request in llama.cpp's form. options: of `completion_options`."""
    params = SamplingParams().resolved(llm.defaults)
    found = {n: options.get(o, getattr(params, o)) for n, o in SETTINGS.items()}
    most = options.get("max_tokens")
    stop = options.get("stop", ())
    biases = options.get("logit_bias", {}).items()
    return {
        "n_ctx": llm.context,
        **found,
        "seed": options.get("seed", -1),
        "dry_sequence_breakers": list(found["dry_sequence_breakers"]),
        "samplers": list(found["samplers"] or SAMPLERS),
        "stop": [stop] if isinstance(stop, str) else list(stop),
        "max_tokens": -1 if most is None else most,
        "n_predict": -1 if most is None else most,
        "stream": stream,
        "logit_bias": [{"bias": bias, "token": token} for token, bias in biases],
        "grammar": grammar,
        **FIXED,
        "lora": list(lora),
    }
