"""The kin of an architecture that Sterna does not run: families whose config.json has its fields,
or whose GGUF files have its tensors.

Names say little: A.X K1 is DeepSeek V3's graph. Fields say more, and rare ones most: `kv_lora_rank`
is of latent attention, `hidden_size` of all. So families are ordered by the fields that they share
with the unknown one, over those that either has, each with the logarithm of its rarity as weight.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from sterna.errors import SternaError
from sterna.models.config_aliases import resolve_aliases
from sterna.models.module_names import attribute

__all__ = ["kin", "most_like"]

#: How much a likeness of names counts, next to a likeness of fields.
OF_NAMES = 0.2
_GENERATES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_ENDINGS = re.compile(r"(For[A-Z]\w+|LMHeadModel|Model)$")
_MAX_NAME = 200  # of a hostile file
Family = TypeVar("Family")


def kin(config: dict[str, Any], name: str, families: Sequence[ModuleType]) -> list[str]:
    """Return an architecture of each of the three families that are most like a config.json."""
    generates = name.endswith(_GENERATES)
    fields = {m: _fields_of(m) for m in families if _generates(m) == generates} or {
        m: _fields_of(m) for m in families
    }
    names = {module: module.ARCHITECTURES for module in fields}
    return [module.ARCHITECTURES[0] for module in most_like(_given(config), name, fields, names)]


def most_like(
    given: Collection[str],
    name: str,
    fields: Mapping[Family, frozenset[str]],
    names: Mapping[Family, Sequence[str]],
) -> list[Family]:
    """Return the three families whose fields, and names, are most like those that are given."""
    counts = Counter(field for own in fields.values() for field in own)
    weight = {field: math.log((1 + len(fields)) / count) for field, count in counts.items()}
    known = weight.keys() & set(given)

    def likeness(family: Family) -> tuple[float, str]:
        own = fields[family]
        both, either = (sum(map(weight.__getitem__, f)) for f in (own & known, own | known))
        named = max(_of_names(name, other) for other in names[family])
        return -both / (either or 1) - OF_NAMES * named, names[family][0]

    return sorted(fields, key=likeness)[:3]


def _generates(module: ModuleType) -> bool:
    return any(name.endswith(_GENERATES) for name in module.ARCHITECTURES)


def _fields_of(module: ModuleType) -> frozenset[str]:
    """Return the fields of a family's class, by their usual names."""
    return frozenset({*module.DEFAULTS, *attribute(module, "ALIASES").values()})


def _given(config: dict[str, Any]) -> set[str]:
    """Return the fields of a config.json that say something, those of a nested text, too."""
    try:
        resolved = resolve_aliases(config, Path("config.json"), {}).config
    except SternaError:  # it is refused anyway
        resolved = config
    text = resolved.get("text_config")
    merged = {**resolved, **text} if isinstance(text, dict) else resolved
    return {field for field, value in merged.items() if value is not None and value is not False}


def _of_names(one: str, other: str) -> float:
    """Return how like names are, 0 to 1; 1 more if one begins with the other, as relatives do."""
    a, b = (_ENDINGS.sub("", text[:_MAX_NAME]).lower() for text in (one, other))
    return difflib.SequenceMatcher(None, a, b).ratio() + a.startswith(b)
