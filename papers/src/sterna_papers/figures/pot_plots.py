"""The picture of `sterna bench figure pot`: Figures 3 to 7 of the paper on one sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sterna.bench.plots import COLOURS, FAINT, MEMORY, new_figure, styled
from sterna_papers.figures.plots import above, groups

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["pot"]

Row = Mapping[str, Any]
KERNELS = {"pot8": COLOURS[0], "pot16": COLOURS[1], "pot4": COLOURS[2]}
FUSED = {"pot8-fma": COLOURS[4], "pot4-fma": COLOURS[3]}
BUILD_COLOURS = (COLOURS[0], COLOURS[5], COLOURS[3], COLOURS[4])
HOW = {"-scalar": "#A8A8A8", "-auto": COLOURS[4], "": COLOURS[0]}
WORDS = {"-scalar": "scalar", "-auto": "vectorised by the compiler", "": "handwritten"}


@styled
def pot(rows: Sequence[Row]) -> Figure:
    """Draw a panel per build with Figures 3 and 5, and below Figures 4, 6 and 7 at one size."""
    from matplotlib.gridspec import GridSpec

    measured = [row for row in rows if row["row"] == "matmul"]
    builds = list(dict.fromkeys(row["build"] for row in measured))
    figure, (whole,) = new_figure(15.0, 9.6)
    whole.remove()
    grid = GridSpec(2, 6 * len(builds), figure=figure)
    top = 1.25 * max([1.0, *(r["speedup"] or 0 for r in measured if r["kernel"] in KERNELS)])
    for i, build in enumerate(builds):
        ax = figure.add_subplot(grid[0, 6 * i : 6 * (i + 1)])
        _draw_speedups(ax, [row for row in measured if row["build"] == build], top, not i)
    width = 2 * len(builds)
    lower = [figure.add_subplot(grid[1, width * i : width * (i + 1)]) for i in range(3)]
    _draw_last(lower[0], measured, builds)
    _draw_fixed(lower[1], measured, builds)
    _draw_vectorised(lower[2], measured, builds)
    first = measured[0]
    few = any(row["rows"] < row["n"] for row in measured)
    note = (
        ""
        if not few
        else "; of large matrices some rows of A are timed: "
        + ", ".join(
            f"{rows} of {n}"
            for n, rows in {
                r["n"]: r["rows"] for r in measured if r["kernel"] in KERNELS and r["rows"] < r["n"]
            }.items()
        )
    )
    figure.supxlabel(
        f"C = A B, square, one thread, {first['isa']}, each kernel with its best unrolling for "
        f"each N{note}",
        fontsize=9, color="#555555",
    )  # fmt: skip
    return figure


def _sizes_axis(ax: Axes, sizes: Sequence[int]) -> None:
    """Put a tick at each N, evenly spaced as in the paper."""
    ax.set(xticks=range(len(sizes)), xlim=(-0.3, len(sizes) - 0.7))
    ax.set_xticklabels([str(n) for n in sizes], fontsize=8.5, rotation=45 * (len(sizes) > 6))
    ax.set_xlabel("N")
    ax.grid(color=FAINT, linewidth=0.5)


def _one(ax: Axes) -> None:
    """Draw the line at 1: as fast as the baseline."""
    ax.axhline(1, color=MEMORY, linewidth=1.2, linestyle="--", zorder=1)


def _line(ax: Axes, rows: Sequence[Row], sizes: Sequence[int], **how: Any) -> None:
    shown = [row for row in rows if row["speedup"]]
    at = [sizes.index(row["n"]) for row in shown]
    ax.plot(at, [row["speedup"] for row in shown], markersize=4, linewidth=1.7, **how)


def _draw_speedups(ax: Axes, rows: Sequence[Row], top: float, legend: bool) -> None:
    """Draw Figure 3, and Figure 5 dashed."""
    sizes = sorted({row["n"] for row in rows})
    for kernel, colour in KERNELS.items():
        for special, style in ((False, "-"), (True, ":")):
            of_kernel = [r for r in rows if r["kernel"] == kernel and r["special"] is special]
            label = kernel + (", ±inf and NaN right" if special else "")
            _line(ax, of_kernel, sizes, linestyle=style, marker="o", color=colour, label=label)
    _one(ax)
    _sizes_axis(ax, sizes)
    ax.set_ylim(0, top)
    ax.set_ylabel("speed-up over f32 SIMD")
    ax.set_title(f"Figures 3 and 5: {rows[0]['compiler']}")
    if legend:
        ax.legend(fontsize=8, ncols=2, loc="upper left")


def _draw_last(ax: Axes, rows: Sequence[Row], builds: Sequence[str]) -> None:
    """Draw Figure 4: bars at the largest N, pale if special values are handled."""
    last = max(row["n"] for row in rows)
    colours = KERNELS | FUSED
    bars = [(k, s) for k in KERNELS for s in (False, True)] + [(k, None) for k in FUSED]
    width = 0.86 / len(bars)
    highest = 1.0
    for j, (kernel, special) in enumerate(bars):
        for i, build in enumerate(builds):
            row = _find(rows, build, kernel, last, special)
            if row is None or not row["speedup"]:
                continue
            x = i + (j - (len(bars) - 1) / 2) * width
            ax.bar(
                x, row["speedup"], 0.92 * width, color=colours[kernel], zorder=2,
                alpha=0.5 if special else 1.0, label=None if i or special else kernel,
            )  # fmt: skip
            _label(ax, x, row["speedup"], f"{row['speedup']:.2f}")
            highest = max(highest, row["speedup"])
    ax.bar([0], [0], color="#888888", alpha=0.5, label="pale: ±inf and NaN right")
    _one(ax)
    groups(ax, builds, 1.3 * highest, "speed-up over f32 SIMD")
    ax.set_title(f"Figure 4: N = {last}")
    ax.legend(fontsize=8, ncols=2, loc="upper right")


def _draw_fixed(ax: Axes, rows: Sequence[Row], builds: Sequence[str]) -> None:
    """Draw Figure 6: fixed point over int32 multiplication."""
    sizes = sorted({row["n"] for row in rows})
    for build, colour in zip(builds, BUILD_COLOURS, strict=False):
        of_build = [r for r in rows if r["kernel"] == "fxpot" and r["build"] == build]
        _line(ax, of_build, sizes, marker="o", color=colour, label=build)
    _one(ax)
    _sizes_axis(ax, sizes)
    ax.set_ylim(bottom=0)
    ax.set_ylabel("speed-up over i32 SIMD")
    ax.set_title("Figure 6: fixed point (fxpot)")
    ax.legend(fontsize=8, loc="lower left")


def _draw_vectorised(ax: Axes, rows: Sequence[Row], builds: Sequence[str]) -> None:
    """Draw Figure 7: f32 and pot8, scalar, vectorised by the compiler and by hand."""
    last = max(row["n"] for row in rows)
    bars = [(build, kernel) for build in builds for kernel in ("f32", "pot8")]
    width, highest = 0.27, 1.0
    for i, (build, kernel) in enumerate(bars):
        for j, how in enumerate(HOW):
            special = False if (kernel, how) == ("pot8", "") else None
            row = _find(rows, build, kernel + how, last, special)
            if row is None or not row["scalar_speedup"]:
                continue
            x, value = i + (j - 1) * width, row["scalar_speedup"]
            ax.bar(
                x, value, 0.92 * width, color=HOW[how], zorder=2, label=None if i else WORDS[how]
            )
            _label(ax, x, value, f"{value:.1f}")
            highest = max(highest, value)
    groups(ax, [f"{kernel}\n" + build.replace("-", "\n") for build, kernel in bars], 1.3 * highest,
            "speed-up over scalar f32")  # fmt: skip
    ax.set_title(f"Figure 7: N = {last}")
    ax.legend(fontsize=8, loc="upper right")


def _find(rows: Sequence[Row], build: str, kernel: str, n: int, special: bool | None) -> Row | None:
    wanted = (build, kernel, n, special)
    return next(
        (r for r in rows if (r["build"], r["kernel"], r["n"], r["special"]) == wanted), None
    )


def _label(ax: Axes, x: float, y: float, text: str) -> None:
    """Write a number upright above a narrow bar, readable even if the line at 1 crosses it."""
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5}
    above(ax, x, y, text, 7, rotation=90, bbox=box)
