"""The choice of unrolling for a power-of-two kernel: measured once per CPU, kept in the cache.

The paper (section 3.5) compiles a program for every combination of unrolling factors. Here the
module has all combinations, as instances of one template, and tuning chooses among them. The file
TUNING_FILE in the cache (`checkpoints.cache.cache_dir`) has the choices, as JSON. A damaged file is
ignored with a warning; the defaults apply then.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.checkpoints.cache import cache_dir
from sterna.errors import ModelFormatError, RequestError, reason, shown
from sterna.files.jsonfile import load_json_object
from sterna.files.writing import replacing, unwritable
from sterna.formats.pot_encodings import ENCODINGS
from sterna.runtime import resolve_threads
from sterna_papers import _kernels

__all__ = [
    "SHAPES",
    "Choice",
    "Unroll",
    "best",
    "check_names",
    "cpu_name",
    "default_unroll",
    "delete",
    "fastest",
    "load",
    "operands",
    "require_place",
    "rounds_of",
    "store",
    "sweep",
    "tunable",
    "tune",
]

Unroll = tuple[int, int, int]  # rows of a, rows of b, vectors of k
Shape = tuple[int, int, int]  # N, M, K

TUNING_FILE = "pot-tuning.json"
FILE_VERSION = 1
KERNELS_VERSION = 1  # raise it when the kernels change, which makes older choices invalid
MAX_FILE_BYTES = 1 << 20
#: Shapes in the first-level cache, in the second-level one, and in neither; one token to many.
SHAPES: tuple[Shape, ...] = (
    (64, 64, 64), (256, 256, 256), (512, 512, 512), (1024, 1024, 1024),
    (1, 4096, 4096), (8, 4096, 4096), (64, 4096, 4096),
)  # fmt: skip
MAX_SIZE = 1 << 20  # the greatest N, M or K: far above any layer
MAX_ELEMENTS = 1 << 28  # elements of a matrix: more than any layer has, and within memory
SMALL_MACS = 1 << 24  # a measurement repeats calls up to so many multiply-adds: some milliseconds
MAX_ROUNDS = 1 << 10  # the most repetitions: starting threads dominates the smallest calls
TIE = 0.01  # a smaller unrolling wins unless it is slower by more than this share: less is noise
_INT_FIELDS = ("kernels", "threads", "N", "M", "K")


@dataclass(frozen=True)
class Choice:
    """The best measured unrolling of a kernel for a shape on a CPU; times in seconds.

    kernels: the KERNELS_VERSION of the measurement. a is [N, K], b is [M, K].
    """

    cpu: str
    kernels: int
    kernel: str
    isa: str
    threads: int
    N: int
    M: int
    K: int
    unroll: Unroll
    time_s: float
    default_time_s: float

    @property
    def gain(self) -> float:
        """The speed-up over the default."""
        return self.default_time_s / self.time_s

    @property
    def place(self) -> tuple[Any, ...]:
        """The key of the choice: of two choices with the same key, the later one counts."""
        return dataclasses.astuple(self)[:8]


# ------------------------------------------------------------------------------------- choosing


def best(kernel: str, isa: str, N: int, M: int, K: int, threads: int) -> Unroll | None:
    """Return the tuned unrolling of the nearest shape; None if nothing was tuned.

    The distance is the Euclidean one of the logarithms of N, M and K; of two shapes equally near,
    the smaller counts.
    """
    runnable = set(_kernels.unrolls(kernel, isa))
    choices = [
        c for c in load()
        if (c.kernel, c.isa, c.threads) == (kernel, isa, int(threads)) and c.unroll in runnable
    ]  # fmt: skip
    if not choices:
        return None

    def distance(c: Choice) -> tuple[float, Shape]:
        pairs = ((c.N, N), (c.M, M), (c.K, K))
        return sum(math.log(a / max(b, 1)) ** 2 for a, b in pairs), (c.N, c.M, c.K)

    return min(choices, key=distance).unroll


def default_unroll(unrolls: Sequence[Unroll], N: int) -> Unroll:
    """Choose for a kernel that was never tuned.

    The choice has the most rows of a, up to N, since they share the decoding, and then the largest
    product of rows of b and vectors of k.
    """
    fitting = [one for one in unrolls if one[0] <= max(1, N)]
    return max(fitting, key=lambda one: (one[0], one[1] * one[2], one[1]))


def tunable(isa: str) -> list[str]:
    """List the kernels of a unit that have more than one unrolling."""
    return [name for name in _kernels.kernels(isa) if len(_kernels.unrolls(name, isa)) > 1]


def fastest(times: Mapping[Unroll, float]) -> Unroll:
    """Return the smallest of the unrollings with times within TIE of the least."""
    limit = min(times.values()) * (1 + TIE)
    return min((u for u, t in times.items() if t <= limit), key=lambda u: (math.prod(u), u))


def sweep(
    timers: Mapping[Unroll, Callable[[], float]],
    repeat: int,
    tick: Callable[[], None] = lambda: None,
) -> dict[Unroll, float]:
    """Return median seconds of each: `repeat` rounds of all in turn, so drift meets all alike."""
    times: dict[Unroll, list[float]] = {unroll: [] for unroll in timers}
    for _ in range(repeat):
        for unroll, timer in timers.items():
            times[unroll].append(timer())
            tick()
    return {unroll: statistics.median(seconds) for unroll, seconds in times.items()}


# ------------------------------------------------------------------------------------ measuring


def operands(
    kernel: str, N: int, M: int, K: int, seed: int = 0
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Make random a [N, K] and b [M, words] for a kernel, the same for the same seed.

    Exponents are 0..7, which every encoding has, and a is normally distributed, so that nothing
    overflows.
    """
    rng = np.random.default_rng(seed)
    base = kernel.partition("-")[0]
    integer = base in ("i32", "fxpot")
    a = (
        rng.integers(-128, 128, (N, K), np.int32)
        if integer
        else rng.standard_normal((N, K), np.float32)
    )
    exponents = rng.integers(0, 8, (M, K), np.uint8)
    signs = rng.integers(0, 2, (M, K), np.int8) * np.int8(2) - np.int8(1)
    if base in ENCODINGS:
        return a, ENCODINGS[base].encode(signs, exponents)
    b = np.left_shift(signs.astype(np.int32), exponents)
    return a, b if integer else b.astype(np.float32)


