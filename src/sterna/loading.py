"""From a path to a model ready to run, and from a model to a packed directory."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from sterna.checkpoints import cache
from sterna.checkpoints.companions import Companions, FolderCompanions
from sterna.checkpoints.directory import Checkpoint
from sterna.checkpoints.packed import open_packed, read_packed
from sterna.checkpoints.packed_writer import write_packed
from sterna.checkpoints.sentence_transformers import pooling_of
from sterna.checkpoints.tensor_file import reading
from sterna.errors import RequestError, SternaError
from sterna.gguf.file import GgufModel, is_gguf, parts_of
from sterna.gguf.hf_config import companions_of, config_of
from sterna.gguf.weight_source import GgufWeights, i2s_layout, warn_of_i2s
from sterna.graph import Graph, identity
from sterna.models import module_of
from sterna.models.config import LINEAR_NORM, TransformerConfig
from sterna.models.longer import AS_IT_IS, Longer
from sterna.models.pooling import POOLING
from sterna.runtime import resolve_threads
from sterna.weights import storages
from sterna.weights.replaced import warn_of_replaced
from sterna.weights.sources import CheckpointWeights, PackedWeights, WeightSource

__all__ = ["Model", "companions", "from_weights", "layer_names", "load", "save"]

#: What names begin with in checkpoints of a model without its head, and with it.
BASE_MODEL = {name: f"model.{name}" for name in ("embed_tokens.", "layers.", "norm.")}
#: How BitNet's embeddings name the norm that a linear layer has for its input, and transformers.
_STORED_NORM, _INPUT_NORM = "_proj.norm.weight", "_proj.rms_norm.weight"
Wrap = Callable[[WeightSource], WeightSource]
#: Is told the bytes read so far, and those of all tensors.
Progress = Callable[[int, int], None]


@dataclass(eq=False)
class Model:
    """A model traced into a graph: what an engine runs. One that was made in memory has neither a
    path nor companions."""

    path: Path | None
    json: dict[str, Any]
    config: TransformerConfig
    graph: Graph
    weights: WeightSource = field(repr=False)
    format: str  # that of most bytes of the linear layers, the head left out
    head: str
    kv_dtype: str = "i16"  # unless another is asked for
    companions: Companions | None = None
    mtp: Model | None = field(default=None, repr=False)  # its MTP layer, of the same weights
    store: cache.Store | None = field(default=None, repr=False)  # the cache being written
    cache_key: str | None = field(default=None, repr=False)  # where `keep` writes it
    mapped: bool = False  # weights are those of a file that is mapped
    name: str = "model"  # what messages call it

    def keep(self) -> None:
        """Writes the packed form to the cache, in the background, where `load` found none there.

        To be called once all of the model has been opened: one whose tokenizer is refused is not
        worth its disk space.
        """
        if self.cache_key is not None and self.store is None:
            self.store = cache.store_behind(self.cache_key, lambda dst: save(self, dst), self.path)

    @property
    def n_params(self) -> int:
        """Weights of all matrices, those of all experts; a tied embedding counts once."""
        ops = {id(op.weight): op for op in self.graph.ops if op.weight is not None}
        return sum(op.n_weights for op in ops.values())

    @property
    def n_active_params(self) -> int:
        """Those that a token is multiplied with or looked up in: of its own experts alone."""
        ops = {id(op.weight): op for op in self.graph.ops if op.weight is not None}
        return round(sum(op.n_weights * op.active for op in ops.values()))

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex, of what the model computes: its operations and every weight as they run,
        whatever was read. Equal on all machines; it takes about a second for 1.5 GB."""
        return identity.digest(self.graph)

    @property
    def weight_bytes_per_token(self) -> int:
        """Bytes of weights and scales that one decode step reads, of the experts of a token alone.

        Of an exact head those that screening reads; the rows computed after it depend on the step.
        """
        linears = [op for op in self.graph.ops if op.kind == "linear"]
        return round(
            sum((op.shadow or op.weight).nbytes * op.active for op in linears if op.weight)
        )


