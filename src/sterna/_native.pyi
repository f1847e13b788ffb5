"""Types of the native core. Private: shapes and checks are described in native/bindings/."""

from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

_Reading = tuple[int, int, int, bool]

class _CpuInfo(TypedDict):
    vendor: str
    model: str
    features: list[str]
    family: int
    model_id: int
    stepping: int

class _Core(TypedDict):
    cpus: list[int]
    performance: bool

class _NumaNode(TypedDict):
    id: int
    cpus: list[int]

class _Topology(TypedDict):
    cpus: list[int]
    cores: list[_Core]
    nodes: list[_NumaNode]
    cpu_quota: float

class _LayoutFacts(TypedDict):
    tile_rows: int
    step_k: int
    group_scales: bool

page_positions: int
max_integer_k: int
few_tokens: int
fewest_joint_tokens: int
two_bit_layouts: tuple[str, ...]

def cpu_info() -> _CpuInfo: ...
def tile_state() -> str: ...
def topology(root: str = "", allowed: Sequence[int] | None = None) -> _Topology: ...
def cgroup_memory_left(root: str = "") -> float | None: ...
def isas() -> list[str]: ...
def known_isas() -> list[tuple[str, str]]: ...
def fast_layouts(isa: str) -> dict[str, int]: ...
def joint_layouts(isa: str) -> list[str]: ...
def unit_digests(isa: str) -> tuple[dict[str, int], int]: ...
def exclude_isa(isa: str) -> None: ...
def alloc(nbytes: int) -> npt.NDArray[np.uint8]: ...
def map_file(descriptor: int, nbytes: int, path: bytes) -> npt.NDArray[np.uint8]: ...
def require_whole(a: npt.NDArray[Any]) -> None: ...

class Scratch:
    def alloc(self, nbytes: int) -> npt.NDArray[np.uint8]: ...
    def close(self) -> None: ...

def tile_bytes(layout: str, K: int) -> int: ...
def layout_facts(layout: str) -> _LayoutFacts: ...
def readings(threads: int) -> tuple[_Reading, _Reading, bool]: ...
def set_readings(
    threads: int, few_bits: _Reading, many_bits: _Reading, next_page: bool
) -> None: ...
def read_gb_s(threads: int, arrays: list[npt.NDArray[np.uint8]]) -> float: ...
def time_linear(
    weights: list[Weight],
    n: int,
    isa: str,
    threads: int,
    rounds: int,
    deterministic: bool = True,
) -> list[float]: ...
def pack(
    layout: str,
    source: str,
    parts: Sequence[npt.NDArray[Any]],
    level_offset: int,
    level_step: int,
    order: npt.NDArray[np.int64] | None,
    threads: int,
) -> npt.NDArray[np.uint8]: ...
def pack_ggml(
    layout: str,
    type: str,
    parts: Sequence[npt.NDArray[np.uint8]],
    level_offset: int,
    level_step: int,
    order: npt.NDArray[np.int64] | None,
    scale_tile_bytes: int,
    threads: int,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], int]: ...
def i2s_levels(
    bytes: npt.NDArray[np.uint8], span: int, out: npt.NDArray[np.int8], threads: int
) -> None: ...
def ggml_types() -> dict[str, tuple[int, int]]: ...
def nearest_sums(
    x: npt.NDArray[np.float32],
    ex: npt.NDArray[np.float32],
    e: npt.NDArray[np.float32],
    inverse: npt.NDArray[np.float32],
    minimum: npt.NDArray[np.float32] | None,
    low: float,
    high: float,
    step: float,
    of_halves: npt.NDArray[np.float32] | None,
    in_doubles: bool,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]: ...
