"""sterna_papers.pot: every kernel on every instruction set, against references in numpy.

Products of floats with powers of two are exact, so each element is held bit for bit where K = 1,
and a sum to the bound of its K additions; integer sums are exact modulo 2^32.
"""

from __future__ import annotations

import ctypes
import mmap
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from helpers import failure

from sterna import _native
from sterna.errors import NonFiniteError, RequestError, UnsupportedCPUError
from sterna.formats.pot_encodings import ENCODINGS, Encoding
from sterna_papers import _kernels, pot

Array = npt.NDArray[np.generic]

ISAS = pot.isas()
PAIRS = [(isa, kernel) for isa in ISAS for kernel in pot.kernels(isa)]
POT_PAIRS = [(isa, kernel) for isa, kernel in PAIRS if kernel.split("-")[0] in ENCODINGS]
FLOAT_POT = [(isa, kernel) for isa, kernel in POT_PAIRS if kernel != "fxpot"]
# (N, M, K): one of each, none of each, around the blocks of rows and the vectors.
SHAPES = [
    (1, 1, 1),
    (1, 5, 2),
    (3, 2, 7),
    (2, 3, 15),
    (5, 7, 16),
    (4, 4, 17),
    (7, 6, 31),
    (1, 3, 33),
    (6, 1, 63),
    (2, 9, 70),
    (0, 3, 8),
    (3, 0, 8),
    (3, 4, 0),
]
# Zeros, the least and the greatest subnormal and normal numbers, infinities, NaN, and 2^97, from
# which on adding 31 overflows.
SPECIAL = np.array(
    [
        *(0.0, -0.0, 1e-45, -1e-45, 1.1754942e-38, -1.1754942e-38, 1.1754944e-38, -1.1754944e-38),
        *(2.0**96, 2.0**97, -(2.0**97), 3.4028235e38, -3.4028235e38, np.inf, -np.inf, np.nan),
        *(1.0, -1.5, 3.1e-30, 7e20),
    ],
    np.float32,
)

PROT_NONE = 0  # of <sys/mman.h>


def base(kernel: str) -> str:
    """pot8-scalar and pot8-fma have the codes of pot8."""
    return kernel.split("-")[0]


def encoding(kernel: str) -> Encoding:
    return ENCODINGS[base(kernel)]


def encode(kernel: str, signs: Array, exponents: Array) -> Array:
    return encoding(kernel).encode(signs, exponents)


def products(kernel: str, x: Array, signs: Array, exponents: Array, special: bool = True) -> Array:
    """Activations [N, K] times the weights [M, K], elementwise: [N, M, K]."""
    shape = (len(x), *signs.shape)
    x, signs, exponents = (np.broadcast_to(v, shape) for v in (x[:, None], signs, exponents))
    return encoding(kernel).multiply(x.copy(), signs, exponents, special=special)


def random_weights(kernel: str, M: int, K: int, seed: int) -> tuple[Array, Array]:
    r = np.random.default_rng(seed)
    most = min(encoding(kernel).max_exponent, 60)  # of pot16: sums stay finite
    return r.choice([-1, 1], (M, K)).astype(np.int8), r.integers(0, most, (M, K), endpoint=True)


def all_weights(kernel: str) -> tuple[Array, Array]:
    """Every sign and exponent, one a row."""
    most = encoding(kernel).max_exponent
    return np.tile([1, -1], most + 1)[:, None], np.repeat(np.arange(most + 1), 2)[:, None]


def at_the_end_of_memory(values: Array) -> Array:
    """A copy that ends where memory does: reading behind it is a fault."""
    page = mmap.PAGESIZE
    held = -(-max(values.nbytes, 1) // page) * page
    memory = mmap.mmap(-1, held + page)
    start = np.frombuffer(memory, np.uint8).ctypes.data
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + held), page, PROT_NONE) == 0
    copy = np.frombuffer(memory, values.dtype, values.size, held - values.nbytes)
    copy = copy.reshape(values.shape)
    copy[...] = values
    return copy


