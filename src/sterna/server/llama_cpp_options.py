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
    **{"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    **{"repeat_last_n": 64, "dry_penalty_last_n": 64, "samplers": SAMPLERS},
}
#: The settings that are options of `LLM.generate`, and these options.
SETTINGS: Mapping[str, str] = {
    **{
        name: name
        for name in """
            seed temperature dynatemp_range dynatemp_exponent top_k top_p min_p top_n_sigma
            xtc_probability xtc_threshold typical_p repeat_last_n presence_penalty
            frequency_penalty dry_multiplier dry_base dry_allowed_length dry_penalty_last_n
            dry_sequence_breakers mirostat mirostat_tau mirostat_eta ignore_eos samplers
        """.split()
    },
    "repeat_penalty": "repetition_penalty",
    "n_probs": "logprobs",
}
#: The settings that have one value here.
FIXED: Mapping[str, Any] = {
    **dict.fromkeys("n_keep n_discard min_keep".split(), 0),
    **dict.fromkeys("grammar_lazy reasoning_in_content timings_per_token".split(), False),
    **dict.fromkeys("post_sampling_probs backend_sampling".split(), False),
    **{"grammar_triggers": [], "preserved_tokens": [], "generation_prompt": ""},
    **{"chat_format": "Content-only", "reasoning_format": "deepseek"},
    **{"adaptive_target": -1.0, "adaptive_decay": 0.9, "speculative.types": "none"},
}


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
    llm: LLM, options: Mapping[str, Any], lora: Sequence[Mapping[str, Any]] = (), **others: Any
) -> dict[str, Any]:
    """Return the settings of a request in llama.cpp's form.

    options: those of `completion_options`. others: values of "stream" and "grammar".
    """
    params = SamplingParams().resolved(llm.defaults)
    settings = {n: options.get(o, getattr(params, o)) for n, o in SETTINGS.items()}
    most = options.get("max_tokens")
    stop = options.get("stop", ())
    biases = options.get("logit_bias", {}).items()
    return {
        "n_ctx": llm.context,
        **settings,
        "seed": options.get("seed", -1),
        "dry_sequence_breakers": list(settings["dry_sequence_breakers"]),
        "samplers": list(settings["samplers"] or SAMPLERS),
        "stop": [stop] if isinstance(stop, str) else list(stop),
        "max_tokens": -1 if most is None else most,
        "n_predict": -1 if most is None else most,
        "stream": False,
        "logit_bias": [{"bias": bias, "token": token} for token, bias in biases],
        "grammar": "",
        **FIXED,
        "lora": list(lora),
        **others,
    }
