"""Fixtures of tests with real weights; `assets` says where these come from."""

from __future__ import annotations

from pathlib import Path

import assets
import pytest


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
    """What llama.cpp publishes: vocabularies, templates, its converter."""
    return assets.llama_cpp()