def tune(
    kernels: Sequence[str],
    isa: str,
    shapes: Sequence[Shape] = SHAPES,
    *,
    threads: int | None = None,
    repeat: int = 5,
    progress: Callable[[float, float], None] = lambda done, of: None,
) -> list[Choice]:
    """Measure every unrolling of the kernels on every shape (N, M, K); return the choices.

    They are not stored. Times are medians of `repeat` interleaved rounds on data of one seed.
    progress: called with the number of measurements done, and of all. Raises RequestError.
    """
    _check(kernels, isa, shapes, repeat)
    team = int(resolve_threads(threads))
    total = len(shapes) * repeat * sum(len(_kernels.unrolls(k, isa)) for k in kernels)
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        progress(done, total)

    choices = []
    for N, M, K in shapes:
        for kernel in kernels:
            a, b = operands(kernel, N, M, K)
            timers = {
                unroll: _timer(kernel, a, b, K, isa, team, unroll)
                for unroll in _kernels.unrolls(kernel, isa)
            }
            times = sweep(timers, repeat, tick)
            unroll, default = fastest(times), default_unroll(list(times), N)
            choices.append(
                Choice(
                    cpu_name(), KERNELS_VERSION, kernel, isa, team, N, M, K, unroll,
                    times[unroll], times[default],
                )
            )  # fmt: skip
    return choices


def check_names(kernels: Sequence[str], isa: str | None = None) -> None:
    """Raise RequestError unless these are names of tunable kernels, of a unit or of any."""
    units = [isa] if isa is not None else [name for name, _, runs in _kernels.isas() if runs]
    known = dict.fromkeys(name for unit in units for name in tunable(unit))
    for name in kernels:
        if name not in known:
            on = "" if isa is None else f" on {isa}"
            raise RequestError(
                f"kernel: must be one of {', '.join(known)}{on}, but got {shown(name)}"
            )


def _check(kernels: Sequence[str], isa: str, shapes: Sequence[Shape], repeat: int) -> None:
    check_names(kernels, isa)
    if repeat < 1:
        raise RequestError(f"repeat: must be at least 1, but got {repeat}")
    if not shapes:
        raise RequestError("shapes: must be at least one N,M,K, but got none")
    for shape in shapes:
        N, M, K = shape
        if not all(1 <= n <= MAX_SIZE for n in shape) or max(N * K, M * K, N * M) > MAX_ELEMENTS:
            raise RequestError(
                f"shape: N, M and K must lie in 1..{MAX_SIZE} and a matrix have at most "
                f"{MAX_ELEMENTS} elements, but got {N},{M},{K}"
            )


def _timer(
    kernel: str, a: npt.NDArray[Any], b: npt.NDArray[Any], K: int, isa: str, threads: int,
    unroll: Unroll,
) -> Callable[[], float]:  # fmt: skip
    rounds = rounds_of(len(a), len(b), K)

    def run() -> float:
        times = _kernels.time(kernel, a, b, K, isa, threads, unroll, True, rounds)
        return statistics.median(times)

    return run


