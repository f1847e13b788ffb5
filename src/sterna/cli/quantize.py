"""`sterna quantize`: rounds a model to fewer bits, and reports the error of each tensor."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import click

from sterna.cli.calibration import Calibration, loss_of, show_gain, show_loss
from sterna.cli.convert import finished, places, report
from sterna.cli.decorators import FILE, WRITABLE_FILE, flag, option
from sterna.cli.goal import Goal
from sterna.cli.option_groups import grouped_command
from sterna.cli.options import fetch_model
from sterna.cli.progress import progress_bar
from sterna.cli.recover import recover_one_format, row_of, tell
from sterna.cli.report import table
from sterna.cli.terminal import print_json

FIGURES = ("relative error", "max error", "SNR dB")
DEFAULT_FORMAT, TABLE_FORMAT = "iq4_nl", "nf4"
COLUMNS = {name: name for name in ("tensor", "MxK", "from", "to", *FIGURES)}


@grouped_command(short_help="Round a model's weights to few bits, and report the error.")
@option(
    "--format format",
    "Weight format of the layers. For float models, bits a weight, the best first: "
    "q8_0 (8.5), q6_k (6.6), q5_k (5.6), iq4_nl (4.5), q4_0 and i4:g32 (4.5), mxfp4 (4.25); "
    "i4 (4, a scale a row) is far worse. For models trained for few levels: i2, t5 (ternary), i2p, "
    "i1, pot4. gguf:Q8_0 … write a GGUF file; `sterna formats` lists all. Default: iq4_nl.",
)
@option("--bpw", "The best model of so many bits a weight: a format for each matrix.", type=float)
@option("--size", "The best model of so many bytes: 6GB, 900MB; GiB and MiB are of 1024.")
@flag("--fits", "The best model for this machine's free memory.")
@option("--context", "Tokens that --fits leaves memory for.", type=click.IntRange(min=1))
@option(
    "--for runtime",
    "Whose formats --bpw, --size and --fits choose from; gguf: llama.cpp's, in a GGUF file.",
    type=click.Choice(["sterna", "gguf"]),
    shown="sterna",
)
@option(
    "--recover steps",
    "After rounding: so many steps of training of scales, norms and biases on the text, towards "
    "the unrounded model's answers. Some hundred are a good number. With --format, weights are "
    "rounded with error feedback first. Needs sterna[train].",
    type=click.IntRange(1, 1_000_000),
)
@option(
    "--plot",
    "Draw the KL divergence to expect at other sizes than that of --bpw, --size or --fits.",
    type=WRITABLE_FILE,
)
@option(
    "--scales",
    "Where the scales are: tensor, row, or group:N for N weights of a row (a multiple of 32); "
    "default: row, or as the format has them.",
)
@option(
    "--codebook",
    "learn: a table of levels for each layer, by its weights (and --calibrate), in place of the "
    "format's: nf4 (the default here), nf2, fp4 or iq4_nl.",
    type=click.Choice(["learn"]),
)
@option(
    "--method",
    "How to round to powers of two (pot4, pot4z, pot8, pot16): nearest (default), "
    "denseshift2, denseshift3, denseshift4, deepshift-q; s3, s3-4 (pot4z); deepshift-q5 (pot8, "
    "pot16).",
)
@option(
    "--calibrate",
    'A text that resembles the intended inputs, or JSON Lines of {"text"} or '
    '{"messages"} (named .jsonl): rounding favours weights with large inputs. Every fifth '
    "piece is held out, and the report has its perplexity.",
    type=FILE,
)
@option(
    "--calibrate-tokens",
    "Tokens of the text to read, and a quarter as many of the held-out pieces.",
    type=click.IntRange(256, 1 << 24),
    shown=16384,
)
@places
def command(
    src: str,
    dst: Path,
    format: str | None,
    scales: str | None,
    calibrate: Path | None,
    calibrate_tokens: int,
    codebook: str | None,
    offline: bool,
    as_json: bool,
    bpw: float | None,
    size: str | None,
    fits: bool,
    context: int | None,
    runtime: str,
    plot: Path | None,
    steps: int | None,
    **options: Any,
) -> None:
    """Round the weights of SRC (as for --model of `sterna generate`) and write them at DST.

    The default format loses least at its size and fits rows of any width. A scale for each row (i4)
    loses far more than scales in groups (i4:g32, iq4_nl) at nearly the same size.

    With --bpw, --size or --fits, each matrix has a format of its own, chosen by what its rounding
    costs on a text (--calibrate, or the documentation that comes with Python), and weights are
    rounded with error feedback (GPTQ). Sizes are never exceeded. A run that was killed goes on
    where it ended, by the folder DST.unfinished.

    This is lossy. The table has a line for each matrix: the root mean square of the error divided
    by that of the weights, the largest error, and the signal-to-noise ratio in decibels (6 dB are
    one bit). `sterna perplexity` measures the effect on a model's answers.
    """
    from sterna.convert import convert, with_scales

    started = time.perf_counter()
    goal = Goal.of(bpw, size, fits, context, runtime, plot, steps)
    if goal is not None:
        goal.refuse(format=format, scales=scales, codebook=codebook, **options)
        fetch_model(src, offline)
        goal.write(src, dst, calibrate, calibrate_tokens, options, as_json)
        return
    format = format or (DEFAULT_FORMAT if codebook is None else TABLE_FORMAT)
    name = with_scales(format, scales)
    fetch_model(src, offline)
    if steps is not None:
        losses, found = recover_one_format(
            src, dst, name, steps, calibrate, calibrate_tokens, codebook=codebook, **options
        )
        row = finished(src, dst, name, options["head"], losses, time.perf_counter() - started)
        lost = loss_of(calibrate, calibrate_tokens, src, dst, options)
        _show(losses, row, as_json, [{"recovered": row_of(found), "held_out": lost}])
        if not as_json:
            tell(found)
            show_loss(lost)
        return
    text = None
    if calibrate is not None:
        text = Calibration.of(src, name, calibrate, calibrate_tokens, options)
    squares = None if text is None else text.squares(src, options)
    with progress_bar(f"quantising {src}", "million weights") as progress:
        losses = convert(
            src, dst, name, squares=squares, codebook=codebook, progress=progress, **options
        )
    rounded = any(not loss.exact for loss in losses)
    options["codebook"] = codebook
    gain = text.gain(src, dst, name, options) if text is not None and rounded else None
    row = finished(src, dst, name, options["head"], losses, time.perf_counter() - started)
    _show(losses, row, as_json, [] if gain is None else [gain])
    if as_json:
        return
    if gain is not None:
        show_gain(gain)
    elif text is not None:
        why = (
            "the model predicts no tokens, so that no perplexity was measured"
            if rounded
            else "nothing was rounded, so that the text made no difference"
        )
        click.echo(f"calibrate: {why}")


def _show(losses: list[Any], row: dict[str, Any], as_json: bool, others: list[Any]) -> None:
    """Print the losses, and the result as a whole; others: more rows of --json."""
    if as_json:
        print_json([*(loss.row() for loss in losses), *others])
        return
    table([_row(loss) for loss in losses], COLUMNS, right=FIGURES)
    report(row)


def _row(loss: Any) -> dict[str, Any]:
    from sterna.formats.level_tables import without_table

    figures = (f"{loss.relative_rms:.3g}", f"{loss.max_error:.3g}", _decibels(loss.snr_db))
    shown = ("exact", None, None) if loss.exact else figures
    size = f"{loss.M}x{loss.K}"
    cells = (loss.name, size, *map(without_table, (loss.stored, loss.format)), *shown)
    return dict(zip(COLUMNS, cells, strict=True))


def _decibels(value: float) -> str:
    return f"{value:.1f}" if math.isfinite(value) else "-"
