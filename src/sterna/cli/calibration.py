"""`sterna quantize --calibrate`: reads a text and reports the gain."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sterna.cli.progress import progress_bar
from sterna.cli.terminal import console

if TYPE_CHECKING:
    from sterna.convert import CalibrationTexts
    from sterna.evaluate.compare import Difference
    from sterna.llm import LLM

__all__ = ["Calibration", "loss_of", "show_gain", "show_loss"]

HELD_OUT = 4  # tokens of the text for one of the held-out part
WINDOW = 512


@dataclass(frozen=True)
class Calibration:
    """A text in two parts, and how many tokens of the first are read."""

    parts: CalibrationTexts
    tokens: int

    @classmethod
    def of(
        cls, src: str, format: str, file: Path, tokens: int, options: Mapping[str, Any]
    ) -> Calibration:
        """Read the text; raises before anything is computed if the format gains nothing from it."""
        from sterna.convert import parts_of, require_calibrated, weight_format

        require_calibrated(weight_format(format), options["method"])
        return cls(parts_of(file, src), tokens)

    def squares(self, src: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of `convert`."""
        from sterna.convert import calibrate

        with progress_bar(f"reading with {src}", "tokens", 1, self.tokens) as progress:
            return calibrate(
                src,
                self.parts.used,
                tokens=self.tokens,
                threads=options["threads"],
                i2s=options["i2s"],
                progress=progress,
            )

    def gain(
        self, src: str, dst: Path, format: str, options: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Measure the gain on the held-out part; None for a model that predicts no tokens.

        Returns the perplexities of the model, of the one rounded without the text, and of the one
        rounded with it; and the mean KL divergence of both from the model, as in `sterna compare`.
        """
        from sterna.convert import convert

        dst = dst.absolute()
        llm = self._opened(src, options)
        if not llm.model.config.continues:
            return None
        with tempfile.TemporaryDirectory(prefix=f".{dst.stem}-", dir=dst.parent) as folder:
            plain = Path(folder) / f"plain{dst.suffix if dst.suffix == '.gguf' else ''}"
            convert(src, plain, format, **{**options, "force": False})
            comparisons = {"plain": self._compared(llm, plain, options)}
        comparisons["calibrated"] = self._compared(llm, dst, options)
        return {
            "held_out_tokens": comparisons["plain"].a.n_tokens,
            "perplexity_source": comparisons["plain"].a.perplexity,
            **{f"perplexity_{name}": apart.b.perplexity for name, apart in comparisons.items()},
            **{f"kl_{name}": apart.kl_figures()["mean"] for name, apart in comparisons.items()},
        }

    def loss(self, src: str, dst: Path, options: Mapping[str, Any]) -> dict[str, Any] | None:
        """Measure on the held-out part what the model at `dst` has lost; None for a model that
        predicts no tokens."""
        llm = self._opened(src, options)
        if not llm.model.config.continues:
            return None
        apart = self._compared(llm, dst, options)
        return {
            "held_out_tokens": apart.a.n_tokens,
            "perplexity_source": apart.a.perplexity,
            "perplexity": apart.b.perplexity,
            "kl": apart.kl_figures()["mean"],
        }

    def _opened(self, model: str | Path, options: Mapping[str, Any]) -> LLM:
        from sterna.llm import LLM

        return LLM(model, threads=options["threads"], i2s=options["i2s"], cache=False)

    def _compared(self, source: LLM, model: Path, options: Mapping[str, Any]) -> Difference:
        from sterna.evaluate.compare import compare

        context = min(WINDOW, source.context)
        texts = self._held_out(source)
        size = sum(len(text.encode()) for text in texts)
        with progress_bar(f"comparing {model.name}", "MB", total=size) as progress:
            return compare(
                source,
                self._opened(model, options),
                texts,
                context=context,
                stride=context,
                progress=progress,
            )

    def _held_out(self, llm: LLM) -> list[str]:
        from sterna.convert import spread

        texts: list[str] = []
        left = self.tokens // HELD_OUT
        for text in spread(self.parts.held_out):
            left -= len(llm.tokenizer.encode(text))
            if left < 0 and texts:
                break
            texts.append(text)
        return texts


def loss_of(
    file: Path | None, tokens: int, src: str, dst: Path, options: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Measure what a model has lost, as `Calibration.loss`; None without a text."""
    from sterna.convert import parts_of

    return (
        None if file is None else Calibration(parts_of(file, src), tokens).loss(src, dst, options)
    )


def show_loss(row: Mapping[str, Any] | None) -> None:
    """Print what a model has lost on the held-out part, if it was measured."""
    if row is None:
        return
    console().print(
        f"of {row['held_out_tokens']:,} tokens that were held out: perplexity "
        f"{row['perplexity_source']:.4f} before, {row['perplexity']:.4f} after; mean KL from "
        f"before {row['kl']:.3g}",
        soft_wrap=True,
    )


def show_gain(row: Mapping[str, Any]) -> None:
    """Print the gain of calibration."""
    console().print(
        f"of {row['held_out_tokens']:,} tokens that were held out: perplexity "
        f"{row['perplexity_source']:.4f} before, {row['perplexity_plain']:.4f} rounded without the "
        f"text, {row['perplexity_calibrated']:.4f} with it; mean KL from before "
        f"{row['kl_plain']:.3g} without, {row['kl_calibrated']:.3g} with it",
        soft_wrap=True,
    )
