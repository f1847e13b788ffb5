"""The command line: `sterna generate`, `sterna chat` and the other COMMANDS.

Exit codes: 0; 2 for the user's error, with one line on stderr; 130 for Ctrl-C, 143 for SIGTERM and
129 for SIGHUP. A command is a module of this package, imported when it is asked for; other
packages add theirs (`plugins`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import warnings
from importlib import import_module
from typing import Any, NoReturn

import click

from sterna.cli import plugins
from sterna.cli.decorators import flag
from sterna.errors import SternaError, reason
from sterna.files.system import LEAVING, prepare_console

__all__ = ["finish", "main"]

COMMANDS = (
    "generate",
    "chat",
    "serve",
    "embed",
    "decide",
    "perplexity",
    "compare",
    "eval",
    "bench",
    "roofline",
    "formats",
    "pull",
    "models",
    "rm",
    "convert",
    "quantize",
    "bundle",
    "prefix",
    "train",
    "verify",
    "verify-answer",
    "info",
)


class _Cli(click.Group):
    """A group whose commands load on demand and whose errors are one line each."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List names in the order of the help page."""
        return [*COMMANDS, *(name for name in plugins.names() if name not in COMMANDS)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a name; None if there is none."""
        if cmd_name not in COMMANDS:
            return plugins.load(cmd_name)
        command: click.Command = import_module(f"sterna.cli.{cmd_name.replace('-', '_')}").command
        return command

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        """Run a command and leave the process with its exit code."""
        _mend_streams()
        _leave_in_order()
        warnings.formatwarning = _one_line  # also for warnings at the process's end
        try:
            code = super().main(*args, **{"prog_name": "sterna", **extra, "standalone_mode": False})
        except click.ClickException as error:
            _fail_usage(error)
        except SternaError as error:
            _fail(str(error))
        except (KeyboardInterrupt, click.Abort):
            sys.exit(130)
        except MemoryError:
            _fail("memory: ran out; use a smaller model, --context or another --format")
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            _fail(f"{where}{reason(error)}; check the path and its permissions")
        sys.exit(code if isinstance(code, int) else 0)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Read the arguments; --help and --version end here."""
        try:
            return super().make_context(*args, **extra)
        except BrokenPipeError:
            _write_no_more()
            raise click.exceptions.Exit(0) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; a closed pipe on its output is no error."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _write_no_more()
            ctx.exit(0)
        except KeyboardInterrupt:
            ctx.exit(130)  # without the second line break that click would add


def _mend_streams() -> None:
    """Replace closed streams by the null device, and unencodable characters by question marks."""
    prepare_console((sys.stdin, sys.stdout, sys.stderr))
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif mode == "w" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _leave_in_order() -> None:
    """Let signals that end a process act like Ctrl-C, so that commands clean up.

    A second signal ends the process at once.
    """

    def leave(number: int, _: object) -> NoReturn:
        signal.signal(number, signal.SIG_DFL)
        sys.exit(128 + number)

    for number in LEAVING:
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores one of them
            with contextlib.suppress(ValueError):  # not in the main thread
                signal.signal(number, leave)


def finish() -> None:
    """Wait for a command's background work, and say so."""
    cache = sys.modules.get("sterna.checkpoints.cache")
    if cache is not None:
        from sterna.cli.terminal import tell

        cache.finish(lambda text: tell(f"sterna: {text}"))


def _one_line(message: Warning | str, *_: object, **__: object) -> str:
    """Format a warning for a terminal, without file name and source line."""
    return f"sterna: warning: {' '.join(str(message).split())}\n"


def _write_no_more() -> None:
    # The interpreter flushes once more at its end: into the null device.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail_usage(error: click.ClickException) -> NoReturn:
    ctx = getattr(error, "ctx", None)
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())) and ctx:
        click.echo(ctx.get_help())  # click 8.2 raises what earlier versions print
        sys.exit(0)
    message = error.format_message().rstrip(".")
    _fail(f"{message}; see {ctx.command_path} --help" if ctx else message)


def _fail(message: str) -> NoReturn:
    with contextlib.suppress(OSError):  # the terminal is gone
        # SternaError bounds a line: click's own errors repeat a value whole.
        click.echo(f"sterna: {SternaError(' '.join(message.split()))}", err=True)
    sys.exit(2)


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        from sterna import __version__

        click.echo(f"sterna {__version__}")
        ctx.exit()


@click.group("sterna", cls=_Cli, context_settings={"help_option_names": ["-h", "--help"]})
@flag(
    "--version", "Show the version and exit.", is_eager=True, expose_value=False, callback=_version
)
def main() -> None:
    """Run low-bit language models on the CPU, at the speed of the memory bus."""
