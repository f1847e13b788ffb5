"""Architectures, one file each.

A module of this package is an architecture if it has

ARCHITECTURES  the names that config.json's `architectures` may have
DEFAULTS       the fields that a config.json may leave out, built on `config_defaults`
build          a function of a `ModelBuilder`, which adds the layers and returns the logits

It may also have the following names; `LEFT_OUT` says what holds for a module without them.

ACTIVATION     the hidden_act that config.json must have; ACTIVATIONS: further ones that it may have
TERNARY        True: float tensors of linear layers are masters, to be ternarised
ALIASES        names of fields in config.json -> the usual ones, if no other family has them
ENCODER        True: attention may be bidirectional, as use_bidirectional_attention says
KV_DTYPE       the type of the key-value cache, if i16 is too coarse
PREFIXES       prefixes of tensor names in files -> here
TRANSPOSED     ends of names of linear layers that checkpoints store as [in, out]
SKIPPED        prefixes of tensors that are not read -> their descriptions; with {num_hidden_layers}
               for the number after the last layer's, where config.json has num_nextn_predict_layers
GGUF           `general.architecture` of GGUF files -> a `GgufArchitecture` of `gguf_architecture`;
               GGUF_WITH_EXPERTS is for files that share a name with models without experts, and
               EXPERTS_IN the module that has them, if it is not the one of this name
complete       a function of the fields that returns further fields, derived from them
unread         a function of the config that returns modules whose tensors have no effect
text_module    a function of the config that returns the module whose `build` and KV_DTYPE count,
               where texts are of several models
predictor      a function of the builder, called after `build`, that returns the graph of an MTP
               layer, or None
tower          a function of the config and the weights that returns the `vision.Tower` of a model
               that sees images; TOWER: the name of a matrix that only checkpoints with one have, or
               several such names

`config_aliases` has other names of fields, of several families.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from sterna.errors import ModelFormatError, UnsupportedModelError, brief
from sterna.files.jsonfile import MAX_CONFIG_BYTES, load_json_object
from sterna.models.module_names import LEFT_OUT, attribute

__all__ = [
    "LEFT_OUT",
    "architectures",
    "attribute",
    "module_of",
    "modules",
    "namesakes",
    "require_architecture",
    "skipped",
]


def architectures() -> list[str]:
    """List the names that config.json's `architectures` may have."""
    return sorted(_modules_by_architecture())


def modules() -> list[ModuleType]:
    """List the modules of all architectures."""
    return list(dict.fromkeys(_modules_by_architecture().values()))


def require_architecture(file: Path) -> None:
    """Raise UnsupportedModelError unless this config.json is of a model that Sterna runs.

    Spares the download of weights. Raises ModelFormatError for a file that breaks a rule.
    """
    module_of(load_json_object(file, MAX_CONFIG_BYTES), file)


def module_of(config: dict[str, Any], file: Path) -> ModuleType:
    """Return the module of a config.json's architecture; raises as `require_architecture`."""
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ModelFormatError(
            file=file,
            field="architectures",
            expected="a list with a name",
            got="null" if "architectures" in config and names is None else names,
            remedy='write the class of the model, as ["LlamaForCausalLM"]',
        )
    module = _namesake(names[0]) or _modules_by_architecture().get(names[0])
    if module is None:
        from sterna.models.kin import kin

        nearest = ", ".join(kin(config, names[0], modules()))
        raise UnsupportedModelError(
            f"{file}: architecture must be one of {len(architectures())} that Sterna runs "
            f"(nearest by its fields: {nearest}), but got {brief(names[0])}; Sterna does not run "
            "this model yet"
        )
    return module


def skipped(module: ModuleType, config: dict[str, Any]) -> dict[str, str]:
    """Return prefixes of a config.json's tensors that are skipped -> their descriptions."""
    prefixes: dict[str, str] = attribute(module, "SKIPPED")
    if not config.get("num_nextn_predict_layers"):
        return {prefix: what for prefix, what in prefixes.items() if "{" not in prefix}
    n = config.get("num_hidden_layers", module.DEFAULTS["num_hidden_layers"])
    return {prefix.format(num_hidden_layers=n): what for prefix, what in prefixes.items()}


def namesakes(name: str) -> Iterator[ModuleType]:
    """Import the modules that a name begins with, the longest first: most starts import no other.

    Letters alone count, as "jina-bert-v2" is in jina_bert and "LlamaForCausalLM" in llama.
    """
    return map(_imported, _begins_with(name))


@cache
def _begins_with(name: str) -> list[str]:
    letters = name.lower().replace("-", "").replace("_", "")
    names = sorted(_module_names(), key=len, reverse=True)
    return [module for module in names if letters.startswith(module.replace("_", ""))]


def _namesake(architecture: str) -> ModuleType | None:
    """Return the architecture's module if it has the same name."""
    for module in namesakes(architecture):
        if architecture in getattr(module, "ARCHITECTURES", ()):
            return module
    return None


@cache
def _modules_by_architecture() -> dict[str, ModuleType]:
    imported = [_imported(name) for name in _module_names()]
    return {name: module for module in imported for name in getattr(module, "ARCHITECTURES", ())}


@cache
def _module_names() -> list[str]:
    return [info.name for info in pkgutil.iter_modules(__path__)]


def _imported(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")
