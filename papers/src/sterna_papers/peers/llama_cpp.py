"""llama.cpp as a participant: a dummy model, and ggml's products.

It is called through llama-cpp-python, which pip compiles for this machine, or through xllamacpp,
whose wheel needs no compiler and may use fewer of the CPU's instructions; the version says which.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna_papers.peers import blocks, dummy_gguf
from sterna_papers.peers.case import F32, Case, Missing, Options, Part, end_to_end, require
from sterna_papers.peers.dummy_models import head_type
from sterna_papers.peers.end_to_end import EndToEnd
from sterna_papers.peers.libllama import Libllama, LibllamaModel, built_for
from sterna_papers.peers.products import Products

__all__ = ["PLAIN", "create"]

#: After a type: its blocks as they are in the file, not laid out anew for AMX or wide vectors. Some
#: compilers make code of ggml's AMX kernels that ends with an illegal instruction.
PLAIN = " as stored"


class BoundModel(EndToEnd):
    """llama_decode on a dummy GGUF file, by llama-cpp-python's binding."""

    def __init__(self, options: Options, lib: Any) -> None:
        super().__init__(options)
        self.lib = lib
        type = options.variant.removesuffix(PLAIN)
        path = Path(options.scratch) / f"{type}.gguf"
        self.bytes = dummy_gguf.write(path, options.model, type)
        lib.llama_backend_init()
        how = lib.llama_model_default_params()
        how.use_extra_bufts = type == options.variant
        self.model = lib.llama_model_load_from_file(str(path).encode(), how)
        if not self.model:
            raise RuntimeError("llama.cpp did not load the dummy model")
        params = lib.llama_context_default_params()
        params.n_ctx = self.positions
        params.n_threads = params.n_threads_batch = options.threads
        self.context = lib.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError("llama.cpp made no context for the dummy model")

    def keep(self, length: int) -> int:
        """Remove the positions from `length` on, or all where a state cannot be taken back."""
        memory = self.lib.llama_get_memory(self.context)
        if length and self.lib.llama_memory_seq_rm(memory, 0, length, -1):
            return length
        self.lib.llama_memory_clear(memory, False)
        return 0

    def feed(self, tokens: Sequence[int]) -> None:
        """Call llama_decode once; it computes the logits of the last token."""
        ids = (ctypes.c_int32 * len(tokens))(*tokens)
        if code := self.lib.llama_decode(
            self.context, self.lib.llama_batch_get_one(ids, len(tokens))
        ):
            raise RuntimeError(f"llama_decode returned {code}")

    def logits(self) -> F32:
        """Return a copy of the last token's logits."""
        pointer = self.lib.llama_get_logits_ith(self.context, -1)
        values: F32 = np.ctypeslib.as_array(pointer, (self.vocab,)).copy()
        return values

    def weight_bytes(self, case: Case) -> float | None:
        """Count all tensors but an embedding that is not the head."""
        return self.bytes


class UnboundModel(LibllamaModel):
    """llama_decode on a dummy GGUF file, by the library's C functions."""

    def __init__(self, options: Options, library: Path) -> None:
        super().__init__(options, options.variant)
        self.library = Libllama(library, self.path, self.positions, options.threads)


class _InitParams(ctypes.Structure):
    _fields_ = [
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    ]


class _Plan(ctypes.Structure):
    """ggml_cplan: its first two fields, and enough room for those that only ggml uses."""

    _fields_ = [
        ("work_size", ctypes.c_size_t),
        ("work_data", ctypes.c_void_p),
        ("rest", ctypes.c_void_p * 30),
    ]


