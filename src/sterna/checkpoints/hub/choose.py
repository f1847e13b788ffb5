"""Which files of a repository a model needs: no duplicates, nothing pickled, no code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sterna.checkpoints.directory import CONFIG, GENERATION_CONFIG, INDEX, PICKLED, WEIGHTS
from sterna.checkpoints.hub.file_types import SPLIT, stem_of
from sterna.checkpoints.hub.fitting import SAFETENSORS, Offer, Room, best_of
from sterna.checkpoints.hub_names import HubName
from sterna.checkpoints.packed_tokenizer import PACKED
from sterna.checkpoints.sentence_transformers import MODULES, POOLING_FOLDER, PROMPTS, SIZES
from sterna.checkpoints.tekken import TEKKEN
from sterna.errors import ModelFormatError, RequestError, shown

# Small files that are fetched with the weights if the repository has them.
TOKENIZER = "tokenizer.json"
SMALL = (
    CONFIG,
    GENERATION_CONFIG,
    TOKENIZER,
    PACKED,
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    MODULES,
    f"{POOLING_FOLDER}/{CONFIG}",
    PROMPTS,
    SIZES,
)
WITHOUT_TOKENIZER = (TEKKEN, "vocab.json", "merges.txt")  # tokenizer.json holds the same
MAX_SMALL_BYTES = 256 << 20  # of each: the largest tokenizer.json has some 30 MB
MAX_LISTED = 30

#: Files of sentence-transformers for linear layers after the pooling, and for tokens that score.
_MODULE = re.compile(
    rf"\d+_(Dense/({re.escape(CONFIG)}|{re.escape(WEIGHTS)})|LogitScore/{re.escape(CONFIG)})"
)
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_NOT_A_MODEL = re.compile(r"(?:^|[-_.])(?:mmproj|imatrix)(?:[-_.]|$)", re.IGNORECASE)


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository: path, bytes, and its SHA-256 or (if not in LFS) its git SHA-1."""

    path: str
    size: int
    digest: str


@dataclass(frozen=True)
class Choice:
    """The files to fetch, small ones first. `gguf`: the chosen one (if split, its first part).

    `default`: whether the repository's name without a file means this. `index`: the weights are the
    shards that INDEX, among `files`, names. `why`: the reason, if the user left the choice among
    several GGUF files to Sterna.
    """

    files: tuple[str, ...]
    gguf: str | None
    default: bool
    index: bool = False
    why: str = ""


def choose(name: HubName, sizes: Mapping[str, int], room: Room | None = None) -> Choice:
    """Choose the files of the model that `name` means in a repository (path -> bytes).

    The name without a file means the best GGUF file that fits into `room` (see `best_of`); None: no
    limit. Raises RequestError if the name fits no GGUF file or several that are not one model, or
    if none fits into memory; ModelFormatError if the repository holds no weights that Sterna reads.
    """
    models = gguf_models(sizes)
    has_safetensors = WEIGHTS in sizes or INDEX in sizes
    if name.file is None and has_safetensors:
        return _safetensors(name, sizes)
    room = room or Room()
    if name.file is not None:
        gguf = _matching(name, models, sizes)
        return Choice(models[gguf], gguf, not has_safetensors and _is_default(gguf, models, room))
    if not models:
        raise _no_weights(name, sizes)
    if len(models) == 1:
        ((gguf, parts),) = models.items()
        return Choice(parts, gguf, default=True)
    offer = best_of(models, sizes, room)
    if offer.best is not None:
        gguf = offer.best.path
        return Choice(models[gguf], gguf, default=True, why=_reason(name, offer))
    if offer.one_model:
        raise _too_large(name, offer)
    raise _several(name, "has several GGUF files", models, models, sizes)


def offer_of(name: HubName, sizes: Mapping[str, int], room: Room) -> Offer:
    """Weigh all models of a repository, the safetensors as one; ModelFormatError if it has none.

    best: what the name without a file means.
    """
    gguf = gguf_models(sizes)
    shards = tuple(p for p in sizes if p == WEIGHTS or _SHARD.fullmatch(p))
    models = {SAFETENSORS: shards, **gguf} if shards and CONFIG in sizes else gguf
    if not models:
        raise _no_weights(name, sizes)
    return best_of(models, sizes, room)


def _is_default(gguf: str, models: Mapping[str, tuple[str, ...]], room: Room) -> bool:
    """Whether the repository's name alone means this file, which was asked for by its own."""
    return len(models) == 1 or gguf == room.default


def _reason(name: HubName, offer: Offer) -> str:
    """Say which of several files is taken, and why, in one line."""
    best = offer.best
    assert best is not None
    what = f"{best.kind or best.path} ({human(best.nbytes)}) of {len(offer.candidates)} GGUF files"
    memory = f"{human(best.memory)} of memory with {offer.tokens:,} tokens"
    free = "" if offer.free is None else f" of some {human(offer.free)} free"
    other = HubName(name.repo, name.revision, "WORD")
    return f"{what}, {offer.why} ({memory}{free}); {other} chooses another"


