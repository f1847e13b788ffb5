# What nanobind cannot know of the types in _native.pyi, which is generated when the wheel is built:
# the keys and values of dicts, and arrays of any dtype.

_native.__prefix__:
    \from typing import Any, TypedDict

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
        levels: int
        level_offset: int

    class _WeightCacheCounts(TypedDict):
        hits: int
        misses: int
        bytes: int
        guessed: int
        guessed_right: int
        parts: int
        slots: int
        waited_s: float

_native.two_bit_layouts:
    two_bit_layouts: tuple[str, ...]

_native.cpu_info:
    def cpu_info() -> _CpuInfo: ...

_native.topology:
    def topology(root: str = "", allowed: Sequence[int] | None = None) -> _Topology: ...

_native.data_caches:
    def data_caches(root: str = "") -> dict[int, int]: ...

_native.memory_state:
    def memory_state(root: str = "") -> tuple[int, int, int]: ...

_native.fast_layouts:
    def fast_layouts(isa: str) -> dict[str, tuple[int, bool]]: ...

_native.unit_digests:
    def unit_digests(isa: str) -> tuple[dict[str, int], int]: ...

_native.layout_facts:
    def layout_facts(layout: str) -> _LayoutFacts: ...

_native.ggml_types:
    def ggml_types() -> dict[str, tuple[int, int]]: ...

_native.require_whole:
    def require_whole(a: NDArray[Any]) -> None: ...

_native.has_non_finite:
    def has_non_finite(a: NDArray[Any], exponent: int, threads: int) -> bool: ...

_native.pack$:
    def pack(
        layout: str,
        source: str,
        parts: Sequence[NDArray[Any]],
        level_offset: int,
        level_step: int,
        order: NDArray[numpy.int64] | None,
        threads: int,
    ) -> NDArray[numpy.uint8]: ...

_native.pack_ggml:
    def pack_ggml(
        layout: str,
        type: str,
        parts: Sequence[NDArray[numpy.uint8]],
        level_offset: int,
        level_step: int,
        order: NDArray[numpy.int64] | None,
        scale_tile_bytes: int,
        threads: int,
    ) -> tuple[NDArray[numpy.uint8], NDArray[numpy.uint8], int]: ...

_native.nearest_sums:
    def nearest_sums(
        x: NDArray[numpy.float32],
        ex: NDArray[numpy.float32],
        e: NDArray[numpy.float32],
        inverse: NDArray[numpy.float32],
        minimum: NDArray[numpy.float32] | None,
        low: float,
        high: float,
        step: float,
        of_halves: NDArray[numpy.float32] | None,
        in_doubles: bool,
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]: ...

_native.Program.weight:
    def weight(self, weight: Weight) -> int: ...

_native.Program.add:
    def add(self, op: object, numbers: dict[int, int], threads: int | None = None) -> None: ...

_native.Program.seconds:
    @property
    def seconds(self) -> dict[str, float]: ...

_native.Program.stream:
    def stream(self, weight_cache: WeightCache) -> None: ...

_native.WeightCache.counts:
    @property
    def counts(self) -> _WeightCacheCounts: ...
