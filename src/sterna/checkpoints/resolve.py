"""From a user's name of a model to a path: a folder or file, a built-in model, or the Hub."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from sterna.checkpoints.directory import CONFIG
from sterna.checkpoints.hub_names import ALIASES, PREFIX, HubName, looks_like_name
from sterna.checkpoints.mistral_layout import PARAMS
from sterna.checkpoints.short_names import short_name, short_names
from sterna.errors import HubError, RequestError, shown
from sterna.files.other_names import likely_names
from sterna.files.reading import unreadable

MAX_LISTED = 8  # files that a message lists
BUILT_IN = {"nano": Path(__file__).parent.parent / "data" / "nano"}


def resolve(
    model: str | os.PathLike[str],
    *,
    offline: bool = False,
    announce: Callable[[str], None] = lambda text: None,
    inspect: Callable[[Path], None] = lambda config: None,
    context: int | None = None,
) -> Path:
    """Find the folder or GGUF file that `model` means, and fetch it from the Hub if need be.

    A folder with a model in it, or a file, comes first, then a built-in name, a short one
    (`short_names`), any other existing path, and org/name[@revision][:file] on the Hub, or an
    alias of one (hf:// in front means the Hub). A folder without config.json means the one GGUF
    model in it. Texts that look like paths are never fetched. A model of the Hub stays at the
    fetched commit until `sterna pull` asks for a newer one.

    offline, announce, inspect, context: as in `hub.pull`. Raises RequestError, ModelFormatError or
    HubError.
    """
    if not isinstance(model, (str, os.PathLike)) or not str(model):
        raise RequestError(
            f"model: must be a folder, a .gguf file or a name, but got {shown(model)}"
        )
    text = os.fspath(model)
    path = Path(os.path.expanduser(text))  # unchanged if there is no such user
    if text in BUILT_IN and not _holds_model(path):
        return BUILT_IN[text]
    short = short_name(text) if isinstance(model, str) else None
    if short is not None and not _is_model(path):
        return short.fetch(offline=offline, announce=announce).use()
    if not isinstance(model, str) or _exists(path):
        return _existing(path, text)
    if not looks_like_name(text):
        return _existing(path, text)
    from sterna.checkpoints import hub  # a model that is here already needs none of it

    name = HubName.parse(text)
    download = hub.find(name)
    if download is None:
        try:
            download = hub.pull(
                name, offline_only=offline, announce=announce, inspect=inspect, context=context
            )
        except (HubError, RequestError) as error:
            if not text.startswith(PREFIX) and _may_mean_path(error, path):
                error.args = (f"{error}; nor is there a folder or file {text} here",)
            raise
    return download.use()


def is_model(text: str) -> bool:
    """Whether a text names a model that is here, or has a short name; nothing is fetched."""
    if text in BUILT_IN or text in ALIASES or short_name(text) is not None:
        return True
    path = Path(text)
    return _exists(path) and (
        path.suffix.lower() == ".gguf" or (path.is_dir() and _holds_model(path))
    )


def _is_model(path: Path) -> bool:
    """Whether a path is a file, or a folder with a model in it."""
    if not path.is_dir() or _holds_model(path):
        return _exists(path)
    try:
        return any(name.lower().endswith(".gguf") for name in os.listdir(path))
    except OSError:
        return True  # an error will say what is wrong with it


def _may_mean_path(error: HubError | RequestError, path: Path) -> bool:
    """Whether a name that failed on the Hub may be a mistyped path."""
    if isinstance(error, HubError):
        return error.reason in ("network", "offline")
    return path.parent.is_dir()


def _existing(path: Path, text: str) -> Path:
    if _exists(path):
        if path.is_dir() and not _holds_model(path):
            gguf = _gguf_in(path)
            if gguf is not None:
                return gguf
        if looks_like_name(text) and not _holds_model(path):
            raise RequestError(
                f"{text}: must be a model's folder, but the one of this name has no {CONFIG}; "
                f"for the model of this name on the Hub write {PREFIX}{text}"
            )
        return path
    known = f"a short name ({', '.join([*BUILT_IN, *short_names()])}) or org/name on the Hub"
    near = likely_names(text, [*BUILT_IN, *short_names(), *ALIASES])
    remedy = f"did you mean {' or '.join(near)}?" if near else "check the spelling"
    if text.lower().endswith(".gguf") and text.count("/") > 1:
        remedy += ", or write org/name:file.gguf for a file on the Hub"
    raise RequestError(
        f"{text}: must be a model's folder, a .gguf file, {known}, but got a path that does not "
        f"exist; {remedy}"
    )


def _gguf_in(folder: Path) -> Path | None:
    """Return the GGUF model of a folder, of a split one the first part; None if there is none.

    RequestError if there are several. Parts without the first are returned, for an error that
    names what is missing.
    """
    from sterna.checkpoints.hub.choose import gguf_models

    try:
        names = sorted(name for name in os.listdir(folder) if name.lower().endswith(".gguf"))
    except OSError as error:
        raise unreadable(folder, error) from error
    models = sorted(gguf_models(names)) or names[:1]
    if len(models) > 1:
        raise RequestError(
            f"{folder}: must hold one GGUF model, but got {', '.join(models[:MAX_LISTED])}; "
            "name the file"
        )
    return folder / models[0] if models else None


def _holds_model(path: Path) -> bool:
    return path.is_file() or any((path / name).is_file() for name in (CONFIG, PARAMS))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, or a null byte
        return False
