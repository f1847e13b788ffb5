"""The table of proofs in docs/reference/models.md: each architecture's error against transformers.

    PYTHONPATH=tests/models python tests/support/proofs.py            # prints it
    PYTHONPATH=tests/models python tests/support/proofs.py --write    # and writes it into the page

The error is the largest difference of logits (or scores), relative to their spread, of all rows of
`MODELS` that an architecture has: float32 weights, keys and values, 60 tokens. Ternary rows are
left out, since their layers round activations. Lines are those of code.
"""

from __future__ import annotations

import ast
import statistics
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from model_configs import MODELS
from test_saved_models import error_of

from sterna.models import modules

PAGE = Path(__file__).parents[2] / "docs/reference/models.md"
BEGIN, END = "<!-- proofs -->\n", "<!-- end of proofs -->\n"
HEAD = "| module | lines | configs | largest error |\n|---|---|---|---|\n"


def code_lines(source: str) -> int:
    """Lines that hold code: neither blank, nor comments, nor docstrings."""
    tree = ast.parse(source)
    docstrings = set[int]()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            docstrings.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in docstrings
        for number, line in lines
    )


def largest_error(names: list[str]) -> float:
    """Of the rows of MODELS with these names."""
    errors = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            errors.append(error_of(name, Path(folder)))
    return max(errors)


def rows() -> Iterator[tuple[str, int, list[str]]]:
    """Name, lines and rows of MODELS of each module of an architecture."""
    for module in sorted(modules(), key=lambda module: module.__name__):
        yield module.__name__.rpartition(".")[2], code_lines(source_of(module)), of_module(module)


def source_of(module: ModuleType) -> str:
    """The text of a module."""
    assert module.__file__ is not None
    return Path(module.__file__).read_text(encoding="utf-8")


def of_module(module: ModuleType) -> list[str]:
    """The rows of its architectures whose layers are floats."""
    return [
        name for name, saved in MODELS.items()
        if saved.name in module.ARCHITECTURES and not saved.ternary
    ]  # fmt: skip


def table() -> str:
    """The rows, and what stands below them."""
    found, lines, errors = HEAD, list[int](), list[float]()
    for name, count, names in rows():
        lines.append(count)
        told = "–"
        if names:
            errors.append(largest_error(names))
            told = f"{errors[-1]:.1e}"
        row = f"| `{name}` | {count} | {len(names)} | {told} |\n"
        print(row, end="", flush=True)
        found += row
    return (
        f"{found}\nThe median module has {statistics.median(lines):.0f} lines; the largest error "
        f"is {max(errors):.1e}.\n"
    )


def main() -> None:
    """Print the table, and write it if asked."""
    found = table()
    print(found.rpartition("\n\n")[2], end="")
    if "--write" in sys.argv[1:]:
        page = PAGE.read_text(encoding="utf-8")
        before, rest = page.split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{found}\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
