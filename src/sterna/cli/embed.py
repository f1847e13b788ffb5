"""`sterna embed`: a vector of each text."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sterna.cli.decorators import WRITABLE_FILE, flag, option
from sterna.cli.option_groups import grouped_command
from sterna.cli.options import model_options, open_model
from sterna.cli.progress import LOADING_S, progress_bar
from sterna.cli.texts import piped_text
from sterna.errors import RequestError
from sterna.files.writing import writing

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

AT_ONCE = 64  # texts between two updates of the progress bar


@grouped_command(short_help="Turn texts into vectors.")
@click.argument("texts", nargs=-1)
@model_options
@option("--prompt-name", "One of the model's prompts, such as query, before each text.")
@option("--prompt", "A text before each text, instead of a named prompt.")
@option(
    "--pooling",
    "How to pool: the last token, the mean of all or the first token (cls), if the model's "
    "files do not say.",
    type=click.Choice(["last", "mean", "cls"]),
)
@flag("--truncate", "Cut the end of texts that are longer than the model takes, and say how many.")
@option(
    "--output", "Write float32 [texts, features] to this .npy file instead.", type=WRITABLE_FILE
)
def command(
    texts: tuple[str, ...],
    prompt_name: str | None,
    prompt: str | None,
    pooling: str | None,
    truncate: bool,
    output: Path | None,
    **options: Any,
) -> None:
    """Compute a vector for each of TEXTS, or for each line of stdin.

    Prints one JSON array per line, with the shortest digits that give the same float32. A text with
    too many tokens is an error, unless --truncate cuts it.
    """
    if output is not None and not output.parent.is_dir():  # checked before the texts are computed
        raise RequestError(f"{output}: must be in a folder that exists; make {output.parent}")
    from sterna.llm.embedder import truncation

    listed = list(texts) or _lines()
    llm = open_model(options)
    how: dict[str, Any] = {
        "prompt_name": prompt_name,
        "prompt": prompt,
        "pooling": pooling,
        "truncate": truncate,
    }
    parts, cut = [], list[int]()
    with progress_bar("embedding", "texts", 1, len(listed), LOADING_S) as progress:
        for begin in range(0, len(listed), AT_ONCE):
            inputs = llm.embedder.inputs(listed[begin : begin + AT_ONCE], **how)
            cut += inputs.cut
            parts.append(llm.embedder.vectors(inputs, None))
            progress(min(begin + AT_ONCE, len(listed)))
    if said := truncation(cut):
        click.echo(said, err=True)
    _write(parts, output)


def _lines() -> list[str]:
    if sys.stdin.isatty():
        raise click.UsageError('TEXTS: must be given or piped in; try: sterna embed "a text"')
    # Not str.splitlines, which also ends lines at U+2028, form feeds and other characters.
    lines = piped_text().removesuffix("\n").split("\n")
    if lines == [""]:
        raise RequestError("texts: must not be empty; give a text a line")
    return [line.removesuffix("\r") for line in lines]


def _write(parts: list[npt.NDArray[np.float32]], output: Path | None) -> None:
    import numpy as np

    vectors = np.concatenate(parts)
    if output is not None:
        head = np.lib.format.header_data_from_array_1_0(vectors)
        with writing(output, vectors.nbytes) as file:
            np.lib.format.write_array_header_1_0(file, head)
            file.write(vectors.data)  # np.save would seek, which a pipe cannot
        return
    for row in vectors:
        click.echo(json.dumps([float(str(x)) for x in row]))