def codes_valid(layout: str, codes: npt.NDArray[np.uint8], max_code: int, threads: int) -> bool: ...
def unpack(weight: Weight, isa: str, threads: int) -> npt.NDArray[np.float32]: ...
def linear(
    weight: Weight,
    x: npt.NDArray[np.float32],
    isa: str,
    threads: int,
    deterministic: bool = True,
) -> npt.NDArray[np.float32]: ...
def super_scales_valid(
    lines: npt.NDArray[np.uint8],
    rows: int,
    halves: int,
    singles: int,
    ranges: list[tuple[int, int]],
    threads: int,
) -> bool: ...
def has_non_finite(a: npt.NDArray[Any], exponent: int, threads: int) -> bool: ...
def shadow(
    weight: Weight, isa: str, threads: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32], npt.NDArray[np.float32]]: ...
def screened(
    weight: Weight,
    shadow: Weight,
    bounds: npt.NDArray[np.float32],
    x: npt.NDArray[np.float32],
    deciding: Sequence[tuple[int, float]],
    draws: Sequence[_Draw],
    isa: str,
    threads: int,
) -> tuple[
    npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.float32], list[int]
]: ...
def exponentials(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]: ...
def inverse_frequencies(theta: float, dim: int) -> list[float]: ...
def log(x: float) -> float: ...
def power(x: float, y: float) -> float: ...
def bandwidth_gb_s(threads: int, nbytes: int) -> float: ...
def cycles_per_second(threads: int) -> float: ...
def barrier_ns(threads: int, rounds: int) -> float: ...
def peak_gops(isa: str, threads: int, kind: str = "int8") -> float: ...

class Weight:
    def __init__(
        self,
        layout: str,
        M: int,
        K: int,
        codes: npt.NDArray[np.uint8],
        scale: npt.NDArray[np.float32] | None,
        zero_x2: int,
        groups: tuple[npt.NDArray[np.uint8], int, int, str, bool, float] | None = None,
    ) -> None: ...

    direct_tokens: int
    joint_tokens: int

def kv_bytes(layers: int, kv_heads: int, head_dim: int, dtype: str) -> int: ...

class KvCache:
    def __init__(
        self,
        layers: Sequence[tuple[int, int]],
        pages: int,
        dtype: str,
        windowed: Sequence[bool] = ...,
        keys_alone: Sequence[bool] = ...,
    ) -> None: ...
    def copy_page(self, source: int, target: int) -> None: ...
    def read_page(self, page: int, out: npt.NDArray[np.uint8], whole: bool = True) -> None: ...
    def write_page(self, page: int, data: npt.NDArray[np.uint8], whole: bool = True) -> None: ...
    def release(self, first: int, last: int, windowed: bool) -> None: ...
    def page_nbytes(self, whole: bool = True) -> int: ...
    @property
    def pages(self) -> int: ...

class State:
    def __init__(self, nbytes: int) -> None: ...
    def copy_from(self, source: State, position: int | None = None) -> None: ...
    def read(self, out: npt.NDArray[np.uint8]) -> None: ...
    def write(self, data: npt.NDArray[np.uint8], position: int) -> None: ...
    def forget(self) -> None: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def position(self) -> int: ...

class AttentionTimer:
    def __init__(self, kv_heads: int, head_dim: int, positions: int, dtype: str) -> None: ...
    def seconds(self, isa: str, threads: int, group: int) -> float: ...
    @property
    def bytes(self) -> int: ...

class Adapter:
    def __init__(self) -> None: ...
    def add(
        self,
        place: int,
        down: npt.NDArray[np.float32],
        ups: Sequence[tuple[npt.NDArray[np.float32], int, float]],
    ) -> None: ...