def operands(kernel: str, N: int, M: int, K: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """Activations, codes, and the exact products [N, M, K]."""
    r = np.random.default_rng(seed + 1)
    integer = base(kernel) in ("fxpot", "i32")
    if integer:
        a = r.integers(-(2**31), 2**31, (N, K)).astype(np.int32)
    else:
        a = r.standard_normal((N, K)).astype(np.float32)
    if base(kernel) == "i32":
        b = r.integers(-(2**31), 2**31, (M, K)).astype(np.int32)
        with np.errstate(over="ignore"):
            return a, b, a[:, None] * b
    if base(kernel) == "f32":
        b = r.standard_normal((M, K)).astype(np.float32)
        return a, b, a[:, None].astype(np.float64) * b
    signs, exponents = random_weights(kernel, M, K, seed)
    return a, encode(kernel, signs, exponents), products(kernel, a, signs, exponents)


def check_sums(got: Array, terms: Array) -> None:
    """Sums of [N, M, K] terms: exact modulo 2^32, or within K roundings of their magnitudes."""
    assert got.shape == terms.shape[:2]
    if terms.dtype == np.int32:
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, terms.astype(np.int64).sum(2).astype(np.int32))
        return
    assert got.dtype == np.float32
    wide = terms.astype(np.float64)
    K = terms.shape[2]
    bound = (K + 1) * 2.0**-24 * np.abs(wide).sum(2)
    assert (np.abs(got - wide.sum(2)) <= bound).all()


@pytest.mark.parametrize(("isa", "kernel"), PAIRS)
def test_every_unroll_and_shape(isa: str, kernel: str) -> None:
    for at, (N, M, K) in enumerate(SHAPES):
        a, b, terms = operands(kernel, N, M, K, seed=at)
        for unroll in pot.unrolls(kernel, isa):
            for special in (True, False):
                got = pot.matmul(
                    a, b, K, kernel=kernel, isa=isa, unroll=unroll, special=special, threads=1
                )
                check_sums(got, terms)


@pytest.mark.parametrize(("isa", "kernel"), PAIRS)
def test_every_k(isa: str, kernel: str) -> None:
    there = pot.unrolls(kernel, isa)
    for K in (*range(1, 71), 65535, 65536, 65537):
        a, b, terms = operands(kernel, 2, 3, K, seed=K)
        for unroll in {there[0], there[K % len(there)]}:
            got = pot.matmul(a, b, K, kernel=kernel, isa=isa, unroll=unroll, threads=1)
            check_sums(got, terms)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's mprotect")
@pytest.mark.parametrize(("isa", "kernel"), PAIRS)
def test_nothing_behind_the_arrays_is_read(isa: str, kernel: str) -> None:
    for K in (1, 5, 8, 13, 17, 40, 67):
        a, b, terms = operands(kernel, 3, 3, K)
        for unroll in pot.unrolls(kernel, isa):
            got = pot.matmul(
                at_the_end_of_memory(a),
                at_the_end_of_memory(b),
                K,
                kernel=kernel,
                isa=isa,
                unroll=unroll,
                threads=1,
            )
            check_sums(got, terms)


@pytest.mark.parametrize("isa", ISAS)
def test_padding_of_an_odd_k_counts_for_nothing(isa: str) -> None:
    """The high nibble of the last byte belongs to no element."""
    for kernel in {"pot4", "pot4-fma"} & set(pot.kernels(isa)):
        a, b, _ = operands(kernel, 2, 3, 37)
        dirty = b.copy()
        dirty[:, -1] |= 0xF0
        for special in (True, False):
            clean = pot.matmul(a, b, 37, kernel=kernel, isa=isa, special=special)
            got = pot.matmul(a, dirty, 37, kernel=kernel, isa=isa, special=special)
            assert got.tobytes() == clean.tobytes()


