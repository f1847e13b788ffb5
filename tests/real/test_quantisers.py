"""Every field that quantisers write into `quantization_config` is read, idle, or refused by name.

The names come from their sources, which are parsed and not run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

import assets
import pytest

from sterna.weights.storages.quantization_fields import ARGUMENTS, METHODS, SCHEME


@cache
def parsed(file: str) -> ast.Module:
    """The source of a module below the folder of quantisers."""
    return ast.parse((assets.quantisers() / file).read_text(encoding="utf-8"))


def class_fields(file: str, *names: str) -> set[str]:
    """The annotated fields of classes; those that begin with _ are not written."""
    found = {
        field.target.id
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.ClassDef) and node.name in names
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }
    assert found, names
    return {name for name in found if not name.startswith("_")}


def constants(file: str) -> dict[str, str]:
    """Names of a module that are strings."""
    return {
        node.targets[0].id: node.value.value
        for node in parsed(file).body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def keys_set(file: str, of: str, within: ast.AST | None = None) -> Iterator[str]:
    """The keys that a module sets in a dictionary of this name: of[key] = …, of = {key: …}."""
    named = constants(file)
    for node in ast.walk(within or parsed(file)):
        if not isinstance(node, ast.Assign):
            continue
        target, keys = node.targets[0], list[ast.expr | None]()
        if isinstance(target, ast.Subscript) and getattr(target.value, "id", "") == of:
            keys = [target.slice]
        elif isinstance(target, ast.Name) and target.id == of and isinstance(node.value, ast.Dict):
            keys = node.value.keys
        for key in keys:
            if isinstance(key, ast.Constant):
                yield str(key.value)
            elif isinstance(key, ast.Name):
                yield named[key.id]


def written_by_auto_round(folder: str) -> set[str]:
    """What an export of AutoRound writes: the settings of its run, and keys of its own."""
    root = assets.quantisers()
    files = (root / "auto_round/export" / folder).glob("*.py")
    own = {k for f in files for k in keys_set(str(f.relative_to(root)), "quantization_config")}
    assert len(own) > 3
    run = class_fields("auto_round/compressors/base.py", "SerializedCompressorConfig")
    return own | run


def rotations_of_auto_round() -> set[str]:
    """The keys of its transformations of weights: what their `config_key` returns."""
    found = set[str]()
    for file in (assets.quantisers() / "auto_round/algorithms/transforms").rglob("apply.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name == "config_key":
                returned = node.body[-1]
                if isinstance(returned, ast.Return) and isinstance(returned.value, ast.Constant):
                    found.add(str(returned.value.value))
    assert len(found) > 1
    return found


def written_by_gptqmodel(*classes: str) -> set[str]:
    """What GPTQModel's classes put into `out` in `to_dict`."""
    file, found = "gptqmodel/quantization/config.py", set[str]()
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.ClassDef) and node.name in classes:
            found |= set(keys_set(file, "out", node))
    assert len(found) > 8
    return found


def known(method: str) -> frozenset[str]:
    return METHODS[method].names


@pytest.mark.parametrize(
    ("folder", "method"),
    [
        ("export_to_autoround", "auto-round"), ("export_to_autogptq", "gptq"),
        ("export_to_awq", "awq"),
    ],
)  # fmt: skip
def test_auto_round(folder: str, method: str) -> None:
    """Its own files, and those that it writes for others."""
    assert written_by_auto_round(folder) <= known(method)


def test_files_of_fp8_by_auto_round() -> None:
    file = "auto_round/export/export_to_autoround/export_to_fp8.py"
    written = set(keys_set(file, "quantization_config"))
    assert "fmt" in written
    assert written <= known("fp8") & known("auto-round")


def test_rotations_are_refused() -> None:
    """Those of AutoRound and of compressed-tensors; of GPTQModel's one runs."""
    names = rotations_of_auto_round() | {"rotation", "transform_config"}
    for method in ("auto-round", "gptq", "awq", "compressed-tensors", "fp8"):
        run = {"rotation"} if method == "gptq" else set()
        assert names - run <= METHODS[method].refused.keys()


def test_gptqmodel() -> None:
    base = "BaseQuantizeConfig", "PreProcessorConfig"
    assert written_by_gptqmodel(*base, "GPTQConfig") <= known("gptq")
    assert written_by_gptqmodel(*base, "AWQConfig") <= known("awq")


def test_compressed_tensors() -> None:
    """Its configuration, the schemes of groups in it, and their arguments."""
    folder = "compressed_tensors/quantization"
    top = class_fields(f"{folder}/quant_config.py", "QuantizationConfig")
    top |= {
        key for name, key in constants("compressed_tensors/base.py").items()
        if name.endswith("_CONFIG_NAME") and name != "QUANTIZATION_CONFIG_NAME"
    }  # fmt: skip
    assert "transform_config" in top
    assert top <= known("compressed-tensors")
    assert class_fields(f"{folder}/quant_scheme.py", "QuantizationScheme") <= SCHEME.names
    assert class_fields(f"{folder}/quant_args.py", "QuantizationArgs") <= ARGUMENTS.names


def test_the_layouts_of_compressed_tensors_are_known_or_refused() -> None:
    """A new layout has a new name, which is refused; these are the ones of today."""
    from sterna.weights.storages.quantization_fields import LAYOUTS

    node = next(
        node for node in ast.walk(parsed("compressed_tensors/config/base.py"))
        if isinstance(node, ast.ClassDef) and node.name == "CompressionFormat"
    )  # fmt: skip
    theirs = {
        item.value.value
        for item in node.body
        if isinstance(item, ast.Assign) and isinstance(item.value, ast.Constant)
    }
    assert set(LAYOUTS) <= theirs
