"""Options that several commands share, and what each makes of them."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from sterna.errors import RequestError

if TYPE_CHECKING:
    from rich.console import Console

    from sterna.llm import LLM

__all__ = [
    "VISIBLE",
    "activations_option",
    "adapter_named",
    "chat_template_option",
    "console",
    "cores_option",
    "deterministic_option",
    "drafting_options",
    "fetch_model",
    "head_option",
    "i2s_option",
    "json_option",
    "kv_dtype_option",
    "model_options",
    "offline_option",
    "open_model",
    "print_json",
    "run_options",
    "sampling",
    "sampling_options",
    "status",
    "tell",
    "threads_options",
]

TOLD_S = 10.0  #: between two lines of what is under way, where there is no terminal

MODEL = (
    "threads", "cores", "format", "head", "context", "rope_scaling", "kv_dtype", "deterministic",
    "activations", "i2s", "mmap",
)  # fmt: skip

#: What `sterna serve` says beside it of memory for keys and values.
MEMORY = ("kv_bytes", "cache_disk", "cache_disk_max")

#: On a terminal, control characters that a model writes must not drive it (all but tab, newline).
VISIBLE = {c: 0x2400 + c for c in range(32) if chr(c) not in "\t\n"}
VISIBLE |= {127: 0x2421} | dict.fromkeys(range(128, 160), 0xFFFD)

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON array of rows.")
head_option = click.option(
    "--head",
    help="Output head: bf16, f16, f32, int8 or another weight format such as q8_0; exact: the "
    "checkpoint's own rows, read through an int8 screen, with equal results; default: exact, or as "
    "the model is packed.",
)

kv_dtype_option = click.option(
    "--kv-dtype",
    type=click.Choice(["i16", "i8", "f16", "f32"]),
    help="Type of the key-value cache: integers of 13 bits scaled by vector, of 8 bits (half the "
    "memory, and faster far into a context), or floats; default: i16, or f16 where the "
    "architecture's keys are spread too far (Qwen2).",
)


deterministic_option = click.option(
    "--deterministic/--fast",
    default=None,
    help="Float layers: sums in ascending order on any unit, or by a matrix unit's bf16 products "
    "(amx); default: those for bf16, where they are never slower.",
)


activations_option = click.option(
    "--activations",
    type=click.Choice(["int8", "int8x2"]),
    help="What layers of integers round their inputs to: int8; or int8x2, two planes of it (15 "
    "bits and a sign), for models trained without such rounding: all but what floats give, for "
    "more time in prompts; default: int8.",
)


i2s_option = click.option(
    "--i2s",
    type=click.Choice(["128", "64", "rows"]),
    help="How the I2_S tensors of a GGUF file are packed, which it does not say: in runs of 128 or "
    "64 weights, or four rows at a time; default: STERNA_I2S, else 128.",
)


def _all(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


cores_option = click.option(
    "--cores",
    help="Where the threads run: performance, all, or a list of CPUs such as 0-3,8 with one thread "
    "pinned to each; default: all.",
)
threads_options = _all(
    click.option("--threads", type=int, help="Threads; default: the usable cores."), cores_option
)

offline_option = click.option(
    "--offline", is_flag=True, help="Download nothing; the same as HF_HUB_OFFLINE=1."
)

run_options = _all(
    click.option("--format", help="Weight format of the layers; default: the checkpoint's."),
    head_option,
    click.option(
        "--context",
        type=int,
        help="Tokens of context; default: the model's. More than that is possible, with a warning.",
    ),
    click.option(
        "--rope-scaling",
        metavar="KIND:FACTOR",
        help="Make the context longer: yarn:4 for four times, or linear:4 where the model was "
        "tuned for it; in the place of the file's own scaling.",
    ),
    kv_dtype_option,
    deterministic_option,
    activations_option,
    i2s_option,
    click.option(
        "--mmap",
        is_flag=True,
        help="Map the weights of a packed folder instead of reading them: a faster start, and "
        "memory that processes share. A published checkpoint is mapped from the cache, from its "
        "second start on.",
    ),
    threads_options,
)
model_options = _all(
    click.option(
        "--model",
        default="nano",
        show_default=True,
        help="A model's folder, a .gguf file, a built-in name, or org/name[@revision][:file] on "
        "the Hub, which is downloaded once.",
    ),
    click.option(
        "--adapter",
        "adapters",
        multiple=True,
        metavar="[NAME=]DIR",
        help="A LoRA adapter, the folder that PEFT saves. Of `generate` it may be repeated, with "
        'NAMEs that lines of --file choose by ("adapter").',
    ),
    offline_option,
    run_options,
)

chat_template_option = click.option(
    "--chat-template",
    metavar="FILE|NAME",
    help="How conversations are written, in place of the model's own template: a file of Jinja, or "
    "chatml, gemma, llama2, llama3, mistral, phi3 or zephyr.",
)

drafting_options = _all(
    click.option(
        "--speculate",
        type=click.Choice(["auto", "lookup", "off"]),
        default="auto",
        show_default=True,
        help="Compute several tokens a step where they can be guessed, which changes none: from "
        "the text so far, by a model's own MTP layer or by --draft; lookup: by the text alone.",
    ),
    click.option("--draft", metavar="MODEL", help="A smaller model of the same tokens, to guess."),
)
sampling_options = _all(
    click.option("--max-tokens", type=int, default=128, show_default=True, help="Tokens at most."),
    click.option(
        "--temperature", type=float, help="0 is greedy; default: the model's own, else 0."
    ),
    click.option("--top-k", type=int, help="Sample among the k likeliest tokens; 0: all."),
    click.option("--top-p", type=float, help="Sample among the likeliest that sum to p."),
    click.option("--min-p", type=float, help="Leave out tokens below p times the likeliest."),
    click.option("--repetition-penalty", type=float, help="Above 1, repeat less; 1: off."),
    click.option("--seed", type=int, help="Same seed, same text; default: a random one."),
    click.option("--stop", multiple=True, help="Stop before this text; may be repeated."),
)


def open_model(options: Mapping[str, Any], *, chosen_by_name: bool = False) -> LLM:
    """The model that `model_options` name, with the draft of `drafting_options` if there are.

    chosen_by_name: whether requests may choose among adapters that have names. RequestError.
    """
    given = {n: options[n] for n in (*MODEL, "speculate", "chat_template", *MEMORY) if n in options}
    if options.get("draft"):
        team = {n: options[n] for n in ("threads", "cores", "mmap")}
        given["draft"] = _open(options["draft"], options, team)
    named = dict(map(adapter_named, options.get("adapters", ())))
    if len(named) < len(options.get("adapters", ())):
        raise RequestError("adapter: must have names of their own, but one comes twice")
    if set(named) - {""} and not chosen_by_name:
        raise RequestError(
            "adapter: must be DIR where nothing chooses by name, but got NAME=DIR; leave NAME out"
        )
    if "" in named:
        given["adapter"] = named.pop("")
    llm = _open(options["model"], options, given)
    for name, folder in named.items():
        llm.load_adapter(name, folder)
    return llm


def adapter_named(given: str) -> tuple[str, str]:
    """Name and folder of what --adapter takes; the name "" where there is none."""
    name, equals, folder = given.partition("=")
    return (name, folder) if equals and "/" not in name else ("", given)


def _open(model: str, options: Mapping[str, Any], given: Mapping[str, Any]) -> LLM:
    from sterna.cli.progress import loading
    from sterna.llm import LLM

    fetch_model(model, options.get("offline", False))
    with loading(model) as progress:
        return LLM(model, progress=progress, **given)


def fetch_model(model: str, offline: bool = False) -> None:
    """Downloads a model of the Hub that is not here yet, before another bar disturbs its own."""
    from sterna.checkpoints.hub.names import looks_like_name

    if looks_like_name(model):
        from sterna import models
        from sterna.checkpoints.resolve import resolve

        resolve(model, offline=offline, announce=tell, inspect=models.require_architecture)


def tell(text: str) -> None:
    """A line on stderr for the person at a terminal; none where that is no terminal."""
    if sys.stderr.isatty():
        click.echo(text, err=True)


def sampling(options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `LLM.generate` that `sampling_options` set; those left out stay default."""
    names = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
    given = {name: options[name] for name in names if options[name] is not None}
    return {**given, "stop": list(options["stop"]) or None}