@pytest.mark.parametrize(("isa", "kernel"), FLOAT_POT)
def test_special_values_product_by_product(isa: str, kernel: str) -> None:
    """K = 1: every special activation times every weight, as IEEE has it."""
    signs, exponents = all_weights(kernel)
    a = np.ascontiguousarray(SPECIAL[:, None])
    # The sum begins with +0, which makes +0 of a -0.
    expected = products(kernel, a, signs, exponents)[:, :, 0] + np.float32(0)
    for unroll in pot.unrolls(kernel, isa):
        got = pot.matmul(
            a, encode(kernel, signs, exponents), 1, kernel=kernel, isa=isa, unroll=unroll
        )
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
        sound = ~np.isnan(expected)
        np.testing.assert_array_equal(got.view(np.uint32)[sound], expected.view(np.uint32)[sound])


@pytest.mark.parametrize(("isa", "kernel"), FLOAT_POT)
@pytest.mark.parametrize("special", SPECIAL.tolist())
def test_special_value_among_others(isa: str, kernel: str, special: float) -> None:
    """In any lane, at the edge and inside: what the float64 sum of the float32 products is."""
    K = 45
    for at in (0, 15, 16, 31, 44):
        a, _, _ = operands(kernel, 3, 4, K, seed=at)
        signs, exponents = random_weights(kernel, 4, K, at)
        a[1, at] = special
        terms = products(kernel, a, signs, exponents)
        got = pot.matmul(a, encode(kernel, signs, exponents), K, kernel=kernel, isa=isa)
        with np.errstate(invalid="ignore"):
            wide = terms.astype(np.float64).sum(2)
            bound = (K + 1) * 2.0**-24 * np.abs(terms.astype(np.float64)).sum(2)
            overflow = ~np.isfinite(wide) | (np.abs(wide) + bound >= 2.0**128 * (1 - 2.0**-24))
            assert (np.abs(got - wide) <= bound)[~overflow].all()
        same = np.isfinite(wide) | (got == wide) | (np.isnan(got) & np.isnan(wide))
        assert same.all()


@pytest.mark.parametrize("isa", ISAS)
def test_an_overflowing_product_is_an_infinity_in_a_sum(isa: str) -> None:
    """2^127 · 2 - 2^127 is infinite: a fused sum would say 2^127."""
    for kernel in set(pot.kernels(isa)) - {"fxpot"}:
        if base(kernel) not in ENCODINGS:
            continue
        lanes = 64
        a = np.zeros((1, 2 * lanes), np.float32)
        a[0, 0] = a[0, lanes] = 2.0**127
        signs, exponents = np.ones((1, 2 * lanes), np.int8), np.zeros((1, 2 * lanes), np.int64)
        signs[0, 0], exponents[0, lanes] = -1, 1
        codes = encode(kernel, signs, exponents)
        assert pot.matmul(a, codes, 2 * lanes, kernel=kernel, isa=isa)[0, 0] == np.inf


@pytest.mark.parametrize("isa", ISAS)
def test_pot16_beyond_one_power(isa: str) -> None:
    """Exponents above 127, whose power is no float, on subnormal, clean and large activations."""
    exponents = np.array([[0, 128, 200, 255, 254, 149, 127, 253]])
    signs = np.array([[1, -1, 1, -1, 1, 1, -1, 1]])
    for scale in (1.0, 1e-44, 1e-38, 1e30):
        for at in range(8):  # one product a sum, the others are zero
            a = np.zeros((1, 8), np.float32)
            a[0, at] = scale
            expected = products("pot16", a, signs, exponents).sum(2)
            got = pot.matmul(a, encode("pot16", signs, exponents), 8, kernel="pot16", isa=isa)
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("isa", ISAS)
def test_subnormal_numbers_where_the_caller_flushes_them(isa: str) -> None:
    a, codes = np.full((1, 1), 3e-45, np.float32), np.array([[4]], np.uint8)
    torch.set_flush_denormal(True)
    try:
        got = [
            pot.matmul(a, codes, 1, kernel=kernel, isa=isa, threads=threads).view(np.uint32)
            for kernel in ("pot8", "pot8-fma", "pot8-scalar")
            for threads in (1, 2)
        ]
    finally:
        torch.set_flush_denormal(False)
    assert [int(bits[0, 0]) for bits in got] == [2 << 4] * 6


