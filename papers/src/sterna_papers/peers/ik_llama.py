"""ik_llama.cpp as a participant: llama-bench gives the times, and libllama the outputs.

llama-bench reports no outputs. So the library that was built with it runs the same cases on the
same file first, and the check compares the library's logits.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sterna_papers.peers import dummy_gguf
from sterna_papers.peers.case import F32, Case, Missing, Options, Part, last_words
from sterna_papers.peers.end_to_end import EndToEnd

__all__ = ["create"]

VARIABLE = "STERNA_IK_LLAMA_BENCH"


class _Batch(ctypes.Structure):
    """llama_batch."""

    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("arrays", ctypes.c_void_p * 6),
        ("all", ctypes.c_int32 * 3),
    ]


class _ModelParams(ctypes.Structure):
    """llama_model_params, larger than in any version, since a callee reads the fields it knows."""

    _fields_ = [("raw", ctypes.c_uint8 * 512)]


class _ContextParams(ctypes.Structure):
    """llama_context_params: seed, n_ctx, n_batch, n_ubatch, and more."""

    _fields_ = [("head", ctypes.c_uint32 * 4), ("rest", ctypes.c_uint8 * 1008)]


#: The flags of llama_model_params begin here (vocab_only, use_mmap, use_mlock, check_tensors,
#: repack_tensors, …), and have these defaults. A build that differs is not checked and
#: does not count.
FLAGS = 168
DEFAULTS = bytes((0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0))
REPACK = 4
CONTEXT_DEFAULTS = (512, 2048, 512)


class Library:
    """The few functions of libllama that a check needs."""

    def __init__(self, path: Path, model: Path, repack: bool, context: int, threads: int) -> None:
        lib = self.lib = ctypes.CDLL(str(path))
        lib.llama_model_default_params.restype = _ModelParams
        lib.llama_context_default_params.restype = _ContextParams
        lib.llama_batch_get_one.restype = _Batch
        for name in ("llama_model_load_from_file", "llama_init_from_model"):
            getattr(lib, name).restype = ctypes.c_void_p
        lib.llama_get_logits_ith.restype = ctypes.POINTER(ctypes.c_float)
        params, sizes = lib.llama_model_default_params(), lib.llama_context_default_params()
        flags = bytes(params.raw)[FLAGS : FLAGS + len(DEFAULTS)]
        if flags != DEFAULTS or tuple(sizes.head[1:]) != CONTEXT_DEFAULTS:
            raise RuntimeError("its parameters are laid out differently from those known here")
        params.raw[FLAGS + REPACK] = repack
        lib.llama_backend_init()
        loaded = lib.llama_model_load_from_file(str(model).encode(), params)
        if not loaded:
            raise RuntimeError("it did not load the dummy model")
        sizes.head[1] = context
        self.context = ctypes.c_void_p(lib.llama_init_from_model(ctypes.c_void_p(loaded), sizes))
        lib.llama_set_n_threads(self.context, threads, threads)
        self.position = 0

    def keep(self, length: int) -> None:
        """Remove the positions from `length` on from the KV cache."""
        self.lib.llama_kv_cache_seq_rm(self.context, -1, length, -1)
        self.position = length

    def decode(self, tokens: Sequence[int]) -> None:
        """Append tokens and compute the last one's logits."""
        ids = (ctypes.c_int32 * len(tokens))(*tokens)
        batch = self.lib.llama_batch_get_one(ids, len(tokens), self.position, 0)
        if code := self.lib.llama_decode(self.context, batch):
            raise RuntimeError(f"llama_decode returned {code}")
        self.position += len(tokens)

    def logits(self, vocab: int) -> F32:
        """Return a copy of the last logits."""
        pointer = self.lib.llama_get_logits_ith(self.context, -1)
        values: F32 = np.ctypeslib.as_array(pointer, (vocab,)).copy()
        return values


class IkModel(EndToEnd):
    """llama-bench for the clock, libllama for the outputs."""

    def __init__(self, options: Options, bench: Path) -> None:
        super().__init__(options)
        self.type, *self.flags = options.variant.split()
        self.bench = bench
        self.path = Path(options.scratch) / f"{self.type}.gguf"
        self.bytes = dummy_gguf.write(self.path, options.model, self.type)
        self.commit = str(self._run(["-p", "8", "-n", "0"])["build_commit"])
        self.library: Library | str | None = None

    def _run(self, what: Sequence[str]) -> dict[str, Any]:
        """Run one repetition of llama-bench, and return its row of JSON."""
        command = [str(self.bench), "-m", str(self.path), "-t", str(self.options.threads)]
        command += ["-r", "1", "-o", "json", *what, *self.flags]
        done = subprocess.run(command, capture_output=True, text=True)
        try:
            row: dict[str, Any] = json.loads(done.stdout[done.stdout.index("[") :])[0]
        except (ValueError, IndexError):
            said = last_words(done.stderr)
            raise RuntimeError(f"llama-bench ended with {done.returncode}: {said}") from None
        return row

    def _load(self) -> Library | str:
        """Load the library, or return why it cannot be used."""
        folders = [self.bench.parent, *(self.bench.parent.parent / f for f in ("src", "lib"))]
        libraries = [
            p for f in folders for p in (f / "libllama.so", f / "libllama.dylib") if p.exists()
        ]
        if not libraries:
            return f"there is no libllama next to {self.bench.name}"
        repack = "-rtr" in self.flags
        try:
            return Library(libraries[0], self.path, repack, self.positions, self.options.threads)
        except (OSError, AttributeError, RuntimeError) as e:
            return f"libllama cannot be asked: {e}"

    def keep(self, length: int) -> None:
        """Cut the library's context."""
        assert isinstance(self.library, Library)
        self.library.keep(length)

    def feed(self, tokens: Sequence[int]) -> None:
        """Decode tokens in the library."""
        assert isinstance(self.library, Library)
        self.library.decode(tokens)

    def logits(self) -> F32:
        assert isinstance(self.library, Library)
        return self.library.logits(self.vocab)

    def weight_bytes(self, case: Case) -> float | None:
        """Return the bytes of all tensors, since the embedding is the head."""
        return self.bytes

    def check(self, case: Case) -> tuple[bool, str]:
        """Check what the library computes, since llama-bench calls the same functions."""
        if self.library is None:
            self.library = self._load()
        if isinstance(self.library, str):
            return False, f"llama-bench shows no outputs, and {self.library}"
        ok, how = super().check(case)
        return ok, f"in llama-bench's own libllama: {how}"

    def time(self, case: Case) -> tuple[float, bool]:
        """Return llama-bench's own time; only the check can see outputs."""
        if case.depth:
            what = ["-p", "0", "-n", "0", "-gp", f"{case.depth},{case.n}"]
        elif case.what.startswith("pp"):
            what = ["-p", str(case.n), "-n", "0"]
        else:
            what = ["-p", "0", "-n", str(case.n)]
        row = self._run(what)
        return float(row["avg_ns"]) / 1e9, True


def create(options: Options) -> tuple[str, str, str | None, list[Part]]:
    """Make the participant; variant: a type and llama-bench's flags, as in "IQ2_BN -rtr 1"."""
    named = options.llama_bench or os.environ.get(VARIABLE)
    if not named:
        raise Missing(f"no llama-bench named: use --ik-llama-bench PATH or set {VARIABLE}")
    bench = Path(named).resolve()
    if not os.access(bench, os.X_OK) or bench.is_dir():
        raise Missing(f"{bench} is no program that can be run")
    model = IkModel(options, bench)
    return model.commit, options.variant, "Q6_K", [model]
