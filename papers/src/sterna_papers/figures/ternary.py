"""Table 7 and Figures 8 and 10 of arXiv 2502.11880.

Table 7 has tokens per second of ternary models from 700M to 100B parameters. The figures show them
over the number of threads, with the memory's speed.
"""

from __future__ import annotations

from collections.abc import Sequence

from sterna.bench.linear import formats_named
from sterna.bench.machine import Known, Progress, Rows, teams
from sterna.errors import RequestError
from sterna.runtime import Threads, resolve_isa, resolve_threads
from sterna_papers import lookup
from sterna_papers.figures.decoding import FIELDS, Measured, decode, plans, skipped_row

__all__ = ["COLUMNS", "FIELDS", "FORMATS", "MODELS", "SCALING", "TOKENS", "run"]

MODELS = ("700m", "1.5b", "3.8b", "7b", "13b", "30b", "70b", "100b")
SCALING = ("3.8b", "700m")  # Figures 8 and 10
TOKENS = 16
#: Sterna's format -> the paper's kernel in Table 7.
COLUMNS = {
    "f16": "Float16", "q4_0": "Q4_0", "tmac2_0": "T-MAC", "tq1_0": "TQ1_0", "tq2_0": "TQ2_0",
    "tl1_0": "TL1_0", "tl2_0": "TL2_0", "i2": "I2_S",
}  # fmt: skip
#: The columns of the table, and Sterna's lossless formats.
FORMATS = (*COLUMNS, "tl1_1", "tl2_1", "t5")


def run(
    models: Sequence[str] = MODELS,
    *,
    format_names: Sequence[str] | None = None,
    scaling: Sequence[str] = SCALING,
    threads: Sequence[int] | None = None,
    cores: str | None = None,
    head: str = "bf16",
    tokens: int = TOKENS,
    isa: str | None = None,
    repeat: int = 3,
    progress: Progress = lambda _: None,
    known: Known = lambda _: None,
) -> Rows:
    """Return rows with FIELDS, one per model, format and number of threads.

    models: shapes to run on the most threads. scaling: shapes to run on each of `threads`, by
    default 1 to the usable cores. format_names: None is FORMATS. Rounds are as in `decode`. The row
    of a model that does not fit into memory says so. Raises RequestError.
    """
    lookup.register()
    counts = teams(threads or range(1, resolve_threads(None, cores) + 1), cores)
    most = max(counts)
    names = formats_named(format_names) if format_names else list(FORMATS)  # in the table's order
    unit = resolve_isa(isa)
    rows: Rows = []
    known(lambda: rows)
    every = list(dict.fromkeys([*models, *scaling]))
    if not every:
        raise RequestError("figure ternary: needs a model, but got none; try --models 700m")
    asked = plans(every, names, head, tokens)
    for model in every:
        of_model = [plan for plan in asked if plan.shape == model]
        on: dict[str, list[Threads]] = {model: counts if model in scaling else [most]}
        for got in decode(of_model, on, unit, repeat=repeat, kernels=False, progress=progress):
            if isinstance(got, Measured):
                rows.append(got.row())
            else:
                rows.append(skipped_row(*got, int(most), unit))
    place = {key: i for i, key in enumerate((m, n) for m in every for n in names)}
    return sorted(rows, key=lambda row: (place[row["model"], row["format"]], row["threads"]))
