"""The pictures of benchmarks, drawn with matplotlib (the extra `bench`) into files."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sterna.errors import RequestError
from sterna.files.reading import require_regular
from sterna.files.writing import unwritable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "COLOURS",
    "FAINT",
    "INK",
    "MEMORY",
    "colours_of",
    "linear",
    "new_figure",
    "require",
    "roofline",
    "save",
    "styled",
    "threads_text",
]

Row = Mapping[str, Any]

#: Colours that stay apart in every common form of colour blindness and in grey: Okabe and Ito's,
#: without black and yellow, and two greys.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#6B6B6B", "#A8A8A8")
INK, FAINT = "#222222", "#D9D9D9"
MEMORY = "#B2182B"
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": "#888888",
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "legend.frameon": False,
}


def require(path: Path, suffixes: Sequence[str] = (".png",)) -> None:
    """Raise RequestError unless matplotlib is installed and `path`, a picture, can be written."""
    if path.suffix.lower() not in suffixes:
        raise RequestError(
            f"plot: must be the name of a {' or '.join(suffixes)} file, but got {path}"
        )
    if not path.absolute().parent.is_dir():
        raise RequestError(f"plot: {path.absolute().parent} must be a folder; create it first")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise RequestError(
            "plot: needs matplotlib, which is not installed; run: pip install 'sterna[bench]'"
        ) from None
    there = os.path.lexists(path)
    if there:
        require_regular(path)
    try:
        with path.open("ab"):
            pass
        if not there:
            path.unlink()
    except OSError as error:
        raise unwritable(path, error) from error


def save(figure: Figure, path: Path) -> None:
    """Write a picture; raises OSError."""
    figure.savefig(path, dpi=150, facecolor="white")


def styled(draw: Callable[[Sequence[Row]], Figure]) -> Callable[[Sequence[Row]], Figure]:
    """Decorate a drawing function, so that it draws in the style of all pictures."""

    @functools.wraps(draw)
    def drawn(rows: Sequence[Row]) -> Figure:
        import matplotlib

        with matplotlib.rc_context(STYLE):
            return draw(rows)

    return drawn


def new_figure(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """Make a figure of `width` x `height` inches; return it and its axes, left to right."""
    # Not pyplot: it keeps every figure alive and chooses a backend from the environment.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def colours_of(rows: Sequence[Row]) -> dict[str, str]:
    """Choose a colour for each format of the rows, in the order of their first mention."""
    names = dict.fromkeys(str(row["format"]) for row in rows)
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}


def threads_text(row: Row) -> str:
    """Return "1 thread" or "2 threads"."""
    return f"{row['threads']} thread{'' if row['threads'] == 1 else 's'}"


# ------------------------------------------------------------------------------------- roofline


@styled
def roofline(rows: Sequence[Row]) -> Figure:
    """Draw Figure 4 of arXiv 2508.06753 for this machine, and the speed each format reached.

    rows: the rows of `bench.roofline.run`. The picture shows the first unit among them.
    """
    decode = [row for row in rows if row["row"] == "decode"]
    decode = [row for row in decode if row["isa"] == decode[0]["isa"]]
    memory = [row for row in rows if row["row"] == "memory"]
    figure, (left, right) = new_figure(12, 5.2, 2)
    _draw_roofs(left, decode, memory)
    _draw_reached(right, decode, memory)
    return figure


#: Styles of labels: y is a fraction of the axes' height; at the right end of a line, above it.
BELOW_TOP: dict[str, Any] = {"xycoords": ("data", "axes fraction")}
ABOVE_LINE: dict[str, Any] = {"ha": "right", "va": "bottom", "fontsize": 8.5}


def _label(
    ax: Axes, text: str, at: tuple[float, float], shift: tuple[int, int] = (0, 0), **style: Any
) -> None:
    """Write a text at a point of the axes, shifted by points of the page."""
    style = {"va": "center", "fontsize": 9, **style}
    ax.annotate(text, at, xytext=shift, textcoords="offset points", **style)


def _draw_roofs(ax: Axes, decode: Sequence[Row], memory: Sequence[Row]) -> None:
    """Draw e_bw over beta: the diagonal is memory's roof, a flat one is a core's, B / gamma."""
    import matplotlib.ticker as ticker

    colours = colours_of(decode)
    roofs = {row["format"]: row for row in decode}
    heights = [row["core_bytes_per_cycle"] for row in roofs.values()]
    betas = [row["beta_bytes_per_cycle"] for row in memory]
    low, high = min(heights + betas) / 2, max(heights + betas) * 2.4
    ax.plot([low, high], [low, high], color="#777777", linewidth=1.8, zorder=2)
    for row in roofs.values():
        height, colour = row["core_bytes_per_cycle"], colours[row["format"]]
        ax.plot([height, high], [height, height], color=colour, linewidth=1.8, zorder=3)
        ax.plot([height], [height], "o", color=colour, markersize=7, zorder=4)
    _label_roofs(ax, roofs, colours, high)
    for i, row in enumerate(memory):
        beta = row["beta_bytes_per_cycle"]
        roof = min(beta, max(heights))
        ax.axvline(beta, color=MEMORY, linewidth=1.2, linestyle="--", zorder=1)
        ax.plot([beta], [roof], "o", color="white", markeredgecolor=MEMORY, markersize=6, zorder=5)
        # All labels are to the right of the last line, since lines are often close together.
        text = f"β = {beta:.2f}, {threads_text(row)}"
        _label(ax, text, (max(betas), 0.97), (6, -14 * i), va="top", color=MEMORY, **BELOW_TOP)
    ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high / 1.3))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(ticker.LogLocator(base=2))
        axis.set_major_formatter(ticker.FuncFormatter(lambda v, _: f"{v:g}"))
        axis.set_minor_locator(ticker.NullLocator())
    ax.grid(color=FAINT, linewidth=0.5)
    ax.set_xlabel("β: what memory gives a core (bytes/cycle)")
    ax.set_ylabel("effective bandwidth of a core, min(β, B/γ)\n(bytes/cycle)")
    ax.set_title(f"Roofs of decoding, {decode[0]['isa']}")


def _label_roofs(
    ax: Axes, roofs: Mapping[str, Row], colours: Mapping[str, str], right: float
) -> None:
    """Name the roofs at their right ends, moved apart if they are close (on a logarithmic axis)."""
    last = 0.0
    for name, row in sorted(roofs.items(), key=lambda item: item[1]["core_bytes_per_cycle"]):
        at = last = max(row["core_bytes_per_cycle"], last * 1.13)
        text = f"{name}   γ {row['gamma_cycles']:.2f}"
        _label(ax, text, (right, at), (5, 0), color=colours[name], annotation_clip=False)


def _draw_reached(ax: Axes, decode: Sequence[Row], memory: Sequence[Row]) -> None:
    """Draw the GB/s that each format reached with the most threads, under its roof."""
    most = max(row["threads"] for row in decode)
    shown = [row for row in decode if row["threads"] == most]
    colours = colours_of(decode)
    speed = next(row["bandwidth_gb_s"] for row in memory if row["threads"] == most)
    for i, row in enumerate(shown):
        ax.bar(i, row["gb_s"], 0.62, color=colours[row["format"]], zorder=2)
        roof = row["e_bw_gb_s"]
        ax.plot([i - 0.38, i + 0.38], [roof, roof], color=INK, linewidth=2, zorder=3)
        share = f"{100 * row['fraction_of_roof']:.0f} %"
        _label(ax, share, (i, 0), (0, 5), ha="center", va="bottom", fontsize=8, color="white")
    ax.axhline(speed, color=MEMORY, linewidth=1.2, linestyle="--", zorder=1)
    top = 1.18 * max([speed, *(row["gb_s"] for row in shown)])
    ax.set(xticks=range(len(shown)), xlim=(-0.6, len(shown) - 0.4), ylim=(0, top))
    ax.set_xticklabels([row["format"] for row in shown])
    text = f"memory: {speed:.1f} GB/s"
    _label(ax, text, (len(shown) - 0.42, speed), (0, 4), color=MEMORY, **ABOVE_LINE)
    ax.plot([], [], color=INK, linewidth=2, label="roof: min(β, B/γ); % reached")
    ax.legend(loc="upper left", fontsize=8.5)
    ax.grid(axis="y", color=FAINT, linewidth=0.5)
    ax.set_ylabel("weights read (GB/s)")
    ax.set_title(f"Reached from memory, {shown[0]['shape']}, {threads_text(shown[0])}")


# ------------------------------------------------------------------------- GEMV and GEMM


@styled
def linear(rows: Sequence[Row]) -> Figure:
    """Draw a group of bars for each shape, a bar for each format, and the machine's limit.

    Bars are GB/s for a GEMV (Figures 5 to 7 of arXiv 2508.06753), and GOPS for a GEMM. rows: of
    `bench.linear.run`. The picture shows the first unit, the most threads and the greatest n.
    """
    threads, n = max(row["threads"] for row in rows), max(row["n"] for row in rows)
    rows = [
        row
        for row in rows
        if (row["threads"], row["n"], row["isa"]) == (threads, n, rows[0]["isa"])
    ]
    vector = n == 1
    field, ceiling = ("gb_s", "bandwidth_gb_s") if vector else ("gops", "peak_gops")
    shapes = list(dict.fromkeys((row["model"], row["shape"]) for row in rows))
    colours = colours_of(rows)
    figure, (ax,) = new_figure(min(14.0, max(6.0, 1.5 + 0.7 * len(shapes) + 0.06 * len(rows))), 4.8)
    width = 0.84 / len(colours)
    for i, (name, colour) in enumerate(colours.items()):
        row_of = {(row["model"], row["shape"]): row for row in rows if row["format"] == name}
        x = [j + (i - (len(colours) - 1) / 2) * width for j, s in enumerate(shapes) if s in row_of]
        bars = [row_of[s] for s in shapes if s in row_of]
        ax.bar(x, [row[field] for row in bars], 0.9 * width, color=colour, label=name, zorder=2)
    limits = sorted({row[ceiling] for row in rows})
    top = 1.28 * max(*limits, *(row[field] for row in rows))
    for limit in limits:
        ax.axhline(limit, color=MEMORY, linewidth=1.2, linestyle="--", zorder=3)
    what = f"memory: {limits[-1]:.1f} GB/s" if vector else f"peak: {limits[-1]:,.0f} GOPS"
    _label(ax, what, (len(shapes) - 0.5, limits[-1]), (-3, 4), color=MEMORY, **ABOVE_LINE)
    _shade_models(ax, shapes)
    ax.set(xticks=range(len(shapes)), xlim=(-0.5, len(shapes) - 0.5), ylim=(0, top))
    turn = len(shapes) > 4
    ax.set_xticklabels(
        [shape for _, shape in shapes],
        rotation=38 if turn else 0,
        ha="right" if turn else "center",
        rotation_mode="anchor",
    )
    ax.set_xlabel("weights, M x K")
    ax.set_ylabel("weights read (GB/s)" if vector else "operations (GOPS)")
    ax.grid(axis="y", color=FAINT, linewidth=0.5)
    where = f"{threads_text(rows[0])}, {rows[0]['isa']}"
    ax.set_title(f"GEMV, {where}" if vector else f"GEMM of {n} tokens, {where}", pad=28)
    ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(colours), fontsize=9)
    return figure


def _shade_models(ax: Axes, shapes: Sequence[tuple[str | None, str]]) -> None:
    """Write each model's name above its shapes, and shade every other model."""
    names = [model or "" for model, _ in shapes]
    start, shaded = 0, False
    for i in range(1, len(names) + 1):
        if i < len(names) and names[i] == names[start]:
            continue
        if shaded:
            ax.axvspan(start - 0.5, i - 0.5, color="#F2F2F2", zorder=0, linewidth=0)
        if names[start]:
            middle = ((start + i - 1) / 2, 0.985)
            _label(ax, names[start], middle, ha="center", va="top", color="#555555", **BELOW_TOP)
        start, shaded = i, not shaded
