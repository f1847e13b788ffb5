"""`--help` in groups: a command's own options first, then those that it shares with others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from sterna.cli.sampling_options import SETTINGS
from sterna.files.other_names import likely_names

__all__ = ["GroupedCommand", "grouped_command"]

#: Options of several commands, by the names of their parameters.
GROUPS: dict[str, frozenset[str]] = {
    "Model": frozenset(
        """
        model adapters offline format head context rope_scaling kv_dtype deterministic activations
        i2s mmproj tower_format chat_template prefix
        """.split()
    ),
    "Speed": frozenset({"threads", "cores", "mmap", "weights_ram", "speculate", "draft"}),
    "Sampling": frozenset({*SETTINGS, "stop"}),
    "Output": frozenset(
        "json_schema regex choice grammar output as_json as_csv as_markdown plot".split()
    ),
}


class GroupedCommand(click.Command):
    """A command whose help has a section for each group of shared options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does; an unknown option that other tools have names Sterna's."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            params = self.get_params(ctx)
            has_argument = any(p.name in ("model", "models") for p in params)
            if error.option_name in ("--model", "-m") and has_argument:
                raise click.UsageError(
                    f"{error.option_name}: the model is an argument: {ctx.command_path} MODEL", ctx
                ) from None
            options = (name for p in params for name in p.opts if name.startswith("--"))
            near = " or ".join(likely_names(error.option_name, [*options]))
            remedy = f"; did you mean {near}?" if near else ""
            raise click.UsageError(f"No such option {error.option_name}{remedy}", ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections: its own options with --help, then the groups."""
        sections: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Options", *GROUPS)}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if record is not None and isinstance(option, click.Option):
                group = next((n for n, names in GROUPS.items() if option.name in names), "Options")
                sections[group].append(record)
        for name, records in sections.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


def grouped_command(
    name: str | None = None, **attributes: Any
) -> Callable[[Callable[..., Any]], GroupedCommand]:
    """Make a command as `click.command` does, with shared options in groups."""
    return click.command(name, cls=GroupedCommand, **attributes)
