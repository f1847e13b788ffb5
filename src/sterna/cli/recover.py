"""`sterna quantize --recover`: trains scales and vectors after rounding, and tells the gain."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sterna.cli.progress import progress_bar
from sterna.cli.terminal import console
from sterna.errors import RequestError

if TYPE_CHECKING:
    from sterna.convert import Loss
    from sterna.convert.recovery import Recovered, Recovery

__all__ = ["Stages", "python_texts", "recover_one_format", "recovery_of", "row_of", "tell"]

#: What stages count, and by how much it is divided: a measured matrix is several steps.
UNITS_OF_STAGE = {
    "reading": ("tokens", 1.0),
    "measuring": ("steps", 1.0),
    "rounding": ("million weights", 1e6),
    "recovering": ("steps", 1.0),
}
PIECE = 2000  # characters of a piece of the default text


def recovery_of(steps: int) -> Recovery:
    """Make what trains; RequestError without the packages that it needs."""
    try:
        from sterna.integrations.recovering import Distillation
    except ImportError as error:
        raise RequestError(f"recover: needs {error.name}: pip install 'sterna[train]'") from None
    return Distillation(steps)


def python_texts() -> list[str]:
    """Return the topics of Python's documentation, prose with code, in pieces."""
    from pydoc_data import topics

    text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    return [text[at : at + PIECE] for at in range(0, len(text), PIECE)]


class Stages(ExitStack):
    """A progress bar for each stage."""

    def __init__(self, src: str) -> None:
        super().__init__()
        self._src, self._stage = src, ""
        self._update: Any = None

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage != self._stage:
            self.close()
            unit, scale = UNITS_OF_STAGE[stage]
            self._stage = stage
            self._update = self.enter_context(progress_bar(f"{stage} {self._src}", unit, scale))
        self._update(done, total)


def recover_one_format(
    src: str,
    dst: Path,
    format: str,
    steps: int,
    calibrate: Path | None,
    tokens: int,
    **options: Any,
) -> tuple[list[Loss], Recovered]:
    """Write a model in one format and train it; options: as those of the command."""
    from sterna.convert import GGUF, parts_of
    from sterna.convert.one_format import in_one_format

    for name in ("codebook", "method"):
        if options.pop(name) is not None:
            raise click.UsageError(f"--{name}: must be left out with --recover")
    if format.lower().startswith(GGUF):
        raise click.UsageError("--recover: needs --bpw or --size, with --for gguf, for a GGUF file")
    recovery = recovery_of(steps)
    texts = python_texts() if calibrate is None else parts_of(calibrate, src).used
    with Stages(src) as stages:
        return in_one_format(
            src, dst, format, texts, recovery, tokens=tokens, progress=stages, **options
        )


def row_of(found: Recovered) -> dict[str, Any]:
    """Return what training gave, for --json."""
    names = ("steps", "lr", "tokens", "before", "after", "fell")
    return {name: getattr(found, name) for name in names}


def tell(found: Recovered) -> None:
    """Print what training gave."""
    kept = "" if found.fell else "; it did not fall, so the model stays as it was rounded"
    console().print(
        f"recover: {found.steps} steps, learning rate {found.lr:g}; KL divergence on "
        f"{found.tokens:,} held-out tokens of the text: {found.before:.3g} before, "
        f"{found.after:.3g} after{kept}",
        soft_wrap=True,
    )
