"""`sterna quantize --bpw`, `--size` and `--fits`: the best model for given bytes."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sterna.cli.calibration import loss_of, show_loss
from sterna.cli.convert import size_of
from sterna.cli.recover import Stages, python_texts, recovery_of, row_of, tell
from sterna.cli.report import table
from sterna.cli.terminal import console, print_json
from sterna.errors import RequestError, shown

if TYPE_CHECKING:
    from sterna.convert.best_for_size import Fitted

__all__ = ["Goal", "nbytes_of_text"]

COLUMNS = {name: name for name in ("matrix", "MxK", "format", "bits", "MB", "KL")}
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
BINARY = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)


def nbytes_of_text(text: str) -> int:
    """Return the bytes that "6GB", "900 MiB" or "1234" means; RequestError for other texts."""
    match = SIZE.fullmatch(text)
    if match is None or (match[3] and not match[2]):
        raise RequestError(f"size: must be bytes such as 6GB or 900MiB, but got {shown(text)}")
    units = BINARY if match[3] else UNITS
    return int(float(match[1]) * units[match[2].lower()])


@dataclass(frozen=True)
class Goal:
    """What was asked for: one of bpw, nbytes and fits."""

    bpw: float | None
    nbytes: int | None
    fits: bool
    context: int | None
    runtime: str
    plot: Path | None
    recover: int | None = None

    @classmethod
    def of(
        cls,
        bpw: float | None,
        size: str | None,
        fits: bool,
        context: int | None,
        runtime: str,
        plot: Path | None,
        recover: int | None = None,
    ) -> Goal | None:
        """Check the options; None if they ask for no size."""
        asked = (bpw is not None) + (size is not None) + fits
        if asked > 1:
            raise click.UsageError("--bpw, --size, --fits: must be one of them")
        if not asked:
            if runtime != "sterna" or context is not None or plot is not None:
                raise click.UsageError("--context, --for, --plot: need --bpw, --size or --fits")
            return None
        if context is not None and not fits:
            raise click.UsageError("--context: needs --fits")
        if bpw is not None and not 0 < bpw <= 32:
            raise RequestError(f"bpw: must be bits of a weight, up to 32, but got {bpw:g}")
        if plot is not None:
            from sterna.bench import plots

            plots.require(plot, (".png", ".svg"))
        nbytes = None if size is None else nbytes_of_text(size)
        return cls(bpw, nbytes, fits, context, runtime, plot, recover)

    def refuse(self, **others: Any) -> None:
        """Raise UsageError for options that choose formats."""
        for name in ("format", "scales", "codebook", "method", "head"):
            if others.get(name) is not None:
                raise click.UsageError(
                    f"--{name}: must be left out with --bpw, --size and --fits, which choose it"
                )

    def write(
        self,
        src: str,
        dst: Path,
        calibrate: Path | None,
        tokens: int,
        options: dict[str, Any],
        as_json: bool,
    ) -> None:
        """Write the model, and tell what was chosen."""
        from sterna.checkpoints.hub.fitting import coarse
        from sterna.convert import parts_of
        from sterna.convert.best_for_size import Goal as Bytes
        from sterna.convert.best_for_size import best_for_size
        from sterna.runtime import available_bytes

        started = time.perf_counter()
        recovery = None if self.recover is None else recovery_of(self.recover)
        free = coarse(available_bytes()) if self.fits else None
        goal = Bytes(self.bpw, self.nbytes, free, self.context)
        texts = python_texts() if calibrate is None else parts_of(calibrate, src).used
        with Stages(src) as stages:
            fitted = best_for_size(
                src,
                dst,
                goal,
                texts,
                target=self.runtime,
                tokens=tokens,
                force=options["force"],
                threads=options["threads"],
                i2s=options["i2s"],
                recovery=recovery,
                progress=stages,
            )
        if self.plot is not None:
            _draw(fitted, self.plot)
        seconds = time.perf_counter() - started
        lost = loss_of(calibrate, tokens, src, dst, options)
        if as_json:
            print_json([{**_summary(src, dst, fitted, seconds), "held_out": lost}])
        else:
            _tell(dst, fitted, seconds)
            show_loss(lost)


def _summary(src: str, dst: Path, fitted: Fitted, seconds: float) -> dict[str, Any]:
    return {
        "source": src,
        "path": str(dst),
        "bytes": size_of(dst),
        "weight_bytes": fitted.nbytes,
        "bits": fitted.bits,
        "estimated_kl": fitted.estimated_kl,
        "seconds": seconds,
        "matrices": fitted.rows,
        "curve": [{"weight_bytes": size, "estimated_kl": kl} for size, kl in fitted.curve],
        "recovered": fitted.recovered and row_of(fitted.recovered),
    }


def _tell(dst: Path, fitted: Fitted, seconds: float) -> None:
    from sterna.formats.level_tables import without_table

    rows = [
        {
            "matrix": row["matrix"],
            "MxK": f"{row['M']}x{row['K']}",
            "format": without_table(row["format"]),
            "bits": f"{row['bits']:.2f}",
            "MB": f"{row['bytes'] / 1e6:.2f}",
            "KL": f"{row['estimated_kl']:.2g}",
        }
        for row in fitted.rows
    ]
    table(rows, COLUMNS, right=("bits", "MB", "KL"))
    console().print(
        f"{dst}: {size_of(dst) / 1e6:,.1f} MB, weights {fitted.bits:.3f} bits each, in "
        f"{seconds:.0f} s; mean KL divergence from before, estimated: {fitted.estimated_kl:.2g}",
        soft_wrap=True,
    )
    if fitted.recovered is not None:
        tell(fitted.recovered)


def _draw(fitted: Fitted, path: Path) -> None:
    from sterna.bench import plots

    figure, (axes,) = plots.new_figure(6, 4)
    shown_points = [(8 * size / fitted.n_weights, kl) for size, kl in fitted.curve if kl > 0]
    axes.plot(*zip(*shown_points, strict=True), color=plots.COLOURS[0])
    axes.plot([fitted.bits], [fitted.estimated_kl], "o", color=plots.COLOURS[1])
    axes.set(yscale="log", xlabel="bits a weight", ylabel="estimated KL divergence, nats a token")
    axes.set_title("Best choices of formats")
    plots.save(figure, path)
