"""A progress bar on stderr, for what takes long."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sterna.cli.options import console

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(
    what: str, unit: str, scale: float = 1e6, total: float | None = None
) -> Iterator[Callable[..., None]]:
    """A bar while something is done; nothing unless stderr is a terminal.

    Gives a function of how much is done and, where that is known only then, of how much there is.
    Amounts are shown over `scale`, in the words of `unit`: "12 of 340 MB".
    """
    if not sys.stderr.isatty():
        yield lambda done, of=total: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TextColumn("{task.fields[amount]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total, amount="")

        def update(done: float, of: float | None = total) -> None:
            amount = f"{done / scale:,.0f} of {(of or 0) / scale:,.0f} {unit}"
            bar.update(task, completed=done, total=of, amount=amount)

        yield update
