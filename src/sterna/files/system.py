"""What differs between Linux, macOS and Windows: the one module that asks which system this is.

A part of Python that one of them lacks is used only here (`tests/test_system.py` holds it).
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]  # Windows lacks it
try:
    import termios
except ImportError:
    termios = None  # type: ignore[assignment]  # Windows lacks it

__all__ = [
    "LEAVING",
    "OPEN_FLAGS",
    "PROCFS",
    "SYSFS",
    "allowed_cpus",
    "busy_seconds",
    "handle_of",
    "handling_signals",
    "is_unix_socket",
    "lock",
    "lower_priority",
    "make_private",
    "opened",
    "prepare_console",
    "read_at",
    "rename_folder",
    "without_echo",
]

IS_WINDOWS = sys.platform == "win32"
#: Linux's files that are views of the machine and its processes; elsewhere nothing is there.
SYSFS, PROCFS = Path("/sys"), Path("/proc")
#: How files are opened to be read: not inherited, bytes as they are, and not blocking, as the open
#: of a pipe in place of a file would otherwise never return.
OPEN_FLAGS = os.O_RDONLY
for _name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
    OPEN_FLAGS |= getattr(os, _name, 0)
#: Signals that end a process in order: of `kill`, a closed terminal, a console's Ctrl-Break or end.
LEAVING: tuple[signal.Signals, ...] = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)
)
#: The byte of a file that stands for all of it: Windows locks bytes, and nobody may read these.
_LOCKED_BYTE = 1 << 40
_seeking = threading.Lock()


# ------------------------------------------------------------------------------------- files


def read_at(descriptor: int, buffer: memoryview, offset: int) -> int:
    """Read into a buffer from an offset of a file; return the bytes read, 0 at its end.

    Thread-safe. Raises OSError.
    """
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [buffer], offset)
    with _seeking, FileIO(descriptor, closefd=False) as file:
        file.seek(offset)
        return file.readinto(buffer) or 0


def handle_of(descriptor: int) -> int:
    """Return what the native core knows an open file by: Windows numbers files in each library."""
    if sys.platform == "win32":
        import msvcrt

        return msvcrt.get_osfhandle(descriptor)
    return descriptor


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int | None]:
    """Open a file or a folder for reading; None for a folder on Windows, which cannot be.

    Raises OSError.
    """
    if IS_WINDOWS and path.is_dir():
        yield None
        return
    descriptor = os.open(path, OPEN_FLAGS)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def lock(descriptor: int | None, wait: bool = True) -> None:
    """Lock an open file or folder for only this process, until it is closed.

    Raises BlockingIOError where another process has it and `wait` is false, OSError where the
    system has no such lock.
    """
    if descriptor is None:
        raise OSError(errno.ENOTSUP, "a folder cannot be locked")
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return
    if sys.platform != "win32":
        raise OSError(errno.ENOTSUP, "no locks")
    import msvcrt

    before = os.lseek(descriptor, 0, os.SEEK_CUR)
    try:
        while True:
            os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
            try:
                # LK_LOCK gives up after ten tries, a second apart.
                msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
                return
            except OSError as error:
                if not wait:
                    raise BlockingIOError(errno.EAGAIN, "another process has it") from error
                if error.errno != errno.EDEADLOCK:
                    raise
    finally:
        os.lseek(descriptor, before, os.SEEK_SET)


def rename_folder(source: Path, target: Path) -> None:
    """Rename a folder; it takes the place of an empty one. Raises OSError."""
    if IS_WINDOWS:
        with contextlib.suppress(FileNotFoundError):
            target.rmdir()
    source.rename(target)


def make_private(descriptor: int) -> None:
    """Let nobody but the owner read or write an open file; Windows' home folders are private."""
    if hasattr(os, "fchmod"):
        os.fchmod(descriptor, 0o600)


# ------------------------------------------------------------------------------------- processes


def allowed_cpus() -> frozenset[int]:
    """Return the logical CPUs that this process may use; empty if the system does not say."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def busy_seconds() -> float | None:
    """Return the CPU seconds that all programs together took since the start; None if unknown.

    On Linux they include what a hypervisor says it gave to other guests.
    """
    if sys.platform == "win32":
        import ctypes

        idle, kernel, user = (ctypes.c_uint64() for _ in range(3))  # 100 ns; kernel includes idle
        ctypes.windll.kernel32.GetSystemTimes(*map(ctypes.byref, (idle, kernel, user)))
        return (kernel.value + user.value - idle.value) * 1e-7
    with contextlib.suppress(OSError, ValueError):
        with (PROCFS / "stat").open(encoding="ascii") as file:
            ticks = [int(part) for part in file.readline().split()[1:9]]
        # user, nice, system, idle, waiting for disks, interrupts, soft interrupts, stolen
        return sum(ticks[:3] + ticks[5:]) / os.sysconf("SC_CLK_TCK")
    return None


def lower_priority(niceness: int) -> None:
    """Let the calling thread run behind others, where a thread has a priority of its own."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


@contextlib.contextmanager
def handling_signals(handle: Callable[[int, Any], None]) -> Iterator[None]:
    """Call a function in the running loop when the process is told to end, or for Ctrl-C."""
    import asyncio

    loop = asyncio.get_running_loop()
    numbers = {signal.SIGINT, *LEAVING} - {getattr(signal, "SIGHUP", None)}
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        if IS_WINDOWS:  # its loops have no handlers; the interpreter wakes them at a signal
            signal.signal(number, lambda n, frame: loop.call_soon_threadsafe(handle, n, frame))
        else:
            loop.add_signal_handler(number, handle, number, None)
    try:
        yield
    finally:
        for number in numbers:
            if not IS_WINDOWS:
                loop.remove_signal_handler(number)
            signal.signal(number, before[number])


def is_unix_socket(family: int) -> bool:
    """Whether an address family is that of sockets which are files."""
    import socket

    return family == getattr(socket, "AF_UNIX", None)


# ------------------------------------------------------------------------------------- consoles


def prepare_console(streams: Sequence[Any]) -> None:
    """Make streams write UTF-8, and a Windows console obey the sequences that terminals obey."""
    if sys.platform != "win32":
        return
    import ctypes
    import msvcrt

    sequences = 0x0004  # ENABLE_VIRTUAL_TERMINAL_PROCESSING
    for stream in streams:
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8")
        with contextlib.suppress(OSError, ValueError, AttributeError):
            handle, mode = msvcrt.get_osfhandle(stream.fileno()), ctypes.c_ulong()
            kernel = ctypes.windll.kernel32
            if kernel.GetConsoleMode(ctypes.c_void_p(handle), ctypes.byref(mode)):
                kernel.SetConsoleMode(ctypes.c_void_p(handle), mode.value | sequences)


@contextlib.contextmanager
def without_echo() -> Iterator[None]:
    """Turn the terminal's echo off, so that keys do not appear within the printed answer.

    The terminal holds them for the next prompt. Ctrl-C still interrupts. A Windows console echoes
    only while it is read.
    """
    if termios is None:
        yield
        return
    try:
        number = sys.stdin.fileno()
        before = termios.tcgetattr(number)
    except (OSError, ValueError, termios.error):  # not a terminal: it echoes nothing
        yield
        return
    silent = termios.tcgetattr(number)
    silent[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(number, termios.TCSANOW, silent)
    try:
        yield
    finally:
        termios.tcsetattr(number, termios.TCSANOW, before)
