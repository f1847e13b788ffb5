"""`sterna perplexity`: how well a model predicts texts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sterna.cli.options import console, json_option, model_options, open_model, print_json

if TYPE_CHECKING:
    from sterna.evaluate.perplexity import Perplexity


@click.command(short_help="How well a model predicts texts.")
@model_options
@click.option(
    "--file", "files", type=click.Path(path_type=Path), multiple=True, help="A UTF-8 text file."
)
@click.option(
    "--dir", "folder", type=click.Path(path_type=Path), help="A folder: all text files below it."
)
@click.option(
    "--stdlib", is_flag=True, help="The Python sources held out from the built-in model's training."
)
@click.option("--limit", type=click.IntRange(min=1), help="Only the first so many files.")
@json_option
def command(
    files: tuple[Path, ...],
    folder: Path | None,
    stdlib: bool,
    limit: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Nats per token, perplexity and bits per byte of texts.

    Each file is a document by itself, read in windows of the context that overlap by half.
    """
    from sterna.evaluate.perplexity import held_out_stdlib, perplexity, read_text, text_files

    if sum([bool(files), folder is not None, stdlib]) != 1:
        raise click.UsageError("texts: must be one of --file, --dir and --stdlib")
    paths = held_out_stdlib() if stdlib else text_files(folder) if folder else list(files)
    paths = paths[:limit]
    errors = "replace" if stdlib else "strict"  # as in training
    for path in files:
        read_text(path)  # all are checked before the first takes its time
    llm = open_model(options)
    texts = (read_text(path, errors) for path in paths)
    total = sum(path.stat().st_size for path in paths)
    with _progress(total) as progress:
        result = perplexity(llm, texts, context=options["context"], progress=progress)
    info = llm.info()
    row = {
        "model": info["model"],
        "source": "stdlib" if stdlib else str(folder or ", ".join(map(str, files))),
        "python": sys.version.split()[0] if stdlib else None,
        **_numbers(result),
        "context": llm.context,
        **{key: info[key] for key in ("format", "head", "kv_dtype", "isa", "threads")},
    }
    if as_json:
        print_json([row])
    else:
        _show(row)


def _numbers(result: Perplexity) -> dict[str, Any]:
    return {
        "files": result.n_documents,
        "tokens": result.n_tokens,
        "bytes": result.n_bytes,
        "nats_per_token": round(result.nats_per_token, 6),
        "perplexity": round(result.perplexity, 4),
        "bits_per_byte": round(result.bits_per_byte, 6),
        "seconds": round(result.seconds, 3),
        "tok_s": round(result.n_tokens / result.seconds, 1) if result.seconds else None,
    }


def _show(row: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table("", "", show_header=False, box=None, pad_edge=False)
    table.add_row("nats per token", f"{row['nats_per_token']:.4f}")
    table.add_row("perplexity", f"{row['perplexity']:.4f}")
    table.add_row("bits per byte", f"{row['bits_per_byte']:.4f}")
    size = f"{row['tokens']:,} tokens, {row['bytes']:,} bytes, {row['files']:,} files"
    table.add_row("of", f"{size} ({row['source']})")
    table.add_row("model", f"{row['model']}, context {row['context']}, {row['seconds']:.1f} s")
    console().print(table, soft_wrap=True)


@contextmanager
def _progress(total_bytes: int) -> Iterator[Callable[[float], None]]:
    """A bar on stderr, drawn only on a terminal."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("scoring"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total_bytes)
        yield lambda done: bar.update(task, completed=done)
