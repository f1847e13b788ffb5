"""`sterna verify`: whether a model on disk is what was written."""

from __future__ import annotations

from typing import Any

import click

from sterna.cli.options import console, fetch_model, json_option, offline_option, print_json
from sterna.cli.progress import progress_bar


@click.command(short_help="Check the SHA-256 of every tensor of a model.")
@click.argument("model")
@offline_option
@json_option
@click.pass_context
def command(ctx: click.Context, model: str, offline: bool, as_json: bool) -> None:
    """Check every tensor of MODEL against the SHA-256 recorded with it.

    MODEL is as for --model of `sterna generate`. A published checkpoint has no hashes; its
    structure is checked, that its weights are finite, and that all of them are there. config.json,
    the tokenizer and the chat template are read as a start reads them. Exit codes: 0, nothing is
    wrong; 1, something is damaged, and this says what; 2, it could not be checked.
    """
    from sterna.convert.verification import DAMAGED, verify

    fetch_model(model, offline)
    with progress_bar(f"verifying {model}", "MB") as progress:
        checks = verify(model, progress)
    damaged = [check for check in checks if check.status == DAMAGED]
    if as_json:
        print_json([_row(check) for check in checks])
    else:
        _report(model, checks, damaged)
    ctx.exit(1 if damaged else 0)


def _row(check: Any) -> dict[str, Any]:
    return {
        "file": str(check.file),
        "tensor": check.tensor or None,
        "status": check.status,
        "bytes": check.nbytes,
        "problem": check.problem,
    }


def _report(model: str, checks: list[Any], damaged: list[Any]) -> None:
    from sterna.convert.verification import VERIFIED

    out = console()
    for check in damaged:
        name = check.tensor or check.file.name
        out.print(f"DAMAGED {name}: {check.problem}", soft_wrap=True)
    if damaged:
        return
    nbytes = sum(check.nbytes for check in checks)
    what = f"{len(checks)} tensors, {nbytes / 1e6:,.1f} MB"
    hashed = sum(check.status == VERIFIED for check in checks)
    if hashed == len(checks):
        out.print(f"OK {model}: {what}, every SHA-256 as recorded", soft_wrap=True)
        return
    out.print(
        f"OK {model}: {what}, complete and finite; {len(checks) - hashed} tensors have no recorded "
        "hash, so other damage would not be seen",
        soft_wrap=True,
    )  # fmt: skip