def rounds_of(N: int, M: int, K: int) -> int:
    """Return how often a measurement repeats a product: some milliseconds of a small one."""
    return min(MAX_ROUNDS, max(1, SMALL_MACS // max(1, N * M * K)))


# -------------------------------------------------------------------------------------- keeping


def load() -> list[Choice]:
    """Load the choices for this CPU and these kernels; none if nothing was tuned or kept.

    A damaged file gives a RuntimeWarning, once.
    """
    return [c for c in _load_all() if c.cpu == cpu_name() and c.kernels == KERNELS_VERSION]


def store(choices: Sequence[Choice]) -> Path | None:
    """Write choices to the file, in place of older ones with the same key; return its path.

    Returns None if the cache is off. Raises RequestError if the file cannot be written.
    """
    path = _path()
    if path is None:
        return None
    kept = {c.place: c for c in [*_load_all(), *choices]}
    _write(path, list(kept.values()))
    return path


def require_place() -> None:
    """Raise RequestError if `store` could not write; call it before minutes of work."""
    path = _path()
    if path is None:
        return
    _make_folder(path.parent)
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise unwritable(path, error) from error


def delete(kernels: Sequence[str] | None = None) -> int:
    """Delete the choices of this CPU, for some kernels or for all; return their number.

    Choices of other CPUs that share the cache stay. Raises RequestError.
    """
    path = _path()
    if path is None:
        return 0
    every = _load_all()
    kept = [c for c in every if c.cpu != cpu_name() or (kernels and c.kernel not in kernels)]
    try:
        if kept:
            _write(path, kept)
        else:
            path.unlink(missing_ok=True)  # a damaged file too
    except OSError as error:
        raise RequestError(
            f"{path}: must be removable, but got {reason(error)}; check its rights"
        ) from error
    return len(every) - len(kept)


def _path() -> Path | None:
    folder = cache_dir()
    return None if folder is None else folder / TUNING_FILE


def _write(path: Path, choices: Sequence[Choice]) -> None:
    rows = [dataclasses.asdict(c) for c in sorted(choices, key=lambda c: c.place)]
    data = json.dumps({"version": FILE_VERSION, "choices": rows}, indent=1).encode()
    _make_folder(path.parent)
    with replacing(path, len(data)) as file:
        file.write(data)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(
            f"{folder}: must be a folder that can be made, but got "
            f"{reason(error)}; set STERNA_CACHE to another"
        ) from error


def _load_all() -> list[Choice]:
    path = _path()
    try:
        status = path.stat() if path else None
    except OSError:
        return []
    return list(_parsed(path, status.st_mtime_ns, status.st_size)) if path and status else []


@lru_cache(maxsize=4)
def _parsed(path: Path, mtime_ns: int, nbytes: int) -> tuple[Choice, ...]:
    """Parse the file's choices, read once for each state of the file."""
    try:
        content = load_json_object(path, MAX_FILE_BYTES)
        if content.get("version") != FILE_VERSION:
            return ()  # another version of Sterna wrote it, so it is not damaged
        rows = content.get("choices")
        if not isinstance(rows, list):
            raise ModelFormatError(file=path, field="choices", expected="an array")
        return tuple(_choice(path, row) for row in rows)
    except (ModelFormatError, RequestError) as error:
        warnings.warn(
            f"{error}; the tuning is ignored: run `sterna tune` again, or `sterna tune --delete`",
            RuntimeWarning, stacklevel=2,
        )  # fmt: skip
        return ()


def _choice(path: Path, row: Any) -> Choice:
    names = [field.name for field in dataclasses.fields(Choice)]

    def refuse(field: str, expected: str) -> ModelFormatError:
        return ModelFormatError(file=path, field=f"choices.{field}", expected=expected)

    if not isinstance(row, dict) or sorted(row) != sorted(names):
        raise refuse("*", f"objects of {', '.join(names)}")
    for name in names:
        value = row[name]
        if name in _INT_FIELDS and not (type(value) is int and value >= 1):
            raise refuse(name, "a positive integer")
        if name.endswith("time_s") and not (type(value) in (int, float) and value > 0):
            raise refuse(name, "positive seconds")
        if name in ("cpu", "kernel", "isa") and not isinstance(value, str):
            raise refuse(name, "a string")
    unroll = row["unroll"]
    if not (isinstance(unroll, list) and len(unroll) == 3 and all(type(u) is int for u in unroll)):
        raise refuse("unroll", "three integers")
    return Choice(**{**row, "unroll": tuple(unroll)})


@lru_cache(maxsize=1)
def cpu_name() -> str:
    """Name the CPU that choices belong to: vendor, family, model, stepping and name."""
    info = _native.cpu_info()
    # A virtual machine's name says little, but the numbers tell CPUs apart.
    numbers = f"{info['family']}-{info['model_id']}-{info['stepping']}"
    return " ".join(f"{info['vendor']} {numbers} {info['model']}".split())
