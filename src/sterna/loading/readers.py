"""Readers of published checkpoints, GGUF files and packed directories, each to a `Model`."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sterna.checkpoints.assets import Assets
from sterna.checkpoints.directory import Checkpoint
from sterna.checkpoints.packed_directory import open_packed, read_packed
from sterna.checkpoints.safetensors import SafetensorsFile
from sterna.checkpoints.sentence_transformers import DENSE as DENSE_WEIGHTS
from sterna.checkpoints.sentence_transformers import pooling_of, scoring_of
from sterna.checkpoints.tensor_file import reading
from sterna.errors import UnsupportedModelError, warn
from sterna.gguf.i2_s import warn_of_i2s
from sterna.gguf.paths import find_mmproj
from sterna.loading.model import Model
from sterna.loading.tracing import STORED_NORM, TowerSource, from_weights, model_name_of
from sterna.loading.weights_on_disk import bytes_for_disk, keep_on_disk
from sterna.models import attribute, module_of, skipped
from sterna.models.classifier import SCORING
from sterna.models.context_extension import ContextExtension
from sterna.models.pooling import DENSE, POOLING
from sterna.weights.sources import PackedWeights, WeightSource

if TYPE_CHECKING:
    from sterna.gguf.file import GgufModel

__all__ = ["Options", "Progress", "Wrap", "read_checkpoint", "read_gguf", "read_packed_model"]

Wrap = Callable[[WeightSource], WeightSource]
#: In the cache's keys of packed forms that may have a tower's weights.
WITH_TOWER = "-images"
#: The prefix of the tensors of an MTP layer.
MTP = "mtp."
#: Called with the bytes read so far and the bytes of all tensors.
Progress = Callable[[int, int], None]


def _of_text(_: ModuleType, text: WeightSource) -> WeightSource:
    return text


@dataclass(frozen=True)
class Options:
    """Arguments of `load` for all kinds of files; threads: a resolved team."""

    format: str | None
    head: str | None
    threads: int
    wrap: Wrap | None
    progress: Progress | None
    mmap: bool
    weights_ram: int | None
    extension: ContextExtension
    mmproj: str | None
    tower_format: str | None

    def wrapped(self, source: WeightSource) -> WeightSource:
        """Return what `wrap` makes of the source, or the source itself."""
        return source if self.wrap is None else self.wrap(source)

    def tower(self, floats: bool, source: TowerSource = _of_text) -> TowerSource | None:
        """Return the source of a tower's weights in its format, or None where towers are left out,
        as they are with a wrap. floats: whether they are as a published file of floats has them."""
        if self.mmproj == "off" or self.wrap is not None:
            return None

        def weights(module: ModuleType, text: WeightSource) -> WeightSource:
            from sterna.weights.tower_weights import TowerWeights

            return TowerWeights.of(source(module, text), self.tower_format, floats)

        return weights

    @property
    def with_tower(self) -> str:
        """The part of the cache's key about a model's tower."""
        return f"{WITH_TOWER}-{self.tower_format}"

    def mmproj_of(self, text: Path) -> Path | None:
        """Return the file of the tower of a GGUF file's model, if there is one."""
        if self.mmproj == "off" or self.wrap is not None:
            return None
        return find_mmproj(text) if self.mmproj is None else Path(self.mmproj)


def read_checkpoint(checkpoint: Checkpoint, assets: Assets, options: Options) -> Model:
    """Read a published checkpoint in safetensors and pack it."""
    from sterna.weights.checkpoint_weights import CheckpointWeights

    checkpoint = _with_own_norms(checkpoint)
    sources: list[CheckpointWeights] = []

    def weights(module: ModuleType) -> WeightSource:
        renamed = checkpoint.renamed(partial(model_name_of, module))
        sources.append(
            CheckpointWeights(
                _with_dense(renamed, config.get(POOLING)),
                options.format,
                options.head,
                options.threads,
                attribute(module, "TERNARY"),
                attribute(module, "TRANSPOSED"),
            )
        )
        return options.wrapped(sources[0])

    def own_head(vocab: int, hidden: int) -> bool:
        return sources[0].has_own_head(vocab, hidden)

    config = _with_pooling(checkpoint.config, checkpoint.path)
    if POOLING in config and "lm_head.weight" not in checkpoint.tensors:
        config["tie_word_embeddings"] = True  # it was saved without a head, and none is needed
    file = checkpoint.path / "config.json"
    with reading(checkpoint.files, options.progress):
        model = from_weights(
            config,
            file,
            weights,
            own_head,
            options.extension,
            options.tower(_has_floats(checkpoint)),
        )
    model.path, model.assets = checkpoint.path, assets
    _warn_of_skipped(checkpoint, model)
    return model


