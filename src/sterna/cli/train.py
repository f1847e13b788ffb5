"""`sterna train`: fine-tune a low-bit model on chats, on this CPU."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sterna.cli.options import fetch_model, tell
from sterna.cli.progress import progress_bar
from sterna.errors import RequestError

if TYPE_CHECKING:
    from sterna.checkpoints.companions import FolderCompanions


@click.command(short_help="Fine-tune a low-bit model on chats.")
@click.argument("model")
@click.argument("chats", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--method",
    help="How the layers of a float checkpoint are rounded: bitlinear, pareto-1, pareto-1.58, "
    "pareto-2, pareto-3, pareto-4, group-ternary, deepshift-q, deepshift-ps, denseshift, s3.",
)
@click.option("--epochs", type=click.IntRange(1, 10_000), default=1, show_default=True)
@click.option("--lr", type=click.FloatRange(0, 1, min_open=True), default=3e-4, show_default=True)
@click.option(
    "--length", type=click.IntRange(8, 1 << 20), default=512, show_default=True,
    help="Tokens of a row, which has several chats.",
)  # fmt: skip
@click.option(
    "--batch", type=click.IntRange(1, 4096), default=1, show_default=True, help="Rows of a step."
)
@click.option("--seed", type=click.IntRange(0, 2**31), default=1, show_default=True)
@click.option("--checkpointing", is_flag=True, help="Less memory: layers are computed twice.")
@click.option(
    "--save-every", type=click.IntRange(1), default=50, show_default=True,
    help="Steps after which the state is written that a run goes on from.",
)  # fmt: skip
@click.option("--threads", type=click.IntRange(1, 1024), help="Of torch and Sterna.")
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False, writable=True),
    help="Draw the loss into this .png or .svg file.",
)  # fmt: skip
def command(model: str, chats: Path, out: Path, **options: Any) -> None:
    """Fine-tune MODEL on CHATS, and write it as the packed folder OUT.

    CHATS has a JSON object a line, {"messages": [...]} or {"text": "..."}. All layers stay low-bit
    throughout: what is trained is what runs. The state is in OUT.training: the same command goes on
    from it, to the same bits as without the interruption. Needs pip install 'sterna[train]'.
    """
    try:
        import torch

        from sterna.integrations.training import trainable
        from sterna.train.chats import examples, rows_of
        from sterna.train.exporting import export
        from sterna.train.loop import Settings, train
    except ImportError as e:
        raise RequestError(f"train: needs {e.name}: pip install 'sterna[train]'") from None
    from sterna.checkpoints.resolve import resolve

    if out.exists() and (out.is_file() or any(out.iterdir())):
        raise RequestError(f"{out}: must be absent or empty, but has files; take another")
    if options["threads"]:
        torch.set_num_threads(options["threads"])
    fetch_model(model)
    source = resolve(model)
    companions = _companions(source)
    found = examples(chats, companions.tokenizer(), companions.template())
    rows = rows_of(found, options["length"])
    if rows.cut:
        tell(f"{rows.cut} of {len(found)} examples are cut to {options['length']} tokens")
    steps = -(-len(rows.tokens) * options["epochs"] // options["batch"])
    settings = Settings(
        steps, options["lr"], options["batch"], seed=options["seed"],
        checkpointing=options["checkpointing"],
    )  # fmt: skip
    state = out.with_name(f"{out.name}.training")
    made, begin = trainable(source, options["method"]), time.monotonic()
    with progress_bar("training", "steps", 1, steps) as bar:
        losses = train(made, rows, settings, state, options["save_every"], lambda n, _: bar(n))
    part = max(1, len(losses) // 10)
    first, last = sum(losses[:part]) / part, sum(losses[-part:]) / part
    click.echo(
        f"{len(found)} examples, {steps} steps of {options['batch']} x {options['length']} tokens "
        f"in {time.monotonic() - begin:.0f} s; loss {first:.3f} -> {last:.3f}"
    )
    if options["plot"]:
        _plot(losses, options["plot"])
    click.echo(str(export(made, out, source, head=_stored_dtype(companions))))
    click.echo(f"sterna chat --model {out}")


def _companions(source: Path) -> FolderCompanions:
    from sterna.checkpoints.companions import FolderCompanions
    from sterna.checkpoints.directory import Checkpoint

    if not source.is_dir():
        raise RequestError(f"{source}: must be a model's folder to be trained, but is a file")
    return FolderCompanions.of(source, Checkpoint.open(source).config)


def _stored_dtype(companions: FolderCompanions) -> str | None:
    """The format of the tables, which are frozen: the checkpoint's own."""
    config = companions.config
    name = config.get("dtype") or config.get("torch_dtype")
    return {"bfloat16": "bf16", "float16": "f16"}.get(str(name))


def _plot(losses: list[float], file: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise RequestError("plot: needs matplotlib: pip install 'sterna[bench]'") from None
    figure = Figure(figsize=(6, 3.5), layout="tight")
    axes = figure.add_subplot(xlabel="step", ylabel="loss")
    axes.plot(range(1, len(losses) + 1), losses, linewidth=1)
    figure.savefig(file)
