"""Options for the constraint of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sterna.cli.decorators import Option, combined, option
from sterna.errors import RequestError
from sterna.files.reading import read_file

if TYPE_CHECKING:
    from sterna.llm import LLM

__all__ = ["constraint", "constraint_options"]

MAX_BYTES = 1 << 20  # more than any constraint may have


#: The options that `constraint` takes.
constraint_options: Option = combined(
    option(
        "--json-schema",
        "The answer is JSON of this schema (docs/how-to/constrain.md).",
        metavar="FILE|JSON",
    ),
    option("--regex", "The answer must match this regular expression as a whole."),
    option("--choice", "The answer is one of these texts; repeat it for each.", multiple=True),
    option(
        "--grammar",
        "The answer must match this grammar, in GBNF (root ::= …) or Lark (start: …).",
        metavar="FILE|TEXT",
    ),
)


def constraint(llm: LLM, options: Mapping[str, Any]) -> dict[str, Any]:
    """Make the argument of `LLM.generate` from the options; empty without any."""
    names = ("json_schema", "regex", "choice", "grammar")
    chosen = [name for name in names if options[name]]
    if len(chosen) > 1:
        listed = " and ".join(f"--{name.replace('_', '-')}" for name in chosen)
        raise click.UsageError(f"constraint: must be only one, but got {listed}")
    if not chosen:
        return {}
    (name,), make = chosen, llm.constraints
    value = options[name]
    if name == "json_schema":
        return {"constraint": make.json_schema(_text(name, value, value.lstrip()[:1] == "{"))}
    if name == "grammar":
        is_text = "::=" in value or (":" in value and "start" in value)
        return {"constraint": make.grammar(_text(name, value, is_text))}
    return {"constraint": make.regex(value) if name == "regex" else make.choice(value)}


def _text(name: str, value: str, is_text: bool) -> str:
    """Return the option's own text, or the text of the file that it names."""
    if is_text:
        return value
    try:
        return bytes(read_file(Path(value), MAX_BYTES)).decode()
    except UnicodeDecodeError:
        raise RequestError(f"{name}: must be UTF-8, but {value} is not") from None
