"""`sterna serve`: serves models to clients of several protocols, with a chat page."""

from __future__ import annotations

import re
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sterna.cli.decorators import (
    EXISTING_FILE,
    EXISTING_FOLDER,
    FILE,
    FOLDER,
    Option,
    flag,
    option,
    size,
)
from sterna.cli.models_folder import models_in
from sterna.cli.option_groups import grouped_command
from sterna.cli.options import (
    MEMORY,
    MODEL,
    adapter_named,
    chat_template_option,
    context_overflow_option,
    drafting_options,
    fetch_model,
    offline_option,
    open_model,
    run_options,
)
from sterna.errors import RequestError, SternaError, shown

if TYPE_CHECKING:
    from sterna.server.settings import Settings

NEEDED = ("starlette", "uvicorn", "msgspec", "prometheus_client", "python_multipart")
#: The largest default of --cache-ram, which is the default of llama.cpp's server.
MOST_CACHE_RAM = 8 << 30
TIMES = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration(value: str | float) -> float:
    """Parse seconds: 30, 10m, 1h."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)([smhd]?)", str(value).strip().lower())
    if not match or float(match[1]) <= 0:
        raise click.BadParameter(
            f"must be a duration such as 30, 10m or 1h, but got {shown(value)}"
        )
    return float(match[1]) * TIMES[match[2]]


def repeated(names: str, help: str, **settings: Any) -> Option:
    """Make an option that may be repeated; its environment variable has values between spaces."""
    variable = f"STERNA_{names.split()[0][2:].upper().replace('-', '_')}"
    return option(names, help, multiple=True, envvar=variable, **settings)


@grouped_command(
    short_help="Serve models over HTTP.", context_settings={"auto_envvar_prefix": "STERNA"}
)
@click.argument("models", nargs=-1, envvar="STERNA_MODEL", metavar="[MODEL]...")
@option(
    "--models-dir",
    "Serve each GGUF file and each folder of a model in this folder; requests load them.",
    type=EXISTING_FOLDER,
)
@option("--host", "Address to listen on.", shown="127.0.0.1")
@option("--port", "Port.", type=click.IntRange(0, 65535), shown=8080)
@option(
    "--fd",
    "Listen on this open socket instead of --host and --port (3 for systemd).",
    type=click.IntRange(min=0),
)
@repeated("--api-key api_keys", "Accept this API key; may be repeated.")
@option(
    "--api-key-file",
    "Accept the API keys in this file: one `key` or `name key` per line; read again when it "
    "changes.",
    type=FILE,
)
@flag("--insecure", "Serve other machines without an API key.")
@repeated(
    "--allow-origin origins",
    "Accept requests from web pages of this origin (https://example.org, or *).",
)
@repeated("--allowed-host hosts", "A further name of this server, such as that of a proxy.")
@repeated(
    "--served-name served_names",
    "The name of a model for clients, one for each model; default: the name on the "
    "Hub, or the last part of the path.",
)
@option("--max-seqs", "Requests that run at a time.", type=click.IntRange(1, 65536), shown=64)
@option(
    "--max-queue",
    "Requests that may wait in the queue.",
    type=click.IntRange(0, 1 << 20),
    shown=256,
)
@option(
    "--max-wait",
    "Longest predicted wait. Requests beyond it are refused, with the time to retry after.",
    type=duration,
    shown="600",
)
@option("--max-per-key", "Requests of one API key at a time.", type=click.IntRange(1, 1 << 20))
@option(
    "--step-ms",
    "Intended time of a step while a client waits for the next token.",
    type=click.FloatRange(1, 1e6),
    shown=100.0,
)
@option(
    "--cache-ram kv_bytes",
    "Bytes that keys and values may take: of a model's running requests and cached prefixes "
    "together, and its recurrent states. Default: a quarter of free memory, at most 8G, but room "
    "for one request of full context.",
    type=size,
    envvar="STERNA_CACHE_RAM",
)
@option("--cache-disk", "Keep cached prefixes in this folder across restarts.", type=FOLDER)
@option("--cache-disk-max", "Bytes of --cache-disk; default: 10G.", type=size)
@flag(
    "--share-cache",
    "Let API keys share cached prefixes; response times then reveal what others asked.",
)
@option(
    "--files",
    "Keep clients' files and batches in this folder; default: offer neither.",
    type=FOLDER,
)
@option("--files-max", "Bytes of all files together.", type=size, shown="1G")
@option(
    "--keep-alive", "Unload a model after this time without use; default: never.", type=duration
)
@option(
    "--max-loaded",
    "Models in memory at a time; default: as many as fit.",
    type=click.IntRange(1, 1024),
)
@option(
    "--max-body",
    "Bytes of a request's body; default: 32M if a model sees images, else 1M, "
    "or 16 for each token of the context.",
    type=size,
)
@repeated(
    "--allow-image-urls image_hosts",
    "Fetch images that requests name by http or https from this host (also *.example.org, or "
    "* for all public ones); default: only data: URLs.",
    metavar="HOST",
)
@option("--timeout", "Longest time of an answer; default: none.", type=duration)
@option(
    "--reasoning-budget",
    "The most tokens of reasoning; 0: none; default: -1, no limit.",
    type=click.IntRange(-1),
    default=-1,
)
@context_overflow_option("error", ", unless the request says it (truncation)")
@option("--header-timeout", "Time for a request's headers to arrive.", type=duration, shown="10")
@option(
    "--body-timeout", "Time for each MiB of a request's body to arrive.", type=duration, shown="30"
)
@option(
    "--write-timeout",
    "Time in which a client must read the data sent to it; slower clients are disconnected.",
    type=duration,
    shown="30",
)
@option(
    "--shutdown-timeout", "Time for requests to finish after SIGTERM.", type=duration, shown="30"
)
@option("--ssl-certfile", "Serve HTTPS with this certificate.", type=EXISTING_FILE)
@option("--ssl-keyfile", "The key of --ssl-certfile.", type=EXISTING_FILE)
@option("--metrics/--no-metrics", "Serve /metrics; default: yes.", default=True)
@option("--page/--no-page", "Serve the web page at /; default: yes.", default=True)
@option(
    "--log-format",
    "Format of the log, one line per request.",
    type=click.Choice(["text", "json"]),
    shown="text",
)
@flag("--log-prompts", "Log prompts and answers.")
@flag("--otel", "Make OpenTelemetry spans of requests; run under opentelemetry-instrument.")
@offline_option
@repeated(
    "--adapter adapters",
    "Serve a LoRA adapter, a folder as PEFT saves it or a GGUF file, as a model called NAME; "
    "default: the folder's or file's name; may be repeated.",
    metavar="[NAME=]PATH",
)
@run_options
@chat_template_option
@flag(
    "--trust-request-chat-template",
    "Accept chat templates from requests (chat_template); they run in a sandbox.",
)
@flag(
    "--strict-requests", "Refuse unknown fields of requests; default: ignore them, with a warning."
)
@drafting_options
def command(
    models: tuple[str, ...],
    served_names: tuple[str, ...],
    max_seqs: int,
    step_ms: float,
    offline: bool,
    adapters: tuple[str, ...],
    models_dir: Path | None,
    **options: Any,
) -> None:
    """Serve models to clients of OpenAI's and Anthropic's APIs, and a web page at /.

    MODEL is as for --model of `sterna generate`; the default is `nano`, or only the
    models of --models-dir. Requests choose one of several models by "model"; each is loaded on its
    first request, and the first MODEL at the start. Adapters are additional models
    on top of the first MODEL. Every option is also an environment variable: --max-queue is
    STERNA_MAX_QUEUE.
    """
    require_server()
    from sterna.server.launcher import serve
    from sterna.server.model_manager import ModelSource

    of_model = {name: options.pop(name) for name in (*MODEL, "speculate", "draft", "chat_template")}
    memory = {name: options.pop(name) for name in MEMORY}
    of_model |= {name: value for name, value in memory.items() if value is not None}
    of_model |= _bounded_cache(memory["kv_bytes"])
    settings = _settings(max_seqs, step_ms, options)
    sources = {}
    here = {} if models_dir is None else models_in(models_dir)
    models = models or (() if here else ("nano",))
    names = _names(models, served_names, tuple(here))
    adapted = _adapters(names, adapters)
    for name, model in zip(names, (*models, *here.values()), strict=True):
        if model in models:
            fetch_model(model, offline, of_model.get("context"))
        own = [f"{adapter}={folder}" for adapter, folder in adapted.items()]
        model_options = {"model": model, "offline": offline, "adapters": own, **of_model}
        opener = partial(open_model, model_options, chosen_by_name=True)
        sources[name] = ModelSource(
            opener, _file_bytes(model), tuple(adapted), on_demand=not models
        )
        adapted = {}  # adapters belong to the first model
    click.get_current_context().exit(serve(settings, sources))


def require_server() -> None:
    """Raise RequestError, with what to install, if the extra `server` is missing."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise RequestError(
            f"serve: needs {', '.join(missing)}, which is not installed; "
            "pip install 'sterna[server]'"
        )


