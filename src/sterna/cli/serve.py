"""`sterna serve`: models for clients that speak OpenAI's protocol, and a page to talk to them."""

from __future__ import annotations

import re
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

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
from sterna.errors import RequestError, shown

if TYPE_CHECKING:
    from sterna.server.settings import Settings

NEEDED = ("starlette", "uvicorn", "msgspec", "prometheus_client", "python_multipart")
SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
TIMES = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def size(value: str | int) -> int:
    """Bytes: 65536, 64K, 1M."""
    found = re.fullmatch(r"(\d{1,15})([kmg]?)i?b?", str(value).strip().lower())
    if not found:
        raise click.BadParameter(f"must be bytes such as 65536, 64K or 1M, but got {shown(value)}")
    return int(found[1]) * SIZES[found[2]]


def duration(value: str | float) -> float:
    """Seconds: 30, 10m, 1h."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)([smhd]?)", str(value).strip().lower())
    if not found or float(found[1]) <= 0:
        raise click.BadParameter(f"must be a time such as 30, 10m or 1h, but got {shown(value)}")
    return float(found[1]) * TIMES[found[2]]


@click.command(
    short_help="Serve models over HTTP.", context_settings={"auto_envvar_prefix": "STERNA"}
)
@click.argument("models", nargs=-1, envvar="STERNA_MODEL", metavar="MODEL...")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port."
)
@click.option(
    "--fd",
    type=click.IntRange(min=0),
    help="Listen on this open socket, in place of --host and --port (systemd's is 3).",
)
@click.option(
    "--api-key",
    "api_keys",
    multiple=True,
    envvar="STERNA_API_KEY",
    help="Let this key in; may be repeated.",
)
@click.option(
    "--api-key-file", type=click.Path(path_type=Path, dir_okay=False),
    help="Let these in: a line for each, `key` or `name key`; read again when it changes.",
)  # fmt: skip
@click.option("--insecure", is_flag=True, help="Serve other machines without a key.")
@click.option(
    "--allow-origin",
    "origins",
    multiple=True,
    envvar="STERNA_ALLOW_ORIGIN",
    help="Let pages of this origin ask (https://example.org, or *).",
)
@click.option(
    "--allowed-host",
    "hosts",
    multiple=True,
    envvar="STERNA_ALLOWED_HOST",
    help="A name of this server, behind a proxy for one.",
)
@click.option(
    "--served-name",
    "served_names",
    multiple=True,
    envvar="STERNA_SERVED_NAME",
    help="What clients call a model; one for each; default: the last part of its name.",
)
@click.option(
    "--max-seqs",
    type=click.IntRange(1, 65536),
    default=64,
    show_default=True,
    help="Requests computed at a time.",
)
@click.option(
    "--max-queue",
    type=click.IntRange(0, 1 << 20),
    default=256,
    show_default=True,
    help="Requests that may wait.",
)
@click.option(
    "--max-wait",
    type=duration,
    default="60",
    show_default=True,
    help="Longest predicted wait; beyond it, clients are told when to come again.",
)
@click.option(
    "--max-per-key", type=click.IntRange(1, 1 << 20), help="Requests of one key at a time."
)
@click.option(
    "--step-ms",
    type=click.FloatRange(1, 1e6),
    default=100.0,
    show_default=True,
    help="How long a step should take while a stream is read, but for short prompts of many.",
)
@click.option(
    "--cache-ram",
    "kv_bytes",
    type=size,
    envvar="STERNA_CACHE_RAM",
    help="Bytes for keys and values, of running requests and earlier ones; default: a quarter of "
    "what is free.",
)
@click.option(
    "--cache-disk",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep what was computed of prompts in this folder, for the next start.",
)
@click.option("--cache-disk-max", type=size, help="In at most so many bytes; default: 10G.")
@click.option(
    "--share-cache",
    is_flag=True,
    help="Let keys share what was computed of equal prompts, and so measure what others asked.",
)
@click.option(
    "--files",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep clients' files and batches in this folder; default: serve neither.",
)
@click.option(
    "--files-max", type=size, default="1G", show_default=True, help="Bytes of all these files."
)
@click.option(
    "--keep-alive",
    type=duration,
    help="Give up a model that nobody asks for so long; default: never.",
)
@click.option(
    "--max-loaded",
    type=click.IntRange(1, 1024),
    help="Models in memory at a time; default: as many as have room.",
)
@click.option("--max-body", type=size, default="1M", show_default=True, help="Bytes of a request.")
@click.option("--timeout", type=duration, help="End an answer after so long; default: never.")
@click.option(
    "--header-timeout",
    type=duration,
    default="10",
    show_default=True,
    help="For the headers of a request.",
)
@click.option(
    "--body-timeout", type=duration, default="30", show_default=True, help="For its body."
)
@click.option(
    "--write-timeout",
    type=duration,
    default="30",
    show_default=True,
    help="For a client to read what waits for it; who does not is cut off.",
)
@click.option(
    "--shutdown-timeout",
    type=duration,
    default="30",
    show_default=True,
    help="What running answers have to end after SIGTERM.",
)
@click.option(
    "--ssl-certfile",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Serve HTTPS with this certificate.",
)
@click.option(
    "--ssl-keyfile", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="Its key."
)
@click.option("--metrics/--no-metrics", default=True, help="Serve /metrics; default: yes.")
@click.option("--page/--no-page", default=True, help="Serve the page at /; default: yes.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Of the line for each request.",
)
@click.option("--log-prompts", is_flag=True, help="Write prompts and answers into it, too.")
@offline_option
@click.option(
    "--adapter",
    "adapters",
    multiple=True,
    envvar="STERNA_ADAPTER",
    metavar="[NAME=]DIR",
    help="A LoRA adapter, the folder that PEFT saves, as a model of this NAME, or of its folder's; "
    "may be repeated.",
)
@run_options
@chat_template_option
@click.option(
    "--trust-request-chat-template",
    is_flag=True,
    help="Take templates from requests (chat_template), which run in a sandbox with limits.",
)
@drafting_options
def command(
    models: tuple[str, ...], served_names: tuple[str, ...], max_seqs: int,
    step_ms: float, offline: bool, adapters: tuple[str, ...], **options: Any,
) -> None:  # fmt: skip
    """Serve one MODEL or several to clients of OpenAI's API, and a page at / to talk to them.

    A MODEL is as for --model of `sterna generate`; without one, it is `nano`. Of several, a
    request's "model" says which, and each is loaded when it is asked for. An adapter is a model
    beside them, of the first MODEL. Every option can be given as a variable of the environment as
    well: --max-queue as STERNA_MAX_QUEUE.
    """
    require_server()
    from sterna.server.launcher import serve
    from sterna.server.model_manager import ModelSource

    of_model = {name: options.pop(name) for name in (*MODEL, "speculate", "draft", "chat_template")}
    memory = {name: options.pop(name) for name in MEMORY}
    of_model |= {name: value for name, value in memory.items() if value is not None}
    settings = _settings(max_seqs, step_ms, options)
    sources = {}
    models = models or ("nano",)
    names = _names(models, served_names)
    adapted = _adapters(names, adapters)
    for name, model in zip(names, models, strict=True):
        fetch_model(model, offline)
        own = [f"{adapter}={folder}" for adapter, folder in adapted.items()]
        given = {"model": model, "offline": offline, "adapters": own, **of_model}
        opener = partial(open_model, given, chosen_by_name=True)
        sources[name] = ModelSource(opener, _file_bytes(model), tuple(adapted))
        adapted = {}  # they are the first one's
    click.get_current_context().exit(serve(settings, sources))


def require_server() -> None:
    """RequestError, with what to install, where the extra `server` is not."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise RequestError(
            f"serve: needs {', '.join(missing)}, which is not installed; "
            "pip install 'sterna[server]'"
        )