def from_weights(
    json: dict[str, Any], file: Path, weights: Callable[[ModuleType], WeightSource],
    own_head: Callable[[int, int], bool] = lambda *_: False, longer: Longer = AS_IT_IS,
) -> Model:  # fmt: skip
    """Trace a model from its config.json and a source of weights; `file` is named in errors.

    own_head: whether a head [vocab, hidden] is there, although the embedding is said to be it.
    """
    module = module_of(json, file)
    quantization = json.get("quantization_config")
    if isinstance(quantization, dict) and quantization.get("use_rms_norm"):
        json = {**json, LINEAR_NORM: storages.quantization(json, file).norm_eps}
    config, source = TransformerConfig.of(module, json, file, longer), weights(module)
    if config.tied and own_head(config.vocab_size, config.hidden_size):
        json, config = _untied(json, file), replace(config, tied=False)
    graph = Graph(config.heads)
    module.build(graph, config, source)
    predictor = getattr(module, "predictor", lambda *_: None)(graph, config, source)
    refuse_unread(source, module, config)
    kv_dtype = getattr(module, "KV_DTYPE", "i16")
    models = [
        Model(None, json, config, one, source, *_formats(one), kv_dtype)
        for one in (graph, predictor) if one is not None
    ]  # fmt: skip
    models[0].mtp = models[1] if predictor is not None else None
    return models[0]


def _untied(json: dict[str, Any], file: Path) -> dict[str, Any]:
    """config.json of a model whose head is there and is not the embedding, with a warning."""
    warnings.warn(
        f"{file}: tie_word_embeddings is true, but lm_head.weight is there and is not the "
        "embedding: it is used, as in transformers",
        RuntimeWarning, stacklevel=2,
    )  # fmt: skip
    untied = {**json, "tie_word_embeddings": False}
    untied.pop("share_embedding", None)
    if isinstance(json.get("text_config"), dict):
        untied["text_config"] = {**json["text_config"], "tie_word_embeddings": False}
    return untied


def refuse_unread(source: WeightSource, module: ModuleType, config: TransformerConfig) -> None:
    """UnsupportedModelError for a tensor of a published file that the architecture has not read,
    but for those that have no effect on it and those that it skips."""
    if isinstance(source, CheckpointWeights | GgufWeights):
        unread = getattr(module, "unread", lambda _: ())(config)
        source.refuse_unread(unread, getattr(module, "SKIPPED", ()))


def _formats(graph: Graph) -> tuple[str, str]:
    """The format of most bytes of the linear layers, and what the head is."""
    *layers, (last, shadow) = [
        (op.weight, op.shadow) for op in graph.ops if op.kind == "linear" and op.weight
    ]
    nbytes: Counter[str] = Counter()
    for weight, _ in layers:
        nbytes[weight.format.name] += weight.nbytes
    stored = "int8" if last.format == "i8" else last.format.name
    return nbytes.most_common(1)[0][0], "exact" if shadow is not None else stored


T = TypeVar("T")


def layer_names(model: Model, of_files: Mapping[str, T]) -> dict[str, tuple[str, T]]:
    """The model's names of what files have by the checkpoint's: each with that one's name."""
    module = module_of(model.json, model.path or Path("config.json"))
    return {_name_of(module, stored): (stored, value) for stored, value in of_files.items()}


def _name_of(module: ModuleType, stored: str) -> str:
    """An architecture's name of what a checkpoint calls `stored`."""
    prefixes = BASE_MODEL | getattr(module, "PREFIXES", {})
    old = next((p for p in prefixes if stored.startswith(p)), "")
    name: str = prefixes.get(old, "") + stored[len(old) :]
    return name.removesuffix(_STORED_NORM) + _INPUT_NORM if name.endswith(_STORED_NORM) else name


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
    longer: Longer = AS_IT_IS,
) -> Model:
    """Open a model folder, a published checkpoint or a packed directory, or a GGUF file.

    A checkpoint is packed as it is read and ready at once; `Model.keep` writes the packed form to
    the cache, which is read from there the next time. `i2s`: as in `LLM`. `wrap`: makes a
    source of weights that the architecture asks in place of the model's own, which then reads each
    as it is asked for; without the cache. `progress`, `mmap`: as in `LLM`, as what is `longer`: its
    `context` and `rope_scaling`. Matrices whose rows are
    no whole blocks of `format` or `head` get what `formats.fitting` has for them, with a warning.
    Raises ModelFormatError, UnsupportedModelError, RequestError or NonFiniteError.
    """
    model = _opened(path, format, head, cached, threads, i2s, wrap, progress, mmap, longer)
    if wrap is None:
        warn_of_replaced(model.weights.modules, format, head)
    return model