class Program:
    def __init__(self) -> None: ...
    def heads(self, n_heads: int, n_kv_heads: int, head_dim: int, value_dim: int = 0) -> int: ...
    def rotary(
        self,
        inverse_frequencies: Sequence[float],
        interleaved: bool,
        factor: float = 1.0,
        axes: Sequence[int] = (),
    ) -> int: ...
    def buffer(self, width: int) -> int: ...
    def weight(self, weight: Weight) -> int: ...
    def value(
        self,
        buffer: int,
        width: int,
        experts: int = 0,
        chosen: int = 0,
        code_planes: int = 1,
        floats: bool = True,
        planes_for: int = -1,
        nonzeros: bool = False,
    ) -> int: ...
    def add(self, op: object, numbers: dict[int, int], threads: int | None = None) -> None: ...
    def end_without_head(self, width: int) -> None: ...
    def place(self, threads: int, replicas: bool) -> None: ...
    @property
    def state_bytes(self) -> int: ...
    @property
    def square_sums(self) -> list[tuple[int, npt.NDArray[np.float64]]]: ...
    @property
    def left_out(self) -> int: ...
    @property
    def seconds(self) -> dict[str, float]: ...
    @property
    def head_seconds(self) -> float: ...
    def run(
        self,
        cache: KvCache,
        tokens: npt.NDArray[np.int32],
        sequences: Sequence[tuple[int, int, int, npt.NDArray[np.int32]]],
        isa: str,
        threads: int,
        deciding: Sequence[tuple[int, float]] = (),
        draws: Sequence[_Draw | None] = (),
        states: Sequence[State] = (),
        masks: Gate | None = None,
        ahead: Sequence[tuple[int, int, State]] = (),
        adapters: Sequence[tuple[int, int, Adapter]] = (),
        previous_hidden_states: npt.NDArray[np.float32] | None = None,
        hidden_states: npt.NDArray[np.float32] | None = None,
        second_parts: Sequence[tuple[int, int]] = (),
        images: _Images | None = None,
        kept: npt.NDArray[np.float32] | None = None,
        part: tuple[int, int] | None = None,
    ) -> tuple[npt.NDArray[np.float32], list[SampleResult], list[int], int]: ...

_Images = tuple[
    npt.NDArray[np.float32] | None,
    Sequence[tuple[int, int, int]],
    npt.NDArray[np.int32] | None,
]
_Draw = tuple[SampleParams, npt.NDArray[np.int32], int, npt.NDArray[np.int32] | None, float]

class Gate:
    def __init__(self) -> None: ...
    def open(self) -> None: ...

class ChainParams:
    def __init__(
        self,
        order: Sequence[str],
        typical_p: float,
        top_n_sigma: float,
        xtc_probability: float,
        xtc_threshold: float,
        dynatemp_range: float,
        dynatemp_exponent: float,
        mirostat: int,
        mirostat_tau: float,
        mirostat_eta: float,
    ) -> None: ...

class DryParams:
    def __init__(
        self,
        multiplier: float,
        base: float,
        allowed_length: int,
        penalty_last_n: int,
        breakers: Sequence[Sequence[int]],
    ) -> None: ...

class SampleParams:
    def __init__(
        self,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        repetition_penalty: float,
        frequency_penalty: float,
        presence_penalty: float,
        bias: Sequence[tuple[int, float]],
        seed: int,
        sequence: int,
        n_logprobs: int,
        chain: ChainParams | None = None,
        dry: DryParams | None = None,
        repeat_last_n: int | None = None,
    ) -> None: ...
    @property
    def deciding(self) -> tuple[int, float]: ...

class SampleResult:
    def __init__(
        self, token: int, logprob: float = ..., top: Sequence[tuple[int, float]] = ()
    ) -> None: ...
    @property
    def token(self) -> int: ...
    @property
    def logprob(self) -> float: ...
    @property
    def top(self) -> list[tuple[int, float]]: ...
    @property
    def finite(self) -> bool: ...
    @property
    def mu(self) -> float: ...

def sample(logits: npt.NDArray[np.float32], draw: _Draw, position: int) -> SampleResult: ...
def log_softmax_at(
    logits: npt.NDArray[np.float32], tokens: npt.NDArray[np.int32], threads: int
) -> npt.NDArray[np.float32]: ...
