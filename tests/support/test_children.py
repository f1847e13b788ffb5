"""Tests that send signals to children do so however the tests themselves were started."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from children import SENT, spawn
from waits import HANGS_S

ASKED = "import signal, sys; print([int(signal.getsignal(n) is signal.SIG_IGN) for n in {}])"


@pytest.mark.parametrize("number", SENT)
def test_a_child_ignores_nothing_that_its_parent_ignores(number: signal.Signals) -> None:
    script = ASKED.format([int(n) for n in SENT])
    before = signal.signal(number, signal.SIG_IGN)
    try:
        child = spawn([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        output, _ = child.communicate(timeout=HANGS_S)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
    assert output == "[0, 0, 0]\n"
