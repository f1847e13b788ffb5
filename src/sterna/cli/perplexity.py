"""`sterna perplexity`: how well a model predicts texts."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

from sterna.cli.option_groups import grouped_command
from sterna.cli.options import json_option, model_options, open_model
from sterna.cli.progress import progress_bar
from sterna.cli.report import weights
from sterna.cli.terminal import console, print_json, with_error
from sterna.cli.texts import Texts, text_options
from sterna.errors import RequestError

if TYPE_CHECKING:
    from sterna.evaluate.perplexity import Perplexity


@grouped_command(short_help="Measure how well a model predicts texts.")
@model_options
@text_options
@json_option
def command(as_json: bool, convention: str, stride: int | None, **options: Any) -> None:
    """Measure nats per token, perplexity and bits per byte of texts, with standard errors.

    Each file is a separate document, read in windows of the context. A perplexity depends on the
    positions of these windows: --convention has three ways, and the output names the one in use.
    """
    from sterna.evaluate.conventions import Convention
    from sterna.evaluate.perplexity import perplexity

    texts = Texts.of(options)
    # The model gets all its positions: a window may be longer than --context.
    llm = open_model({**options, "context": None} if convention == "llama.cpp" else options)
    sizes = {"context": options["context"], "stride": stride}
    how = Convention.of(convention, limit=llm.context, **sizes)
    with progress_bar("scoring", "MB", total=texts.n_bytes) as progress:
        result = perplexity(llm, texts, convention=convention, progress=progress, **sizes)
    info = llm.info()
    row = {
        "model": info["model"],
        "source": texts.source,
        "python": sys.version.split()[0] if texts.source == "stdlib" else None,
        "convention": convention,
        **_numbers(result),
        "context": how.window,
        "stride": how.stride,
        **{
            key: info[key]
            for key in ("format", "head", "bits", "kv_dtype", "activations", "isa", "threads")
        },
    }
    if not result.n_tokens:
        raise RequestError(f"{texts.source}: must be a text of two tokens at least, to be scored")
    if as_json:
        print_json([row])
    else:
        _show(row)


def _numbers(result: Perplexity) -> dict[str, Any]:
    return {
        "files": result.n_documents,
        "tokens": result.n_tokens,
        "bytes": None if math.isnan(result.bits_per_byte) and result.n_tokens else result.n_bytes,
        "nats_per_token": round(result.nats_per_token, 6),
        "nats_stderr": round(result.stderr, 6),
        "perplexity": round(result.perplexity, 4),
        "perplexity_stderr": round(result.perplexity_stderr, 4),
        "bits_per_byte": round(result.bits_per_byte, 6),
        "seconds": round(result.seconds, 3),
        "tok_s": round(result.n_tokens / result.seconds, 1) if result.seconds else None,
    }


def _show(row: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table("", "", show_header=False, box=None, pad_edge=False)
    table.add_row("nats per token", with_error(row["nats_per_token"], row["nats_stderr"]))
    table.add_row("perplexity", with_error(row["perplexity"], row["perplexity_stderr"]))
    if row["bytes"] is not None:
        table.add_row("bits per byte", f"{row['bits_per_byte']:.4f}")
    size = f", {row['bytes']:,} bytes" if row["bytes"] is not None else ""
    files = f"{row['files']:,} files ({row['source']})"
    table.add_row("of", f"{row['tokens']:,} tokens{size}, {files}")
    stride = f", stride {row['stride']}" if row["stride"] else ""
    table.add_row("convention", f"{row['convention']}, windows of {row['context']}{stride}")
    table.add_row("model", f"{row['model']}, {weights(row)}, {row['seconds']:.1f} s")
    console().print(table, soft_wrap=True)
