"""Opens a published checkpoint, a packed directory or a GGUF file as a `Model`.

The readers of published files are imported when one is read: most starts find a packed form in the
cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from sterna import formats
from sterna.calibration.unit_check import best_isa
from sterna.checkpoints import cache
from sterna.checkpoints.assets import Assets, FolderAssets
from sterna.checkpoints.directory import Checkpoint
from sterna.errors import RequestError, SternaError, shown
from sterna.gguf.i2_s import i2s_layout
from sterna.gguf.paths import is_gguf, parts_of
from sterna.loading.model import Model
from sterna.loading.readers import (
    Options,
    Progress,
    Wrap,
    read_checkpoint,
    read_gguf,
    read_packed_model,
)
from sterna.loading.weights_on_disk import WeightsRamError, require_packed
from sterna.models.context_extension import NOT_EXTENDED, ContextExtension
from sterna.runtime import resolve_threads
from sterna.weights.format_fallback import warn_of_fallbacks

__all__ = ["load", "load_assets"]


def load(
    path: str | Path,
    *,
    format: str | None = None,
    head: str | None = None,
    cached: bool = True,
    threads: int | None = None,
    i2s: str | None = None,
    wrap: Wrap | None = None,
    progress: Progress | None = None,
    mmap: bool = False,
    weights_ram: int | None = None,
    extension: ContextExtension = NOT_EXTENDED,
    mmproj: str | Path | None = None,
    tower_format: str | None = None,
) -> Model:
    """Open a model folder (a published checkpoint or a packed directory) or a GGUF file.

    A checkpoint is packed as it is read. `Model.keep` then writes the packed form to the cache,
    which the next start reads. Matrices whose rows do not fill the blocks of `format` or `head` get
    the format that `formats.fitting` chooses, with a warning.

    Args:
        path: The folder or file.
        format, head, i2s, progress, mmap, weights_ram: As in `LLM`.
        cached: Read a packed form from the cache, and note where `Model.keep` writes one.
        threads: Threads that pack. Default: as in `LLM`.
        wrap: Wraps the source of weights before the architecture reads it. Disables the cache;
            packed weights are then read one by one, on request.
        extension: A longer context, from `context` and `rope_scaling` of `LLM`.
        mmproj, tower_format: As in `LLM`.

    Raises ModelFormatError, UnsupportedModelError, RequestError or NonFiniteError.
    """
    best_isa()  # it packs
    if format is not None:
        formats.get(format)  # raises, whatever the cache has
    options = Options(
        format,
        head,
        resolve_threads(threads),
        wrap,
        progress,
        mmap,
        weights_ram,
        extension,
        None if mmproj is None else str(mmproj),
        tower_format,
    )
    model = _open(Path(path), options, i2s, cached)
    if wrap is None:
        warn_of_fallbacks(model.weights.modules, format, head)
    return model


def load_assets(path: str | Path) -> Assets:
    """Load a model's tokenizer, template and settings, without its weights; raises as `load`."""
    source = Path(path)
    if is_gguf(source):
        from sterna.gguf.assets import assets_of
        from sterna.gguf.file import GgufModel
        from sterna.gguf.hf_config import config_of

        file = GgufModel(source)
        return assets_of(file, config_of(file))
    checkpoint = Checkpoint.open(source)
    return FolderAssets.of(checkpoint.path, checkpoint.config)


def _open(source: Path, options: Options, i2s: str | None, cached: bool) -> Model:
    """Read a model from the cache if it has a copy, else from its files."""
    parts, files, stored = list[Path](), list[Path](), options.format
    assets: Assets | None = None  # for a single file, they come from the packed form
    read: Callable[[], Model]
    if is_gguf(source):
        layout, parts = i2s_layout(i2s), [file for file in parts_of(source) if file.is_file()]
        stored = f"{options.format}-{layout}"
        tower = options.mmproj_of(source)
        if tower is not None and tower.is_file():
            parts, stored = [*parts, tower], f"{stored}{options.with_tower}"
        read = partial(read_gguf, source, layout, tower, options)
    else:
        if options.mmproj not in (None, "off"):
            raise RequestError(
                f'mmproj: must be "off" or left out for a folder, which has its tower in its own '
                f"files, but got {shown(options.mmproj)}; leave it out"
            )
        checkpoint = Checkpoint.open(source)
        assets = FolderAssets.of(checkpoint.path, checkpoint.config)
        if checkpoint.is_packed:
            return read_packed_model(checkpoint, assets, options)
        if "vision_config" in checkpoint.config and options.mmproj != "off":
            stored = f"{stored}{options.with_tower}"
        read = partial(read_checkpoint, checkpoint, assets, options)
        files = list(source.glob("*.safetensors"))
    if options.weights_ram is not None:
        read = partial(_read_all, read, source, files or parts, options.weights_ram)
    if not cached or options.wrap is not None or cache.cache_dir() is None:
        return read()
    # An exact head is stored as the checkpoint's own, and so is the default.
    key = cache.cache_key(source, stored, None if options.head == "exact" else options.head, parts)
    return _from_cache(key, assets, options) or _to_cache(key, read())


def _read_all(
    read: Callable[[], Model], source: Path, files: Sequence[Path], weights_ram: int
) -> Model:
    """Read a model whose files the budget for weights holds."""
    require_packed(source, files, weights_ram)
    return read()


def _from_cache(key: str, assets: Assets | None, options: Options) -> Model | None:
    """Open the packed form of a model; None if it is missing or cannot be used."""
    folder = cache.lookup(key)
    if folder is None:
        return None
    if assets is None and not (folder / "tokenizer.json").is_file():
        cache.discard(key)
        return None
    try:
        packed = Checkpoint.open(folder)
        assets = assets or FolderAssets.of(folder, packed.config)
        return read_packed_model(packed, assets, replace(options, format=None, tower_format=None))
    except WeightsRamError:  # nothing is wrong with the folder
        raise
    except SternaError:  # damaged, of another version, gone or unreadable: make it again
        cache.discard(key)
        return None


def _to_cache(key: str, model: Model) -> Model:
    """Note where `Model.keep` writes the packed form."""
    model.cache_key = key
    return model