class GgmlProducts(Products):
    """ggml_mul_mat on the CPU. It rounds activations to int8, which is exact here."""

    def __init__(self, options: Options, base: Path, cpu: Path) -> None:
        super().__init__(options)
        self.base, self.cpu = ctypes.CDLL(str(base)), ctypes.CDLL(str(cpu))
        for name in ("ggml_init", "ggml_new_tensor_2d", "ggml_mul_mat", "ggml_new_graph"):
            getattr(self.base, name).restype = ctypes.c_void_p
        self.base.ggml_get_data.restype = ctypes.c_void_p
        self.cpu.ggml_graph_plan.restype = _Plan
        self.cpu.ggml_cpu_init()
        self.context: ctypes.c_void_p | None = None

    def pack(self, weight: npt.NDArray[np.int8], n: int) -> int:
        """Pack the weight into ggml's blocks."""
        self.packed = blocks.encode(self.options.variant, weight, 1.0)
        self.M, self.K = weight.shape
        return self.packed.nbytes

    def copy(self, count: int) -> None:
        """Remember `count`, since tensors are made with the input."""
        self.count = count

    def input(self, x: npt.NDArray[np.int8]) -> None:
        """Make a graph of one product for each copy of the weights."""
        self.release()
        n = len(x)
        per_copy = self.packed.nbytes + 4 * n * self.M + (1 << 18)  # a graph's nodes and tensors
        size = self.count * per_copy + 4 * x.size + (1 << 20)
        self.context = ctypes.c_void_p(self.base.ggml_init(_InitParams(size, None, False)))
        source = self._tensor(0, self.K, n)
        self._fill(source, x.astype(np.float32))
        self.graphs, self.outputs = [], []
        for _ in range(self.count):
            w = self._tensor(blocks.TYPES[self.options.variant], self.K, self.M)
            self._fill(w, self.packed)
            y = ctypes.c_void_p(self.base.ggml_mul_mat(self.context, w, source))
            graph = ctypes.c_void_p(self.base.ggml_new_graph(self.context))
            self.base.ggml_build_forward_expand(graph, y)
            self.graphs.append(graph)
            self.outputs.append(y)
        self.plan = self.cpu.ggml_graph_plan(self.graphs[0], self.options.threads, None)
        self.work = np.zeros(max(1, self.plan.work_size) + 64, np.uint8)
        self.plan.work_data = self.work.ctypes.data

    def _tensor(self, type: int, ne0: int, ne1: int) -> ctypes.c_void_p:
        made = self.base.ggml_new_tensor_2d(
            self.context, type, ctypes.c_int64(ne0), ctypes.c_int64(ne1)
        )
        return ctypes.c_void_p(made)

    def _fill(self, tensor: ctypes.c_void_p, data: npt.NDArray[Any]) -> None:
        ctypes.memmove(self.base.ggml_get_data(tensor), data.ctypes.data, data.nbytes)

    def multiply(self, copy: int) -> object:
        if self.cpu.ggml_graph_compute(self.graphs[copy], ctypes.byref(self.plan)):
            raise RuntimeError("ggml_graph_compute failed")
        return copy

    def result(self, y: object) -> F32:
        """Return the copy's output tensor."""
        assert isinstance(y, int)
        data = ctypes.cast(self.base.ggml_get_data(self.outputs[y]), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(data, (self._x.shape[0], self.M))

    def release(self) -> None:
        """Free the context with all its tensors."""
        if self.context:
            self.base.ggml_free(self.context)
            self.context = None


def _library(folder: Path, name: str) -> Path:
    for pattern in (f"lib{name}.so", f"lib{name}.dylib", f"{name}.dll"):
        if (path := folder / pattern).exists():
            return path
    raise RuntimeError(f"llama-cpp-python has no library {name} in {folder}")


def _xllamacpp() -> Path | None:
    """Find the library of xllamacpp, which exports the functions of libllama and ggml."""
    spec = find_spec("xllamacpp")
    folders = (spec.submodule_search_locations if spec else None) or ()
    return next((path for folder in folders for path in Path(folder).glob("xllamacpp*.so")), None)


def create(options: Options) -> tuple[str, str, str | None, list[Part]]:
    """Make the participant. variant: a ggml type; only ternary types have products."""
    head = head_type(options.variant.removesuffix(PLAIN))
    products = options.n and options.variant in blocks.TERNARY
    parts: list[Part] = []
    try:
        lib = require("llama_cpp.llama_cpp", "llama-cpp-python")
    except Missing as missing:
        found = _xllamacpp()
        if found is None or options.variant.endswith(PLAIN):
            raise Missing(f"{missing}; or pip install xllamacpp, which compiles nothing") from None
        if end_to_end(options):
            parts.append(UnboundModel(options, found))
        if products:
            parts.append(GgmlProducts(options, found, found))
        lib = ctypes.CDLL(str(found))
        lib.llama_print_system_info.restype = ctypes.c_char_p
        made_by = f"xllamacpp {version('xllamacpp')}"
    else:
        if end_to_end(options):
            parts.append(BoundModel(options, lib))
        if products:
            folder = Path(lib.__file__).parent / "lib"
            base, cpu = (_library(folder, name) for name in ("ggml-base", "ggml-cpu"))
            parts.append(GgmlProducts(options, base, cpu))
        made_by = version("llama-cpp-python")
    release = f"{made_by}, {built_for(lib.llama_print_system_info())}"
    return release, options.variant, head, parts