def _settings(max_seqs: int, step_ms: float, options: dict[str, Any]) -> Settings:
    from sterna.server.settings import Settings

    return Settings(**options, engine={"max_running": max_seqs, "step_ms": step_ms})


def _file_bytes(model: str) -> int:
    """Of a model's files: about what it takes in memory."""
    from sterna.checkpoints.resolve import resolve

    path = resolve(model)
    files = [path] if path.is_file() else [f for f in path.iterdir() if f.is_file()]
    return sum(file.stat().st_size for file in files)


def _names(models: tuple[str, ...], served: tuple[str, ...]) -> list[str]:
    """What clients call the models: never a path of this machine."""
    if served and len(served) != len(models):
        raise RequestError(
            f"served-name: must be given once for each of {len(models)} models, but is given "
            f"{len(served)} times"
        )
    names = list(served) or [_short(model) for model in models]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise RequestError(f"served-name: must differ, but {shown(twice[0])} is there twice")
    return names


def _adapters(models: list[str], given: tuple[str, ...]) -> dict[str, str]:
    """Folders of adapters by what clients call them."""
    named: dict[str, str] = {}
    for name, folder in map(adapter_named, given):
        served = name or Path(folder).resolve().name
        if served in named or served in models:
            raise RequestError(f"adapter: must differ in name, but {shown(served)} is there twice")
        named[served] = folder
    return named


def _short(model: str) -> str:
    path = Path(model)
    return path.resolve().name if path.exists() or path.is_absolute() else model
