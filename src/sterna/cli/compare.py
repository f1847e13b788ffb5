"""`sterna compare`: differences between two models, or two formats of one model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sterna.cli.decorators import option
from sterna.cli.option_groups import grouped_command
from sterna.cli.options import (
    KV_DTYPE_NAMES,
    MODEL,
    fetch_model,
    json_option,
    offline_option,
    run_options,
)
from sterna.cli.progress import loading, progress_bar
from sterna.cli.report import weights
from sterna.cli.terminal import console, print_json, with_error
from sterna.cli.texts import Texts, text_options
from sterna.errors import RequestError

if TYPE_CHECKING:
    from sterna.evaluate.compare import Difference
    from sterna.llm import LLM

SIDE = ("model", "format", "bits", "head", "kv_dtype", "activations", "isa")


@grouped_command(short_help="Compare two models, or two formats of one model.")
@click.argument("a", metavar="A")
@click.argument("b", metavar="[B]", required=False)
@offline_option
@run_options
@option("--isa", "Kernel unit; default: the best.")
@option("--format-b", "Weight format of B's layers; default: as A.")
@option("--head-b", "B's output head; default: as A.")
@option(
    "--kv-dtype-b",
    "Type of B's KV cache; default: as A.",
    type=click.Choice(KV_DTYPE_NAMES),
)
@option(
    "--activations-b",
    "Rounding of B's activations; default: as A.",
    type=click.Choice(["int8", "int8x2"]),
)
@option("--isa-b", "B's kernel unit; default: as A.")
@option("--deterministic-b/--fast-b", "Sums of B's float layers; default: as A.", default=None)
@text_options
@option(
    "--require",
    "Exit with 1 unless every bit of every logit is the same.",
    type=click.Choice(["identical"]),
)
@option("--max-kl", "Exit with 1 above this mean KL(A || B), in nats.", type=float)
@json_option
@click.pass_context
def command(
    ctx: click.Context, /, as_json: bool, require: str | None, max_kl: float | None, **options: Any
) -> None:
    """Compare logits of A and B on the same texts: differences, KL divergence, perplexities.

    A and B are models as for --model. B is by default A, changed by the options of B:

        sterna compare nano --format-b t5 --stdlib --require identical

    Models are identical only if every bit of every logit is.
    """
    if max_kl is not None and not max_kl >= 0:  # also refuses NaN
        raise click.UsageError(f"--max-kl: must be at least 0, but got {max_kl}")
    from sterna.evaluate.compare import compare
    from sterna.evaluate.conventions import Convention

    texts = Texts.of(options)
    a, b = _open(options)
    sizes = {"context": options["context"], "stride": options["stride"]}
    name = options["convention"]
    how = Convention.of(name, limit=min(a.context, b.context), **sizes)
    with progress_bar("comparing", "MB", total=texts.n_bytes) as progress:
        result = compare(a, b, texts, convention=name, progress=progress, **sizes)
    if not result.n_positions:
        raise RequestError(f"{texts.source}: must be a text of two tokens at least, to be compared")
    row = {
        **_side(a, "a"),
        **_side(b, "b"),
        "source": texts.source,
        "convention": how.name,
        "context": how.window,
        "stride": how.stride,
        **_numbers(result),
    }
    if as_json:
        print_json([row])
    else:
        _show(row)
    if require is not None and not result.identical:
        _too_far(ctx, "the logits are not identical")
    if max_kl is not None and not row["kl_mean"] <= max_kl:  # NaN is too far
        _too_far(ctx, f"the mean KL is {row['kl_mean']:.3g}, above {max_kl:g}")


def _too_far(ctx: click.Context, why: str) -> None:
    click.echo(f"sterna: {why}", err=True)
    ctx.exit(1)


def _open(options: dict[str, Any]) -> tuple[LLM, LLM]:
    from sterna.llm import LLM

    names = ("format", "head", "kv_dtype", "isa", "deterministic", "activations")
    changed = {n: options[f"{n}_b"] for n in names if options[f"{n}_b"] is not None}
    if options["b"] is None and not changed:
        raise click.UsageError("B: must be another model or A with an option such as --format-b")
    run = {n: options[n] for n in (*MODEL, "isa")}
    if options["convention"] == "llama.cpp":
        run["context"] = None  # a window may be longer than --context
    for model in (options["a"], options["b"] or options["a"]):
        fetch_model(model, options.get("offline", False))
    with loading(options["a"]) as progress:
        a = LLM(options["a"], progress=progress, **run)
    b = options["b"] or options["a"]
    with loading(b) as progress:
        return a, LLM(b, progress=progress, **{**run, **changed})


def _side(llm: LLM, name: str) -> dict[str, Any]:
    info = llm.info()
    return {f"{key}_{name}": info[key] for key in SIDE}


def _numbers(result: Difference) -> dict[str, Any]:
    return {
        "files": result.a.n_documents,
        "positions": result.n_positions,
        "logits": result.n_logits,
        "identical": result.identical,
        "different_logits": result.n_different,
        "max_abs": result.max_abs,
        "mean_abs": result.mean_abs,
        **{f"kl_{name}": value for name, value in result.kl_figures().items()},
        "top1_agreement": result.top1_agreement,
        "perplexity_a": round(result.a.perplexity, 4),
        "perplexity_b": round(result.b.perplexity, 4),
        "perplexity_stderr_a": round(result.a.perplexity_stderr, 4),
        "perplexity_stderr_b": round(result.b.perplexity_stderr, 4),
        "seconds": round(result.a.seconds, 3),
    }


def _show(row: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table("", "", show_header=False, box=None, pad_edge=False)
    for name in ("a", "b"):
        table.add_row(name.upper(), _model({key: row[f"{key}_{name}"] for key in SIDE}))
    table.add_row("logits", _verdict(row))
    table.add_row("|A − B|", f"mean {row['mean_abs']:.3g}, max {row['max_abs']:.3g}")
    kl = ", ".join(f"{name} {row[f'kl_{name}']:.3g}" for name in ("mean", "median", "p99", "max"))
    table.add_row("KL(A‖B)", f"{kl} nats")
    table.add_row("same first choice", f"{row['top1_agreement']:.2%}")
    pair = (with_error(row[f"perplexity_{n}"], row[f"perplexity_stderr_{n}"]) for n in "ab")
    table.add_row("perplexity", " → ".join(pair))
    table.add_row("of", f"{row['positions']:,} positions, {row['files']:,} files ({row['source']})")
    console().print(table, soft_wrap=True)


def _model(side: dict[str, Any]) -> str:
    from sterna.formats.level_tables import without_table

    return (
        f"{side['model']}: {weights(side)}, head {without_table(side['head'])}, "
        f"kv {side['kv_dtype']}, activations {side['activations'] or 'f32'}"
    )


def _verdict(row: dict[str, Any]) -> str:
    if row["identical"]:
        return f"identical: every bit of {row['logits']:,}"
    return f"{row['different_logits']:,} of {row['logits']:,} differ"