def _with_pooling(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return config.json with the settings of pooling and scores from other files of its folder."""
    settings = {POOLING: pooling_of(folder), SCORING: scoring_of(folder)}
    return {**config, **{field: said for field, said in settings.items() if said}}


def _with_dense(checkpoint: Checkpoint, pooling: Any) -> Checkpoint:
    """Return the checkpoint with the weights of the layers after its pooling."""
    for i, layer in enumerate(pooling["dense"] if isinstance(pooling, dict) else ()):
        file = SafetensorsFile(checkpoint.path / layer["folder"] / DENSE_WEIGHTS)
        checkpoint = checkpoint.joined(file, "linear", DENSE.format(i))
    return checkpoint


def _with_own_norms(checkpoint: Checkpoint) -> Checkpoint:
    """Complete the quantization_config of BitNet's embedding models.

    Their config.json does not say that layers are BitNet's master weights, each with a norm of its
    input. The names of the tensors do.
    """
    if not any(name.endswith(STORED_NORM) for name in checkpoint.tensors):
        return checkpoint
    unsaid = {
        "quant_method": "bitnet",
        "quantization_mode": "online",
        "rms_norm_eps": checkpoint.config.get("rms_norm_eps", 1e-6),
    }
    said = checkpoint.config.get("quantization_config")
    said = said if isinstance(said, dict) else {}
    other = copy(checkpoint)
    other.config = checkpoint.config | {
        "quantization_config": {**unsaid, **said, "use_rms_norm": True}
    }
    return other


def _has_floats(checkpoint: Checkpoint) -> bool:
    """Whether no tensor of the tower is quantised."""
    from sterna.weights.storages.base import FLOATS

    module = module_of(checkpoint.config, checkpoint.path / "config.json")
    prefixes = tuple(prefix for prefix in skipped(module, checkpoint.config) if prefix != MTP)
    of_tower = (i for name, i in checkpoint.tensors.items() if name.startswith(prefixes))
    return all(info.dtype in FLOATS for info in of_tower)


def _warn_of_skipped(checkpoint: Checkpoint, model: Model) -> None:
    """Warn once for each kind of tensors that the architecture has and Sterna does not run."""
    module = module_of(checkpoint.config, checkpoint.path / "config.json")
    for prefix, what in skipped(module, checkpoint.config).items():
        tensors = [info for name, info in checkpoint.tensors.items() if name.startswith(prefix)]
        read = model.mtp if prefix == MTP else model.tower
        if tensors and (read is None or "audio" in prefix):
            size = sum(info.nbytes for info in tensors) / 1e6
            warn(
                f"{checkpoint.path}: {len(tensors)} tensors {prefix}* ({size:.0f} MB) are skipped, "
                f"{what}"
            )


def read_gguf(path: Path, layout: str | None, tower: Path | None, options: Options) -> Model:
    """Read a GGUF file and pack it. layout: that of I2_S tensors; None: the usual one. tower: the
    file of its tower."""
    from sterna.gguf.assets import assets_of
    from sterna.gguf.file import GgufModel
    from sterna.gguf.hf_config import config_of
    from sterna.gguf.tensor_reader import TensorReader
    from sterna.gguf.weight_source import GgufWeights

    file = GgufModel(path)
    warn_of_i2s(file, layout)
    config = text = config_of(file)
    reader = TensorReader(file, config, options.threads, layout or "128")
    source = GgufWeights(reader, options.format, options.head)
    tower_file = None if tower is None else GgufModel(tower)
    towers = None
    if tower_file is not None:
        config = _with_tower(config, file, tower_file, asked=options.mmproj is not None)
    if tower_file is not None and "vision_config" in config:
        from sterna.gguf.mmproj import MmprojReader, MmprojWeights

        images = MmprojReader(tower_file, config, options.threads)
        seeing = MmprojWeights(images, modules=source.modules, tensors=source.tensors)
        towers = options.tower(seeing.has_floats, lambda *_: seeing)
    assets = assets_of(file, text)  # a tower may have named a token
    files = [one for model in (file, tower_file) if model for one in model.files.values()]
    with reading(files, options.progress):
        model = from_weights(
            config,
            path,
            lambda _: options.wrapped(source),
            extension=options.extension,
            tower=towers,
        )
    model.path, model.assets = path, assets
    return model


def _with_tower(
    config: dict[str, Any], text: GgufModel, file: GgufModel, asked: bool
) -> dict[str, Any]:
    """Add the settings of an mmproj file to config.json; a kind that Sterna does not run is left
    out with a warning, unless the user asked for it."""
    from sterna.gguf.mmproj import with_tower

    try:
        return with_tower(config, text, file)
    except UnsupportedModelError as error:
        if asked:
            raise
        warn(f"only the text runs, without images: {error}")
        return config


def read_packed_model(folder: Checkpoint, assets: Assets, options: Options) -> Model:
    """Read or map a packed directory."""
    for_disk = None
    if options.wrap:
        packed = open_packed(folder, options.threads)
    else:
        for_disk = bytes_for_disk(folder, options.weights_ram, options.format, options.mmap)
        on_disk = for_disk is not None
        packed = read_packed(folder, options.threads, options.progress, options.mmap, on_disk)
    weights = PackedWeights(
        packed.modules,
        packed.tensors,
        str(folder.path),
        options.head,
        options.threads,
        options.format,
    )
    model = from_weights(
        _with_pooling(packed.config, assets.path),
        folder.path / "config.json",
        lambda _: options.wrapped(weights),
        extension=options.extension,
        tower=options.tower(floats=False),
    )
    model.path, model.assets = assets.path, assets
    model.mapped = packed.mapped is not None
    if for_disk is not None:
        keep_on_disk(model, packed, folder, for_disk)
    return model
