"""What `sterna quantize --calibrate` does besides: it reads a text, and tells what that gained."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sterna.cli.options import console
from sterna.cli.progress import progress_bar

if TYPE_CHECKING:
    from sterna.convert import Parts
    from sterna.llm import LLM

__all__ = ["Calibration", "show_gain"]

HELD_OUT = 4  # tokens of the text to one of what was held out
WINDOW = 512


@dataclass(frozen=True)
class Calibration:
    """A text in two parts, and how many tokens of the first are read."""

    parts: Parts
    tokens: int

    @classmethod
    def of(
        cls, src: str, format: str, file: Path, tokens: int, options: Mapping[str, Any]
    ) -> Calibration:
        """Raises, before anything is computed, for a format that it makes no difference to."""
        from sterna.convert import parts_of, require_calibrated, weight_format

        require_calibrated(weight_format(format), options["method"])
        return cls(parts_of(file, src), tokens)

    def squares(self, src: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """What `convert` takes."""
        from sterna.convert import calibrate

        with progress_bar(f"reading with {src}", "tokens", 1, self.tokens) as progress:
            return calibrate(
                src, self.parts.used, tokens=self.tokens, threads=options["threads"],
                i2s=options["i2s"], progress=progress,
            )  # fmt: skip

    def gain(self, src: str, dst: Path, format: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Perplexities of the part that was held out: of the model, rounded without, and with."""
        from sterna.convert import convert

        dst = dst.absolute()
        found = {"source": self._perplexity(src, options)}
        with tempfile.TemporaryDirectory(prefix=f".{dst.stem}-", dir=dst.parent) as folder:
            plain = Path(folder) / f"plain{dst.suffix if dst.suffix == '.gguf' else ''}"
            convert(src, plain, format, **{**options, "force": False})
            found["plain"] = self._perplexity(plain, options)
        found["calibrated"] = self._perplexity(dst, options)
        return {
            "held_out_tokens": found["source"].n_tokens,
            **{f"perplexity_{name}": result.perplexity for name, result in found.items()},
        }

    def _perplexity(self, model: str | Path, options: Mapping[str, Any]) -> Any:
        from sterna.evaluate.perplexity import perplexity
        from sterna.llm import LLM

        llm = LLM(model, threads=options["threads"], i2s=options["i2s"], cache=False)
        context = min(WINDOW, llm.context)
        texts = self._held_out(llm)
        with progress_bar(f"scoring {model}", "MB") as progress:
            return perplexity(llm, texts, context=context, stride=context, progress=progress)

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


def show_gain(row: Mapping[str, Any]) -> None:
    """Says what calibration gained."""
    source, plain, calibrated = (
        row[f"perplexity_{name}"] for name in ("source", "plain", "calibrated")
    )
    console().print(
        f"perplexity of {row['held_out_tokens']:,} tokens that were held out: {source:.4f} before, "
        f"{plain:.4f} rounded without the text, {calibrated:.4f} with it",
        soft_wrap=True,
    )
