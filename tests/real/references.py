"""Results of transformers for the real models in float32, computed once and kept with the assets.

Opening a GGUF file takes transformers up to a minute, so its answers are kept, under a name that
has the versions of transformers and torch, and the digest of all that was asked.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import assets
import numpy as np
import numpy.typing as npt
import texts

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Greedy:
    """A greedy continuation: its tokens, and by what each one's logit led the next."""

    prompt: list[int]
    tokens: list[int]
    margins: list[float]


@dataclass(frozen=True)
class Reference:
    """Answers of transformers in float32 for one model."""

    name: str
    tokens: list[list[int]]  # of texts.strings()
    decoded: list[str]  # these, back to text
    rendered: list[str | None]  # of texts.CONVERSATIONS; None where the template refuses
    ids: dict[str, list[int]]  # of texts.TEXTS, cut to texts.POSITIONS
    logits: dict[str, F32]  # [n, vocab] of these
    hidden: dict[str, F32]  # [n, hidden_size] of these, behind the last norm
    greedy: list[Greedy]  # of texts.PROMPTS


def reference(name: str, gguf: Path) -> Reference:
    """The answers for smollm2 or gemma3, from its file; kept after the first call."""
    import torch
    import transformers

    asked = Path(__file__).read_bytes() + Path(texts.__file__).read_bytes()
    digest = hashlib.sha256(asked + gguf.name.encode()).hexdigest()[:12]
    version = f"{transformers.__version__}-{torch.__version__}"
    kept = assets.root() / f"reference-{name}-{version}-{digest}.npz"
    with (assets.root() / f"reference-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            for old in assets.root().glob(f"reference-{name}-*.npz"):
                old.unlink()
            partial = kept.with_suffix(".partial.npz")
            np.savez(partial, **_answers(name, gguf))
            partial.rename(kept)
    with np.load(kept) as file:
        told = json.loads(str(file["told"]))
        logits = {text: file[f"logits {text}"] for text in texts.TEXTS}
        hidden = {text: file[f"hidden {text}"] for text in texts.TEXTS}
    greedy = [Greedy(**one) for one in told.pop("greedy")]
    return Reference(name=name, logits=logits, hidden=hidden, greedy=greedy, **told)


@contextlib.contextmanager
def _one_reader() -> Iterator[None]:
    """transformers parses a file's header each time it wants a part of it: once is enough."""
    import gguf

    with mock.patch("gguf.GGUFReader", functools.cache(gguf.GGUFReader)):
        yield


def opened(gguf: Path) -> tuple[Any, Any]:
    """transformers' model in float32, and its tokenizer, from a GGUF file."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _one_reader():
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
    return model.eval(), tokenizer


def logits_of(model: Any, ids: list[int]) -> F32:
    """float32 [n, vocab]; row i predicts token i + 1."""
    import torch

    with torch.no_grad():
        rows: F32 = model(torch.tensor([ids])).logits[0].float().numpy()
    return rows


def _answers(name: str, gguf: Path) -> dict[str, Any]:
    model, tokenizer = opened(gguf)
    tokens = [tokenizer(text).input_ids for text in texts.strings()]
    decode = functools.partial(tokenizer.decode, clean_up_tokenization_spaces=False)
    ids = {
        text: tokenizer(written).input_ids[: texts.POSITIONS[name]]
        for text, written in texts.TEXTS.items()
    }
    told = {
        "tokens": tokens,
        "decoded": [decode(one) for one in tokens],
        "rendered": [_rendered(tokenizer, messages) for messages in texts.CONVERSATIONS],
        "ids": ids,
        "greedy": [_greedy(model, tokenizer(prompt).input_ids) for prompt in texts.PROMPTS],
    }
    rows = {f"logits {text}": logits_of(model, ids[text]) for text in ids}
    hidden = {f"hidden {text}": _hidden(model, ids[text]) for text in ids}
    return {"told": json.dumps(told), **rows, **hidden}


def _hidden(model: Any, ids: list[int]) -> F32:
    import torch

    with torch.no_grad():
        rows: F32 = model.model(torch.tensor([ids])).last_hidden_state[0].numpy()
    return rows


def _rendered(tokenizer: Any, messages: list[dict[str, Any]]) -> str | None:
    from jinja2 import TemplateError

    try:
        return str(
            tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        )
    except (TemplateError, ValueError):  # ValueError: the file has no template
        return None


def _greedy(model: Any, prompt: list[int]) -> dict[str, Any]:
    import torch

    tokens: list[int] = []
    margins: list[float] = []
    given, past = prompt, None
    for _ in range(texts.N_GREEDY):
        with torch.no_grad():
            out = model(torch.tensor([given]), past_key_values=past, use_cache=True)
        (first, second), (token, _) = (one.tolist() for one in out.logits[0, -1].topk(2))
        margins.append(first - second)
        tokens.append(token)
        given, past = [token], out.past_key_values
    return {"prompt": prompt, "tokens": tokens, "margins": margins}