def _settings(max_seqs: int, step_ms: float, options: dict[str, Any]) -> Settings:
    from sterna.server.settings import Settings

    budget = options.pop("reasoning_budget")
    options["reasoning_budget"] = None if budget < 0 else budget
    return Settings(**options, engine={"max_running": max_seqs, "step_ms": step_ms})


def _bounded_cache(cache_ram: int | None) -> dict[str, int]:
    """Return the options that bound the memory of keys and values on large machines."""
    from sterna.engine.kv_cache.manager import SHARE
    from sterna.runtime import available_bytes

    large = cache_ram is None and available_bytes() // SHARE > MOST_CACHE_RAM
    return {"kv_bytes": MOST_CACHE_RAM} if large else {}


def _file_bytes(model: str) -> int:
    """Count the bytes of a model's files, which are about the memory that it needs."""
    from sterna.checkpoints.resolve import resolve
    from sterna.gguf.paths import parts_of

    try:
        path = resolve(model)
    except SternaError:  # of --models-dir: the request that loads it gets the reason
        return 0
    files = parts_of(path) if path.is_file() else [f for f in path.iterdir() if f.is_file()]
    return sum(file.stat().st_size for file in files)


def _names(
    models: tuple[str, ...], served: tuple[str, ...], of_folder: tuple[str, ...]
) -> list[str]:
    """Choose the models' names for clients, which are never paths; RequestError for a duplicate.

    of_folder: the names of further models, those of --models-dir.
    """
    if served and len(served) != len(models):
        raise RequestError(
            f"served-name: must be given once for each of {len(models)} models, but is given "
            f"{len(served)} times"
        )
    names = [*(served or (_short(model) for model in models)), *of_folder]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise RequestError(f"served-name: must be unique, but {shown(twice[0])} is there twice")
    return names


def _adapters(models: list[str], adapters: tuple[str, ...]) -> dict[str, str]:
    """Return the folders of adapters, by their names for clients."""
    named: dict[str, str] = {}
    for name, folder in map(adapter_named, adapters):
        path = Path(folder).resolve()
        served = name or (path.stem if path.suffix.lower() == ".gguf" else path.name)
        if served in named or served in models:
            raise RequestError(f"adapter: must differ in name, but {shown(served)} is there twice")
        named[served] = folder
    return named


def _short(model: str) -> str:
    path = Path(model)
    return path.resolve().name if path.exists() or path.is_absolute() else model
