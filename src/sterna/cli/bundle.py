"""`sterna bundle`: one file that has a model and the program that runs it."""

from __future__ import annotations

from pathlib import Path

import click

from sterna.cli.bundled import require_known
from sterna.cli.option_groups import grouped_command
from sterna.cli.options import fetch_model, head_option, offline_option
from sterna.cli.progress import progress_bar
from sterna.cli.terminal import console


@grouped_command(short_help="Write one file that has a model and runs it.")
@click.argument("model")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file.",
)
@click.option("--format", help="Weight format of the layers. Default: the model's own.")
@head_option
@click.option(
    "--args",
    default="",
    metavar="TEXT",
    help="Options that the bundle starts with, such as '--temperature 0.7 --threads 4'. Each "
    "applies to the commands that have it; the user's own come after them.",
)
@click.option(
    "--platform",
    "platforms",
    metavar="NAME,...",
    help="Systems that it runs on: linux-x86_64, linux-aarch64, macos-arm64, macos-x86_64, "
    "windows-x86_64. Default: this one.",
)
@click.option(
    "--python-version",
    "versions",
    metavar="VERSION,...",
    help="Versions of CPython that it runs with, such as 3.11,3.12. Default: this one.",
)
@click.option(
    "--wheels",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with Sterna's wheels for other systems and versions. Packages that they need "
    "are downloaded by pip.",
)
@click.option(
    "--python",
    type=click.Path(exists=True, path_type=Path),
    help="Include this interpreter, a folder or .tar.gz that runs anywhere, so that the bundle "
    "needs none.",
)
@offline_option
@click.option("--force", is_flag=True, help="Replace an existing file.")
def command(
    model: str,
    output: Path,
    format: str | None,
    head: str | None,
    args: str,
    platforms: str | None,
    versions: str | None,
    wheels: Path | None,
    python: Path | None,
    offline: bool,
    force: bool,
) -> None:
    """Write the model MODEL (as for --model of `sterna generate`) and the program that runs it as
    one file.

    The file needs CPython and nothing else, or with --python nothing at all. Without arguments it
    starts a chat; with a prompt it answers it; with a command, such as `serve`, it runs that. Its
    weights are mapped where they lie. The program is unpacked once, into the cache.
    """
    from sterna.bundle import bundle

    require_known(args)
    fetch_model(model, offline)
    with progress_bar(f"converting {model}", "million weights") as progress:
        done = bundle(
            model,
            output,
            format=format,
            head=head,
            args=args,
            platforms=_names(platforms),
            python_versions=_names(versions),
            wheels=wheels,
            python=python,
            force=force,
            progress=progress,
        )
    size, weights = done.nbytes / 1e6, done.weights_nbytes / 1e6
    console().print(
        f"{output}: {size:,.1f} MB, of which weights {weights:,.1f}; for {', '.join(done.targets)}",
        soft_wrap=True,
    )


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]
