"""`sterna serve`: serves models to clients of several protocols, with a chat page."""

from __future__ import annotations

import re
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sterna.cli.models_folder import models_in
from sterna.cli.option_groups import grouped_command
from sterna.cli.options import (
    MEMORY,
    MODEL,
    adapter_named,
    chat_template_option,
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
SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
TIMES = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def size(value: str | int) -> int:
    """Parse bytes: 65536, 64K, 1M."""
    found = re.fullmatch(r"(\d{1,15})([kmg]?)i?b?", str(value).strip().lower())
    if not found:
        raise click.BadParameter(f"must be bytes such as 65536, 64K or 1M, but got {shown(value)}")
    return int(found[1]) * SIZES[found[2]]


def duration(value: str | float) -> float:
    """Parse seconds: 30, 10m, 1h."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)([smhd]?)", str(value).strip().lower())
    if not found or float(found[1]) <= 0:
        raise click.BadParameter(
            f"must be a duration such as 30, 10m or 1h, but got {shown(value)}"
        )
    return float(found[1]) * TIMES[found[2]]


@grouped_command(
    short_help="Serve models over HTTP.", context_settings={"auto_envvar_prefix": "STERNA"}
)
@click.argument("models", nargs=-1, envvar="STERNA_MODEL", metavar="MODEL...")
@click.option(
    "--models-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Serve each GGUF file and each folder of a model in this folder; requests load them.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port."
)
@click.option(
    "--fd",
    type=click.IntRange(min=0),
    help="Listen on this open socket instead of --host and --port (3 for systemd).",
)
@click.option(
    "--api-key",
    "api_keys",
    multiple=True,
    envvar="STERNA_API_KEY",
    help="Accept this API key; may be repeated.",
)
@click.option(
    "--api-key-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Accept the API keys in this file: one `key` or `name key` per line; read again when it "
    "changes.",
)
@click.option("--insecure", is_flag=True, help="Serve other machines without an API key.")
@click.option(
    "--allow-origin",
    "origins",
    multiple=True,
    envvar="STERNA_ALLOW_ORIGIN",
    help="Accept requests from web pages of this origin (https://example.org, or *).",
)
@click.option(
    "--allowed-host",
    "hosts",
    multiple=True,
    envvar="STERNA_ALLOWED_HOST",
    help="A further name of this server, such as that of a proxy.",
)
@click.option(
    "--served-name",
    "served_names",
    multiple=True,
    envvar="STERNA_SERVED_NAME",
    help="The name of a model for clients, one for each model; default: the last part of MODEL.",
)
@click.option(
    "--max-seqs",
    type=click.IntRange(1, 65536),
    default=64,
    show_default=True,
    help="Requests that run at a time.",
)
@click.option(
    "--max-queue",
    type=click.IntRange(0, 1 << 20),
    default=256,
    show_default=True,
    help="Requests that may wait in the queue.",
)
@click.option(
    "--max-wait",
    type=duration,
    default="600",
    show_default=True,
    help="Longest predicted wait. Requests beyond it are refused, with the time to retry after.",
)
@click.option(
    "--max-per-key", type=click.IntRange(1, 1 << 20), help="Requests of one API key at a time."
)
@click.option(
    "--step-ms",
    type=click.FloatRange(1, 1e6),
    default=100.0,
    show_default=True,
    help="Intended time of a step while a client waits for the next token.",
)
@click.option(
    "--cache-ram",
    "kv_bytes",
    type=size,
    envvar="STERNA_CACHE_RAM",
    help="Bytes that keys and values may take: of a model's running requests and cached prefixes "
    "together, and its recurrent states. Default: a quarter of free memory, at most 8G, but room "
    "for one request of full context.",
)
@click.option(
    "--cache-disk",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep cached prefixes in this folder across restarts.",
)
@click.option("--cache-disk-max", type=size, help="Bytes of --cache-disk; default: 10G.")
@click.option(
    "--share-cache",
    is_flag=True,
    help="Let API keys share cached prefixes; response times then reveal what others asked.",
)
@click.option(
    "--files",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep clients' files and batches in this folder; default: offer neither.",
)
@click.option(
    "--files-max", type=size, default="1G", show_default=True, help="Bytes of all files together."
)
@click.option(
    "--keep-alive",
    type=duration,
    help="Unload a model after this time without use; default: never.",
)
@click.option(
    "--max-loaded",
    type=click.IntRange(1, 1024),
    help="Models in memory at a time; default: as many as fit.",
)
@click.option(
    "--max-body",
    type=size,
    help="Bytes of a request's body; default: 32M if a model sees images, else 1M, "
    "or 16 for each token of the context.",
)
@click.option(
    "--allow-image-urls",
    "image_hosts",
    multiple=True,
    envvar="STERNA_ALLOW_IMAGE_URLS",
    metavar="HOST",
    help="Fetch images that requests name by http or https from this host (also *.example.org, or "
    "* for all public ones); default: data: URLs alone.",
)
@click.option("--timeout", type=duration, help="Longest time of an answer; default: none.")
@click.option(
    "--reasoning-budget",
    type=click.IntRange(-1),
    default=-1,
    help="The most tokens of reasoning; 0: none; default: -1, no limit.",
)
@click.option(
    "--header-timeout",
    type=duration,
    default="10",
    show_default=True,
    help="Time for a request's headers to arrive.",
)
@click.option(
    "--body-timeout",
    type=duration,
    default="30",
    show_default=True,
    help="Time for each MiB of a request's body to arrive.",
)
@click.option(
    "--write-timeout",
    type=duration,
    default="30",
    show_default=True,
    help="Time in which a client must read the data sent to it; slower clients are disconnected.",
)
@click.option(
    "--shutdown-timeout",
    type=duration,
    default="30",
    show_default=True,
    help="Time for requests to finish after SIGTERM.",
)
@click.option(
    "--ssl-certfile",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Serve HTTPS with this certificate.",
)
@click.option(
    "--ssl-keyfile",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="The key of --ssl-certfile.",
)
@click.option("--metrics/--no-metrics", default=True, help="Serve /metrics; default: yes.")
@click.option("--page/--no-page", default=True, help="Serve the web page at /; default: yes.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Format of the log, one line per request.",
)
@click.option("--log-prompts", is_flag=True, help="Log prompts and answers.")
@click.option(
    "--otel",
    is_flag=True,
    help="Make OpenTelemetry spans of requests; run under opentelemetry-instrument.",
)
@offline_option
@click.option(
    "--adapter",
    "adapters",
    multiple=True,
    envvar="STERNA_ADAPTER",
    metavar="[NAME=]PATH",
    help="Serve a LoRA adapter, a folder as PEFT saves it or a GGUF file, as a model called NAME; "
    "default: the folder's or file's name; may be repeated.",
)
@run_options
@chat_template_option
@click.option(
    "--trust-request-chat-template",
    is_flag=True,
    help="Accept chat templates from requests (chat_template); they run in a sandbox.",
)
@click.option(
    "--strict-requests",
    is_flag=True,
    help="Refuse unknown fields of requests; default: ignore them, with a warning.",
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

    MODEL is as for --model of `sterna generate`; the default is `nano`, or the models of
    --models-dir alone. Requests choose one of several models by "model"; each is loaded on its
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
            fetch_model(model, offline)
        own = [f"{adapter}={folder}" for adapter, folder in adapted.items()]
        given = {"model": model, "offline": offline, "adapters": own, **of_model}
        opener = partial(open_model, given, chosen_by_name=True)
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


def _bounded_cache(given: int | None) -> dict[str, int]:
    """Return the options that bound the memory of keys and values on large machines."""
    from sterna.engine.kv_cache.manager import SHARE
    from sterna.runtime import available_bytes

    large = given is None and available_bytes() // SHARE > MOST_CACHE_RAM
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


def _adapters(models: list[str], given: tuple[str, ...]) -> dict[str, str]:
    """Return the folders of adapters, by their names for clients."""
    named: dict[str, str] = {}
    for name, folder in map(adapter_named, given):
        path = Path(folder).resolve()
        served = name or (path.stem if path.suffix.lower() == ".gguf" else path.name)
        if served in named or served in models:
            raise RequestError(f"adapter: must differ in name, but {shown(served)} is there twice")
        named[served] = folder
    return named


def _short(model: str) -> str:
    path = Path(model)
    return path.resolve().name if path.exists() or path.is_absolute() else model
