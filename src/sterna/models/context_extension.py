"""The options `context` and `rope_scaling`: a longer context than the model's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sterna.errors import RequestError, shown
from sterna.models.config_fields import Fields

__all__ = ["NOT_EXTENDED", "ContextExtension"]

KINDS = ("yarn", "linear")
#: Fields of rope_parameters that keep the file's values.
_KEPT = ("rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")
_FULL, _ROPE, _CONTEXT = "full_attention", "rope_parameters", "max_position_embeddings"


@dataclass(frozen=True)
class ContextExtension:
    """A longer context, and the scaling of rotations that makes it usable.

    context: positions, 0 for the model's own. kind: "yarn" or "linear", "" for the file's scaling.
    """

    context: int = 0
    kind: str = ""
    factor: float = 1.0

    @classmethod
    def of(cls, context: object, scaling: object) -> ContextExtension:
        """Parse the options `context` and `rope_scaling` (KIND:FACTOR); RequestError."""
        asked = context if type(context) is int else 0  # the engine refuses others
        if scaling is None:
            return cls(asked)
        kind, _, factor = scaling.partition(":") if isinstance(scaling, str) else ("", "", "")
        try:
            value = float(factor)
        except ValueError:
            value = 0.0
        if kind not in KINDS or not 1 < value <= 1024:
            raise RequestError(
                "rope_scaling: must be yarn:FACTOR or linear:FACTOR, with a factor over 1 and up "
                f"to 1024, but got {shown(scaling)}; write yarn:4 for four times the context"
            )
        return cls(asked, kind, value)

    @property
    def factor_of_linear(self) -> float:
        """How many times longer a linear scaling makes the context."""
        return self.factor if self.kind == "linear" else 1.0

    def over(self, fields: Fields) -> Fields:
        """Return the fields of a file, with this scaling for the layers without a window."""
        if not self.kind:
            return fields
        text = fields.config.get("text_config")
        if isinstance(text, dict):
            return fields.having({**fields.config, "text_config": self._over(text)})
        return fields.having(self._over(fields.config))

    def _over(self, config: dict[str, Any]) -> dict[str, Any]:
        parameters = config.get(_ROPE) or {}
        each = any(isinstance(value, dict) for value in parameters.values())
        old = parameters.get(_FULL, {}) if each else parameters
        new = {key: old[key] for key in _KEPT if key in old}
        new |= {"rope_type": self.kind, "factor": self.factor}
        if self.kind == "yarn" and config.get(_CONTEXT) is not None:
            first = old.get("original_max_position_embeddings", config[_CONTEXT])
            new["original_max_position_embeddings"] = first
        return {**config, _ROPE: {**parameters, _FULL: new} if each else new, "rope_factors": None}


NOT_EXTENDED = ContextExtension()
