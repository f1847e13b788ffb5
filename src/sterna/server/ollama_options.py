"""The `options` of ollama's requests, as fields of OpenAI's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from sterna.server.errors import field_error, invalid
from sterna.server.sampling_fields import SamplingFields

__all__ = ["sampling_of"]

#: Options that change the answer, and the field that each becomes.
READ = {
    **{
        name: name
        for name in """
            temperature top_p top_k min_p seed stop presence_penalty frequency_penalty
            repeat_last_n typical_p mirostat mirostat_tau mirostat_eta
        """.split()
    },
    "num_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
}
#: ollama's default, which the fields of OpenAI's protocols do not share.
REPEAT_LAST_N = 64
#: Options of samplers that do not exist here, and the values that turn them off.
OFF: Mapping[str, tuple[float, ...]] = {"tfs_z": (1,)}
#: Options of loading, or that belong to one of the above: they are left out.
UNREAD = """
    num_ctx num_batch num_gpu main_gpu num_thread num_keep numa low_vram f16_kv logits_all
    vocab_only use_mmap use_mlock embedding_only penalize_newline draft_num_predict
""".split()


def sampling_of(options: Mapping[str, Any], warn: Callable[[str], None]) -> SamplingFields:
    """Return the sampling fields that options ask for. ApiError 400.

    warn: is told of unknown options, which are left out, as ollama does.
    """
    fields: dict[str, Any] = {"repeat_last_n": REPEAT_LAST_N}
    for name, value in options.items():
        if value is None or name in UNREAD:
            continue
        if name in READ:
            fields[READ[name]] = value
        elif name in OFF:
            if value not in OFF[name]:
                raise invalid(f"options.{name}", "is not supported", value)
        else:
            warn(f"options.{name}: is unknown, and was left out")
    if fields.get("max_tokens", 0) == -2:  # ollama's word for the whole context
        fields["max_tokens"] = -1
    try:
        return msgspec.convert(fields, SamplingFields)
    except msgspec.ValidationError as error:
        raise field_error("options", f"{error}") from None
