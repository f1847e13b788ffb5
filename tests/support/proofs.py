"""The table of proofs in docs/reference/models.md: each architecture's error against transformers.

    PYTHONPATH=tests/models python tests/support/proofs.py            # prints it
    PYTHONPATH=tests/models python tests/support/proofs.py --write    # and writes it into the page

Errors are differences of logits (or scores) from those of transformers in float64, relative to
their spread, the root of the mean square and the largest, of all rows of `MODELS` that an
architecture has: float32 weights, keys and values, 60 tokens. Those of transformers itself in
float32 stand next to them. Ternary rows are left out, since their layers round activations. Lines
are those of code.
"""

from __future__ import annotations

import ast
import statistics
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import saved_models
from model_configs import MODELS
from saved_answers import answers, error, expected_of, mean_error

from sterna.models import modules

PAGE = Path(__file__).parents[2] / "docs/reference/models.md"
BEGIN, END = "<!-- proofs -->\n", "<!-- end of proofs -->\n"
HEAD = (
    "| module | lines | configs | error | transformers' | largest | transformers' |\n"
    "|---|---|---|---|---|---|---|\n"
)


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


def errors_of(name: str) -> tuple[float, ...]:
    """Those of a row of MODELS: of the mean square, ours and transformers'; the largest, too."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = saved_models.write(Path(folder), MODELS[name])
        found = answers(name, Path(folder)), expected_of(name, model)
        with saved_models.in_float64(model):
            truth = expected_of(name, model)
    return tuple(measure(got, truth) for measure in (mean_error, error) for got in found)


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
    found, lines, largest = HEAD, list[int](), list[list[float]]()
    for name, count, names in rows():
        lines.append(count)
        shown = ["–"] * 4
        if names:
            largest.append([max(each) for each in zip(*map(errors_of, names), strict=True)])
            shown = [f"{value:.1e}" for value in largest[-1]]
        row = f"| `{name}` | {count} | {len(names)} | {' | '.join(shown)} |\n"
        print(row, end="", flush=True)
        found += row
    ours, theirs = list(zip(*largest, strict=True))[:2]
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    within = sum(one <= 1e-5 for one in ours)
    told = (
        f"The median module has {statistics.median(lines):.0f} lines. Errors are at most "
        f"1e-5 in {within} of {len(ours)} modules, and {min(ratios):.1f} to {max(ratios):.1f} "
        f"times transformers' in float32, in the median {statistics.median(ratios):.2f}."
    )
    return f"{found}\n{textwrap.fill(told, 100)}\n"


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
