"""Unknown architectures are told their kin: families of which transformers derives their code."""

from __future__ import annotations

import json
import re
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import transformers
from helpers import failure
from transformers import AutoConfig
from transformers.models.auto import modeling_auto as auto
from transformers.models.auto.configuration_auto import model_type_to_module_name

from sterna.errors import UnsupportedModelError
from sterna.models import architectures, module_of, modules
from sterna.models.kin import kin

FOLDER = Path(transformers.__file__).parent / "models"


@cache
def types() -> dict[str, str]:
    """Class -> model_type, of config.json; importing the classes themselves takes half a minute."""
    maps = (
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_MAPPING_NAMES,
        auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    )  # fmt: skip
    found = dict[str, list[str]]()
    for kind, listed in (item for names in maps for item in names.items()):
        for name in (listed,) if isinstance(listed, str) else listed:
            found.setdefault(name, []).append(kind)
    # Some classes are of several types, such as Llama's of Code Llama: of its own name.
    return {
        name: max(kinds, key=lambda kind: SequenceMatcher(None, name.lower(), kind).ratio())
        for name, kinds in found.items()
    }


def family(name: str) -> str:
    """The folder of a class of transformers; empty if it has none."""
    return str(model_type_to_module_name(types()[name])) if name in types() else ""


@cache
def known() -> frozenset[str]:
    return frozenset(family(name) for name in architectures()) - {""}


def parents(folder: str, seen: tuple[str, ...] = ()) -> set[str]:
    """Families that Sterna runs, and whose code the modular file of another one takes over."""
    file = FOLDER / folder / f"modular_{folder}.py"
    if folder in seen or not file.is_file():
        return set()
    names = re.findall(r"from \.\.(\w+)\.(?:modeling|configuration)_\w+ import", file.read_text())
    found = set(names) & known()
    for name in set(names) - known():
        found |= parents(name, (*seen, folder))
    return found


def config_of(name: str) -> dict[str, Any]:
    """What save_pretrained writes of a class's defaults."""
    config = AutoConfig.for_model(types()[name])
    return {**json.loads(config.to_json_string(use_diff=False)), "architectures": [name]}


def spelt_alike(name: str) -> list[str]:
    """The three classes whose names are most like one, common endings left out."""

    def stem(text: str) -> str:
        return re.sub(r"(For[A-Z]\w+|LMHeadModel|Model)$", "", text).lower()

    def likeness(other: str) -> float:
        return SequenceMatcher(None, stem(other), stem(name)).ratio()

    return sorted(architectures(), key=likeness)[-3:]


def unknown() -> list[tuple[str, set[str]]]:
    """Classes that Sterna does not run, and their parents, if it runs some."""
    listed = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    names = sorted({name for name in listed if isinstance(name, str)} - {*architectures()})
    others = ((name, parents(family(name))) for name in names)
    return [(name, found) for name, found in others if found and family(name) not in known()]


def test_fields_tell_more_than_names() -> None:
    """Of 54 classes of transformers 5.24, fields find a parent of 35, and spelling of 23."""
    classes = unknown()
    assert len(classes) > 40

    def found(names: list[str], parents: set[str]) -> bool:
        return any(family(n) in parents for n in names)

    by_fields = sum(found(kin(config_of(n), n, modules()), of) for n, of in classes)
    by_name = sum(found(spelt_alike(n), of) for n, of in classes)
    assert by_fields >= 0.62 * len(classes) > by_name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("AXK1ForCausalLM", "DeepseekV3ForCausalLM"),
        ("GlmMoeDsaForCausalLM", "DeepseekV32ForCausalLM"),
        ("SolarOpenForCausalLM", "Glm4MoeForCausalLM"),
        ("ZambaForCausalLM", "MambaForCausalLM"),
    ],
)
def test_the_refusal_names_them(name: str, expected: str) -> None:
    config = config_of(name)
    failure(
        lambda: module_of(config, Path("config.json")), UnsupportedModelError, name,
        f"nearest by its fields: {', '.join(kin(config, name, modules()))}", expected,
    )  # fmt: skip


@pytest.mark.parametrize(
    "config", [{}, {"text_config": {"a": 1}}, {"rope_scaling": 5}, {"num_experts": []}]
)
def test_strange_fields(config: dict[str, Any]) -> None:
    """Any config.json has three."""
    found = kin(config, "x" * 10_000 + "ForCausalLM", modules())
    assert len(set(found)) == 3
    assert set(found) <= set(architectures())
    assert len(kin(config, "Unknown", modules())) == 3
