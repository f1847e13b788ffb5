"""A context beyond the model's own: how long, and how rotations are scaled for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sterna.errors import RequestError, shown
from sterna.models.fields import Fields

__all__ = ["AS_IT_IS", "Longer"]

KINDS = ("yarn", "linear")
#: Of rotations, what stays as the file has it.
_KEPT = ("rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")
_FULL, _ROPE, _CONTEXT = "full_attention", "rope_parameters", "max_position_embeddings"


@dataclass(frozen=True)
class Longer:
    """context: positions that are asked for, 0 where nothing is; kind, factor: of the scaling, in
    the place of the file's own, "" where none is asked for."""

    context: int = 0
    kind: str = ""
    factor: float = 1.0

    @classmethod
    def of(cls, context: object, scaling: object) -> Longer:
        """The options `context` and `rope_scaling`, KIND:FACTOR; RequestError for another form."""
        asked = context if type(context) is int else 0  # the engine says what is wrong with others
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
        """What a scaling that does not say its first context makes of it."""
        return self.factor if self.kind == "linear" else 1.0

    def over(self, fields: Fields) -> Fields:
        """The fields of a file, with this scaling of the layers that see all positions."""
        if not self.kind:
            return fields
        text = fields.config.get("text_config")
        if isinstance(text, dict):
            return fields.having({**fields.config, "text_config": self._over(text)})
        return fields.having(self._over(fields.config))

    def _over(self, config: dict[str, Any]) -> dict[str, Any]:
        given = config.get(_ROPE) or {}
        each = any(isinstance(value, dict) for value in given.values())
        old = given.get(_FULL, {}) if each else given
        new = {key: old[key] for key in _KEPT if key in old}
        new |= {"rope_type": self.kind, "factor": self.factor}
        if self.kind == "yarn" and config.get(_CONTEXT) is not None:
            first = old.get("original_max_position_embeddings", config[_CONTEXT])
            new["original_max_position_embeddings"] = first
        return {**config, _ROPE: {**given, _FULL: new} if each else new, "rope_factors": None}


AS_IT_IS = Longer()
