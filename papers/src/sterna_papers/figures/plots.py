"""The pictures of the papers' figures, in the style of `sterna.bench.plots`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sterna.bench.plots import (
    COLOURS,
    FAINT,
    INK,
    MEMORY,
    linear,
    new_figure,
    styled,
    threads_text,
)
from sterna.bench.report import cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["above", "e2e", "gemv", "groups", "litespark", "prompt", "quality", "ternary"]

Row = Mapping[str, Any]
PEER = "#A8A8A8"


def _bars(
    ax: Axes, places: Sequence[float], values: Sequence[float], width: float, **how: Any
) -> None:
    ax.bar(places, values, 0.92 * width, zorder=2, **how)


def above(ax: Axes, x: float, y: float, text: str, size: float = 8, **how: Any) -> None:
    """Write a word above a bar."""
    ax.annotate(
        text, (x, y), xytext=(0, 2), textcoords="offset points", ha="center", va="bottom",
        fontsize=size, **how,
    )  # fmt: skip


def groups(ax: Axes, names: Sequence[str], top: float, ylabel: str) -> None:
    """Set the axes for groups of bars: their names below, and values from 0 to `top`."""
    ax.set(xticks=range(len(names)), xlim=(-0.55, len(names) - 0.45), ylim=(0, top))
    ax.set_xticklabels(names)
    ax.set_ylabel(ylabel)
    ax.grid(axis="y", color=FAINT, linewidth=0.5)


def _offsets(count: int) -> tuple[list[float], float]:
    """Return the offsets of a group's bars from its middle, and their width."""
    width = 0.84 / max(1, count)
    return [(i - (count - 1) / 2) * width for i in range(count)], width


def _nothing(ax: Axes, what: str) -> None:
    ax.set_axis_off()
    ax.annotate(what, (0.5, 0.5), xycoords="axes fraction", ha="center", va="center")


# ------------------------------------------------------------------------------------- e2e


@styled
def e2e(rows: Sequence[Row]) -> Figure:
    """Draw a group per model and a bar per format, with ticks at the values of Amdahl's law."""
    done = [row for row in rows if row["tok_s"]]
    models = list(dict.fromkeys(row["model"] for row in rows))
    names = list(dict.fromkeys(row["format"] for row in rows))
    figure, (ax,) = new_figure(max(7.0, 3.4 + 0.62 * len(models) * len(names)), 5.2)
    if not done:
        _nothing(ax, "nothing was measured")
        return figure
    offsets, width = _offsets(len(names))
    top = max(_reach(row, rows) for row in done)
    for name, offset, colour in zip(names, offsets, COLOURS, strict=False):
        shown = [row for row in done if row["format"] == name]
        at = [models.index(row["model"]) + offset for row in shown]
        _bars(ax, at, [row["tok_s"] for row in shown], width, color=colour, label=name)
        for x, row in zip(at, shown, strict=True):
            _mark_e2e(ax, x, row, rows, width)
    ax.plot([], [], color=INK, linewidth=2, label="Amdahl, x of the kernels")
    ax.plot([], [], color=INK, linewidth=1.2, linestyle=":", label="Amdahl, x of the bytes")
    groups(ax, models, 1.32 * top, "tokens per second")
    for i, model in enumerate(models):
        alpha = next((row["alpha"] for row in rows if row["model"] == model and row["alpha"]), None)
        text = "no bf16 next to it" if alpha is None else f"α = {alpha:.2f}"
        ax.annotate(
            text, (i, 0), xytext=(0, -24), textcoords="offset points", ha="center", va="top",
            fontsize=9, color="#555555",
        )  # fmt: skip
    first = done[0]
    ax.set_title(f"{first['n']} tokens, {threads_text(first)}, {first['isa']}")
    ax.legend(loc="upper right", fontsize=8.5, ncols=3)
    return figure


def _expected(row: Row, rows: Sequence[Row], field: str) -> float | None:
    """Return the tokens per second that a speed-up of the baseline would be."""
    base = next(
        (r["tok_s"] for r in rows if r["model"] == row["model"] and r["speedup"] == 1), None
    )
    return base * row[field] if base and row[field] else None


def _reach(row: Row, rows: Sequence[Row]) -> float:
    marks = [_expected(row, rows, field) or 0.0 for field in ("amdahl", "amdahl_bytes")]
    return float(max(row["tok_s_max"], *marks))


