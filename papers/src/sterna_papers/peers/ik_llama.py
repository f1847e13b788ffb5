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

from sterna_papers.peers.case import Case, Missing, Options, Part, last_words
from sterna_papers.peers.libllama import Batch, Libllama, LibllamaModel, ModelParams

__all__ = ["create"]

VARIABLE = "STERNA_IK_LLAMA_BENCH"


#: The flags of llama_model_params begin here (vocab_only, use_mmap, use_mlock, check_tensors,
#: repack_tensors, …), and have these defaults. A build that differs is not checked and
#: does not count.
FLAGS = 168
DEFAULTS = bytes((0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0))
REPACK = 4


class Library(Libllama):
    """Its libllama; `repack`: as with llama-bench's -rtr 1."""

    n_ctx_at = 1  # after a seed

    def __init__(self, path: Path, model: Path, repack: bool, positions: int, threads: int) -> None:
        self.repack, self.position = repack, 0
        super().__init__(path, model, positions, threads)

    def adjust(self, params: ModelParams) -> None:
        """Set the flag that lays weights out anew."""
        if bytes(params.raw)[FLAGS : FLAGS + len(DEFAULTS)] != DEFAULTS:
            raise RuntimeError("its parameters are laid out differently from those known here")
        params.raw[FLAGS + REPACK] = self.repack

    def keep(self, length: int) -> int:
        """Remove the positions from `length` on from the KV cache."""
        self.lib.llama_kv_cache_seq_rm(self.context, -1, length, -1)
        self.position = length
        return length

    def batch(self, ids: ctypes.Array[ctypes.c_int32]) -> Batch:
        """Make a batch of tokens at the next positions."""
        batch: Batch = self.lib.llama_batch_get_one(ids, len(ids), self.position, 0)
        return batch

    def decode(self, tokens: Sequence[int]) -> None:
        """Append tokens and compute the last one's logits."""
        super().decode(tokens)
        self.position += len(tokens)


class IkModel(LibllamaModel):
    """llama-bench for the clock, libllama for the outputs."""

    def __init__(self, options: Options, bench: Path) -> None:
        type, *self.flags = options.variant.split()
        super().__init__(options, type)
        self.bench = bench
        self.commit = str(self._run(["-p", "8", "-n", "0"])["build_commit"])
        self.lacking = ""  # why the library cannot be used

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

    def _load(self) -> None:
        """Open the library, or note why it cannot be used."""
        folders = [self.bench.parent, *(self.bench.parent.parent / f for f in ("src", "lib"))]
        libraries = [
            p for f in folders for p in (f / "libllama.so", f / "libllama.dylib") if p.exists()
        ]
        if not libraries:
            self.lacking = f"there is no libllama next to {self.bench.name}"
            return
        repack, threads = "-rtr" in self.flags, self.options.threads
        try:
            self.library = Library(libraries[0], self.path, repack, self.positions, threads)
        except (OSError, AttributeError, RuntimeError) as e:
            self.lacking = f"libllama cannot be asked: {e}"

    def check(self, case: Case) -> tuple[bool, str]:
        """Check what the library computes, since llama-bench calls the same functions."""
        if self.library is None and not self.lacking:
            self._load()
        if self.lacking:
            return False, f"llama-bench shows no outputs, and {self.lacking}"
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
