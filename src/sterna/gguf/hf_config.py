"""The metadata of a GGUF file as config.json.

Follows the converters of llama.cpp and of microsoft/BitNet.
"""

from __future__ import annotations

import re
from typing import Any

from sterna.errors import ModelFormatError, UnsupportedModelError, shown, warn
from sterna.gguf.architecture_fields import further_fields
from sterna.gguf.architectures import ARCHITECTURES_OF, WITH_EXPERTS
from sterna.gguf.file import GgufModel
from sterna.gguf.folded_hadamard import hadamard_of
from sterna.gguf.metadata import Metadata, require_neutral
from sterna.gguf.rope_scaling import rope_of, scaling_of
from sterna.gguf.tensor_names import OUTER
from sterna.models.config import FULL, SLIDING
from sterna.models.gguf_architecture import (
    NORM_IN,
    PREDICTING,
    PROJECTIONS,
    SWA_ROTATED,
    GgufArchitecture,
)

__all__ = ["GGUF_POOLINGS", "TOWER", "config_of"]

#: Tables that are computed here, and scales of activations in four bits, which stay floats here.
_IGNORED = re.compile(
    r"blk\.\d+\.attn_rot_embd\.weight|rope_freqs\.weight|(?:blk\.\d+\.)?[a-z_]+\.input_scale"
)
_LONG_OR_SHORT = re.compile(r"rope_factors_(long|short)\.weight")
_BLOCK = re.compile(
    r"blk\.(\d{1,6})\.(((?:shortconv\.|indexer\.)?[a-z0-9_]+)\.(?:weight|bias|scale)|[a-z0-9_.]+)"
)

#: Kinds of pooling -> their numbers in GGUF files.
GGUF_POOLINGS = {"mean": 1, "cls": 2, "last": 3}
_RANK = 4  # of a cross-encoder, whose tensors say it

