"""Choosing an instruction set: STERNA_ISA, isa=, and proof that the choice took effect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import sterna.ops as ops
from sterna import _native
from sterna.errors import RequestError, SternaError, UnsupportedCPUError

RUNNABLE = _native.isas()
KNOWN = [name for name, _ in _native.known_isas()]
UNSUPPORTED = [name for name in KNOWN if name not in RUNNABLE]
LINEAR = """
import json
import numpy as np
import sterna.ops as ops
from sterna import _native
from sterna.runtime import resolve_isa
packed = ops.pack(np.ones((64, 64), np.int8), 1.0, format="i2")
used, real = [], _native.linear
def spy(weight, x, isa, *rest):
    used.append(isa)
    return real(weight, x, isa, *rest)
_native.linear = spy
y = ops.linear(np.ones((1, 64), np.float32), packed)
print(json.dumps({"default": resolve_isa(), "used": used, "y": float(y[0, 0])}))
"""
TRY = """
import numpy as np
import sterna.ops as ops
from sterna.errors import SternaError
try:
    ops.linear(np.ones((1, 4), np.float32), ops.pack(np.ones((4, 4), np.int8), 1.0, format="i2"))
except SternaError as error:
    print(type(error).__name__, error, sep="\\n")
"""


def run(code: str, isa: str | None) -> str:
    """Output of a fresh interpreter with STERNA_ISA set (or not)."""
    environment = {name: value for name, value in os.environ.items() if name != "STERNA_ISA"}
    if isa is not None:
        environment["STERNA_ISA"] = isa
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_runnable() -> None:
    """Scalar runs everywhere and comes first; the best comes last and is the default."""
    assert RUNNABLE[0] == "scalar"
    assert len(set(RUNNABLE)) == len(RUNNABLE)
    assert set(RUNNABLE) <= set(KNOWN)


@pytest.mark.parametrize("isa", RUNNABLE)
def test_argument_takes_effect(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """isa= names the unit that the core is asked for, which takes no other in its place."""
    packed, x = ops.pack(np.ones((64, 64), np.int8), 1.0, format="i2"), np.ones((1, 64), np.float32)
    asked, real = [], _native.linear

    def spy(weight: Any, x: Any, isa: str, *rest: Any) -> Any:
        asked.append((weight, x, isa, *rest))
        return real(weight, x, isa, *rest)

    monkeypatch.setattr(_native, "linear", spy)
    ops.linear(x, packed, isa=isa)
    ((weight, x, used, *rest),) = asked
    assert used == isa
    with pytest.raises(ValueError, match="isa"):
        real(weight, x, f"{isa}x", *rest)


@pytest.mark.parametrize("isa", RUNNABLE)
def test_environment_takes_effect(isa: str) -> None:
    """STERNA_ISA makes another default, and its kernels run."""
    assert json.loads(run(LINEAR, isa)) == {"default": isa, "used": [isa], "y": 64.0}


def test_default_is_the_best() -> None:
    """Without STERNA_ISA the last of isas() is used."""
    assert json.loads(run(LINEAR, None)) == {
        "default": RUNNABLE[-1],
        "used": [RUNNABLE[-1]],
        "y": 64.0,
    }


def test_argument_beats_environment() -> None:
    """isa= is more specific than STERNA_ISA."""
    code = LINEAR.replace(", packed)", f', packed, isa="{RUNNABLE[-1]}")')
    assert json.loads(run(code, "scalar"))["used"] == [RUNNABLE[-1]]


@pytest.mark.parametrize("name", ["avx9", "AVX 2", "none", "../scalar"])
def test_unknown_name(name: str) -> None:
    """An unknown name is a one-line error that lists what there is."""
    x, packed = np.ones((1, 4), np.float32), ops.pack(np.ones((4, 4), np.int8), 1.0, format="i2")
    with pytest.raises(SternaError) as caught:
        ops.linear(x, packed, isa=name)
    check_message(str(caught.value), name)


@pytest.mark.parametrize("name", ["avx9", "../scalar"])
def test_unknown_name_in_the_environment(name: str) -> None:
    """STERNA_ISA is refused likewise, and the message names it."""
    kind, message = run(TRY, name).splitlines()
    assert kind == "RequestError"
    assert "STERNA_ISA" in message
    check_message(message, name)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_name(name: str) -> None:
    """A unit that this CPU cannot run is refused before any of its instructions runs."""
    with pytest.raises(UnsupportedCPUError) as caught:
        ops.linear(
            np.ones((1, 4), np.float32), ops.pack(np.ones((4, 4), np.int8), format="i2"), isa=name
        )
    check_message(str(caught.value), name)
    kind, message = run(TRY, name).splitlines()
    assert kind == "UnsupportedCPUError"
    check_message(message, name)


def check_message(message: str, name: str) -> None:
    """One line, naming the value and what could be used instead."""
    assert "\n" not in message
    assert name in message
    assert all(isa in message for isa in RUNNABLE)


def test_unknown_is_the_callers_error() -> None:
    """An unknown name is a RequestError, not a verdict on the CPU."""
    with pytest.raises(RequestError):
        ops.linear(
            np.ones((1, 4), np.float32), ops.pack(np.ones((4, 4), np.int8), format="i2"), isa="avx9"
        )


@pytest.mark.skipif("avx512bf16" not in RUNNABLE, reason="needs AVX512-BF16")
def test_a_unit_of_floats_has_the_integer_layers_of_the_one_it_extends() -> None:
    """Joint ones too, whose scratch goes with the kernel."""
    assert _native.joint_layouts("avx512bf16") == _native.joint_layouts("avx512") != []
