"""Sampling options of `sterna generate` and `sterna chat`, in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sterna.cli.decorators import Option, combined, option

__all__ = ["CHAT_MAX_TOKENS", "SETTINGS", "sampling", "sampling_options"]

#: Default --max-tokens of a chat's answer.
CHAT_MAX_TOKENS = 512
#: Fields of `SamplingParams` that are numbers: type and help.
_NUMBERS: dict[str, tuple[type[int] | type[float], str]] = {
    "temperature": (
        float,
        "0: greedy. Default: the model's, else 0 (chat: 0.8).",
    ),
    "top_k": (int, "Sample among the k likeliest tokens; 0: all."),
    "top_p": (float, "Sample among the likeliest tokens whose probabilities reach p."),
    "min_p": (float, "Drop tokens below this share of the likeliest one's probability."),
    "repetition_penalty": (float, "Above 1, repeat less; 1: off."),
    "repeat_last_n": (int, "Last tokens that penalties count; -1: all; 0: none."),
    "dry_multiplier": (float, "Scale of the DRY penalty on longer repeats; 0: off."),
    "dry_base": (float, "Growth of the DRY penalty with each token of the repeat."),
    "dry_allowed_length": (int, "Tokens of the shortest repeat that DRY penalises."),
    "dry_penalty_last_n": (int, "Last tokens that DRY searches; -1: all."),
    "top_n_sigma": (float, "Keep logits within n standard deviations of the largest; -1: off."),
    "typical_p": (float, "Locally typical sampling with this mass; 1: off."),
    "xtc_probability": (float, "How often XTC drops the likeliest tokens; 0: off."),
    "xtc_threshold": (float, "The probability from which XTC drops tokens."),
    "dynatemp_range": (float, "Temperature by entropy, this far down and up; 0: off."),
    "dynatemp_exponent": (float, "Exponent of the dynamic temperature."),
    "mirostat": (int, "Mirostat, version 1 or 2; 0: off."),
    "mirostat_tau": (float, "Mirostat's target, in bits for each token."),
    "mirostat_eta": (float, "Mirostat's learning rate."),
    "max_tokens": (int, "The most tokens of the answer."),
    "seed": (int, "The same seed gives the same text. Default: a random one."),
}
#: The type that reads each of them.
SETTINGS: dict[str, Callable[[str], Any]] = {name: kind for name, (kind, _) in _NUMBERS.items()}


#: These options, and --stop.
sampling_options: Option = combined(
    *(
        option(
            f"--{name.replace('_', '-')}",
            text,
            type=kind,
            shown=128 if name == "max_tokens" else None,
        )
        for name, (kind, text) in _NUMBERS.items()
    ),
    option("--stop", "Stop before this text; may be repeated.", multiple=True),
)


def sampling(options: Mapping[str, Any]) -> dict[str, Any]:
    """Collect options of `LLM.generate` from a command's options; missing ones keep the default."""
    set_options = {name: options[name] for name in SETTINGS if options[name] is not None}
    return {**set_options, "stop": list(options["stop"]) or None}
