"""Processes that tests start and send signals to."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from typing import Any

#: What tests send. A shell that runs them with "&" or nohup has some of these ignored, and a child
#: would inherit that.
SENT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def spawn(args: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """`subprocess.Popen` of a child in which each signal of SENT does what it does by default."""
    # A program begins with the default of what its parent catches, and ignores what that ignores.
    ignored = [number for number in SENT if signal.getsignal(number) is signal.SIG_IGN]
    try:
        for number in ignored:
            signal.signal(number, lambda *_: None)
        return subprocess.Popen(args, **options)
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
