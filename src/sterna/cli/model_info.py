"""`sterna info MODEL`: the settings in a model's files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sterna.cli.options import fetch_model
from sterna.cli.terminal import print_json, print_pairs

if TYPE_CHECKING:
    from sterna.tokenizer import Tokenizer

__all__ = ["tell_model"]


def tell_model(model: str, as_json: bool) -> None:
    """Print the settings of a model, which is downloaded if it is missing."""
    from sterna import loading, models
    from sterna.checkpoints.resolve import resolve
    from sterna.llm.generation_config import sampling_of
    from sterna.models.config import TransformerConfig

    fetch_model(model)
    assets = loading.load_assets(resolve(model, inspect=models.require_architecture))
    tokenizer = assets.tokenizer()
    module = models.module_of(assets.config, assets.path)
    config = TransformerConfig.of(module, assets.config, assets.path)
    row = {
        "model": model,
        "path": str(assets.path),
        "architecture": (assets.config.get("architectures") or [None])[0],
        "vocab_size": tokenizer.vocab_size,
        "context_length": config.max_position,
        "layers": config.n_layers,
        "hidden_size": config.hidden_size,
        "added_tokens": _spelt(tokenizer, tokenizer.encode("")),
        "end_tokens": _spelt(tokenizer, tokenizer.eos_ids),
        "chat_template": assets.template() is not None,
        "sampling": sampling_of(assets.generation_config, assets.generation_file),
    }
    if as_json:
        print_json([row])
        return
    sampling = ", ".join(f"{name} {value:g}" for name, value in row["sampling"].items())
    print_pairs(
        [
            ("model", model if model == row["path"] else f"{model} ({row['path']})"),
            ("architecture", str(row["architecture"])),
            ("context length", f"{row['context_length']:,}"),
            ("layers", f"{row['layers']:,}, hidden size {row['hidden_size']:,}"),
            ("vocabulary size", f"{row['vocab_size']:,}"),
            ("added special tokens", ", ".join(row["added_tokens"]) or "none"),
            ("end tokens", ", ".join(row["end_tokens"]) or "none"),
            ("chat template", "yes" if row["chat_template"] else "none"),
            ("sampling", sampling or "none: greedy, in chats temperature 0.8"),
        ]
    )


def _spelt(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    return [tokenizer.token_bytes(id).decode(errors="replace") for id in ids]