def _mark_e2e(ax: Axes, x: float, row: Row, rows: Sequence[Row], width: float) -> None:
    low, high = row["tok_s"] - row["tok_s_min"], row["tok_s_max"] - row["tok_s"]
    ax.errorbar(x, row["tok_s"], [[low], [high]], color="#777777", linewidth=1, capsize=2, zorder=3)
    highest = row["tok_s_max"]
    for field, style, thick in (("amdahl", "-", 2.0), ("amdahl_bytes", ":", 1.2)):
        height = _expected(row, rows, field)
        if height is not None and row["speedup"] != 1:
            highest = max(highest, height)
            span = [x - 0.46 * width, x + 0.46 * width]
            ax.plot(span, [height, height], color=INK, linewidth=thick, linestyle=style, zorder=4)
    faster = row["speedup"] and row["speedup"] != 1
    above(ax, x, highest, cell(row["tok_s"]) + (f"\n{row['speedup']:.1f} ×" if faster else ""))


# ------------------------------------------------------------------------------------- gemv


@styled
def gemv(rows: Sequence[Row]) -> Figure:
    """Draw the picture of `bench gemv`, with the roof of each bar; of the most threads."""
    most = max(row["threads"] for row in rows)
    rows = [{**row, "n": 1} for row in rows if row["threads"] == most]
    figure = linear(rows)
    (ax,) = figure.axes
    for bars in ax.containers:
        of_format = [row for row in rows if row["format"] == bars.get_label()]
        for bar, row in zip(bars, of_format, strict=True):
            ends = [bar.get_x(), bar.get_x() + bar.get_width()]
            ax.plot(ends, [row["roof_gb_s"]] * 2, color=INK, linewidth=1.5, zorder=4)
    ax.plot([], [], color=INK, linewidth=1.5, label="roof: min(β, B/γ)")
    ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(ax.containers) + 1, fontsize=9)
    return figure


# ------------------------------------------------------------------------------------- prompt


@styled
def prompt(rows: Sequence[Row]) -> Figure:
    """Draw prompts on the left, single tokens on the right; a format has a bar of each runtime."""
    figure, (left, right) = new_figure(max(11.0, 2.0 + 1.15 * len(rows)), 5.0, 2)
    _draw_prompt(left, rows, "prompt", f"Prompt of {rows[0]['pp']} tokens")
    _draw_prompt(right, rows, "eval", f"{rows[0]['tg']} single tokens (eval)")
    left.legend(loc="upper right", fontsize=9)
    return figure


def _draw_prompt(ax: Axes, rows: Sequence[Row], kind: str, title: str) -> None:
    several = len({row["model"] for row in rows}) > 1
    names = [f"{row['format']}\n{row['model']}" if several else row["format"] for row in rows]
    (mine, theirs), width = _offsets(2)
    top = 0.0
    for prefix, offset, colour, label in (
        ("", mine, COLOURS[0], "Sterna"),
        ("peer_", theirs, PEER, "llama.cpp"),
    ):
        speeds = [row[f"{prefix}{kind}_tok_s"] or 0.0 for row in rows]
        counts = [row[f"{prefix}checked"] is not False for row in rows]
        speeds = [speed if ok else 0.0 for speed, ok in zip(speeds, counts, strict=True)]
        _bars(ax, [i + offset for i in range(len(rows))], speeds, width, color=colour, label=label)
        top = max(top, *speeds)
        for i, speed in enumerate(speeds):
            above(ax, i + offset, speed, cell(float(speed)) if speed else "–")
    for i, row in enumerate(rows):
        if row[f"{kind}_ratio"]:
            highest = max(row[f"{kind}_tok_s"], row[f"peer_{kind}_tok_s"])
            ax.annotate(
                f"{row[f'{kind}_ratio']:.1f} ×", (i, highest), xytext=(0, 14),
                textcoords="offset points", ha="center", va="bottom", fontsize=9, color=MEMORY,
            )  # fmt: skip
    groups(ax, names, 1.2 * top or 1.0, "tokens per second")
    if several:
        ax.tick_params(axis="x", labelsize=7.5)
    ax.set_title(f"{title}, {threads_text(rows[0])}")


# ------------------------------------------------------------------------------------- ternary