def _opened(
    path: str | Path, format: str | None, head: str | None, cached: bool, threads: int | None,
    i2s: str | None, wrap: Wrap | None, progress: Progress | None, mmap: bool, longer: Longer,
) -> Model:  # fmt: skip
    source, parts, stored = Path(path), list[Path](), format
    beside: Companions | None = None  # what a packed copy does not have to be asked for
    read: Callable[[], Model]
    if is_gguf(source):
        layout, parts = i2s_layout(i2s), [file for file in parts_of(source) if file.is_file()]
        stored = f"{format}-{layout}"
        read = partial(_read_gguf, source, format, head, layout, threads, wrap, progress, longer)
    else:
        checkpoint = Checkpoint.open(source)
        beside = FolderCompanions.of(checkpoint.path, checkpoint.config)
        if checkpoint.is_packed:
            return _load_packed(
                checkpoint, beside, head, threads, format, wrap, progress, mmap, longer
            )
        read = partial(
            _read_checkpoint, checkpoint, beside, format, head, threads, wrap, progress, longer
        )
    if not cached or wrap is not None or cache.cache_dir() is None:
        return read()
    # An exact head is stored as the checkpoint's own, and so is the default.
    key = cache.cache_key(source, stored, None if head == "exact" else head, parts)
    hit = cache.lookup(key)
    if hit is not None and beside is None and not (hit / "tokenizer.json").is_file():
        cache.discard(key)
        hit = None
    if hit is not None:
        try:
            packed = Checkpoint.open(hit)
            # A single file has no tokenizer beside it: its packed form has.
            beside = beside or FolderCompanions.of(hit, packed.config)
            return _load_packed(
                packed, beside, head, threads, progress=progress, mmap=mmap, longer=longer
            )
        except SternaError:  # damaged, of another version, gone or unreadable: make it again
            cache.discard(key)
    model = read()
    model.cache_key = key
    return model


def companions(path: str | Path) -> Companions:
    """What a model has besides its weights, none of which are read; raises as `load`."""
    source = Path(path)
    if is_gguf(source):
        file = GgufModel(source)
        return companions_of(file, config_of(file))
    checkpoint = Checkpoint.open(source)
    return FolderCompanions.of(checkpoint.path, checkpoint.config)


def _read_checkpoint(
    checkpoint: Checkpoint,
    companions: Companions,
    format: str | None,
    head: str | None,
    threads: int | None,
    wrap: Wrap | None,
    progress: Progress | None,
    longer: Longer,
) -> Model:
    """A published checkpoint in safetensors, packed as it is read."""
    checkpoint = _with_own_norms(checkpoint)

    team, sources = resolve_threads(threads), list[CheckpointWeights]()

    def weights(module: ModuleType) -> WeightSource:
        renamed = checkpoint.renamed(partial(_name_of, module))
        sources.append(CheckpointWeights(renamed, format, head, team, module.TERNARY))
        return wrap(sources[0]) if wrap else sources[0]

    def own_head(vocab: int, hidden: int) -> bool:
        return sources[0].has_own_head(vocab, hidden)

    config = _with_pooling(checkpoint.config, checkpoint.path)
    if POOLING in config and "lm_head.weight" not in checkpoint.tensors:
        config["tie_word_embeddings"] = True  # it was saved without a head, and none is needed
    with reading(checkpoint.files, progress):
        model = from_weights(config, checkpoint.path / "config.json", weights, own_head, longer)
    model.path, model.companions = checkpoint.path, companions
    _warn_of_skipped(checkpoint, reads_mtp=model.mtp is not None)
    return model


