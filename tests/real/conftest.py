"""Fixtures of tests with real weights; `assets` says where these come from."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import assets
import pytest
import references

from sterna import LLM


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, Q4_1."""
    return assets.smollm2()


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """Gemma 3 270M, Q4_K_M."""
    return assets.gemma3()


@pytest.fixture(scope="session")
def llama_cpp() -> Path:
    """Files that llama.cpp publishes: vocabularies, templates, its converter."""
    return assets.llama_cpp()


@pytest.fixture(scope="session")
def reference() -> Callable[[str], references.Reference]:
    """transformers' answers in float32 for "smollm2" or "gemma3"."""
    pytest.importorskip("transformers")
    return cache(lambda name: references.reference(name, assets.model(name)))


@pytest.fixture(scope="module")
def llm() -> Callable[..., LLM]:
    """A model of this name with these options of `LLM`, opened once for a file of tests."""

    @cache
    def opened(name: str, **options: Any) -> LLM:
        return LLM(assets.model(name), **{"context": 512, **options})

    return opened