#: Keys that may change the arithmetic -> the values that do not.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "expert_count": (0,),
    "expert_weights_scale": (0.0, 1.0),
    "expert_weights_norm": (True,),
    "expert_group_count": (0, 1),
    "expert_gating_func": (0, 1, 3),  # unsaid, softmax, of the top
    "attention.scale": (),
    "attention.causal": (True,),
    "logit_scale": (1.0,),
    "embedding_scale": (1.0,),
    "residual_scale": (1.0,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "use_parallel_residual": (False,),
    "attention.temperature_scale": (0.0,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
}


#: The architecture of files that hold a tower.
TOWER = "clip"


def config_of(model: GgufModel) -> dict[str, Any]:
    """Translate the metadata to config.json; raises ModelFormatError or UnsupportedModelError."""
    m = model.metadata
    name, kind = _architecture_of(model)
    reads = {*kind.reads, *kind.keys, *(("expert_count",) if kind.experts else ())}
    if kind.encoder:
        require_neutral(m, f"{name}.attention.causal", (False,))
        reads.add("attention.causal")
    for suffix, neutral in _NEUTRAL.items():
        if suffix not in reads:
            require_neutral(m, f"{name}.{suffix}", neutral)
    layers = m.integer(f"{name}.block_count", most=1 << 16)
    predicts = kind.hybrid or kind.predicts
    predicting = _predicting(m, name, layers) if predicts else 0
    blocks, layers = layers, layers - predicting
    heads = m.same(f"{name}.attention.head_count", layers)
    hidden = m.integer(f"{name}.embedding_length")
    table = model.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise ModelFormatError(model.path, "token_embd.weight", "a matrix", table and "another")
    folded = hadamard_of(model, _linear_modules(kind, layers))
    reads_mtp = kind.hybrid and predicting == 1 and not folded and _is_mtp(model, kind, layers)
    _check_names(model, kind, layers, reads_mtp)
    width = _head_dim(m, name, kind, hidden, heads) if kind.attends and not kind.latent else 0
    experts = _experts(m, name, layers, kind.experts) if kind.experts else {}
    own_norms = any(tensor.endswith(f"{NORM_IN}.weight") for tensor in model.tensors)
    of_rms = f"{name}.attention.layer_norm_rms_epsilon"
    layer_norm = of_rms not in m if kind.layer_norm is None else kind.layer_norm
    eps = m.number(f"{name}.attention.layer_norm_epsilon" if layer_norm else of_rms)
    wide = experts.get(kind.experts)  # for models without dense FFNs
    fields = {
        "architectures": [kind.architecture],
        "model_type": name,
        "vocab_size": table.shape[0],
        "hidden_size": hidden,
        "intermediate_size": _of_first(m, kind, f"{name}.feed_forward_length", blocks, wide),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": _of_first(m, kind, f"{name}.attention.head_count_kv", blocks, heads),
        "head_dim": width,
        "hidden_act": kind.activation,
        "rms_norm_eps": eps,
        **({"linear_norm_eps": eps} if own_norms else {}),
        **_windows(m, name, kind, layers),
        "tie_word_embeddings": "output.weight" not in model.tensors,
        "attention_bias": "blk.0.attn_output.bias" in model.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in model.tensors,
        **rope_of(model, name),
        **({"folded_hadamard": folded} if folded else {}),
        **_pooling(m, f"{name}.pooling_type"),
        **experts,
        **({"mtp_num_hidden_layers": int(reads_mtp)} if kind.hybrid else {}),
    }
    if kind.partial:
        windowed = f"{name}.{SWA_ROTATED}" if SWA_ROTATED in kind.reads else ""
        fields["rotary_dim"] = _rotary_dim(m, f"{name}.rope.dimension_count", width, windowed)
    return fields | further_fields(model, name, kind, fields)


def _architecture_of(model: GgufModel) -> tuple[str, GgufArchitecture]:
    """Return general.architecture and its description; UnsupportedModelError for an unknown one."""
    m = model.metadata
    name = m.text("general.architecture")
    if name == TOWER:
        raise UnsupportedModelError(
            f"{model.path}: must hold a model of text, but it is a vision tower "
            f"(general.architecture {shown(name)}); pass the text's GGUF file as the model, and "
            "this one as mmproj"
        )
    kind = ARCHITECTURES_OF.get(name)
    if kind is None:
        nearest = ", ".join(_nearest(model, name))
        raise UnsupportedModelError(
            f"{model.path}: general.architecture must be one of {len(ARCHITECTURES_OF)} that "
            f"Sterna runs (nearest by its tensors: {nearest}), but got {shown(name)}; Sterna does "
            "not run this model yet"
        )
    return name, WITH_EXPERTS.get(name, kind) if m.integer(f"{name}.expert_count", 0) else kind


def _nearest(model: GgufModel, name: str) -> list[str]:
    """Return the architectures whose files have the most like tensors: of encoders, or of others,
    as the file is one."""
    from sterna.models.kin import most_like

    m, causal = model.metadata, f"{name}.attention.causal"
    encoder = causal in m and not m.boolean(causal)
    tensors = {match[2] if (match := _BLOCK.fullmatch(t)) else t for t in model.tensors}
    experts = WITH_EXPERTS if any("_exps" in t for t in tensors) else {}
    kinds = {**ARCHITECTURES_OF, **experts}
    known = {n: _tensors_of(kind) for n, kind in kinds.items() if kind.encoder == encoder}
    return most_like(tensors, name, known, {n: (n,) for n in known})


def _tensors_of(kind: GgufArchitecture) -> frozenset[str]:
    """Return names of tensors of an architecture's files, those of layers without a number."""
    modules = {*kind.modules.values(), *kind.outer.values()}
    return frozenset({f"{module}.weight" for module in modules} | {*kind.arrays.values()})


def _windows(m: Metadata, name: str, kind: GgufArchitecture, layers: int) -> dict[str, Any]:
    """Return the context and which layers have a window: a list, or all but every n-th."""
    key, base = f"{name}.attention.sliding_window", f"{name}.rope.freq_base"
    window, context = m.integer(key, 0) or None, m.integer(f"{name}.context_length")
    if "rope.freq_base_swa" not in kind.reads:
        require_neutral(m, f"{base}_swa", (m.number(base, 10000.0),))
    found = {"max_position_embeddings": context, "sliding_window": window}
    if not kind.period:
        return found
    if window is None and kind.architecture == "Gemma2ForCausalLM":
        found["sliding_window"] = window = 4096  # as llama.cpp has it
    types = m.windowed(f"{key}_pattern", layers, kind.period)
    if window is None:
        types = [False] * layers
    return found | {"layer_types": [SLIDING if windowed else FULL for windowed in types]}


def _of_first(
    m: Metadata, kind: GgufArchitecture, key: str, layers: int, default: int | None
) -> int:
    """Read a number that all layers share; if layers may differ, the first layer's."""
    varied = kind.varied and (key in m or default is None)
    return m.each(key, layers)[0] if varied else m.same(key, layers, default)


def _experts(m: Metadata, name: str, layers: int, width: str) -> dict[str, Any]:
    """Read the number of experts, of experts a token uses, and their width."""
    key = f"{name}.expert_feed_forward_length"
    return {
        "num_experts": m.integer(f"{name}.expert_count"),
        width: m.integer(key) if key in m else m.same(f"{name}.feed_forward_length", layers),
        "num_experts_per_tok": m.integer(f"{name}.expert_used_count"),
        "norm_topk_prob": True,
    }


def _pooling(m: Metadata, key: str) -> dict[str, Any]:
    """Read the pooling of an embedding model; its vectors are normalised."""
    kind = m.integer(key, 0)
    if kind in (0, _RANK):
        return {}
    known = {number: name for name, number in GGUF_POOLINGS.items()}
    if kind not in known:
        raise UnsupportedModelError(
            f"{m.path}: {key} must be 0 (none) to 4 (rank), but got {kind}; "
            "Sterna does not run this variant"
        )
    return {"pooling": {"kind": known[kind], "normalise": True}}


def _predicting(m: Metadata, name: str, layers: int) -> int:
    """Count the last blocks that predict several tokens (MTP layers)."""
    key = f"{name}.nextn_predict_layers"
    count = m.integer(key, 0)
    if count >= layers:
        raise m.error(key, f"fewer than {name}.block_count={layers}", count)
    return count


def _linear_modules(kind: GgufArchitecture, layers: int) -> dict[str, str]:
    """Map the tensors that activations are multiplied with to the layers' names."""
    modules = {
        f"blk.{i}.{tensor}.weight": f"model.layers.{i}.{module}"
        for i in range(layers)
        for module, tensor in kind.modules.items()
        if module.endswith("_proj") or module in PROJECTIONS
    }
    return {**modules, "output.weight": "lm_head"}


def _head_dim(m: Metadata, name: str, kind: GgufArchitecture, hidden: int, heads: int) -> int:
    """Read the features of a head, the same for keys, values and whole rotations."""
    if not heads:
        raise m.error(f"{name}.attention.head_count", "at least 1", heads)
    width = m.integer(f"{name}.attention.key_length", hidden // heads)
    keys = [f"{name}.attention.value_length"]
    if kind.rotates and not kind.partial:
        keys.append(f"{name}.rope.dimension_count")
    for key in keys:
        if m.integer(key, width) != width:
            raise UnsupportedModelError(
                f"{m.path}: {key} must be {width}, the features of a head, but got "
                f"{m.integer(key)}; Sterna rotates whole heads"
            )
    return width


def _rotary_dim(m: Metadata, key: str, width: int, windowed: str) -> int:
    """Read how many features of a head are rotated.

    windowed: the key for layers with a window, where others are not rotated; their number may be 0.
    """
    if windowed in m and m.integer(key, 0) in (0, m.integer(windowed)):
        key = windowed
    rotated = m.integer(key, width)
    if rotated % 2 or not 0 < rotated <= width:
        raise m.error(key, f"an even number up to {width}, the features of a head", rotated)
    return rotated


def _is_mtp(model: GgufModel, kind: GgufArchitecture, block: int) -> bool:
    """Whether a block is exactly an MTP layer that the architecture runs."""
    prefix, known = f"blk.{block}.", {f"{tensor}.weight" for tensor in kind.modules.values()}
    inside = {name.removeprefix(prefix) for name in model.tensors if name.startswith(prefix)}
    needed = {f"{tensor}.weight" for tensor in PREDICTING.values()}
    return needed <= inside <= known


def _check_names(model: GgufModel, kind: GgufArchitecture, layers: int, reads_mtp: bool) -> None:
    """Refuse tensors that the graph does not read, since leaving them out would give wrong answers.

    reads_mtp: whether the block after the last layer is read as an MTP layer.
    """
    architecture = model.metadata.text("general.architecture")
    longrope = scaling_of(model, architecture) == "longrope"
    known = {*kind.modules.values()}
    whole = {*kind.arrays.values()}
    outer = {f"{module}.weight" for module in {**OUTER, **kind.outer}.values()}
    outer |= {f"{module}.bias" for module in kind.biases}
    skipped = []
    for name, info in model.tensors.items():
        match = _BLOCK.fullmatch(name)
        inside = match and int(match[1]) < layers and (match[3] in known or match[2] in whole)
        ignored = _IGNORED.fullmatch(name) or (longrope and _LONG_OR_SHORT.fullmatch(name))
        if (kind.hybrid or kind.predicts) and match and int(match[1]) >= layers:
            skipped += [] if reads_mtp and int(match[1]) == layers else [info]
        elif not inside and name not in outer and not ignored:
            raise UnsupportedModelError(
                f"{info.file}: {name}: tensors must be those of {kind.architecture} with {layers} "
                "layers, but this is another; Sterna does not run this variant"
            )
    if skipped:
        warn(
            f"{model.path}: {len(skipped)} tensors from blk.{layers} on "
            f"({sum(info.nbytes for info in skipped) / 1e6:.0f} MB) are skipped, layers that "
            "predict several tokens, of a kind that Sterna does not run"
        )
