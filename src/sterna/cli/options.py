"""Options that several commands share, and functions that use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from sterna.cli.decorators import EXISTING_FILE, Option, combined, flag, option, size
from sterna.cli.progress import loading
from sterna.cli.terminal import tell
from sterna.errors import RequestError

if TYPE_CHECKING:
    from sterna.llm import LLM

__all__ = [
    "KV_DTYPE_NAMES",
    "activations_option",
    "adapter_named",
    "chat_template_option",
    "context_overflow_option",
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
    "refuse_model",
    "run_options",
    "threads_options",
]

#: Options of `LLM` that commands have.
MODEL = tuple(
    """
    threads cores format head context rope_scaling kv_dtype deterministic activations i2s mmap
    weights_ram mmproj tower_format prefix
    """.split()
)

#: More options of `LLM`, for memory of keys and values, that `sterna serve` sets.
MEMORY = ("kv_bytes", "cache_disk", "cache_disk_max")

json_option: Option = flag("--json as_json", "Print one JSON array of rows.")
head_option: Option = option(
    "--head",
    "Weight format of the output head: bf16, f16, f32, int8 or another format such as q8_0; "
    "exact: the checkpoint's float rows behind an int8 screen, with the same results. Default: "
    "exact, or as the model is packed.",
)

#: KV_DTYPES and SMALL of the engine, once more, so as not to load it for --help.
KV_DTYPE_NAMES = ("i16", "i8", "k8v4", "f16", "f32", "small")

kv_dtype_option: Option = option(
    "--kv-dtype",
    "Type of the KV cache: i16 (13 bits and a scale per vector), i8 (half the memory, faster "
    "in long contexts), k8v4 (keys of 8 and values of 4 bits), small (the best of at most 6.5 "
    "bits: k8v4), f16 or f32. Default: i16; f16 for Qwen2, whose keys vary too much.",
    type=click.Choice(KV_DTYPE_NAMES),
)


def context_overflow_option(default: str, condition: str = "") -> Option:
    """Return the option of what becomes of conversations that do not fit into the context."""
    return option(
        "--context-overflow",
        f"What to do with a conversation that does not fit into the context{condition}: an error, "
        "or whole oldest turns are left out; with shift, an answer also goes on where the context "
        "ends, without the older half of the tokens behind the system prompt.",
        type=click.Choice(("error", "truncate-oldest-turn", "shift")),
        shown=default,
    )


deterministic_option: Option = option(
    "--deterministic/--fast",
    "Sum float layers in a fixed order (same bits everywhere) or use bf16 products of AMX (faster "
    "prompts), or for bf16 layers those of AVX-512 (Zen 4 and later). Default: AMX products for "
    "bf16 layers, where they are never slower.",
    default=None,
)


activations_option: Option = option(
    "--activations",
    "How integer layers round their inputs: to int8, or to int8x2 (15 bits and a sign), which "
    "gives nearly the results of floats for models trained without rounding, with slower "
    "prompts. Default: int8.",
    type=click.Choice(["int8", "int8x2"]),
)


i2s_option: Option = option(
    "--i2s",
    "Layout of I2_S tensors, which a GGUF file does not record: runs of 128 or 64 weights, or "
    "four rows at a time. Default: STERNA_I2S, else 128.",
    type=click.Choice(["128", "64", "rows"]),
)


cores_option: Option = option(
    "--cores",
    "Where the threads run: performance cores, all, or a list of CPUs such as 0-3,8 with one "
    "thread pinned to each. Default: all.",
)
threads_options: Option = combined(
    option("--threads", "Threads that compute. Default: the usable cores.", type=int), cores_option
)

offline_option: Option = flag("--offline", "Download nothing, as with HF_HUB_OFFLINE=1.")

run_options: Option = combined(
    option("--format", "Weight format of the layers. Default: the checkpoint's."),
    head_option,
    option("--context", "Tokens of context. Default: the model's; more warns.", type=int),
    option(
        "--rope-scaling",
        "Extend the context: yarn:4 for four times, or linear:4 for a model tuned for it. "
        "Replaces the file's own scaling.",
        metavar="KIND:FACTOR",
    ),
    kv_dtype_option,
    deterministic_option,
    activations_option,
    i2s_option,
    flag(
        "--mmap",
        "Map the weights of a packed folder instead of reading them: starts faster, and "
        "processes share the memory. A checkpoint is mapped from the cache, from the second start "
        "on.",
    ),
    option(
        "--weights-ram",
        "Memory for weights, such as 8G. If a packed model has more, some stay on disk and are "
        "read when they are needed. Default: what is free, less a share for the KV cache.",
        type=size,
        metavar="BYTES",
    ),
    option(
        "--prefix",
        "A file of `sterna prefix`: its text need not be computed again. `chat` takes its system "
        "prompt from there, and `generate` the beginning of the prompt. May be repeated.",
        type=EXISTING_FILE,
        multiple=True,
    ),
    option(
        "--mmproj",
        "File of the vision tower of a GGUF model; off: no tower, for folders, too. Default: "
        "the file next to the model with mmproj in its name.",
        metavar="FILE",
    ),
    option(
        "--tower-format",
        "Weight format of the tower, which encodes images: q8_0, i8, bf16, … Default: q8_0 "
        "where its file has floats.",
        metavar="FORMAT",
    ),
    threads_options,
)
model_options: Option = combined(
    option(
        "--model",
        "A model's folder, a .gguf file, the built-in nano, smollm2 (98 MB), or "
        "org/name[@revision][:file] on the Hub; what is missing is downloaded once.",
        shown="nano",
    ),
    option(
        "--adapter adapters",
        "A LoRA adapter: a folder as PEFT saves it, or a GGUF file.",
        multiple=True,
        metavar="PATH",
    ),
    offline_option,
    run_options,
)

chat_template_option: Option = option(
    "--chat-template",
    "Chat template instead of the model's own: a Jinja file, or chatml, gemma, llama2, "
    "llama3, mistral, phi3 or zephyr.",
    metavar="FILE|NAME",
)

drafting_options: Option = combined(
    option(
        "--speculate",
        "Draft tokens ahead, which only changes the speed. auto: from the text so far, the "
        "model's own MTP layer or --draft; lookup: from the text so far.",
        type=click.Choice(["auto", "lookup", "off"]),
        shown="auto",
    ),
    option("--draft", "A smaller model of the same tokenizer that drafts tokens.", metavar="MODEL"),
)


def refuse_model(text: str | None) -> None:
    """Raise UsageError if the text to answer is a model's name: --model was left out."""
    from sterna.checkpoints.resolve import is_model

    ctx = click.get_current_context()
    source = ctx.get_parameter_source("model")
    if text and source is click.core.ParameterSource.DEFAULT and is_model(text):
        raise click.UsageError(
            f"{text} is a model, not a text: {ctx.command_path} --model {text}", ctx
        )


