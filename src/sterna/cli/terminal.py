"""Output of commands to a terminal: notices, a spinner, JSON."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["VISIBLE", "console", "print_json", "print_pairs", "status", "tell", "with_error"]

#: Seconds between two progress lines if stderr is not a terminal.
PROGRESS_S = 10.0

#: Control characters except tab and newline: a model's output must not control the terminal.
VISIBLE = {c: 0x2400 + c for c in range(32) if chr(c) not in "\t\n"}
VISIBLE |= {127: 0x2421} | dict.fromkeys(range(128, 160), 0xFFFD)


def tell(text: str) -> None:
    """Print a line to stderr if that is a terminal."""
    if sys.stderr.isatty():
        click.echo(text, err=True)


def with_error(value: float, stderr: float) -> str:
    """Write a figure with its standard error, which a single sample does not have."""
    return f"{value:.4f}" + (f" ± {stderr:.4f}" if math.isfinite(stderr) else "")


def console(stderr: bool = False) -> Console:
    """Make a rich console on stdout or stderr. Imports rich, which takes time, only here."""
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # as any other write does; rich would exit the process

    # Without markup: a name with [/] in it would end the command.
    return Piped(stderr=stderr, highlight=False, markup=False)


@contextlib.contextmanager
def status(text: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner on stderr, or a line every PROGRESS_S seconds where that is no terminal.

    Yields a function that replaces the text.
    """
    if not sys.stderr.isatty():
        with _progress_lines(text) as say:
            yield say
        return
    from rich.text import Text

    with console(stderr=True).status(Text(text)) as spinner:
        yield lambda text: spinner.update(Text(text))


@contextlib.contextmanager
def _progress_lines(text: str) -> Iterator[Callable[[str], None]]:
    """Print the latest text to stderr every PROGRESS_S seconds."""
    latest, over, began = [text], threading.Event(), time.monotonic()

    def tell_every() -> None:
        while not over.wait(PROGRESS_S):
            with contextlib.suppress(
                OSError, ValueError
            ):  # stderr is closed, or its reader has left
                click.echo(f"sterna: {time.monotonic() - began:.0f} s: {latest[0]}", err=True)

    def say(text: str) -> None:
        latest[0] = text

    teller = threading.Thread(target=tell_every, name="sterna-progress", daemon=True)
    teller.start()
    try:
        yield say
    finally:
        over.set()
        teller.join()


def print_json(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as one JSON array; NaN and infinities become null."""
    click.echo(json.dumps([_finite(dict(row)) for row in rows], indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_pairs(lines: Sequence[tuple[str, str]]) -> None:
    """Print names, dimmed, each with its text, as a table."""
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in lines:
        table.add_row(name, value)
    console().print(table)