def _with_pooling(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """config.json with what other files of its folder say of pooling."""
    pooling = pooling_of(folder)
    return {**config, POOLING: pooling} if pooling else dict(config)


def _with_own_norms(checkpoint: Checkpoint) -> Checkpoint:
    """With what config.json of BitNet's embeddings leaves to the names of tensors: that layers are
    BitNet's masters, with a norm before each."""
    if not any(name.endswith(_STORED_NORM) for name in checkpoint.tensors):
        return checkpoint
    unsaid = {
        "quant_method": "bitnet", "quantization_mode": "online",
        "rms_norm_eps": checkpoint.config.get("rms_norm_eps", 1e-6),
    }  # fmt: skip
    said = checkpoint.config.get("quantization_config")
    said = said if isinstance(said, dict) else {}
    other = copy(checkpoint)
    other.config = checkpoint.config | {
        "quantization_config": {**unsaid, **said, "use_rms_norm": True}
    }
    return other


def _warn_of_skipped(checkpoint: Checkpoint, reads_mtp: bool) -> None:
    """A warning for each kind of tensors that the architecture has and Sterna does not run."""
    module = module_of(checkpoint.config, checkpoint.path / "config.json")
    for prefix, what in getattr(module, "SKIPPED", {}).items():
        found = [info for name, info in checkpoint.tensors.items() if name.startswith(prefix)]
        if found and not (reads_mtp and prefix == "mtp."):
            size = sum(info.nbytes for info in found) / 1e6
            warnings.warn(
                f"{checkpoint.path}: {len(found)} tensors {prefix}* ({size:.0f} MB) are skipped, "
                f"{what}",
                RuntimeWarning, stacklevel=2,
            )  # fmt: skip


def _read_gguf(
    path: Path,
    format: str | None,
    head: str | None,
    layout: str | None,
    threads: int | None,
    wrap: Wrap | None,
    progress: Progress | None,
    longer: Longer,
) -> Model:
    """A GGUF file, packed as it is read; layout: of I2_S tensors, None for the usual one."""
    file = GgufModel(path)
    warn_of_i2s(file, layout)
    config, team = config_of(file), resolve_threads(threads)
    companions = companions_of(file, config)
    source = GgufWeights(file, format, head, config["head_dim"], team, layout or "128")
    with reading(file.files.values(), progress):
        model = from_weights(
            config, path, lambda _: wrap(source) if wrap else source, longer=longer
        )
    model.path, model.companions = path, companions
    return model


def save(model: Model, dst: str | Path) -> None:
    """Write a model as a packed directory; `dst` must be absent or empty.

    Raises RequestError for a model that has no folder (made in memory) or where disk is short.
    """
    if model.companions is None:
        raise RequestError("save: a model made in memory has no tokenizer to save it with")
    weights = model.weights
    with model.companions.as_folder() as source:
        write_packed(dst, model.json, weights.modules, weights.tensors, source, model.format)


def _load_packed(
    folder: Checkpoint,
    companions: Companions,
    head: str | None,
    threads: int | None,
    format: str | None = None,
    wrap: Wrap | None = None,
    progress: Progress | None = None,
    mmap: bool = False,
    longer: Longer = AS_IT_IS,
) -> Model:
    if wrap:
        packed = open_packed(folder, threads)
    else:
        packed = read_packed(folder, threads, progress, mmap)
    weights = PackedWeights(
        packed.modules, packed.tensors, str(folder.path), head, resolve_threads(threads), format
    )
    model = from_weights(
        _with_pooling(packed.config, companions.path),
        folder.path / "config.json",
        lambda _: wrap(weights) if wrap else weights,
        longer=longer,
    )
    model.path, model.companions = companions.path, companions
    model.mapped = packed.mapped is not None
    return model
