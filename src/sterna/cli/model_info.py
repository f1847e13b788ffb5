"""`sterna info MODEL`: the settings in a model's files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sterna.cli.disk_fit import disk_words, of_disk, sizes_of
from sterna.cli.options import fetch_model
from sterna.cli.terminal import print_json, print_pairs, status

if TYPE_CHECKING:
    from sterna.checkpoints.model_shape import Shape
    from sterna.runtime import Threads
    from sterna.tokenizer import Tokenizer

__all__ = ["speed_of_memory", "tell_model", "tokens_per_s"]

MOST_FORMATS = 5  # that a line lists


def speed_of_memory(threads: Threads, measure: bool) -> float:
    """Return the best bandwidth that these threads got, measured if need be; 0: unknown."""
    from sterna.calibration.bandwidth import best_bandwidth, measure_bandwidth

    known = best_bandwidth(threads)
    if known or not measure:
        return known
    with status(f"reading memory with {threads} threads"):
        return measure_bandwidth(threads)


def tell_model(model: str, context: int | None, bandwidth: float, as_json: bool) -> None:
    """Print the settings of a model, and what to expect of it here; it is downloaded if missing.

    context: tokens that memory is reckoned for; None: as `Shape.tokens`. bandwidth: 10^9 bytes a
    second; 0: unknown.
    """
    from sterna import loading, models
    from sterna.checkpoints.resolve import resolve
    from sterna.llm.generation_config import sampling_of
    from sterna.models.config import TransformerConfig

    fetch_model(model, context=context)
    path = resolve(model, inspect=models.require_architecture)
    assets = loading.load_assets(path)
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
        **_stored(path),
        **_expected(path, context, bandwidth),
    }
    if as_json:
        print_json([row])
        return
    from sterna.checkpoints.hub import human

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
            *([("weights", _weights(row))] if row["n_weights"] else []),
            ("size", human(row["size_bytes"])),
            ("memory", _memory(row)),
            ("a token", _token(row)),
            ("speed", _speed(row)),
            *(
                [("disk", disk_words(row["on_disk"], row["resident_bytes"]))]
                if row["on_disk"]
                else []
            ),
            ("sampling", sampling or "none: greedy, in chats temperature 0.8"),
        ]
    )


def _stored(path: Path) -> dict[str, Any]:
    """Return the weights of all matrices, their bits on average, and how many have each format.

    None for a checkpoint in another program's form, whose tensors do not say it.
    """
    from sterna.checkpoints.directory import Checkpoint
    from sterna.checkpoints.packed_directory import packed_matrices
    from sterna.formats.level_tables import without_table
    from sterna.gguf.file import GgufModel

    matrices: list[tuple[str, int, int]] = []
    if path.is_file():
        infos = GgufModel(path).tensors.values()
        matrices = [(i.dtype, prod(i.shape), i.nbytes) for i in infos if len(i.shape) > 1]
    elif (folder := Checkpoint.open(path)).is_packed:
        matrices = packed_matrices(folder)
    n_weights, nbytes = sum(m[1] for m in matrices), sum(m[2] for m in matrices)
    formats = Counter[str]()
    for format, count, _ in matrices:
        formats[without_table(format)] += count
    return {
        "n_weights": n_weights or None,
        "bits": round(8 * nbytes / n_weights, 3) if n_weights else None,
        "formats": dict(formats.most_common()) or None,
    }


def _expected(path: Path, context: int | None, bandwidth: float) -> dict[str, Any]:
    """Return bytes on the disk and in memory, and the tokens a second to expect."""
    from sterna.checkpoints.model_shape import memory_of
    from sterna.runtime import available_bytes

    nbytes, held, params, shape = _of_gguf(path) if path.is_file() else _of_folder(path)
    memory, free = memory_of(held, shape, context), available_bytes()
    read, sizes = held * shape.active_share(params), sizes_of(path)
    share = shape.expert_share if sizes and sizes.of_experts else 1.0
    if sizes is not None and sizes.of_experts:
        read = sizes.in_memory + sizes.on_disk * share
    return {
        "size_bytes": nbytes,
        "memory_bytes": memory,
        "memory_context": shape.tokens(context),
        "free_bytes": free,
        "fits": memory <= free,
        "tokens_per_s": tokens_per_s(read, bandwidth),
        "bandwidth_gb_s": round(bandwidth, 2) or None,
        "bytes_per_token": round(read),
        "kv_bytes_per_1000": shape.kv_bytes * 1000,
        "on_disk": None if sizes is None else of_disk(path, sizes, read, share, bandwidth),
        "resident_bytes": None if sizes is None else sizes.in_memory,
    }


def _of_gguf(path: Path) -> tuple[int, int, int, Shape]:
    """Return the bytes of a file, of its weights in memory, how many there are, and its shape."""
    from sterna.checkpoints.hub import shape_of_file
    from sterna.gguf.file import GgufModel

    file = GgufModel(path)
    return (
        sum(part.stat().st_size for part in file.files),
        sum(info.nbytes for info in file.tensors.values()),
        sum(prod(info.shape) for info in file.tensors.values()),
        shape_of_file(file.path),
    )


def _of_folder(path: Path) -> tuple[int, int, int, Shape]:
    """Return the same of a folder, whose weights are as large in memory as in their files."""
    from sterna.checkpoints.directory import CONFIG
    from sterna.checkpoints.model_shape import shape_of_config
    from sterna.files.jsonfile import load_settings

    sizes = {p: p.stat().st_size for p in path.iterdir() if p.is_file()}
    weights = sum(size for p, size in sizes.items() if p.suffix == ".safetensors")
    shape = shape_of_config(load_settings(path / CONFIG))
    return sum(sizes.values()), weights, 0, shape


def tokens_per_s(read_bytes: float, bandwidth: float) -> float | None:
    """Return the tokens a second of a memory that gives `bandwidth` 10^9 bytes a second."""
    if not bandwidth or not read_bytes:
        return None
    speed = bandwidth * 1e9 / read_bytes
    return round(speed, 1) if speed < 100 else round(speed)


def _memory(row: dict[str, Any]) -> str:
    from sterna.checkpoints.hub import human

    fits = "" if row["fits"] else ", too little"
    return (
        f"about {human(row['memory_bytes'])} with {row['memory_context']:,} tokens of context; "
        f"{human(row['free_bytes'])} free{fits}"
    )


def _weights(row: dict[str, Any]) -> str:
    kinds = Counter[str]()
    for format, n_weights in row["formats"].items():
        kinds[format.partition(":")[0]] += n_weights
    shares = [f"{name} {n / row['n_weights']:.0%}" for name, n in kinds.most_common(MOST_FORMATS)]
    more = len(kinds) - len(shares)
    others = f", {more} more" if more else ""
    return (
        f"{row['n_weights'] / 1e6:,.1f} million, {row['bits']:.3g} bits each: "
        f"{', '.join(shares)}{others}"
    )


def _token(row: dict[str, Any]) -> str:
    from sterna.checkpoints.hub import human

    return (
        f"reads about {human(row['bytes_per_token'])} of weights; keys and values of 1,000 take "
        f"{human(row['kv_bytes_per_1000'])}"
    )


def _speed(row: dict[str, Any]) -> str:
    if row["tokens_per_s"] is None:
        return "unknown: the bandwidth of memory has not been measured"
    return (
        f"at most {row['tokens_per_s']:,} tokens/s, an estimate: memory gives "
        f"{row['bandwidth_gb_s']:.1f} GB/s"
    )


def _spelt(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    return [tokenizer.token_bytes(id).decode(errors="replace") for id in ids]
