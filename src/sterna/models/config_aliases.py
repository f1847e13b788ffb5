"""Aliases in config.json: names of fields vary by version of transformers and by family.

`resolve_aliases` leaves each field with the one name that architectures know:

    num_experts             num_local_experts, as transformers 5 saves every family
    hidden_act              hidden_activation (Gemma), which wins where a file has both
    sliding_window_pattern  _sliding_window_pattern
    tie_word_embeddings     share_embedding (MobileLLM): either may say that they are tied
    rope_parameters         rope_scaling, until transformers 5; the rope_type within was `type`
    text_config             a model with towers nests the text's fields here; they are renamed, too

Names that only one family has are in `ALIASES` of its module.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sterna.errors import shown
from sterna.models.config_fields import Fields

__all__ = ["resolve_aliases"]

#: Other names of a field with the same meaning.
_SAME = {"num_local_experts": "num_experts", "_sliding_window_pattern": "sliding_window_pattern"}
_ROPE, _SCALING, _FULL = "rope_parameters", "rope_scaling", "full_attention"


def resolve_aliases(config: dict[str, Any], file: Path, own: Mapping[str, str]) -> Fields:
    """Give the fields of a config.json one name each; errors name a field as the file does.

    own: names that only this family has -> the usual ones. ModelFormatError if two names of one
    field have different values.
    """
    fields, names = dict(config), dict[str, str]()
    for other, name in {**_SAME, **own}.items():
        value = fields.pop(other, None)
        if value is None:
            continue
        if fields.get(name) not in (None, value):
            rule = f"{fields[name]}, as {name} says, which is the same field"
            Fields(config, file).fail(other, rule, value)
        fields[name], names[name] = value, other
    if fields.get("hidden_activation") is not None:
        fields["hidden_act"] = fields["hidden_activation"]
        names["hidden_act"] = "hidden_activation"
    fields.pop("hidden_activation", None)
    if fields.pop("share_embedding", None):
        fields["tie_word_embeddings"] = True
    if isinstance(fields.get("text_config"), dict):
        text = resolve_aliases(fields["text_config"], file, own)
        fields["text_config"], names = text.config, {**text.names, **names}
    names |= _spell_rotations(fields, file)
    return Fields(fields, file, names)


def _spell_rotations(config: dict[str, Any], file: Path) -> dict[str, str]:
    """Merge rope_scaling into rope_parameters of `config`; return the file's name of these.

    rope_scaling wins, as in transformers 5. If each kind of layers has parameters, it belongs to
    the layers without a window.
    """
    fields = Fields(config, file)
    parameters = {
        name: _typed(value) if isinstance(value, dict) else value
        for name, value in _typed(fields.mapping(_ROPE)).items()
    }
    scaling = _typed(fields.mapping(_SCALING))
    names = {_ROPE: _SCALING} if scaling and not parameters else {}
    config.pop(_SCALING, None)
    each = [kind for kind, value in parameters.items() if isinstance(value, dict)]
    if scaling:
        at = parameters.get(_FULL, {}) if each else parameters
        lost = [key for key in scaling if at.get(key, scaling[key]) != scaling[key]]
        if lost:
            warnings.warn(
                f"{file}: {_ROPE} and {_SCALING} differ in {shown(', '.join(lost))}: {_SCALING} "
                "is used, as in transformers",
                RuntimeWarning,
                stacklevel=2,
            )
        parameters = {**parameters, _FULL: {**at, **scaling}} if each else {**at, **scaling}
    if parameters or _ROPE in config:
        config[_ROPE] = parameters
    base = parameters.get("rope_theta")
    if base is not None and config.get("rope_theta", base) != base:
        warnings.warn(
            f"{file}: rope_theta is {shown(config['rope_theta'])}, but {shown(base)} within {_ROPE}"
            ", which is used, as in transformers",
            RuntimeWarning,
            stacklevel=2,
        )
    return names


def _typed(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters with `type` as rope_type, too."""
    if "type" not in parameters:
        return parameters
    return {"rope_type": parameters["type"], **parameters}
