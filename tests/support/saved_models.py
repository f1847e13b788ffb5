"""Small random models of `model_configs`, as transformers' `save_pretrained` writes them.

config.json and tensors have the names and the spellings of the installed version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from model_configs import SIZES, Saved
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.overrides import TorchFunctionMode

__all__ = ["in_float64", "logits_of", "made_to_count", "save", "scores_of", "write"]


def config_of(saved: Saved) -> Any:
    """The config, whose text's fields a class with other towers has within."""
    kind, fields = getattr(transformers, saved.name).config_class, SIZES | saved.config
    if "attn_config" in fields:  # of MPT, no tower's
        return kind(
            **fields | {"attn_config": kind.sub_configs["attn_config"](**fields["attn_config"])}
        )
    towers = {key: fields.pop(key) for key in [*fields] if key.endswith("_config")}
    return kind(text_config=fields, **towers) if towers else kind(**fields)


def model_of(saved: Saved, seed: int = 0) -> Any:
    """The model, whose weights make each part of it count; float32."""
    kind = getattr(transformers, saved.name)
    return made_to_count(kind, config_of(saved), seed, saved.ternary)


@torch.no_grad()
def made_to_count(kind: Any, config: Any, seed: int, ternary: bool = False) -> Any:
    """A class's model of random weights; ternary: those of its layers are -s and s."""
    torch.manual_seed(seed)
    model = kind._from_config(config).float().eval()
    for name, tensor in model.named_parameters():
        if name.endswith("A_log"):
            tensor.uniform_(-1, 1)
        elif ("norm" in name and tensor.ndim == 1) or tensor.ndim < 2:
            tensor.add_(0.3 * torch.randn_like(tensor))
        elif "embed" in name:
            tensor.normal_()
        elif ternary and "_proj" in name:
            signs = 2 * torch.randint(0, 2, tensor.shape) - 1  # masters of themselves
            tensor.copy_(signs * tensor.shape[-1] ** -0.5)
        else:
            # Experts in one tensor are [experts, M, K], and gpt-oss's [experts, K, M].
            tensor.normal_(std=1.5 * tensor.shape[-1] ** -0.5)
    for name, tensor in model.named_buffers():
        if name.endswith("bias") and tensor.is_floating_point():  # of a router's scores
            tensor.add_(0.3 * torch.randn_like(tensor))
    return model


def tokenizer() -> Tokenizer:
    """One token for each byte, a merge and marks."""
    parts = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"]
    vocabulary = {part: i for i, part in enumerate(parts)}
    built = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b")]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    rest = [f"<x{i}>" for i in range(SIZES["vocab_size"] - len(parts) - 3)]
    # Qwen's tokenizer would add the last one.
    built.add_special_tokens(["<s>", "</s>", *rest, "<|endoftext|>"])
    return built


def write(folder: Path, saved: Saved, seed: int = 0) -> Any:
    """Saves a model and a tokenizer; returns the model."""
    model = model_of(saved, seed)
    save(folder, model)
    return model


def save(folder: Path, model: Any) -> None:
    """Saves a model with a tokenizer."""
    model.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer(), bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)


@torch.no_grad()
def logits_of(model: Any, tokens: list[int]) -> Any:
    """float32 [n, vocab]; of a class without a head, by the embedding."""
    text = getattr(model, "language_model", model)  # of Llama 4, which has a head of its own
    model = text if hasattr(text, "lm_head") else model
    out = model(torch.tensor([tokens]), use_cache=False)
    if hasattr(out, "logits"):
        return out.logits[0].numpy()
    return (out.last_hidden_state[0] @ model.get_input_embeddings().weight.T).numpy()


@torch.no_grad()
def scores_of(model: Any, texts: list[list[int]]) -> Any:
    """A cross-encoder's, float32 [texts]."""
    return torch.cat([model(torch.tensor([tokens])).logits[0] for tokens in texts]).numpy()


class _Float64(TorchFunctionMode):
    """Runs in float64 what classes ask for in float32, such as norms."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        def wider(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        func = torch.Tensor.double if func is torch.Tensor.float else func
        named = {key: wider(value) for key, value in (kwargs or {}).items()}
        return func(*map(wider, args), **named)


@contextmanager
def in_float64(model: Any) -> Iterator[None]:
    """Within it a model, whose weights it widens, computes in float64 throughout."""
    model.double()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # others have no float64
    torch.set_default_dtype(torch.float64)
    try:
        with _Float64():
            yield
    finally:
        torch.set_default_dtype(torch.float32)
