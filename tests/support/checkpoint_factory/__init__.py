"""Small random checkpoints on disk, laid out exactly like the published ones.

Each `Recipe` names one published layout; `write` puts a model of a few ten thousand parameters in
that layout into a folder, with a byte-level BPE tokenizer, so that Sterna and `transformers` read
the very same files. Nothing here imports Sterna: a reader's mistake cannot cancel itself out.
"""

from checkpoint_factory.files import config, write
from checkpoint_factory.recipe import Recipe
from checkpoint_factory.recipes import (
    LLAMA,
    LLAMA3_ROPE,
    LONGROPE,
    MINICPM,
    QWEN3,
    QWEN3_5,
    QWEN3_MOE,
    RECIPES,
    YARN,
)  # fmt: skip
from checkpoint_factory.tensors import active_shapes, linear_shapes, pack_rows, tensors
from checkpoint_factory.tokenizers import BOS, CHAT_TEMPLATE, CORPUS, EOS, EOT, tokenizer

__all__ = [
    "BOS", "CHAT_TEMPLATE", "CORPUS", "EOS", "EOT", "LLAMA", "LLAMA3_ROPE", "LONGROPE", "MINICPM",
    "QWEN3", "QWEN3_5", "QWEN3_MOE", "RECIPES", "YARN", "Recipe", "active_shapes", "config",
    "linear_shapes", "pack_rows", "tensors", "tokenizer", "write",
]  # fmt: skip
