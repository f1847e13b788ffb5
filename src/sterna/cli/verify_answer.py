"""`sterna verify-answer`: checks whether this machine reproduces another machine's answer."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from sterna.cli.option_groups import grouped_command
from sterna.cli.options import fetch_model, model_options, open_model
from sterna.cli.serve import require_server

FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


@grouped_command("verify-answer", short_help="Check an answer of `sterna serve` by its receipt.")
@click.argument("request", type=FILE)
@click.argument("answer", type=FILE)
@model_options
def command(request: Path, answer: Path, **options: Any) -> None:
    """Repeat REQUEST and compare the result with ANSWER.

    REQUEST is the JSON that a client sent, ANSWER the JSON that came back or, of a stream, the
    chunk with the receipt. Exit codes: 0, the tokens are the same; 1, they or the models differ, as
    the output says; 2, the check was not possible.
    """
    require_server()
    from sterna.files.jsonfile import load_settings
    from sterna.server.replay import differences

    fetch_model(options["model"], options["offline"])
    bodies = [load_settings(file) for file in (request, answer)]
    lines = differences(partial(open_model, options), *bodies)
    for line in lines:
        click.echo(f"DIFFERS {line}")
    if not lines:
        click.echo("OK: the same prompt, seed and tokens, under the same fingerprint")
    click.get_current_context().exit(1 if lines else 0)