def open_model(options: Mapping[str, Any], *, chosen_by_name: bool = False) -> LLM:
    """Open the model of `model_options`, with the draft model of `drafting_options` if given.

    chosen_by_name: requests may choose among named adapters. RequestError.
    """
    arguments = {
        n: options[n] for n in (*MODEL, "speculate", "chat_template", *MEMORY) if n in options
    }
    if options.get("draft"):
        team = {n: options[n] for n in ("threads", "cores", "mmap")}
        arguments["draft"] = _open(options["draft"], options, team)
    named = dict(map(adapter_named, options.get("adapters", ())))
    if len(named) < len(options.get("adapters", ())):
        raise RequestError("adapter: names must differ, but one comes twice")
    if set(named) - {""} and not chosen_by_name:
        raise RequestError(
            "adapter: must be DIR where nothing chooses by name, but got NAME=DIR; leave NAME out"
        )
    if "" in named:
        arguments["adapter"] = named.pop("")
    llm = _open(options["model"], options, arguments)
    for name, folder in named.items():
        llm.load_adapter(name, folder)
    return llm


def adapter_named(value: str) -> tuple[str, str]:
    """Split a value of --adapter into name, "" without one, and path."""
    name, equals, folder = value.partition("=")
    return (name, folder) if equals and "/" not in name else ("", value)


def _open(model: str, options: Mapping[str, Any], arguments: Mapping[str, Any]) -> LLM:
    from sterna.llm import LLM

    fetch_model(model, options.get("offline", False), options.get("context"))
    with loading(model) as progress:
        return LLM(model, progress=progress, **arguments)


def fetch_model(model: str, offline: bool = False, context: int | None = None) -> None:
    """Download a model of the Hub if it is missing, before another progress bar is shown.

    context: tokens that must fit into memory with the weights.
    """
    from sterna.checkpoints.hub_names import looks_like_name
    from sterna.checkpoints.short_names import short_name

    if looks_like_name(model) or short_name(model):
        from sterna import models
        from sterna.checkpoints.resolve import resolve

        resolve(
            model,
            offline=offline,
            announce=tell,
            inspect=models.require_architecture,
            context=context,
        )
