"""Sampling options of `sterna generate` and `sterna chat`, in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

__all__ = ["CHAT_MAX_TOKENS", "SETTINGS", "sampling", "sampling_options"]

#: Default --max-tokens of a chat's answer.
CHAT_MAX_TOKENS = 512
#: Fields of `SamplingParams` that are numbers: type and help.
_NUMBERS: dict[str, tuple[type[int] | type[float], str]] = {
    "temperature": (float, "0 picks the likeliest token (greedy). Default: the model's, else 0."),
    "top_k": (int, "Sample among the k likeliest tokens; 0: all."),
    "top_p": (float, "Sample among the likeliest tokens whose probabilities reach p."),
    "min_p": (float, "Drop tokens below this share of the likeliest one's probability."),
    "repetition_penalty": (float, "Above 1, repeat less; 1: off."),
    "max_tokens": (int, "The most tokens of the answer."),
    "seed": (int, "The same seed gives the same text. Default: a random one."),
}
#: The type that reads each of them.
SETTINGS: dict[str, Callable[[str], Any]] = {name: kind for name, (kind, _) in _NUMBERS.items()}


def sampling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add these options, and --stop, to a command."""
    options = [
        click.option("--" + name.replace("_", "-"), type=kind, help=text, **_default(name))
        for name, (kind, text) in _NUMBERS.items()
    ]
    stop = click.option("--stop", multiple=True, help="Stop before this text; may be repeated.")
    for option in reversed([*options, stop]):
        command = option(command)
    return command


def _default(name: str) -> dict[str, Any]:
    return {"default": 128, "show_default": True} if name == "max_tokens" else {}


def sampling(options: Mapping[str, Any]) -> dict[str, Any]:
    """Collect options of `LLM.generate` from a command's options; missing ones keep the default."""
    given = {name: options[name] for name in SETTINGS if options[name] is not None}
    return {**given, "stop": list(options["stop"]) or None}
