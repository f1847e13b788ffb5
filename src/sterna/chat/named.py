"""Well-known chat templates by name, for models whose files have none, or a bad one.

Each ends a turn with its family's token, and takes a system prompt if the family does.
"""

from __future__ import annotations

__all__ = ["NAMED"]

_OPENS = "{% if add_generation_prompt %}"


def _turns(turn: str, opens: str, begin: str = "{{ bos_token }}") -> str:
    """Return a template that writes one turn after the other, and then opens the answer."""
    return f"{begin}{{% for message in messages %}}{turn}{{% endfor %}}{_OPENS}{opens}{{% endif %}}"


#: Splits off the system prompt, which some families write into the user's first message.
_FOLDED = (
    "{% if messages[0].role == 'system' %}"
    "{% set system, rest = messages[0].content, messages[1:] %}"
    "{% else %}{% set system, rest = none, messages %}{% endif %}"
)
_LLAMA2 = (
    _FOLDED + "{% for message in rest %}{% if message.role == 'user' %}{{ bos_token }}[INST] "
    "{% if system and loop.first %}<<SYS>>\n{{ system | trim }}\n<</SYS>>\n\n{% endif %}"
    "{{ message.content | trim }} [/INST]{% else %} {{ message.content | trim }} {{ eos_token }}"
    "{% endif %}{% endfor %}"
)
_MISTRAL = (
    "{{ bos_token }}" + _FOLDED + "{% for message in rest %}{% if message.role == 'user' %}[INST] "
    "{% if system and loop.first %}{{ system }}\n\n{% endif %}{{ message.content }} [/INST]"
    "{% else %} {{ message.content | trim }}{{ eos_token }}{% endif %}{% endfor %}"
)
_GEMMA = _FOLDED + (
    "{% for message in rest %}<start_of_turn>"
    "{{ 'model' if message.role == 'assistant' else message.role }}\n"
    "{% if system and loop.first %}{{ system | trim }}\n\n{% endif %}{{ message.content | trim }}"
    "<end_of_turn>\n{% endfor %}" + _OPENS + "<start_of_turn>model\n{% endif %}"
)

NAMED = {
    "chatml": _turns(
        "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n",
        "<|im_start|>assistant\n",
        "",
    ),
    "gemma": "{{ bos_token }}" + _GEMMA,
    "llama2": _LLAMA2,
    "llama3": _turns(
        "<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n{{ message.content | trim }}"
        "<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "mistral": _MISTRAL,
    "phi3": _turns("<|{{ message.role }}|>\n{{ message.content }}<|end|>\n", "<|assistant|>\n", ""),
    "zephyr": _turns(
        "<|{{ message.role }}|>\n{{ message.content }}{{ eos_token }}\n", "<|assistant|>\n", ""
    ),
}
