"""Whether this machine's kernel units compute what they must.

Each unit multiplies, rounds and attends on small inputs that are always the same. All units have
the same results, bit for bit, so one table of digests, which comes with the package, serves every
machine. A CPU, a hypervisor that emulates one, or a compiler may get a unit wrong, or an operating
system may lack its registers: the check runs in a child process, which an instruction may end.

The first load with a unit checks it, which takes a fifth of a second, and the result is kept in the
cache folder for later starts of this installation on this machine. Without such a folder only
`sterna info --check` checks.
"""

from __future__ import annotations

import json
import os
import platform
import signal
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from sterna import _native
from sterna.calibration.measured import cpu, keep, kept
from sterna.checkpoints.cache import cache_dir
from sterna.errors import UnsupportedCPUError, warn
from sterna.runtime import resolve_isa

__all__ = ["best_isa", "check", "checked_isa", "expected"]

_DIGESTS = Path(__file__).with_name("kernel_digests.json")
_MOST_NAMED = 4  # groups of a unit that a message names


def expected() -> dict[str, int]:
    """Return the digest of each group of results, by the group's name."""
    content: dict[str, str] = json.loads(_DIGESTS.read_bytes())
    return {group: int(digest, 16) for group, digest in content.items()}


def check(isa: str) -> list[str]:
    """Run a unit's kernels; return the groups of results that are wrong, none if all are right.

    If the unit's process ended, the only item says how. The result is kept for `checked_isa`.
    """
    digests, number = _native.unit_digests(isa)
    table = expected()
    if number:
        wrong = [f"it ended by {signal.Signals(number).name}"]
    else:
        # A unit without the fast arithmetic has none of its results.
        missing = [g for g in table if g not in digests and not g.startswith("fast ")]
        wrong = missing + [g for g, digest in digests.items() if table.get(g) != digest]
    keep(_what(isa), cpu(), {"installation": _installation(), "wrong": wrong})
    return wrong


def checked_isa(isa: str | None = None) -> str:
    """Return the unit that `resolve_isa` returns, if it is right on this machine.

    Otherwise the best unit that is takes its place. Raises what resolve_isa raises, and
    UnsupportedCPUError for a wrong unit that `isa` or `STERNA_ISA` asks for by its name.
    """
    name = resolve_isa(isa)
    wrong = _wrong(name)
    if not wrong:
        return name
    if isa is None and not os.environ.get("STERNA_ISA"):
        return best_isa()
    source = "isa" if isa is not None else "STERNA_ISA"
    others = ", ".join(other for other in _native.isas() if other != name)
    raise UnsupportedCPUError(
        f"{source}: must be a unit whose results are right, but {_fault(name, wrong)}; "
        f"choose one of {others}"
    )


def best_isa() -> str:
    """Return the best unit that runs on this machine and is right.

    Better ones that are wrong are excluded for this process, with a RuntimeWarning.
    """
    while wrong := _wrong(name := _native.isas()[-1]):
        _native.exclude_isa(name)
        warn(
            f"kernels: {_fault(name, wrong)}, so {_native.isas()[-1]} takes its place; "
            "`sterna info --check` checks all units again",
            stacklevel=3,
        )
    return name


def _fault(isa: str, wrong: Sequence[str]) -> str:
    named = ", ".join(wrong[:_MOST_NAMED])
    if len(wrong) > _MOST_NAMED:
        named += f" and {len(wrong) - _MOST_NAMED} more"
    return f"{isa} computes wrong results on this machine ({named})"


@cache
def _wrong(isa: str) -> tuple[str, ...]:
    """Return what is wrong with a unit, from an earlier check or by one now."""
    # `scalar` is the definition: plain C++, for any CPU. Without a cache folder each start would
    # check again.
    if isa == "scalar" or cache_dir() is None:
        return ()
    record = kept(_what(isa), cpu())
    if isinstance(record, dict) and record.get("installation") == _installation():
        wrong = record.get("wrong")
        if isinstance(wrong, list) and all(isinstance(group, str) for group in wrong):
            return tuple(wrong)
    return tuple(check(isa))


def _what(isa: str) -> str:
    return f"check of {isa}"


@cache
def _installation() -> str:
    """Return what tells this build, and this system, from others: another one is checked anew."""
    core = Path(_native.__file__).stat()
    return f"{core.st_size}-{core.st_mtime_ns}-{platform.release()}"
