"""The recipes of conda-forge and Homebrew say what pyproject.toml says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

import sterna

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    not (ROOT / "packaging").exists(), reason="needs the source tree's recipes"
)


def project() -> str:
    return (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_versions() -> None:
    (version,) = re.findall(r'^version = "(.+)"$', project(), re.MULTILINE)
    assert version == sterna.__version__
    assert f'version: "{version}"' in (ROOT / "packaging/conda/recipe.yaml").read_text()
    assert f"sterna-{version}.tar.gz" in (ROOT / "packaging/homebrew/sterna.rb").read_text()


def test_requirements() -> None:
    (listed,) = re.findall(r"^dependencies = \[(.*?)^\]", project(), re.MULTILINE | re.DOTALL)
    wanted = re.findall(r'"(.+)"', listed)
    recipe = (ROOT / "packaging/conda/recipe.yaml").read_text()
    (run,) = re.findall(r"\n  run:\n((?:    - .+\n)+)", recipe)
    assert [line[6:].replace(" ", "") for line in run.splitlines()] == ["python", *wanted]


def test_update() -> None:
    spec = importlib.util.spec_from_file_location("update", ROOT / "packaging/update.py")
    assert spec is not None
    assert spec.loader is not None
    update = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(update)
    for name in update.RECIPES:
        before = (ROOT / "packaging" / name).read_text()
        after = update.updated(before, "10.0.1", "ab" * 32)
        assert after.count("10.0.1") == 1
        assert after.count("ab" * 32) == 1
        assert len(after.splitlines()) == len(before.splitlines())
