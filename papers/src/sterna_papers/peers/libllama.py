"""libllama by its C functions, without a Python binding that knows one version's structures.

A structure here is larger than in any version: a callee reads the fields that it knows. It begins
with the defaults that the library itself returns, and only fields at known places are changed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sterna_papers.peers import dummy_gguf
from sterna_papers.peers.case import F32, Case, Options
from sterna_papers.peers.end_to_end import EndToEnd

__all__ = ["Batch", "Libllama", "LibllamaModel", "ModelParams", "built_for"]

#: n_ctx, n_batch and n_ubatch of llama_context_params by default.
CONTEXT_DEFAULTS = (512, 2048, 512)
#: Extensions as ggml names them, from the one that says most.
EXTENSIONS = (
    "AMX_INT8", "AVX512_VNNI", "AVX512", "AVX_VNNI", "AVX2", "AVX", "SVE", "MATMUL_INT8", "DOTPROD",
    "NEON",
)  # fmt: skip


class Batch(ctypes.Structure):
    """llama_batch."""

    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("arrays", ctypes.c_void_p * 6),
        ("all", ctypes.c_int32 * 3),
    ]


class ModelParams(ctypes.Structure):
    """llama_model_params."""

    _fields_ = [("raw", ctypes.c_uint8 * 512)]


class ContextParams(ctypes.Structure):
    """llama_context_params, which begins with numbers of 32 bits."""

    _fields_ = [("head", ctypes.c_uint32 * 4), ("rest", ctypes.c_uint8 * 1008)]


def built_for(system_info: bytes) -> str:
    """Return the widest extension that ggml was compiled for, as llama_print_system_info has it."""
    there = {part.split(" = ")[0].split(":")[-1].strip() for part in _enabled(system_info)}
    return next((name for name in EXTENSIONS if name in there), "plain C")


def _enabled(system_info: bytes) -> list[str]:
    return [part for part in system_info.decode().split("|") if part.rstrip().endswith("= 1")]


class Libllama:
    """A model and its context in a loaded library: the few functions that a check needs.

    Raises OSError, AttributeError or RuntimeError if the library is not as expected.
    """

    #: Which of the first numbers of llama_context_params is n_ctx.
    n_ctx_at = 0

    def __init__(self, path: Path, model: Path, positions: int, threads: int) -> None:
        """positions: the context, in tokens."""
        lib = self.lib = ctypes.CDLL(str(path))
        lib.llama_print_system_info.restype = ctypes.c_char_p
        lib.llama_model_default_params.restype = ModelParams
        lib.llama_context_default_params.restype = ContextParams
        lib.llama_batch_get_one.restype = Batch
        for name in ("llama_model_load_from_file", "llama_init_from_model"):
            getattr(lib, name).restype = ctypes.c_void_p
        lib.llama_get_logits_ith.restype = ctypes.POINTER(ctypes.c_float)
        params, sizes = lib.llama_model_default_params(), lib.llama_context_default_params()
        if tuple(sizes.head[self.n_ctx_at :][:3]) != CONTEXT_DEFAULTS:
            raise RuntimeError("its parameters are laid out differently from those known here")
        self.adjust(params)
        lib.llama_backend_init()
        loaded = lib.llama_model_load_from_file(str(model).encode(), params)
        if not loaded:
            raise RuntimeError("it did not load the dummy model")
        sizes.head[self.n_ctx_at] = positions
        self.context = ctypes.c_void_p(lib.llama_init_from_model(ctypes.c_void_p(loaded), sizes))
        if not self.context:
            raise RuntimeError("it made no context for the dummy model")
        lib.llama_set_n_threads(self.context, threads, threads)

    def adjust(self, params: ModelParams) -> None:
        """Change what a subclass needs otherwise than by default."""

    def keep(self, length: int) -> int:
        """Remove the positions from `length` on, or all where a state cannot be taken back."""
        self.lib.llama_get_memory.restype = ctypes.c_void_p
        self.lib.llama_memory_seq_rm.restype = ctypes.c_bool
        memory = ctypes.c_void_p(self.lib.llama_get_memory(self.context))
        if length and self.lib.llama_memory_seq_rm(memory, 0, length, -1):
            return length
        self.lib.llama_memory_clear(memory, ctypes.c_bool(False))
        return 0

    def batch(self, ids: ctypes.Array[ctypes.c_int32]) -> Batch:
        """Make a batch of tokens that follow those in the cache."""
        batch: Batch = self.lib.llama_batch_get_one(ids, len(ids))
        return batch

    def decode(self, tokens: Sequence[int]) -> None:
        """Append tokens and compute the last one's logits."""
        ids = (ctypes.c_int32 * len(tokens))(*tokens)
        if code := self.lib.llama_decode(self.context, self.batch(ids)):
            raise RuntimeError(f"llama_decode returned {code}")

    def logits(self, vocab: int) -> F32:
        """Return a copy of the last logits."""
        pointer = self.lib.llama_get_logits_ith(self.context, -1)
        values: F32 = np.ctypeslib.as_array(pointer, (vocab,)).copy()
        return values


class LibllamaModel(EndToEnd):
    """The base of participants whose logits a libllama computes, from a dummy GGUF file."""

    def __init__(self, options: Options, type: str) -> None:
        super().__init__(options)
        self.path = Path(options.scratch) / f"{type}.gguf"
        self.bytes = dummy_gguf.write(self.path, options.model, type)
        self.library: Libllama | None = None  # a subclass opens it

    @property
    def opened(self) -> Libllama:
        """The library, once it is open."""
        assert self.library is not None
        return self.library

    def keep(self, length: int) -> int:
        """Cut the library's context."""
        return self.opened.keep(length)

    def feed(self, tokens: Sequence[int]) -> None:
        """Decode tokens in the library."""
        self.opened.decode(tokens)

    def logits(self) -> F32:
        return self.opened.logits(self.vocab)

    def weight_bytes(self, case: Case) -> float | None:
        """Count all tensors but an embedding that is not the head."""
        return self.bytes