@pytest.mark.parametrize(("isa", "kernel"), [p for p in FLOAT_POT if "-fma" not in p[1]])
def test_plain_mode_is_the_addition_of_integers(isa: str, kernel: str) -> None:
    signs, exponents = all_weights(kernel)
    a = np.ascontiguousarray(SPECIAL[:, None])
    with np.errstate(invalid="ignore"):  # what comes out may be a signalling NaN
        expected = products(kernel, a, signs, exponents, special=False)[:, :, 0] + np.float32(0)
    codes = encode(kernel, signs, exponents)
    got = pot.matmul(a, codes, 1, kernel=kernel, isa=isa, special=False)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    sound = ~np.isnan(expected)
    np.testing.assert_array_equal(got.view(np.uint32)[sound], expected.view(np.uint32)[sound])


@pytest.mark.parametrize(("isa", "kernel"), PAIRS)
def test_threads_and_neighbours_change_no_bit(isa: str, kernel: str) -> None:
    a, b, _ = operands(kernel, 7, 37, 77)
    if a.dtype == np.float32:
        a[2, 5], a[4, 76] = 0, 2.0**120
    for unroll in pot.unrolls(kernel, isa)[::5]:
        one = pot.matmul(a, b, 77, kernel=kernel, isa=isa, unroll=unroll, threads=1)
        for threads in (2, 3):
            more = pot.matmul(a, b, 77, kernel=kernel, isa=isa, unroll=unroll, threads=threads)
            assert more.tobytes() == one.tobytes()
        alone = pot.matmul(a[3:4], b[8:9], 77, kernel=kernel, isa=isa, unroll=unroll)
        assert alone.tobytes() == one[3:4, 8:9].tobytes()


def test_scales() -> None:
    a, b, _ = operands("pot8", 3, 4, 20)
    plain = pot.matmul(a, b, 20, kernel="pot8")
    rows = np.array([1, 0.5, -3, 1e-3], np.float32)
    np.testing.assert_array_equal(pot.matmul(a, b, 20, kernel="pot8", scale=rows), plain * rows)
    np.testing.assert_array_equal(pot.matmul(a, b, 20, kernel="pot8", scale=0.25), plain / 4)
    x, codes, _ = operands("fxpot", 3, 4, 20)
    scaled = pot.matmul(x, codes, 20, kernel="fxpot", scale=2.0)
    assert scaled.dtype == np.float32
    np.testing.assert_array_equal(
        scaled, (pot.matmul(x, codes, 20, kernel="fxpot") * 2.0).astype(np.float32)
    )


@pytest.mark.filterwarnings("error")
def test_errors() -> None:
    a, b, _ = operands("pot8", 2, 3, 6)
    ok = {"kernel": "pot8", "isa": "scalar"}

    def call(x: object = a, codes: object = b, K: object = 6, **changes: object) -> object:
        return lambda: pot.matmul(x, codes, K, **{**ok, **changes})  # type: ignore[arg-type]

    failure(call(kernel="pot9"), RequestError, "kernel", "pot16", "'pot9'")
    failure(call(isa="sse9"), RequestError, "isa", "scalar", "'sse9'")
    failure(call(unroll=(3, 1, 1)), RequestError, "unroll", "1x1x1", "(3, 1, 1)")
    failure(call(unroll="fast"), RequestError, "unroll", "'fast'")
    failure(call(K=7), RequestError, "a: ", "K=7", "(2, 6)")
    failure(call(K=-1), RequestError, "K: ", "-1")
    failure(call(K=6.0), RequestError, "K: ", "6.0")
    failure(call(a.astype(np.float64)), RequestError, "a: ", "float32", "float64", "astype")
    failure(call(a[0]), RequestError, "a: ", "two dimensions", "(6,)")
    failure(call([[1.0], [1.0, 2.0]]), RequestError, "a: ", "rectangular")
    failure(call(codes=b.astype(np.int8)), RequestError, "b_codes", "uint8", "int8")
    failure(call(codes=b[:, :5]), RequestError, "b_codes", "6 words", "(3, 5)")
    failure(
        call(kernel="pot4"), RequestError, "b_codes", "3 words", "(3, 6)"
    )  # bytes of one code each
    failure(call(scale=[1.0, 2.0]), RequestError, "scale", "(3,)", "(2,)")
    failure(call(scale="x"), RequestError, "scale", "numeric")
    failure(call(scale=[1, np.inf, 1]), NonFiniteError, "scale", "element 1", "inf")
    failure(call(scale=1e39), NonFiniteError, "scale", "element 0", "1e+39")
    failure(call(scale=1j), RequestError, "scale", "numeric", "1j")
    for isa in ([], 0, b"avx2"):
        failure(call(isa=isa), RequestError, "isa", "scalar", repr(isa))
    failure(call(threads=0), RequestError, "threads")
    failure(call(special="no"), RequestError, "special", "'no'")