def _too_large(name: HubName, offer: Offer) -> RequestError:
    least = offer.smallest
    other = HubName(name.repo, name.revision, least.kind or least.path)
    return RequestError(
        f"{name}: one of {len(offer.candidates)} GGUF files must fit into the free memory of some "
        f"{human(offer.free or 0)}, but the smallest, {least.path} ({human(least.nbytes)}), needs "
        f"{human(least.memory)} with {offer.tokens:,} tokens; free memory, lower the context, "
        f"choose a smaller model, or write {other} to take it anyway"
    )


def _safetensors(name: HubName, sizes: Mapping[str, int]) -> Choice:
    if CONFIG not in sizes:
        raise ModelFormatError(
            str(name), expected=f"{CONFIG} next to the weights", got="a repository without it"
        )
    small = [path for path in SMALL if path in sizes]
    small += [path for path in sizes if _MODULE.fullmatch(path)]
    small += [path for path in WITHOUT_TOKENIZER if path in sizes and TOKENIZER not in sizes]
    index = WEIGHTS not in sizes  # as in a folder: the single file wins over an index
    for path in (*small, *([INDEX] if index else [])):
        if sizes[path] > MAX_SMALL_BYTES:
            raise ModelFormatError(
                f"{name}:{path}", "size", f"at most {MAX_SMALL_BYTES} bytes", sizes[path]
            )
    return Choice((*small, INDEX if index else WEIGHTS), None, default=True, index=index)


def gguf_models(paths: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """GGUF models: path of the (first) file -> all files of the model.

    Parts whose first is missing are no model; files of vision towers and importance matrices are
    passed over next to others.
    """
    models: dict[str, list[str]] = {}
    for path in sorted(paths):
        if path.lower().endswith(".gguf"):
            split = SPLIT.fullmatch(path)
            first = f"{split[1]}-00001-of-{split[3]}{split[4]}" if split else path
            models.setdefault(first, []).append(path)
    named = {first: tuple(parts) for first, parts in models.items() if first in parts}
    language = {k: v for k, v in named.items() if not _NOT_A_MODEL.search(k.rpartition("/")[2])}
    return language or named


def _matching(
    name: HubName, models: Mapping[str, tuple[str, ...]], sizes: Mapping[str, int]
) -> str:
    """Find the model that `name.file` names: by its path, its file's name, or a word of it."""
    asked = (name.file or "").lower()
    if not models:
        raise RequestError(
            f"{name}: ':' chooses a GGUF file, but the repository {name.repo} has none; "
            "leave it out"
        )
    for matches in (
        [m for m in models if m.lower() == asked],
        [m for m in models if m.lower().rpartition("/")[2] == asked],
        [m for m in models if asked in _words(m)],
    ):
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise _several(name, f"{shown(name.file)} fits several files", models, matches, sizes)
    raise _several(name, f"no GGUF file fits {shown(name.file)}", models, models, sizes)


def _words(path: str) -> set[str]:
    """List the endings of a file's name after '-' or '.', and its folders: "q4_k_m"."""
    folders, stem = path.lower().split("/")[:-1], stem_of(path)
    starts = (m.end() for m in re.finditer(r"[-.]", stem))
    return {*folders, stem, *(stem[at:] for at in starts)}


def _short(path: str, models: Iterable[str]) -> str:
    """Return the shortest word of a file's name that means no other file."""
    others = set().union(*(_words(m) for m in models if m != path))
    word = min((w for w in _words(path) - others), key=lambda w: (len(w), w), default=path)
    at = path.lower().rfind(word)
    return path[at : at + len(word)]


def _several(
    name: HubName,
    what: str,
    models: Mapping[str, tuple[str, ...]],
    listed: Iterable[str],
    sizes: Mapping[str, int],
) -> RequestError:
    rows = [f"{m} ({human(sum(sizes[p] for p in models[m]))})" for m in sorted(listed)]
    more = f", and {len(rows) - MAX_LISTED} more" if len(rows) > MAX_LISTED else ""
    example = HubName(name.repo, name.revision, _short(sorted(listed)[0], models))
    return RequestError(
        f"{name}: {what}; choose one, for example {example}, of: "
        f"{', '.join(rows[:MAX_LISTED])}{more}"
    )


def _no_weights(name: HubName, sizes: Mapping[str, int]) -> ModelFormatError:
    expected = f"{WEIGHTS}, {INDEX} or a .gguf file"
    pickled = sorted(path for path in sizes if path.endswith(PICKLED))
    if pickled:
        return ModelFormatError(
            str(name),
            expected=expected,
            got=f"a repository with pickled weights only ({pickled[0]})",
            remedy="unpickling can run any code, so nothing was downloaded: look for a revision or "
            "another repository with safetensors, or convert it to safetensors",
        )
    other = sorted(path for path in sizes if path.endswith(".safetensors"))
    got = f"only {other[0]}" if other else "a repository without weights"
    remedy = "is it an adapter, or a model of another kind? choose a language model"
    return ModelFormatError(str(name), expected=expected, got=got, remedy=remedy)


def human(nbytes: int) -> str:
    """Format bytes in decimal units: "1.2 GB", "3.4 kB"."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} bytes"
