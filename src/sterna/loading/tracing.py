"""From a configuration and a source of weights to a traced `Model`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from sterna.errors import UnsupportedModelError, warn
from sterna.graph import Graph, GraphBuilder
from sterna.loading.model import DenseLayer, Model
from sterna.models import attribute, module_of, skipped
from sterna.models.builder import ModelBuilder
from sterna.models.config import LINEAR_NORM, TransformerConfig
from sterna.models.context_extension import NOT_EXTENDED, ContextExtension
from sterna.models.hadamard import FIELD as HADAMARD
from sterna.models.hadamard import rotated_down_proj
from sterna.models.pooling import DENSE
from sterna.weights.sources import Linear, WeightSource

if TYPE_CHECKING:
    from sterna.models.vision.tower import Tower

__all__ = [
    "STORED_NORM",
    "TowerSource",
    "from_weights",
    "layer_names",
    "model_name_of",
    "refuse_unread",
]

#: Prefixes of tensor names in a checkpoint saved without its head, and in one with it.
BASE_MODEL = {name: f"model.{name}" for name in ("embed_tokens.", "layers.", "norm.")}
#: How BitNet's embeddings name a linear layer's own input norm, and how transformers names it.
STORED_NORM, _INPUT_NORM = "_proj.norm.weight", "_proj.rms_norm.weight"

T = TypeVar("T")
#: Of a family's module and the text's weights: those of the tower.
TowerSource = Callable[[ModuleType, WeightSource], WeightSource]


def from_weights(
    json: dict[str, Any],
    file: Path,
    weights: Callable[[ModuleType], WeightSource],
    own_head: Callable[[int, int], bool] = lambda *_: False,
    extension: ContextExtension = NOT_EXTENDED,
    tower: TowerSource | None = None,
) -> Model:
    """Trace a model from its config.json and a source of weights; errors name `file`.

    own_head: returns whether a head [vocab, hidden] is stored although config.json ties it to the
    embedding. tower: returns the source of the weights of the tower, for a model that has one;
    None: it is left out.
    """
    module = module_of(json, file)
    quantization = json.get("quantization_config")
    read = partial(TransformerConfig.of, module, file=file, extension=extension)
    if isinstance(quantization, dict) and quantization.keys() & {"use_rms_norm", "rotation"}:
        from sterna.weights import storages  # a packed model needs none of them

        said = storages.quantization(json, file)
        json = {**json, LINEAR_NORM: said.norm_eps} if said.norm_eps else json
        if said.rotated:
            c = read(json)
            rotated = rotated_down_proj(file, c.architecture, c.intermediate_size, c.n_layers)
            json = {**json, HADAMARD: rotated}
    config, source = read(json), weights(module)
    if config.tied and own_head(config.vocab_size, config.hidden_size):
        json, config = _untied(json, file), replace(config, tied=False)
    seeing = _tower(module, config, tower, source)
    config = replace(config, sees=seeing is not None)
    # An encoder's texts are read whole: the keys of earlier layers are not read again.
    graph = GraphBuilder(config.heads, one_layer=config.bidirectional)
    builder = ModelBuilder(graph, config, source)
    of_text = getattr(module, "text_module", lambda _: module)(config)
    of_text.build(builder)
    dense = _dense(config, source)
    predictor = attribute(module, "predictor")(builder)
    refuse_unread(source, module, config)
    kv_dtype = attribute(of_text, "KV_DTYPE")
    models = [
        Model(None, json, config, one, source, *_formats(one), kv_dtype)
        for one in (graph.graph, predictor)
        if one is not None
    ]
    models[0].mtp = models[1] if predictor is not None else None
    models[0].tower = seeing
    models[0].dense = dense
    return models[0]


def _dense(config: TransformerConfig, w: WeightSource) -> tuple[DenseLayer, ...]:
    """Read the linear layers after the pooling, in the checkpoint's own formats."""
    made = list[DenseLayer]()
    for i, layer in enumerate(config.pooling.dense if config.pooling else ()):
        part = Linear(DENSE.format(i), layer.features, layer.inputs, layer.bias, exact=True)
        bias = w.vector(f"{part.name}.bias", part.M) if part.bias else None
        (weight,) = w.matrix(part.name, [part])
        made.append(DenseLayer(weight, bias, layer.activation))
    return tuple(made)


def _tower(
    module: ModuleType, config: TransformerConfig, tower: TowerSource | None, text: WeightSource
) -> Tower | None:
    """Trace the vision tower; None if the model has no such weights, or, with a warning, one that
    Sterna does not run."""
    names = attribute(module, "TOWER")
    if tower is None or not names:
        return None
    source = tower(module, text)
    if not any(map(source.has, (names,) if isinstance(names, str) else names)):
        return None
    try:
        traced: Tower = module.tower(config, source)
    except UnsupportedModelError as error:
        warn(f"only the text runs, without images: {error}")
        return None
    return traced


def _untied(json: dict[str, Any], file: Path) -> dict[str, Any]:
    """config.json with the stored head in place of the tied embedding, and a warning."""
    warn(
        f"{file}: tie_word_embeddings is true, but lm_head.weight is there and is not the "
        "embedding: it is used, as in transformers"
    )
    untied = {**json, "tie_word_embeddings": False}
    untied.pop("share_embedding", None)
    if isinstance(json.get("text_config"), dict):
        untied["text_config"] = {**json["text_config"], "tie_word_embeddings": False}
    return untied


def refuse_unread(source: WeightSource, module: ModuleType, config: TransformerConfig) -> None:
    """Raise UnsupportedModelError for a published file's tensor that the architecture did not read.

    Tensors that it skips, or that have no effect, are allowed.
    """
    refuse = getattr(source, "refuse_unread", None)  # only the sources of published files have it
    if refuse is not None:
        unread = attribute(module, "unread")(config)
        refuse(unread, skipped(module, config.fields.config))


def _formats(graph: Graph) -> tuple[str, str]:
    """Return the format of most bytes of the linear layers, and the head's format."""
    *layers, head = graph.linears
    nbytes: Counter[str] = Counter()
    for layer in layers:
        nbytes[layer.weight.format.name] += layer.weight.nbytes
    stored = "int8" if head.weight.format == "i8" else head.weight.format.name
    return nbytes.most_common(1)[0][0], "exact" if head.shadow is not None else stored


def layer_names(model: Model, of_files: Mapping[str, T]) -> dict[str, tuple[str, T]]:
    """Map the model's name of each tensor to the checkpoint's name and the value."""
    module = module_of(model.json, model.path or Path("config.json"))
    return {model_name_of(module, stored): (stored, value) for stored, value in of_files.items()}


def model_name_of(module: ModuleType, stored: str) -> str:
    """Return an architecture's name of the tensor that a checkpoint calls `stored`."""
    prefixes = BASE_MODEL | attribute(module, "PREFIXES")
    old = next((p for p in prefixes if stored.startswith(p)), "")
    name: str = prefixes.get(old, "") + stored[len(old) :]
    return name.removesuffix(STORED_NORM) + _INPUT_NORM if name.endswith(STORED_NORM) else name