def test_a_set_this_cpu_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        _kernels, "isas", lambda: [("scalar", "", True), ("avx512", "avx512f", False)]
    )
    failure(lambda: pot.kernels("avx512"), UnsupportedCPUError, "avx512f", "scalar")
    assert pot.isas() == ["scalar"]


def test_a_unit_this_cpu_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit of whole models is refused as ops.linear does, though what it maps to would run."""
    monkeypatch.setattr(_native, "isas", lambda: ["scalar"])
    monkeypatch.setattr(_native, "known_isas", lambda: [("scalar", ""), ("amx", "amx_tile")])
    failure(lambda: pot.resolve("pot8", "amx"), UnsupportedCPUError, "isa", "amx_tile", "scalar")
    monkeypatch.setenv("STERNA_ISA", "amx")
    failure(lambda: pot.resolve("pot8"), UnsupportedCPUError, "STERNA_ISA", "amx_tile")


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STERNA_ISA", "scalar")
    assert pot.resolve("pot8")[1] == "scalar"
    monkeypatch.setenv("STERNA_ISA", "nonsense")
    failure(lambda: pot.resolve("pot8"), RequestError, "STERNA_ISA", "nonsense")
    monkeypatch.delenv("STERNA_ISA")
    assert pot.resolve("pot8")[1] == ISAS[-1]


def test_kernels_of_an_instruction_set() -> None:
    assert {"pot8", "pot16", "pot4", "fxpot", "f32", "i32"} <= set(pot.kernels("scalar"))
    assert {"f32-scalar", "i32-scalar", "pot8-scalar"} <= set(pot.kernels("scalar"))
    for isa in ISAS[1:]:
        assert {"f32-auto", "i32-auto", "pot8-auto"} <= set(pot.kernels(isa))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_source_compiles_alone(tmp_path: Path) -> None:
    """The installed source makes a library of its own, whose kernels give the module's bits."""
    library = tmp_path / "kernels.so"
    subprocess.run(
        [
            *("g++", "-std=c++20", "-O1", "-ffp-contract=off", "-shared", "-fPIC"),
            *("-DSTERNA_POT_ONLY(U)=U(1,2,2)", "-o", str(library)),
            str(pot.source() / "standalone.cpp"),
        ],
        check=True,
        capture_output=True,
    )
    built = ctypes.CDLL(str(library))
    built.sterna_pot_isa.restype = built.sterna_pot_kernel.restype = ctypes.c_char_p
    assert built.sterna_pot_isa() == b"scalar"
    unroll = (ctypes.c_int * 3)()
    assert built.sterna_pot_kernel(0, unroll) == b"pot8"
    assert list(unroll) == [1, 2, 2]
    assert built.sterna_pot_kernel(-1, unroll) is None
    a, b, _ = operands("pot8", 3, 4, 21)
    c = np.empty((3, 4), np.float32)
    sizes = [ctypes.c_int64(n) for n in (3, 4, 21)]
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (a, b, c)]
    assert built.sterna_pot_matmul(b"pot8", *pointers, *sizes, 1, 2, 2, 1) == 0
    expected = pot.matmul(a, b, 21, kernel="pot8", isa="scalar", unroll=(1, 2, 2))
    assert c.tobytes() == expected.tobytes()
    assert built.sterna_pot_matmul(b"none", *pointers, *sizes, 1, 2, 2, 1) == -1
