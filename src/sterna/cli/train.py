"""`sterna train`: fine-tune a low-bit model on chats, on this CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sterna.cli.decorators import FILE, FOLDER, WRITABLE_FILE, flag, option
from sterna.cli.option_groups import grouped_command
from sterna.cli.options import fetch_model
from sterna.cli.progress import progress_bar
from sterna.cli.terminal import tell
from sterna.errors import RequestError


@grouped_command(short_help="Fine-tune a low-bit model on chats.")
@click.argument("model")
@click.argument("chats", type=FILE)
@click.argument("out", type=FOLDER)
@option(
    "--method",
    "How the layers of a float checkpoint are rounded: bitlinear, pareto-1, pareto-1.58, "
    "pareto-2, pareto-3, pareto-4, group-ternary, deepshift-q, deepshift-ps, denseshift, s3.",
)
@click.option("--epochs", type=click.IntRange(1, 10_000), default=1, show_default=True)
@click.option("--lr", type=click.FloatRange(0, 1, min_open=True), default=3e-4, show_default=True)
@option(
    "--length",
    "Tokens of a row, which may hold several chats.",
    type=click.IntRange(8, 1 << 20),
    shown=512,
)
@option("--batch", "Rows of a step.", type=click.IntRange(1, 4096), shown=1)
@click.option("--seed", type=click.IntRange(0, 2**31), default=1, show_default=True)
@flag("--checkpointing", "Save memory: compute layers twice.")
@option(
    "--at-once",
    "Rows of a step to compute together; fewer save memory. Default: all.",
    type=click.IntRange(0, 4096),
    default=0,
)
@flag("--bf16", "Multiply in bfloat16, on CPUs with instructions for it.")
@flag("--compile compiled", "Use torch.compile: takes a minute, then is faster.")
@option(
    "--save-every",
    "Steps between two saves of the state, from which a run can resume.",
    type=click.IntRange(1),
    shown=50,
)
@option("--threads", "Threads of torch and Sterna.", type=click.IntRange(1, 1024))
@option("--plot", "Draw the loss into this .png or .svg file.", type=WRITABLE_FILE)
def command(model: str, chats: Path, out: Path, **options: Any) -> None:
    """Fine-tune MODEL on CHATS, and write it as the packed folder OUT.

    CHATS has a JSON object per line, {"messages": [...]} or {"text": "..."}. Low-bit layers stay
    low-bit: the forward pass of training is that of inference. After an interruption, the same
    command resumes from the state in OUT.training, with the same bits. Needs pip install
    'sterna[train]'.
    """
    try:
        from sterna.integrations.training import fine_tune
    except ImportError as e:
        raise RequestError(f"train: needs {e.name}: pip install 'sterna[train]'") from None
    from sterna.checkpoints.resolve import resolve

    plot: Path | None = options.pop("plot")
    if plot is not None:
        from sterna.bench import plots

        plots.require(plot, (".png", ".svg"))  # before hours of training
    fetch_model(model)
    with progress_bar("training", "steps", 1) as bar:
        done = fine_tune(resolve(model), chats, out, progress=bar, **options)
    if done.cut:
        tell(f"{done.cut} of {done.n_examples} examples were cut to {options['length']} tokens")
    part = max(1, len(done.losses) // 10)
    first, last = sum(done.losses[:part]) / part, sum(done.losses[-part:]) / part
    click.echo(
        f"{done.n_examples} examples, {len(done.losses)} steps of {options['batch']} x "
        f"{options['length']} tokens in {done.seconds:.0f} s; loss {first:.3f} -> {last:.3f}"
    )
    if plot is not None:
        _plot(done.losses, plot)
    click.echo(str(done.exported))
    click.echo(f"sterna chat --model {out}")


def _plot(losses: list[float], file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.5), layout="tight")
    axes = figure.add_subplot(xlabel="step", ylabel="loss")
    axes.plot(range(1, len(losses) + 1), losses, linewidth=1)
    figure.savefig(file)