@styled
def ternary(rows: Sequence[Row]) -> Figure:
    """Draw Table 7 as bars on a logarithmic axis, and tokens and bytes over the threads."""
    most = max(row["threads"] for row in rows)
    scaled = [
        model
        for model in dict.fromkeys(row["model"] for row in rows)
        if any(row["threads"] != most for row in rows if row["model"] == model)
    ]
    names = list(dict.fromkeys(row["format"] for row in rows))
    colours = dict(zip(names, _many(len(names)), strict=True))
    from matplotlib.gridspec import GridSpec

    figure, (whole,) = new_figure(14.5, 4.6 + 4.4 * bool(scaled))
    whole.remove()
    grid = GridSpec(1 + bool(scaled), max(1, 2 * len(scaled)), figure=figure)
    table = [row for row in rows if row["threads"] == most]
    _draw_sizes(figure.add_subplot(grid[0, :]), table, colours)
    for i, model in enumerate(scaled):
        of_model = [row for row in rows if row["model"] == model and not row["skipped"]]
        left, right = (figure.add_subplot(grid[1, 2 * i + j]) for j in range(2))
        _draw_threads(left, of_model, colours, "tok_s", "tokens per second")
        _draw_threads(right, of_model, colours, "gb_s", "weights and cache read (GB/s)")
    return figure


