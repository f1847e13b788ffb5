"""sentence-transformers' files of a model: modules.json, pooling, prompts and lower-casing."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

from sterna.errors import ModelFormatError, UnsupportedModelError, shown
from sterna.files.jsonfile import MAX_CONFIG_BYTES, json_kind, load_settings, parse_json
from sterna.files.reading import read_file

__all__ = [
    "DENSE",
    "MODULES",
    "POOLING_FOLDER",
    "PROMPTS",
    "SIZES",
    "lowers_case",
    "pooling_of",
    "scoring_of",
]

MODULES = "modules.json"
PROMPTS = "config_sentence_transformers.json"
SIZES = "sentence_bert_config.json"
POOLING_FOLDER = "1_Pooling"  # where the library writes it
#: The weights of a Dense module.
DENSE = "model.safetensors"
#: The modules of a cross-encoder: its class has the head, or two tokens' logits are the score.
_SCORERS = (["Transformer"], ["Transformer", "LogitScore"])
_CHAIN = re.compile("Transformer Pooling( Dense)*( Normalize)?")
#: Its pooling modes, and ours.
_MODES = {"lasttoken": "last", "mean": "mean", "cls": "cls"}
_FLAGS = {
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
}


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
    prompts = load_settings(folder / PROMPTS)
    if names in _SCORERS and (len(names) > 1 or prompts.get("model_type") == "CrossEncoder"):
        return None
    if not _CHAIN.fullmatch(" ".join(names)):
        raise UnsupportedModelError(
            f"{file}: modules must be Transformer, Pooling and perhaps Dense and Normalize, but "
            f"got {shown(', '.join(names))}; Sterna does not run this variant"
        )
    return {
        "kind": _kind(folder / kinds[1][1] / "config.json"),
        "dense": [_dense(folder, path) for kind, path in kinds if kind == "Dense"],
        "normalise": names[-1] == "Normalize",
        "prompts": prompts.get("prompts") or {},
        "default_prompt": prompts.get("default_prompt_name"),
        "max_tokens": load_settings(folder / SIZES).get("max_seq_length"),
    }


def scoring_of(folder: Path) -> dict[str, Any] | None:
    """Read how a cross-encoder scores, as the field of models/classifier.py; None if it is none.

    Raises ModelFormatError for a file that breaks a rule.
    """
    file, settings = folder / MODULES, load_settings(folder / PROMPTS)
    kinds = _modules(file) if file.exists() else []
    if [kind for kind, _ in kinds] not in _SCORERS:
        return None
    scoring = {"activation": settings.get("activation_fn")}
    if len(kinds) > 1:
        config = load_settings(folder / kinds[1][1] / "config.json")
        options = load_settings(folder / SIZES).get("processing_kwargs") or {}
        prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
        scoring |= {
            "true": config.get("true_token_id"),
            "false": config.get("false_token_id"),
            "system": prompts.get(default) if default else None,
            "opens": bool((options.get("chat_template") or {}).get("add_generation_prompt")),
        }
    return scoring


def lowers_case(folder: Path) -> bool:
    """Whether the folder's texts are lower-cased before the tokenizer reads them."""
    return load_settings(folder / SIZES).get("do_lower_case") is True


def _dense(folder: Path, path: str) -> dict[str, Any]:
    """Read a Dense module's config.json as an entry of the field `dense`."""
    file = folder / path / "config.json"
    config = load_settings(file)
    allowed = {
        "module_input_name": "sentence_embedding",
        "module_output_name": "sentence_embedding",
        "use_residual": False,
    }
    for field, wanted in allowed.items():
        if config.get(field, wanted) not in (None, wanted):
            raise UnsupportedModelError(
                f"{file}: {field} must be {shown(wanted)}, but got {shown(config[field])}; Sterna "
                "does not run this variant"
            )
    named = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    return {
        "folder": path,
        "inputs": config.get("in_features"),
        "features": config.get("out_features"),
        "bias": config.get("bias", True),
        "activation": named,
    }


def _modules(file: Path) -> list[tuple[str, str]]:
    """Read class and folder of each module, in order."""
    listed = parse_json(read_file(file, MAX_CONFIG_BYTES), file)
    if not isinstance(listed, list):
        raise ModelFormatError(file, "top level", "a JSON array", json_kind(listed))
    modules = []
    for entry in listed:
        kind, path = (entry.get("type"), entry.get("path")) if isinstance(entry, dict) else (0, 0)
        if not isinstance(kind, str) or not isinstance(path, str):
            raise ModelFormatError(file, "modules", "objects with type and path", shown(entry))
        plain = PurePosixPath(path)
        if plain.is_absolute() or len(plain.parts) > 1 or ".." in plain.parts or "\\" in path:
            raise ModelFormatError(file, "path", "a folder next to this file", shown(path))
        modules.append((kind.rpartition(".")[2], path))
    return modules


def _kind(file: Path) -> str:
    """Read the one pooling mode of a config.json, by our name."""
    config = load_settings(file)
    mode = config.get("pooling_mode")
    if mode is None:
        modes = {k: v for k, v in config.items() if k.startswith("pooling_mode_")}
        flags = {"pooling_mode_mean_tokens": True, **modes}
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
