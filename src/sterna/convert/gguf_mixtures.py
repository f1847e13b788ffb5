"""llama.cpp's mixtures of types, such as Q4_K_M: more bits for the tensors that lose most.

The rules are those of its quantiser for layers without experts (`llama_tensor_get_type_impl`).
"""

from __future__ import annotations

import re

__all__ = ["MIXTURES", "type_in"]

#: Mixture -> the type of most tensors.
MIXTURES = {
    **dict.fromkeys(("Q3_K_S", "Q3_K_M", "Q3_K_L"), "Q3_K"),
    **dict.fromkeys(("Q4_K_S", "Q4_K_M"), "Q4_K"),
    **dict.fromkeys(("Q5_K_S", "Q5_K_M"), "Q5_K"),
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.weight")


def type_in(mixture: str, tensor: str, layers: int) -> str:
    """Return the type of a matrix in a mixture.

    tensor: GGUF's name of it. layers: how many the model has.
    """
    base = MIXTURES[mixture]
    found = _LAYER.fullmatch(tensor)
    if found is None:
        return base
    layer, part = int(found[1]), found[2]
    # The first and the last eighth, and every third layer between them.
    eighth = layers // 8
    important = layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
    more: dict[str, dict[str, str | bool]] = {
        "Q5_K_M": {"attn_v": important and "Q6_K", "ffn_down": important and "Q6_K"},
        "Q4_K_M": {"attn_v": important and "Q6_K", "ffn_down": important and "Q6_K"},
        "Q4_K_S": {"attn_v": layer < 4 and "Q5_K", "ffn_down": layer < eighth and "Q5_K"},
        "Q3_K_L": {"attn_v": "Q5_K", "ffn_down": "Q5_K", "attn_output": "Q5_K"},
        "Q3_K_M": {
            "attn_v": "Q5_K" if layer < 2 else "Q4_K",
            "ffn_down": "Q5_K" if layer < layers // 16 else "Q4_K",
            "attn_output": "Q4_K",
        },
    }
    of_qkv = {"Q3_K_M": "Q4_K", "Q3_K_L": "Q4_K", "Q4_K_M": "Q5_K", "Q5_K_M": "Q6_K"}
    if part == "attn_qkv":
        return of_qkv.get(mixture, base)
    return str(more.get(mixture, {}).get(part) or base)
