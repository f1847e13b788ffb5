"""`sterna rm`: remove downloaded models and packed copies."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sterna.cli.decorators import flag
from sterna.cli.option_groups import grouped_command
from sterna.cli.options import json_option
from sterna.cli.terminal import print_json
from sterna.errors import RequestError

if TYPE_CHECKING:
    from sterna.checkpoints import hub


@grouped_command(short_help="Remove downloaded models.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@flag("--yes -y", "Do not ask.")
@json_option
def command(names: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Remove models, named as in `sterna models`, and their packed copies.

    org/name removes all downloads of a repository, org/name@revision:file one of them. The path of
    a packed copy removes only that copy.
    """
    from sterna.checkpoints.hub import human

    plans = [_plan(name) for name in names]
    targets = [target for plan in plans for target in plan]
    if not yes:
        _ask([f"{name} ({human(nbytes)})" for name, nbytes, _ in targets])
    freed = {name: remove() for name, _, remove in targets}
    if as_json:
        print_json([{"model": name, "freed_bytes": nbytes} for name, nbytes in freed.items()])
    else:
        click.echo(f"removed {', '.join(freed)}: {sum(freed.values()):,} bytes freed")


Target = tuple[str, int, Callable[[], int]]  # name, bytes, what removes it


def _plan(text: str) -> list[Target]:
    from sterna.checkpoints import hub
    from sterna.checkpoints.cache import cache_dir, discard, entries
    from sterna.checkpoints.resolve import BUILT_IN
    from sterna.checkpoints.short_names import hub_name, short_name

    for entry, nbytes in entries():
        if text == entry.name or (cache_dir() and Path(text).absolute() == entry):

            def discard_entry(name: str = entry.name, nbytes: int = nbytes) -> int:
                discard(name)
                return nbytes

            return [(str(entry), nbytes, discard_entry)]
    if text in BUILT_IN:
        raise RequestError(f"{text}: is part of Sterna; only downloads can be removed")
    if not (hub.looks_like_name(text) or short_name(text)):
        raise RequestError(
            f"{text}: must be the name of a download or the path of a packed copy; `sterna models` "
            "lists them; files that you made are yours to remove"
        )
    return _downloads(hub_name(text), text)


def _downloads(name: hub.HubName, text: str) -> list[Target]:
    from sterna.checkpoints import hub

    if name == hub.HubName(name.repo):
        whole = hub.downloads(name.repo)
    else:
        one = hub.find(name)
        whole = [one] if one is not None else []
    if whole:
        return [(d.name, d.nbytes, partial(hub.remove, d)) for d in whole]
    partial_size = hub.partial_bytes(name.repo)
    if partial_size:
        return [(f"{text}, half downloaded", partial_size, partial(hub.remove_partial, name.repo))]
    raise RequestError(f"{text}: is not downloaded; `sterna models` lists what is")


def _ask(targets: list[str]) -> None:
    if not _has_terminal():
        raise click.UsageError("--yes: must be given where there is no terminal to ask on")
    click.confirm(f"Remove {', '.join(targets)}?", abort=True, err=True)


def _has_terminal() -> bool:
    return sys.stdin.isatty()
