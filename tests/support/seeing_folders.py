"""A small random Gemma 3 with all that a conversation about images needs, and images to show it."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import seeing_models
import tokenizers
from image_families import noise

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {% if m.content is string %}"
    "{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'image' %}"
    "<start_of_image>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}"
    "{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
NAMES = ("<start_of_image>", "<end_of_image>", "<image_soft_token>")
TEXT_TEMPLATE = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write(folder: Path, template: str = TEMPLATE) -> Path:
    """Write the model; returns its folder."""
    seeing = seeing_models.SEEING["gemma3"]
    seeing_models.write(folder, seeing)
    file = folder / "tokenizer.json"
    text = file.read_text()
    for free, name in zip(("<x9>", "<x10>", "<x11>"), NAMES, strict=True):
        text = text.replace(free, name)
    tokenizer = tokenizers.Tokenizer.from_str(text)
    tokenizer.add_special_tokens(list(NAMES))
    tokenizer.save(str(file))
    assert tokenizer.token_to_id("<image_soft_token>") == seeing.token
    size = seeing.vision["image_size"]
    fields: dict[str, Any] = {
        "image_processor_type": "Gemma3ImageProcessor",
        "size": {"height": size, "width": size},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(fields))
    (folder / "chat_template.jinja").write_text(template)
    return folder


def png(height: int = 30, width: int = 40, seed: int = 0) -> bytes:
    file = io.BytesIO()
    noise(height, width, seed).save(file, "PNG")
    return file.getvalue()


def data_url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"
