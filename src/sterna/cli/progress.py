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
#: Columns next to a bar's text: the bar, its share, "12 of 340 million weights", the time left; and
#: the fewest of the text.
BESIDES, LEAST = 56, 16


def loading(model: str) -> AbstractContextManager[Callable[..., None]]:
    """Make the bar of a model's weights, for the argument `progress` of `LLM`."""
    return progress_bar(f"loading {model}", "MB", after_s=LOADING_S)


def _shortened(what: str, most: int) -> str:
    """Leave out the beginning of a long path: its end says more, and the bar needs the room."""
    most = max(LEAST, most)
    if len(what) <= most:
        return what
    verb, _, path = what.partition(" ")
    return f"{verb} …{path[-max(1, most - len(verb) - 2) :]}"


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
    out = console(stderr=True)
    bar = Progress(*columns, console=out, transient=True)
    task = bar.add_task(_shortened(what, out.width - BESIDES), total=total, amount="")
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
