"""The end of a turn, by the chat templates that llama.cpp publishes and by families' marks."""

from __future__ import annotations

import assets
import pytest

from sterna.chat import ChatTemplate
from sterna.turn_tokens import inner_end_tokens

# Of each template what it writes first behind an answer: the ends that the models'
# generation_config.json name, but where <|end|> only ends a message (`inner_end_tokens`).
ENDS = {
    "Apertus-8B-Instruct": "<|assistant_end|>",  # written only before another message, as in
    "Apriel-1.6-15b-Thinker-fixed": "<|end|>",  # these
    "GLM-4.6": "<|user|>",
    "tencent-Hy3": "<｜hy_eos:opensource｜>",
    "Qwen3.5-4B": "<|im_end|>",
    "HuggingFaceTB-SmolLM3-3B": "<|im_end|>",
    "google-gemma-2-2b-it": "<end_of_turn>",
    "google-gemma-4-31B-it": "<turn|>",
    "ibm-granite-granite-4.1": "<|end_of_text|>",
    "meta-llama-Llama-3.2-3B-Instruct": "<|eot_id|>",
    "microsoft-Phi-3.5-mini-instruct": "<|end|>",
    "mistralai-Mistral-Nemo-Instruct-2407": "</s>",
    "deepseek-ai-DeepSeek-V3.1": "<｜end▁of▁sentence｜>",
    "muse-glimmer": "<|eot|>",
    "openai-gpt-oss-120b": "<|return|>",
    "upstage-Solar-Open-100B": "<|end|>",
}
INNER = {"openai-gpt-oss-120b", "upstage-Solar-Open-100B"}


@pytest.mark.parametrize("name", ENDS)
def test_a_template_shows_the_end_of_a_turn(name: str) -> None:
    folder = assets.llama_cpp() / "models" / "templates"
    text = (folder / f"{name}.jinja").read_text(encoding="utf-8")
    settings = {"chat_template": text, "bos_token": "<s>", "eos_token": "</s>"}
    template = ChatTemplate.from_settings(folder / name, settings)
    assert template is not None
    assert template.after_answer().startswith(ENDS[name])
    # The template and <|return|> or <|flush|>, which some write only into a tokenizer's settings
    marks = text + "<|return|><|flush|>" if name in INNER else text
    assert inner_end_tokens(lambda mark: mark in marks) == ({"<|end|>"} if name in INNER else set())
