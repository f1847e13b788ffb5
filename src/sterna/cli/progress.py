"""Progress bars on stderr."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from sterna.cli.terminal import console

__all__ = ["loading", "progress_bar"]

#: Seconds of loading before its bar is shown.
LOADING_S = 1.0


def loading(model: str) -> AbstractContextManager[Callable[..., None]]:
    """Make the bar of a model's weights, for the argument `progress` of `LLM`."""
    return progress_bar(f"loading {model}", "MB", after_s=LOADING_S)


@contextmanager
def progress_bar(
    what: str, unit: str, scale: float = 1e6, total: float | None = None, after_s: float = 0
) -> Iterator[Callable[..., None]]:
    """Show a bar if stderr is a terminal.

    Yields a function of the amount done and, if it is known only then, the total. Amounts are
    divided by `scale` and shown in `unit`: "12 of 340 MB". after_s: seconds before the bar appears.
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
    bar = Progress(*columns, console=console(stderr=True), transient=True)
    task = bar.add_task(what, total=total, amount="")
    begin = time.monotonic()
    with contextlib.ExitStack() as shown:

        def update(done: float, of: float | None = total) -> None:
            amount = f"{done / scale:,.0f} of {(of or 0) / scale:,.0f} {unit}"
            bar.update(task, completed=done, total=of, amount=amount)
            if not bar.live.is_started and time.monotonic() - begin >= after_s:
                shown.enter_context(bar)

        if not after_s:
            shown.enter_context(bar)
        yield update
