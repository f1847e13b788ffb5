"""The fields of `config.json` of a decoder-only transformer, checked."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from sterna.errors import UnsupportedModelError, shown
from sterna.graph import Attention, Heads
from sterna.models.config_aliases import resolve_aliases
from sterna.models.config_fields import MAX_SIZE, Fields
from sterna.models.context_extension import NOT_EXTENDED, ContextExtension
from sterna.models.hadamard import Hadamard
from sterna.models.module_names import attribute
from sterna.models.pooling import Pooling
from sterna.models.rope import extended_context, growth_of, rotary_of, scaling_kind

__all__ = ["LINEAR_NORM", "TransformerConfig"]

#: A field of ours, for quantization_config's use_rms_norm and rms_norm_eps: a packed directory has
#: a quantization_config of its own.
LINEAR_NORM = "linear_norm_eps"
MAX_HEAD_DIM = 1 << 14  # its rotations are listed before a tensor's shape can contradict it
FULL, SLIDING = "full_attention", "sliding_attention"  # config.json's layer_types


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes in the words of config.json; `file` is named in errors."""

    file: Path
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position: int  # the model's own, or as a scaling of the rotations extends it
    most_positions: int  # beyond these it would be another model
    tied: bool
    activation: str
    attention_bias: bool  # of q, k, v and o
    mlp_bias: bool  # of gate, up and down
    linear_norm_eps: float  # of an RMSNorm before each linear layer; 0: there is none
    attention: tuple[Attention, ...]  # of each layer: rotations and window
    fields: Fields = field(compare=False, repr=False)  # for fields of a single architecture
    hadamard: Hadamard | None = field(default=None, compare=False, repr=False)
    pooling: Pooling | None = None  # of a model that makes vectors of texts
    bidirectional: bool = False  # an encoder, whose tokens attend to the whole text
    labels: int = 0  # of a classifier of texts; 0: it is none
    sees: bool = field(default=False, compare=False)  # its tower has been read
    label_row: str = "first"  # its input: the "first" or "last" token, or the "mean" of all

    @property
    def continues(self) -> bool:
        """Whether it predicts the next token: it is neither an encoder nor a classifier."""
        return not (self.bidirectional or self.labels)

    @property
    def heads(self) -> Heads:
        """The attention heads of all layers."""
        return Heads(self.n_heads, self.n_kv_heads, self.head_dim)

    @classmethod
    def of(
        cls,
        module: ModuleType,
        config: dict[str, Any],
        file: Path,
        extension: ContextExtension = NOT_EXTENDED,
    ) -> TransformerConfig:
        """Read a config.json of this architecture; defaults fill missing fields.

        extension: a longer context than the file's own, if the user asked for one.
        """
        resolved = resolve_aliases(config, file, attribute(module, "ALIASES"))
        filled = {**module.DEFAULTS, **resolved.config}
        fields = extension.over(resolved.having(filled))
        fields = fields.having(fields.config | attribute(module, "complete")(fields))
        encoder, activation = attribute(module, "ENCODER"), attribute(module, "ACTIVATION")
        if fields.config.get("hidden_act") in attribute(module, "ACTIVATIONS"):
            activation = fields.config["hidden_act"]
        return cls._of_fields(fields, activation, extension, encoder)

    @classmethod
    def _of_fields(
        cls, fields: Fields, activation: str, extension: ContextExtension, encoder: bool
    ) -> TransformerConfig:
        """Read the fields; ModelFormatError names a wrong one, UnsupportedModelError a feature that
        Sterna lacks.

        activation: the hidden_act that the architecture must have. encoder: whether it may be
        bidirectional.
        """
        config = fields.config
        heads = fields.count("num_attention_heads")
        kv_heads = fields.count("num_key_value_heads", heads)
        hidden = fields.count("hidden_size")
        head_dim = fields.count("head_dim", hidden // heads, MAX_HEAD_DIM)
        if heads % kv_heads:
            fields.fail(
                "num_key_value_heads", f"a divisor of num_attention_heads={heads}", kv_heads
            )
        fields.supported("hidden_act", config.get("hidden_act", activation), activation)
        fields.supported("layer_sharing", fields.flag("layer_sharing"), False)
        bidirectional = fields.flag("use_bidirectional_attention")
        fields.supported("use_bidirectional_attention", bidirectional, encoder and bidirectional)
        fields.supported("is_causal", fields.config.get("is_causal", True), True)
        if head_dim % 2:
            fields.fail("head_dim", "an even number, as rotations are of pairs", head_dim)
        context, most = extension.factor_of_linear * extended_context(fields), MAX_SIZE
        n_layers = fields.n_layers
        window = config.get("sliding_window")
        if config.get("layer_types") is None and type(window) is int and window > 0:
            # Nothing says which layers have the window; within its length that does not matter.
            most = window if config.get("use_sliding_window", True) else most
        if fields.flag("learned_positions") or _grows(fields):  # the first is a field of ours
            most = min(most, fields.count("max_position_embeddings"))
        context = min(int(context), most)
        return cls(
            file=fields.file,
            architecture=_architecture(config),
            vocab_size=fields.count("vocab_size"),
            hidden_size=hidden,
            intermediate_size=fields.count("intermediate_size"),
            n_layers=n_layers,
            n_heads=heads,
            n_kv_heads=kv_heads,
            head_dim=head_dim,
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            max_position=context,
            most_positions=most,
            tied=bool(config.get("tie_word_embeddings")),
            activation=activation,
            attention_bias=fields.flag("attention_bias"),
            mlp_bias=fields.flag("mlp_bias"),
            linear_norm_eps=fields.number(LINEAR_NORM) if LINEAR_NORM in config else 0.0,
            attention=_attention(fields, n_layers, head_dim, max(context, extension.context)),
            hadamard=Hadamard.of(fields),
            pooling=Pooling.of(fields),
            bidirectional=bidirectional,
            labels=fields.count("labels") if config.get("labels") is not None else 0,
            label_row=config.get("label_row", "first"),
            fields=fields,
        )


def _architecture(config: dict[str, Any]) -> str:
    """Return the name of the model's class in transformers."""
    return str((config.get("architectures") or ["?"])[0])


def _attention(fields: Fields, n_layers: int, head_dim: int, context: int) -> tuple[Attention, ...]:
    """Return rotations and window of each layer.

    layer_types: which layers have a window, and which set of rope_parameters each uses if there are
    several. no_rope_layers (SmolLM3): 1 for a layer that has rotations, else 0. Fields of ours:
    rotary_dim, how many values of a head are rotated, all if absent; rope_interleaved, whether
    adjacent values are rotated together.
    """
    types = fields.items("layer_types", n_layers, (FULL, SLIDING))
    rotated = fields.items("no_rope_layers", n_layers, (0, 1))
    window = fields.count("sliding_window") if types and SLIDING in types else context
    rotary_dim = fields.count("rotary_dim", head_dim, head_dim)
    if rotary_dim % 2:
        fields.fail("rotary_dim", "an even number, as rotations are of pairs", rotary_dim)
    interleaved = fields.flag("rope_interleaved")
    parameters_of = _rope_parameters(fields, types)
    rotaries = {
        kind: replace(
            rotary_of(
                fields,
                parameters,
                # If heads of one kind of layers are wider, its parameters say so.
                fields.having(parameters).count("rotary_dim", rotary_dim, MAX_HEAD_DIM),
            ),
            interleaved=interleaved,
        )
        for kind, parameters in parameters_of.items()
    }
    growths = {kind: growth_of(fields, rope) for kind, rope in parameters_of.items()}
    return tuple(
        Attention(
            rotary=rotaries[kind] if rotated is None or rotated[i] else None,
            window=window if kind == SLIDING and window < context else None,
            growth=growths[kind],
            bidirectional=fields.flag("use_bidirectional_attention"),
        )
        for i, kind in enumerate(types or [FULL] * n_layers)
    )


def _grows(fields: Fields) -> bool:
    """Whether rotations depend on the length of a text beyond max_position_embeddings."""
    parameters = fields.mapping("rope_parameters")
    sets = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
    return any(scaling_kind(one) == "dynamic" for one in sets)


def _rope_parameters(fields: Fields, types: list[str] | None) -> dict[str, dict[str, Any]]:
    """Return the fields of the rotary embedding for each type of layer."""
    name = "rope_parameters"
    parameters = fields.mapping(name)
    sets = [kind for kind, value in parameters.items() if isinstance(value, dict)]
    if not sets:
        return dict.fromkeys((FULL, SLIDING), parameters)
    if types is None or set(types) - set(sets):
        raise UnsupportedModelError(
            f"{fields.file}: {fields.name(name)} must be one set for all layers, or one for each "
            f"of layer_types, but got {shown(', '.join(sets))}; Sterna does not run this variant"
        )
    return {kind: parameters[kind] for kind in sorted(set(types))}
