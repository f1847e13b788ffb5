"""The command line of a bundle: `./bonsai`, `./bonsai serve`, `./bonsai "prompt"`.

A bundle runs Sterna's commands on its own model, with the options that are baked in.
"""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from sterna.cli import COMMANDS, finish, main
from sterna.errors import RequestError, shown

if TYPE_CHECKING:
    from sterna.files.bundle_file import Bundle

__all__ = ["arguments", "require_known", "run"]

#: Commands to which baked options may apply: those that a bundle is for.
FOR_USERS = ("chat", "generate", "serve", "embed", "decide")


def run(bundle: Bundle, argv: list[str]) -> NoReturn:
    """Run a command line of the user's on the model of a bundle, and leave the process."""
    try:
        main(args=arguments(bundle, argv[1:]), prog_name=os.path.basename(argv[0]))
    finally:
        finish()
    sys.exit(0)


def arguments(bundle: Bundle, args: list[str]) -> list[str]:
    """Return the arguments of `sterna` that a bundle's own mean.

    A command of Sterna's runs on the bundle's model. Other words are a prompt, and without any the
    chat begins.
    """
    if args[:1] in (["--help"], ["-h"], ["--version"]):
        return args
    name, rest = bundle.command, args
    if args and args[0] in COMMANDS:
        name, *rest = args
    command = _command(name)
    model = str(bundle.path)
    return [name, *_mapped(command), *_of(command, bundle.args), *_model(command, model), *rest]


def require_known(args: str) -> None:
    """Raise RequestError for a baked option that no command of a bundle has."""
    try:
        words = shlex.split(args)
    except ValueError as error:
        raise RequestError(f"args: must be words of a shell, but got {shown(args)}") from error
    for word, _ in _options([_command(name) for name in FOR_USERS], words):
        if not word:
            raise RequestError(
                f"args: must be options of {', '.join(FOR_USERS)}, but got {shown(args)}"
            )


def _command(name: str) -> click.Command:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    return command


def _mapped(command: click.Command) -> list[str]:
    return ["--mmap"] if any("--mmap" in option.opts for option in command.params) else []


def _model(command: click.Command, path: str) -> list[str]:
    """Return the words that choose the bundle's model, where a command takes one."""
    for parameter in command.params:
        if parameter.name in ("model", "models"):
            return ["--model", path] if isinstance(parameter, click.Option) else [path]
    return []


def _of(command: click.Command, words: list[str]) -> list[str]:
    """Return the baked options that a command has, with their values."""
    every = [command, *map(_command, FOR_USERS)]
    return [w for _, group in _options(every, words) if _has(command, group[0]) for w in group]


def _options(commands: list[click.Command], words: list[str]) -> list[tuple[str, list[str]]]:
    """Split words into options, each with its values; "" for what no command knows."""
    groups: list[tuple[str, list[str]]] = []
    left = [*words]
    while left:
        word = left.pop(0)
        name, equals, _ = word.partition("=")
        known: Any = next((o for c in commands if (o := _option(c, name)) is not None), None)
        takes = 0 if known is None or known.is_flag or known.count or equals else known.nargs
        groups.append(("" if known is None or len(left) < takes else name, [word, *left[:takes]]))
        del left[:takes]
    return groups


def _option(command: click.Command, name: str) -> click.Option | None:
    options = (one for one in command.params if isinstance(one, click.Option))
    return next((o for o in options if name in (*o.opts, *o.secondary_opts)), None)


def _has(command: click.Command, word: str) -> bool:
    return _option(command, word.partition("=")[0]) is not None
