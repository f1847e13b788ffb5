"""A step takes no memory once one as large was seen: allocation_cases.py, where that is counted."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from waits import HANGS_S

from sterna import _testing

CASES = Path(__file__).with_name("allocation_cases.py")
#: Programs that are not Python could not begin with the module in them.
RUN = """
import os, sys
del os.environ["LD_PRELOAD"]
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc",
    reason="memory is counted by functions that stand before those of glibc "
    "(native/testing/allocations.cpp), and this system has another C library",
)
def test_steps_take_no_memory() -> None:
    """In a process where the counting functions come before the system's."""
    preloaded = [_testing.__file__, *filter(None, [os.environ.get("LD_PRELOAD")])]
    done = subprocess.run(
        [sys.executable, "-c", RUN, "-n0", "-q", "-p", "no:cacheprovider", str(CASES)],
        env={**os.environ, "LD_PRELOAD": ":".join(preloaded)},
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
