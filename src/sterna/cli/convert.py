"""`sterna convert`: a model in another format or container."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from sterna.cli.decorators import Option, flag, option
from sterna.cli.option_groups import grouped_command
from sterna.cli.options import fetch_model, i2s_option, json_option, offline_option
from sterna.cli.progress import progress_bar
from sterna.cli.terminal import console, print_json

__all__ = ["command", "finished", "places", "size_of"]

head: Option = option(
    "--head",
    "Format of the embedding and the output head: bf16, f16, f32, int8 or another such as "
    "q8_0; default: their own.",
)


def places(function: Any) -> Any:
    """Add SRC, DST and the common options of commands that write a model, after their own."""
    for decorate in (
        json_option,
        option("--threads", "Threads; default: the usable cores.", type=int),
        i2s_option,
        head,
        offline_option,
        flag("--force", "Replace an existing model at DST."),
        click.argument("dst", type=click.Path(path_type=Path)),
        click.argument("src"),
    ):
        function = decorate(function)
    return function


@grouped_command(short_help="Write a model in another format or container.")
@option(
    "--format format",
    "Weight format of the layers, such as t5, i2 or q8_0, or a GGUF file: gguf:F16, "
    "gguf:Q8_0, gguf:Q4_K_M, gguf:TQ2_0; default: the model's own, in a packed directory.",
)
@places
def command(src: str, dst: Path, offline: bool, as_json: bool, **options: Any) -> None:
    """Write the model SRC (as for --model of `sterna generate`) at DST: a folder, or a .gguf file.

    Converts one tensor at a time. DST gets its name when it is complete and on the disk. Reports a
    loss of precision; `sterna quantize` reports it for each tensor.
    """
    from sterna.convert import convert

    fetch_model(src, offline)
    started = time.perf_counter()
    with progress_bar(f"converting {src}", "million weights") as progress:
        losses = convert(src, dst, progress=progress, **options)
    asked = options["format"], options["head"]
    row = finished(src, dst, *asked, losses, time.perf_counter() - started)
    if as_json:
        print_json([row])
    else:
        report(row)


def finished(
    src: str, dst: Path, format: str | None, head: str | None, losses: list[Any], seconds: float
) -> dict[str, Any]:
    """Return the result of a conversion as a row; format, head: as in `convert`."""
    rounded = [loss for loss in losses if not loss.exact]
    worst = max(rounded, key=lambda loss: loss.relative_rms, default=None)
    return {
        "source": src,
        "path": str(dst),
        "format": format,
        "bytes": size_of(dst),
        "seconds": seconds,
        "matrices": len(losses),
        "rounded": len(rounded),
        "worst_tensor": worst and worst.name,
        "worst_relative_rms_error": worst.relative_rms if worst else 0.0,
        "moved_zeros": sum(loss.moved_zeros for loss in losses),
        "replaced": _fallback_lines(format, head, losses),
    }


def _fallback_lines(format: str | None, head: str | None, losses: list[Any]) -> list[str]:
    """Return lines with the names of matrices that could not have the format."""
    from sterna.convert import weight_format
    from sterna.weights.format_fallback import Made, format_fallbacks

    made = (Made(loss.name, loss.K, loss.format) for loss in losses)
    return [str(one) for one in format_fallbacks(made, weight_format(format), head)]


def report(row: dict[str, Any]) -> None:
    """Print the path, the size and the loss of the written model."""
    out = console()
    size, speed = row["bytes"], row["bytes"] / max(row["seconds"], 1e-9) / 1e6
    out.print(
        f"{row['path']}: {size / 1e6:,.1f} MB in {row['seconds']:.1f} s ({speed:,.0f} MB/s)",
        soft_wrap=True,
    )
    for line in row["replaced"]:
        out.print(line, soft_wrap=True)
    if row["rounded"] == 0:
        out.print(f"lossless: all {row['matrices']} matrices have the weights they had")
        return
    out.print("LOSSY", style="bold", end="")
    out.print(
        f": {row['rounded']} of {row['matrices']} matrices were rounded, worst "
        f"{row['worst_tensor']} with a relative error of {row['worst_relative_rms_error']:.2g}",
        soft_wrap=True,
    )
    if row["moved_zeros"]:
        out.print(f"{row['moved_zeros']:,} weights were 0 and are not any more", soft_wrap=True)


def size_of(path: Path) -> int:
    """Count the bytes of a file, or of a folder's files."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
