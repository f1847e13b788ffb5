"""What the pages say that commands print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers import command

from sterna import LLM
from sterna.checkpoints.resolve import BUILT_IN

README = Path(__file__).parents[2] / "README.md"
PROMPT = "def read_lines(path):"


def blocks(page: Path) -> list[str]:
    """The page's blocks of Python."""
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.skipif(not README.exists(), reason="needs the repository beside the tests")
def test_the_sample_of_the_readme() -> None:
    """The bits of `nano` are those of every machine, and so is what it samples."""
    (sample,) = (block for block in blocks(README) if block.startswith(PROMPT))
    printed = command("generate", PROMPT, "--seed", "1").stdout
    assert sample.rstrip() == PROMPT + printed.rstrip()


def test_the_samples_of_the_model_card() -> None:
    llm = LLM("nano", threads=1)
    samples = blocks(BUILT_IN["nano"] / "README.md")
    assert len(samples) == 2
    for sample, prompt in zip(
        samples, (PROMPT, "class Stack:\n    def push(self, item):"), strict=True
    ):
        assert sample == f"{prompt}{llm.generate(prompt, max_tokens=96, seed=1).text}\n"
