"""Which kernel unit and how many threads: the argument, the environment, or the machine."""

from __future__ import annotations

import os

from sterna import _native
from sterna.errors import RequestError, UnsupportedCPUError

__all__ = ["resolve_isa", "resolve_threads"]


def resolve_isa(isa: str | None = None) -> str:
    """Name of the kernel unit to use: `isa`, else `STERNA_ISA`, else the best one that runs here.

    Raises RequestError for an unknown name, UnsupportedCPUError for one this machine cannot run.
    """
    runnable = _native.isas()
    source = "isa" if isa is not None else "STERNA_ISA"
    name = isa if isa is not None else os.environ.get("STERNA_ISA", "")
    if not name:
        return runnable[-1]
    if not isinstance(name, str):
        raise RequestError(f"{source}: must be a name, but got {name!r}")
    if name in runnable:
        return name
    known = dict(_native.known_isas())
    if name in known:
        raise UnsupportedCPUError(
            f"{source}: this CPU (or its operating system) cannot run {name!r}, which needs "
            f"{known[name]}; choose one of {', '.join(runnable)}"
        )
    raise RequestError(
        f"{source}: must be one of {', '.join(runnable)}, but got {name!r}; "
        "unset it to let Sterna choose"
    )


def resolve_threads(threads: int | None = None) -> int:
    """Number of threads: `threads`, else `STERNA_THREADS`, else the machine's usable cores.

    Raises RequestError unless it is a whole number in 1..1024.
    """
    source, value = "threads", threads
    if threads is None:
        text = os.environ.get("STERNA_THREADS", "")
        if not text:
            return _native.default_threads()
        source = "STERNA_THREADS"
        try:
            value = int(text)
        except ValueError:
            raise RequestError(f"{source}: must be a whole number, but got {text!r}") from None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1024:
        raise RequestError(f"{source}: must lie in 1..1024, but got {value!r}")
    return value
