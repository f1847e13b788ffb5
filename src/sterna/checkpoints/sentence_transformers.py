"""sentence-transformers' files of an embedding model: modules.json, the pooling's config.json, and
the prompts."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

from sterna.errors import ModelFormatError, UnsupportedModelError, shown
from sterna.files.jsonfile import MAX_CONFIG_BYTES, json_kind, load_settings, parse_json
from sterna.files.reading import read_file

__all__ = ["MODULES", "POOLING_FOLDER", "PROMPTS", "SIZES", "pooling_of"]

MODULES = "modules.json"
PROMPTS = "config_sentence_transformers.json"
SIZES = "sentence_bert_config.json"
POOLING_FOLDER = "1_Pooling"  # where the library writes it
_CHAIN = ["Transformer", "Pooling", "Normalize"]
#: Its pooling modes, and ours.
_MODES = {"lasttoken": "last", "mean": "mean", "cls": "cls"}
_FLAGS = {
    "pooling_mode_lasttoken": "lasttoken", "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
}  # fmt: skip


def pooling_of(folder: Path) -> dict[str, Any] | None:
    """Read the folder's pooling as the field of models/pooling.py; None without these files.

    Raises ModelFormatError for a file that breaks a rule, UnsupportedModelError for a module or a
    mode that Sterna lacks.
    """
    file = folder / MODULES
    if not file.exists():
        return None
    kinds = _modules(file)
    names = [kind for kind, _ in kinds]
    if names not in (_CHAIN, _CHAIN[:2]):
        raise UnsupportedModelError(
            f"{file}: modules must be Transformer, Pooling and perhaps Normalize, but got "
            f"{shown(', '.join(names))}; Sterna does not run this variant"
        )
    prompts = load_settings(folder / PROMPTS)
    return {
        "kind": _kind(folder / kinds[1][1] / "config.json"),
        "normalise": len(kinds) > 2,
        "prompts": prompts.get("prompts") or {},
        "default_prompt": prompts.get("default_prompt_name"),
        "max_tokens": load_settings(folder / SIZES).get("max_seq_length"),
    }


def _modules(file: Path) -> list[tuple[str, str]]:
    """Read class and folder of each module, in order."""
    listed = parse_json(read_file(file, MAX_CONFIG_BYTES), file)
    if not isinstance(listed, list):
        raise ModelFormatError(
            file=file, field="top level", expected="a JSON array", got=json_kind(listed)
        )
    modules = []
    for entry in listed:
        kind, path = (entry.get("type"), entry.get("path")) if isinstance(entry, dict) else (0, 0)
        if not isinstance(kind, str) or not isinstance(path, str):
            raise ModelFormatError(
                file=file, field="modules", expected="objects with type and path", got=shown(entry)
            )
        plain = PurePosixPath(path)
        if plain.is_absolute() or len(plain.parts) > 1 or ".." in plain.parts or "\\" in path:
            raise ModelFormatError(
                file=file, field="path", expected="a folder next to this file", got=shown(path)
            )
        modules.append((kind.rpartition(".")[2], path))
    return modules


def _kind(file: Path) -> str:
    """Read the one pooling mode of a config.json, by our name."""
    config = load_settings(file)
    mode = config.get("pooling_mode")
    if mode is None:
        given = {k: v for k, v in config.items() if k.startswith("pooling_mode_")}
        flags = {"pooling_mode_mean_tokens": True, **given}
        mode = " and ".join(_FLAGS.get(key, key) for key, value in flags.items() if value)
    if mode not in _MODES:
        raise UnsupportedModelError(
            f"{file}: pooling_mode must be one of {', '.join(_MODES)}, but got {shown(mode)}; "
            "Sterna does not run this variant"
        )
    if config.get("include_prompt") is False:
        raise UnsupportedModelError(
            f"{file}: include_prompt must be true, but got false; Sterna pools all tokens"
        )
    return _MODES[mode]
