"""`sterna generate`: continue a prompt."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sterna.cli.constraint import constraint, constraint_options
from sterna.cli.decorators import EXISTING_FILE, FILE, option
from sterna.cli.disk_use import awaited, disk_use
from sterna.cli.option_groups import grouped_command
from sterna.cli.options import (
    chat_template_option,
    drafting_options,
    json_option,
    model_options,
    open_model,
    refuse_model,
)
from sterna.cli.sampling_options import sampling, sampling_options
from sterna.cli.terminal import VISIBLE, print_json
from sterna.errors import RequestError

if TYPE_CHECKING:
    from sterna.llm import LLM, Completion, Stats
    from sterna.outputs import Stream


@grouped_command(short_help="Continue a prompt.")
@click.argument("prompt", required=False)
@model_options
@chat_template_option
@drafting_options
@sampling_options
@constraint_options
@option(
    "--image images",
    "Show the model this image; PROMPT is then a user's message, which the model answers. May "
    "be repeated.",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
)
@option(
    "--file",
    'Continue the prompts of this file, one JSON object per line: {"prompt": ...} or '
    '{"messages": ...}, and options that differ. Answers are lines of JSON in the same order. With '
    '--adapter NAME=PATH, which may be repeated, a line may choose one ("adapter": "NAME").',
    type=EXISTING_FILE,
)
@option(
    "--output",
    "With --file: write the answers here; an interrupted run resumes. Default: stdout.",
    type=FILE,
)
@json_option
def command(
    prompt: str | None,
    images: tuple[str, ...],
    file: Path | None,
    output: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Continue PROMPT, the text of stdin (`-`; without its last line break), or all prompts of a
    file as one batch. With --image, answer PROMPT about images.

    On a terminal, prints the prompt first, dimmed, and the speed last. In a pipe, prints only the
    continuation.
    """
    if file is not None:
        if prompt is not None or images:
            raise click.UsageError("PROMPT and --image: must be left out with --file")
        from sterna.cli.generate_file import generate_file

        llm = open_model(options, chosen_by_name=True)
        generate_file(llm, file, output, sampling(options) | constraint(llm, options))
        return
    if output is not None:
        raise click.UsageError("--output: needs --file")
    refuse_model(prompt)
    prompt = _read(prompt)
    llm = open_model(options)
    prompt = (llm.prefix_text("text") or "") + prompt
    request_options = sampling(options) | constraint(llm, options)
    # Arguments are checked now, so an error comes before text.
    if images:
        from sterna.cli.chat_images import message_content

        message = {"role": "user", "content": message_content(prompt, images)}
        pieces = llm.chat_stream([message], **request_options)
    else:
        pieces = llm.stream(prompt, **request_options)
    if as_json:
        for _ in pieces:
            pass
        print_json([_row(llm, prompt, options["seed"], pieces.completion)])
        return
    _show(llm, prompt, pieces)


def _read(prompt: str | None) -> str:
    if prompt is None and sys.stdin.isatty():
        raise click.UsageError(
            'PROMPT: must be given or piped in; try: sterna generate "def read_lines(path):"'
        )
    if prompt is None or prompt == "-":
        from sterna.cli.texts import piped_text

        # `echo prompt |` means the prompt, as "$(...)" does in a shell.
        prompt = piped_text().removesuffix("\n").removesuffix("\r")
    if not prompt:
        raise RequestError("prompt: must not be empty; give the model a text to continue")
    return prompt


def _show(llm: LLM, prompt: str, pieces: Stream) -> None:
    out, terminal = sys.stdout.buffer, sys.stdout.isatty()

    def write(text: str) -> None:
        out.write((text.translate(VISIBLE) if terminal else text).encode())
        out.flush()

    told = awaited(llm, pieces)  # before the prompt is shown, whose line a spinner would clear
    if terminal:
        dim = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        shown = prompt.translate(VISIBLE).encode("utf-8", "replace")
        out.write(b"\x1b[2m%b\x1b[0m" % shown if dim else shown)
        out.flush()
    try:
        for piece in told:
            write(piece.text)
    finally:  # on Ctrl-C and errors, too: the shell's next line starts in the first column
        if terminal:
            write("\n")
    if sys.stderr.isatty():
        stats = pieces.completion.stats
        click.echo(
            f"{stats.n_generated} tokens, first after {stats.ttft_s * 1e3:.0f} ms, "
            f"then {stats.decode_tok_s:.1f} tok/s{_head(stats)}{disk_use(llm)}",
            err=True,
        )


def _head(stats: Stats) -> str:
    """Format the rows that an exact head rescored, if any."""
    if not stats.head_rows_rescored or not stats.n_generated:
        return ""
    return f"; {stats.head_rows_rescored / stats.n_generated:,.0f} rows of the head per token"


def _row(llm: LLM, prompt: str, seed: int | None, done: Completion) -> dict[str, Any]:
    info, stats = llm.info(), done.stats
    exact = info["head"] == "exact" and stats.n_generated > 0
    return {
        "model": info["model"],
        "prompt": prompt,
        "text": done.text,
        "tokens": done.tokens,
        "finish_reason": done.finish_reason,
        "prompt_tokens": stats.n_prompt,
        "generated_tokens": stats.n_generated,
        "seed": seed,
        "ttft_ms": round(stats.ttft_s * 1e3, 2),
        "prefill_tok_s": round(stats.n_prompt / stats.ttft_s, 2) if stats.ttft_s else None,
        "decode_tok_s": round(stats.decode_tok_s, 2) if stats.n_generated > 1 else None,
        "head_bytes_per_token": round(stats.head_bytes / stats.n_generated) if exact else None,
        "rows_rescored_per_token": (
            round(stats.head_rows_rescored / stats.n_generated, 1) if exact else None
        ),
        **{key: info[key] for key in ("format", "head", "isa", "threads")},
    }