def console(stderr: bool = False) -> Console:
    """A rich console on stdout or stderr; rich is imported only when it draws something."""
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # as any other write does, in place of leaving the process

    # A name may have what looks like markup: [/] alone would end the command
    return Piped(stderr=stderr, highlight=False, markup=False)


@contextlib.contextmanager
def status(text: str) -> Iterator[Callable[[str], None]]:
    """A spinner on stderr while something takes its time; where that is no terminal, a line of what
    is under way every TOLD_S seconds.

    Gives a function that replaces the text.
    """
    if not sys.stderr.isatty():
        with _told(text) as say:
            yield say
        return
    from rich.text import Text

    with console(stderr=True).status(Text(text)) as spinner:
        yield lambda text: spinner.update(Text(text))


@contextlib.contextmanager
def _told(text: str) -> Iterator[Callable[[str], None]]:
    """A line on stderr every TOLD_S seconds, of the text that was given last."""
    latest, over, began = [text], threading.Event(), time.monotonic()

    def tell_every() -> None:
        while not over.wait(TOLD_S):
            with contextlib.suppress(OSError, ValueError):  # nobody reads it, or it is closed
                click.echo(f"sterna: {time.monotonic() - began:.0f} s: {latest[0]}", err=True)

    def say(text: str) -> None:
        latest[0] = text

    teller = threading.Thread(target=tell_every, name="sterna-progress", daemon=True)
    teller.start()
    try:
        yield say
    finally:
        over.set()
        teller.join()


def print_json(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints rows as one array of standard JSON; NaN and infinities become null."""
    click.echo(json.dumps([_finite(dict(row)) for row in rows], indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
