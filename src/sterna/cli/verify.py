"""`sterna verify`: checks the files of a model for damage."""

from __future__ import annotations

from typing import Any

import click

from sterna.cli.option_groups import grouped_command
from sterna.cli.options import fetch_model, json_option, offline_option
from sterna.cli.progress import progress_bar
from sterna.cli.terminal import console, print_json


@grouped_command(short_help="Check the SHA-256 of every tensor of a model.")
@click.argument("model")
@offline_option
@json_option
@click.pass_context
def command(ctx: click.Context, model: str, offline: bool, as_json: bool) -> None:
    """Check every tensor of MODEL against the SHA-256 recorded with it.

    MODEL is as for --model of `sterna generate`. A published checkpoint has no hashes; there the
    command checks that its weights are finite. It then loads config.json, the weights, the
    tokenizer and the chat template as a start does, which finds missing and mismatching parts. Exit
    codes: 0, nothing is wrong; 1, some part is damaged, and the output names it; 2, the check was
    not possible, for example for an architecture that Sterna does not run.
    """
    from sterna.convert.verification import DAMAGED, UNCHECKED, verify

    fetch_model(model, offline)
    with progress_bar(f"verifying {model}", "MB") as progress:
        checks = verify(model, progress)
    bad = [check for check in checks if check.status in (DAMAGED, UNCHECKED)]
    if as_json:
        print_json([_row(check) for check in checks])
    else:
        _report(model, checks, bad)
    ctx.exit(1 if any(check.status == DAMAGED for check in bad) else 2 if bad else 0)


def _row(check: Any) -> dict[str, Any]:
    return {
        "file": str(check.file),
        "tensor": check.tensor or None,
        "status": check.status,
        "bytes": check.nbytes,
        "problem": check.problem,
    }


def _report(model: str, checks: list[Any], bad: list[Any]) -> None:
    from sterna.convert.verification import DAMAGED, VERIFIED

    out = console()
    tensors = [check for check in checks if check.tensor]
    hashed = sum(check.status == VERIFIED for check in tensors)
    nbytes = sum(check.nbytes for check in tensors)
    what = f"{len(tensors)} tensors, {nbytes / 1e6:,.1f} MB"
    for check in bad:
        if check.status == DAMAGED:
            name = check.tensor or check.file.name
            out.print(f"DAMAGED {name}: {check.problem}", soft_wrap=True)
        else:
            out.print(
                f"UNCHECKED {model}: {what}, {hashed} of them with the SHA-256 recorded; whether "
                f"they are a whole model could not be checked: {check.problem}",
                soft_wrap=True,
            )
    if bad:
        return
    whole = checks[-1].status == VERIFIED
    if hashed == len(tensors):
        said = "every SHA-256 as recorded"
        if not whole:
            said += "; settings have none, so a change that the weights fit would not be seen"
    else:
        said = f"complete and finite; {len(tensors) - hashed} tensors have no recorded hash, so "
        said += "other damage would not be seen"
    out.print(f"OK {model}: {what}, {said}", soft_wrap=True)
