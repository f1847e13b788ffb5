"""`sterna prefix`: compute a system prompt, a code base or a manual once, for any machine."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click

from sterna.cli.decorators import EXISTING_FILE, flag
from sterna.cli.option_groups import grouped_command
from sterna.cli.options import (
    chat_template_option,
    fetch_model,
    offline_option,
    open_model,
    run_options,
)
from sterna.cli.terminal import status, tell
from sterna.errors import RequestError

MAX_TEXT_BYTES = 64 << 20  # more than any context holds


@grouped_command(short_help="Compute a long prompt's beginning once, into a file.")
@click.argument("model")
@click.argument("text", type=EXISTING_FILE)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file.",
)
@flag("--plain", "TEXT begins prompts of `generate`; without this, it is a chat's system prompt.")
@offline_option
@run_options
@chat_template_option
def command(
    model: str, text: Path, output: Path, plain: bool, offline: bool, **options: Any
) -> None:
    """Compute the keys and values of a text (less its last line break), and write them to a file.

    `--prefix FILE` of `chat`, `generate` and `serve` starts from it on any machine: an integer
    model gives the same bits there, without computing the text again. Reading the file takes no
    time until a prompt begins with its text.
    """
    from sterna.checkpoints.hub import human
    from sterna.files.reading import read_file
    from sterna.files.writing import require_name
    from sterna.llm.prefix_packs import make_pack

    require_name(output)
    try:
        content = read_file(text, MAX_TEXT_BYTES).decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise RequestError(f"{text}: must be UTF-8, but byte {error.start} is not") from None
    fetch_model(model, offline)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".sterna-prefix-") as folder:
        llm = open_model({**options, "model": model, "offline": offline, "cache_disk": folder})
        with status(f"computing {text}"):
            count = make_pack(llm, content, "text" if plain else "system", output)
    tell(f"{output}: {count:,} tokens, {human(output.stat().st_size)}")
