"""Table 2 of arXiv 2502.11880 (Bitnet.cpp): the quality of a model in each format.

A row has the perplexity of texts and the accuracy of tasks. Since these hardly differ, it also says
how far the model's logits are from those of float16, and whether they have the same bits as the
model in its own format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sterna import formats
from sterna.bench.linear import formats_named
from sterna.bench.machine import Known, Progress, Rows
from sterna.bench.report import significant
from sterna.errors import RequestError, SternaError
from sterna.evaluate.compare import Difference, compare
from sterna.evaluate.conventions import CONVENTIONS, Convention
from sterna.evaluate.tasks import Question, evaluate, read_questions
from sterna.llm import LLM
from sterna_papers import lookup

__all__ = ["BASELINE", "FIELDS", "FORMATS", "TASKS", "Windows", "activations", "run"]

BASELINE = "f16"
#: The paper's kernels, and those of llama.cpp and Sterna that ternary models run with.
FORMATS = (
    BASELINE, "q4_0", "q8_0", "tq1_0", "tq2_0", "tmac2_0", "tl1_0", "tl2_0", "tl1_1", "tl2_1", "i2",
    "t5",
)  # fmt: skip
#: A task -> the field of `Accuracy` that llama.cpp's tool, and so the paper, prints.
TASKS = {"winogrande": "right", "hellaswag": "right_norm"}
#: Fields of every row; docs/measurements/papers.md defines them.
FIELDS = (
    "model", "format", "bits", "activations", "head", "kv_dtype", "isa", "threads", "source",
    "convention", "context", "tokens", "perplexity", "perplexity_stderr", "kl_mean",
    "top1_agreement", "lossless", *(f"{task}{end}" for task in TASKS for end in ("", "_stderr")),
    "skipped",
)  # fmt: skip


@dataclass(frozen=True)
class Windows:
    """The windows of texts, as `compare` takes them."""

    context: int | None = None
    convention: str = CONVENTIONS[0]
    stride: int | None = None


def run(
    model: str,
    texts: Iterable[str],
    *,
    source: str = "texts",
    windows: Windows = Windows(),
    tasks: Mapping[str, Path] | None = None,
    questions: int | None = None,
    format_names: Sequence[str] | None = None,
    threads: int | None = None,
    cores: str | None = None,
    isa: str | None = None,
    progress: Progress = lambda _: None,
    known: Known = lambda _: None,
) -> Rows:
    """Return a row with FIELDS for each format; of one that the model cannot have, with the reason.

    model: as in `LLM`. texts: documents, iterated over once and more for each format. source: their
    name. tasks: task -> its file, of which the first `questions` count. format_names: None is
    FORMATS. Up to three models are in memory. Sums of float layers are deterministic, so rows do
    not depend on the machine. Raises RequestError, and as `LLM`, `compare` and `read_questions`.
    """
    lookup.register()
    names = formats_named(format_names) if format_names else list(FORMATS)
    asked = {task: read_questions(path, task, questions) for task, path in (tasks or {}).items()}

    def opened(name: str | None) -> LLM:
        return LLM(model, format=name, threads=threads, cores=cores, isa=isa, deterministic=True)

    progress(f"loading {model}")
    base, own = opened(BASELINE), opened(None)
    measured = _Measured(base, own, texts, source, windows, asked, progress)
    rows: Rows = []
    known(lambda: rows)
    for name in dict.fromkeys([BASELINE, *names]):
        made = measured.row(name, opened)
        rows.append({field: made.get(field) for field in FIELDS})
    return rows


def activations(name: str) -> str:
    """Return what a format's layers multiply with: the type of activations, and what shares a
    scale."""
    format = formats.get(name)
    if format.rounding is None:
        return "f32"
    of = f"int8, a scale for each {format.rounding or 'token'}"
    return f"{of}; int8 tables of sums" if name in lookup.ROUNDED else of


@dataclass
class _Measured:
    """base: the model in BASELINE; own: in its own format."""

    base: LLM
    own: LLM
    texts: Iterable[str]
    source: str
    windows: Windows
    questions: Mapping[str, list[Question]]
    progress: Progress

    def __post_init__(self) -> None:
        self.progress("the model in its own format")
        self._own = self._compared(self.base, self.own)
        if not self._own.n_positions:
            raise RequestError(
                f"{self.source}: must be a text of two tokens at least, to be compared"
            )

    def row(self, name: str, opened: Callable[[str], LLM]) -> dict[str, Any]:
        """Measure the model in one format."""
        about = {
            "model": self.base.name,
            "format": name,
            "bits": formats.get(name).bits,
            "source": self.source,
        }
        self.progress(f"loading {name}")
        try:
            llm = self.base if name == BASELINE else opened(name)
        except SternaError as error:
            return about | {"skipped": str(error)}
        info, limit = llm.info(), min(self.base.context, llm.context)
        how = Convention.of(
            self.windows.convention, limit=limit, context=self.windows.context,
            stride=self.windows.stride,
        )  # fmt: skip
        self.progress(f"{name}: texts")
        difference = self._compared(self.base, llm)
        return {
            **about,
            "activations": activations(name),
            **{key: info[key] for key in ("head", "kv_dtype", "isa")},
            "threads": int(info["threads"]),
            "convention": how.name,
            "context": how.window,
            "tokens": difference.b.n_tokens,
            "perplexity": significant(difference.b.perplexity),
            "perplexity_stderr": significant(difference.b.perplexity_stderr),
            "kl_mean": difference.kl_figures()["mean"],
            "top1_agreement": significant(difference.top1_agreement),
            "lossless": self._is_lossless(llm, difference),
            **self._accuracies(llm, name),
        }

    def _is_lossless(self, llm: LLM, difference: Difference) -> bool:
        """Whether every bit of every logit is that of the model in its own format.

        Only then are their distances from the baseline the same, which saves most comparisons.
        """
        if difference.kl != self._own.kl:
            return False
        return self._compared(self.own, llm).identical

    def _compared(self, a: LLM, b: LLM) -> Difference:
        w = self.windows
        return compare(
            a, b, self.texts, context=w.context, convention=w.convention, stride=w.stride
        )

    def _accuracies(self, llm: LLM, name: str) -> dict[str, float]:
        made: dict[str, float] = {}
        for task, questions in self.questions.items():
            self.progress(f"{name}: {task}")
            result = evaluate(llm, questions)
            share = result.share(getattr(result, TASKS[task]))
            made[task], made[f"{task}_stderr"] = map(significant, share)
        return made
