"""The imports of a start. Imports are most of the time to the first token of a small model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gguf_factory import Tiny, write
from waits import HANGS_S

from sterna import models

#: Slow imports that neither a page of help nor a token needs.
HEAVY = (
    "asyncio", "concurrent.futures", "email", "http", "httpx", "huggingface_hub",
    "importlib.metadata", "jinja2", "llguidance", "logging", "prompt_toolkit", "requests", "rich",
    "sterna.bench", "sterna.convert", "sterna.evaluate", "sterna.server", "torch", "transformers",
)  # fmt: skip
#: Readers of published models, which a model in the cache does not need.
READERS = (
    "sterna.chat.rendering", "sterna.checkpoints.hub", "sterna.gguf.architectures",
    "sterna.gguf.mmproj", "sterna.gguf.weight_source", "sterna.weights.checkpoint_weights",
    "sterna.weights.storages",
)  # fmt: skip
#: Parts of other requests than a text's continuation, and of other models than those of text.
OTHERS = (
    "sterna.cli.texts", "sterna.engine.decoding.grammars", "sterna.engine.images.image_encoder",
    "sterna.formats.weighted", "sterna.gguf.file", "sterna.images", "sterna.llm.cross_encoder",
    "sterna.llm.decider", "sterna.llm.embedder", "sterna.models.vision",
    "sterna.weights.tower_weights",
)  # fmt: skip
#: Modules of architectures: a model needs its own, and those that its own is built on.
ARCHITECTURES = tuple(module.__name__ for module in models.modules())
#: Prints the modules that a command imports; site-packages may import others before it.
PROGRAM = """
import sys
before = set(sys.modules)
from sterna.__main__ import main
try:
    main()
finally:
    print(*sorted(set(sys.modules) - before), file=sys.stderr)
"""


def imported(cache: Path, *args: str) -> set[str]:
    """Return the modules that a command imports in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *args], capture_output=True, text=True, check=True,
        stdin=subprocess.DEVNULL, env={**os.environ, "STERNA_CACHE": str(cache)}, timeout=HANGS_S,
    )  # fmt: skip
    return set(done.stderr.splitlines()[-1].split())


def within(modules: set[str], *packages: str) -> list[str]:
    """Return the modules that are these packages or lie in them."""
    return sorted(m for m in modules if any(m == p or m.startswith(f"{p}.") for p in packages))


def test_generate(tmp_path: Path) -> None:
    """The first start packs the model, the second finds it in the cache."""
    args = ("generate", "--model", "nano", "Hi", "--max-tokens", "1")
    assert within(imported(tmp_path, *args), *HEAVY) == []
    again = imported(tmp_path, *args)
    assert "sterna.engine.engine" in again
    assert within(again, *HEAVY, *READERS, *OTHERS) == []
    assert within(again, *ARCHITECTURES) == ["sterna.models.bitnet"]


def test_a_gguf_file_in_the_cache(tmp_path: Path) -> None:
    """Neither is it read again, nor is a tower looked for by what reads one.

    The first start finds the file's architecture by its name."""
    write(tmp_path / "m.gguf", Tiny())
    args = ("generate", "--model", str(tmp_path / "m.gguf"), "Hi", "--max-tokens", "1")
    first = imported(tmp_path / "cache", *args)
    assert within(first, *READERS) != []
    assert len(within(first, *ARCHITECTURES)) < 20  # its own, and those whose keys readers know
    again = imported(tmp_path / "cache", *args)
    assert within(again, *HEAVY, *READERS, *OTHERS) == []
    assert within(again, *ARCHITECTURES) == ["sterna.models.llama"]


@pytest.mark.parametrize("args", [("--version",), ("generate", "--help")])
def test_without_a_model(tmp_path: Path, args: tuple[str, ...]) -> None:
    modules = imported(tmp_path, *args)
    assert "click" in modules
    assert within(modules, *HEAVY, "numpy", "sterna._native", "sterna.llm") == []


def test_the_package() -> None:
    """`import sterna` imports nothing else of it."""
    code = "import sys, sterna; print(*(m for m in sys.modules if m.startswith('sterna')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["sterna"]
