"""What mkdocs adds to the pages of docs/: reference from the code, and the changelog.

The pages are made when the site is built and are never committed.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import click
from mkdocs.structure.files import File, Files

from sterna.cli import main

ROOT = Path(__file__).parents[2]

#: Modules of the Python reference, each with what it is for. Their `__all__` is documented.
MODULES = {
    "sterna": "Models, conversations, what they return, and errors.",
    "sterna.ops": "Matrix products of low-bit weights, on numpy and DLPack arrays.",
    "sterna.convert": "Packing, rounding and writing models.",
    "sterna.torch": "Products as a torch operator, layers, and swapping a model's layers.",
    "sterna.train": "Layers and loops of quantisation-aware training.",
}


def _options(command: click.Command, ctx: click.Context) -> str:
    rows = []
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            names, text = (cell.replace("|", "\\|").replace("\n", " ") for cell in record)
            rows.append(f"| `{names}` | {text.replace('<', '&lt;')} |")
    return "\n".join(["| option | |", "|---|---|", *rows])


def _paragraphs(text: str) -> str:
    """Click's help as Markdown."""
    return "\n".join(line.strip() for line in text.replace("\b", "").splitlines())


def _commands(command: click.Command, parent: click.Context | None, depth: int) -> list[str]:
    ctx = click.Context(command, info_name=command.name if parent else "sterna", parent=parent)
    parts = [f"{'#' * depth} {ctx.command_path}\n"] if parent else []
    usage = " ".join(command.collect_usage_pieces(ctx))
    parts += [f"```text\n{ctx.command_path} {usage}\n```\n", _paragraphs(command.help or ""), ""]
    parts += [_options(command, ctx), ""]
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            child = command.get_command(ctx, name)
            assert child is not None
            child.name = name
            parts += _commands(child, ctx, depth + (1 if parent else 0))
    return parts


def command_line() -> str:
    """The page of all commands and options, from click."""
    return "\n".join(["# Command line\n", *_commands(main, None, 2)])


def _public(module: str) -> list[str]:
    """`__all__`, read without importing torch."""
    path = ROOT / "src" / Path(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    (names,) = (
        ast.literal_eval(node.value)
        for node in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return list(names)


def python() -> str:
    """The page of public names, for mkdocstrings."""
    parts = ["# Python\n"]
    for module, text in MODULES.items():
        parts += [f"## {module}\n", f"{text}\n"]
        names = _public(module)
        parts += [f"::: {module}.{name}\n" for name in names if name not in ("__version__", "ops")]
    return "\n".join(parts)


def changelog() -> str:
    """CHANGELOG.md, as a page of the site."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return text.replace("](docs/", "](")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are made of the code."""
    for path, text in (
        ("reference/cli.md", command_line()),
        ("reference/python.md", python()),
        ("changelog.md", changelog()),
    ):
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to files outside docs/ become their names: the site has no copies of these."""

    def named(match: re.Match[str]) -> str:
        target = (ROOT / "docs" / page.file.src_uri).parent.joinpath(match[2]).resolve()
        if target.is_relative_to(ROOT / "docs") or not target.is_relative_to(ROOT):
            return match[0]
        return match[1] if match[1].startswith("`") else f"`{target.relative_to(ROOT)}`"

    return re.sub(r"(?<!!)\[([^\]]*)\]\(((?:\.\./)+[^)#]*)(?:#[^)]*)?\)", named, markdown)