def _many(count: int) -> list[str]:
    """List more colours than the palette has: the second round is darker."""
    import matplotlib.colors as mc

    shades = []
    for i in range(count):
        r, g, b = mc.to_rgb(COLOURS[i % len(COLOURS)])
        left = 1 - 0.35 * (i // len(COLOURS))
        shades.append(mc.to_hex((r * left, g * left, b * left)))
    return shades


def _draw_sizes(ax: Axes, rows: Sequence[Row], colours: Mapping[str, str]) -> None:
    import matplotlib.ticker as ticker

    models = list(dict.fromkeys(row["model"] for row in rows))
    offsets, width = _offsets(len(colours))
    speeds = [row["tok_s"] for row in rows if row["tok_s"]] or [1.0]
    floor = min(speeds) / 2
    for (name, colour), offset in zip(colours.items(), offsets, strict=True):
        shown = [row for row in rows if row["format"] == name]
        at = [models.index(row["model"]) + offset for row in shown]
        _bars(ax, at, [row["tok_s"] or 0 for row in shown], width, color=colour, label=name)
        for x, row in zip(at, shown, strict=True):
            if row["skipped"]:
                ax.annotate(
                    "N/A", (x, floor), xytext=(0, 3), textcoords="offset points", rotation=90,
                    ha="center", va="bottom", fontsize=6.5, color="#888888",
                )  # fmt: skip
    groups(ax, models, 1.0, "tokens per second")
    ax.set(yscale="log", ylim=(floor, 2.6 * max(speeds)))
    ax.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_minor_locator(ticker.NullLocator())
    ax.yaxis.set_major_formatter(ticker.FuncFormatter(lambda v, _: f"{v:g}"))
    ax.set_title(f"Decoding by size of the model, {threads_text(rows[0])}")
    ax.legend(loc="upper right", fontsize=8.5, ncols=min(6, len(colours)))


def _draw_threads(
    ax: Axes, rows: Sequence[Row], colours: Mapping[str, str], field: str, label: str
) -> None:
    counts = sorted({row["threads"] for row in rows})
    for name, colour in colours.items():
        shown = [row for row in rows if row["format"] == name]
        ax.plot(
            [row["threads"] for row in shown], [row[field] for row in shown], "o-", color=colour,
            linewidth=1.8, markersize=5,
        )  # fmt: skip
    top = max((row[field] for row in rows), default=1.0)
    if field == "gb_s":
        memory = {row["threads"]: row["bandwidth_gb_s"] for row in rows}
        ax.plot(
            counts, [memory[n] for n in counts], "s--", color=MEMORY, linewidth=1.2, markersize=4,
            label="memory, plain reads",
        )  # fmt: skip
        ax.legend(handles=ax.lines[-1:], loc="lower right", fontsize=9)
        top = max(top, *memory.values())
    ax.set(xticks=counts, ylim=(0, 1.1 * top))
    ax.set_xlim(counts[0] - 0.25, counts[-1] + 0.25)
    ax.set_xlabel("threads")
    ax.set_ylabel(label)
    ax.grid(color=FAINT, linewidth=0.5)
    ax.set_title(f"{rows[0]['model']} over the threads")


# ------------------------------------------------------------------------------------- quality


@styled
def quality(rows: Sequence[Row]) -> Figure:
    """Draw perplexities on the left, and the distance from float16 on the right."""
    done = [row for row in rows if not row["skipped"]]
    figure, (left, right) = new_figure(max(10.0, 3.0 + 0.8 * len(done)), 4.6, 2)
    for lossless, colour, label in (
        (True, COLOURS[0], "lossless: the bits of the model's own format"),
        (False, COLOURS[1], "not lossless"),
    ):
        at = [i for i, row in enumerate(done) if row["lossless"] is lossless]
        shown = [done[i] for i in at]
        left.scatter(at, [row["perplexity"] for row in shown], color=colour, zorder=3)
        distances = [row["kl_mean"] for row in shown]
        right.bar(at, distances, 0.62, color=colour, label=label, zorder=2)
    left.axhline(done[0]["perplexity"], color=MEMORY, linewidth=1.2, linestyle="--")
    left.set_ylabel("perplexity")
    left.set_title(f"{done[0]['model']}, {done[0]['tokens']:,} tokens")
    right.set_ylabel("mean KL from f16 (nats)")
    right.set_ylim(0, 1.3 * max([*(row["kl_mean"] for row in done), 1e-12]))
    right.legend(loc="upper left", fontsize=8.5)
    for ax in (left, right):
        ax.set(xticks=range(len(done)), xlim=(-0.6, len(done) - 0.4))
        names = [row["format"] for row in done]
        ax.set_xticklabels(names, rotation=38, ha="right", rotation_mode="anchor")
        ax.grid(axis="y", color=FAINT, linewidth=0.5)
    return figure


# ----------------------------------------------------------------------------------- litespark

PANELS = {
    "rss_mb": ("resident memory (MB)", "memory_ratio", "less is better"),
    "ttft_ms": ("time to first token (ms)", "ttft_ratio", "less is better"),
    "tok_s": ("tokens per second", "tok_s_ratio", "more is better"),
    "joules_per_token": ("energy (J/token)", "energy_ratio", "less is better"),
}


@styled
def litespark(rows: Sequence[Row]) -> Figure:
    """Draw a panel each for memory, time to first token, throughput, and energy if known."""
    import matplotlib.ticker as ticker

    shown = [row for row in rows if row["checked"]]
    fields = [name for name in PANELS if any(row[name] for row in shown)]
    figure, axes = new_figure(4.3 * max(1, len(fields)), 4.2, max(1, len(fields)))
    if not fields:
        _nothing(axes[0], "nothing was measured")
    for ax, name in zip(axes, fields, strict=False):
        label, ratio, better = PANELS[name]
        values = [float(row[name] or 0) for row in shown]
        names = [
            f"{row['peer']} {row['format']}" if row["peer"] != "litespark" else "litespark"
            for row in shown
        ]
        colours = [COLOURS[0] if row["peer"] == "sterna" else PEER for row in shown]
        ax.barh(range(len(shown)), values, 0.7, color=colours, zorder=2)
        for i, row in enumerate(shown):
            text = cell(values[i]) if row[name] else "–"
            text += f"   ({row[ratio]:.1f} ×)" if row[ratio] and row["peer"] != "torch" else ""
            ax.annotate(
                text, (values[i], i), xytext=(4, 0), textcoords="offset points", va="center",
                fontsize=8.5,
            )  # fmt: skip
        ax.xaxis.set_major_locator(ticker.MaxNLocator(5))
        ax.set(yticks=range(len(shown)), ylim=(len(shown) - 0.4, -0.6))
        ax.set_yticklabels(names if ax is axes[0] else [""] * len(shown))
        ax.set_xlim(0, 1.45 * max([*values, 1e-9]))
        ax.set_xlabel(f"{label}; {better}")
        ax.grid(axis="x", color=FAINT, linewidth=0.5)
    if fields:
        first = shown[0]
        what = f"{first['model']}, {threads_text(first)}; × is the improvement over torch"
        axes[0].set_title(what)
        if "joules_per_token" not in fields:
            figure.supxlabel(f"Energy: {first['energy']}.", fontsize=9, color="#555555")
    return figure
