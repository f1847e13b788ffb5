"""SIGBUS of a mapped file, next to the handlers of an application."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from test_mmap import run

from sterna.checkpoints.resolve import BUILT_IN


@pytest.fixture
def nano(tmp_path: Path) -> Path:
    """A packed folder that a test may spoil."""
    return Path(shutil.copytree(BUILT_IN["nano"], tmp_path / "nano"))


FOREIGN = """
import faulthandler, gc, mmap
path, mode = sys.argv[1], sys.argv[2]
if mode == "faulthandler":
    faulthandler.enable()
llm = LLM(path, threads=2, mmap=True)
llm.generate("def", max_tokens=2)
if mode == "unmapped":
    del llm
    gc.collect()
with open(path + "/foreign", "w+b") as file:
    file.truncate(1 << 16)
    view = mmap.mmap(file.fileno(), 1 << 16, prot=mmap.PROT_READ)
    file.truncate(0)
    if mode == "sent":
        os.kill(os.getpid(), signal.SIGBUS)
    print(view[5000])
"""


@pytest.mark.parametrize("mode", ["plain", "faulthandler", "unmapped", "sent"])
def test_other_signals_kill_as_before(nano: Path, mode: str) -> None:
    """A fault elsewhere, or another process's SIGBUS, reaches the handler that was there before."""
    done = run(FOREIGN, nano, mode)
    assert done.returncode == -signal.SIGBUS
    assert done.stdout == ""
    assert ("Bus error" in done.stderr) == (mode == "faulthandler")


HANDLED = """
import gc
path, order = sys.argv[1], sys.argv[2]
seen = []
def handler(number, frame):
    seen.append(number)
def send(times):
    os.kill(os.getpid(), signal.SIGBUS)
    assert seen == [signal.SIGBUS] * times, seen
if order == "before":
    signal.signal(signal.SIGBUS, handler)
llm = LLM(path, threads=2, mmap=True)
if order == "after":
    signal.signal(signal.SIGBUS, handler)
send(1)
second = LLM(path, threads=2, mmap=True)
send(2)
del llm, second
gc.collect()
send(3)
third = LLM(path, threads=2, mmap=True)
send(4)
if order == "before":  # a handler of Python's on top would be asked about our pages first
    os.truncate(path + "/model.safetensors", 0)
    try:
        third.generate("def")
    except ModelFormatError:
        send(5)
        print("alive")
else:
    print("alive")
"""


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_handler_of_the_application(nano: Path, order: str) -> None:
    """It gets what is sent, whether it came before the mapping or after, and when that has gone."""
    done = run(HANDLED, nano, order)
    assert (done.returncode, done.stdout.strip()) == (0, "alive"), done.stderr


IGNORED = """
signal.signal(signal.SIGBUS, signal.SIG_IGN)
llm = LLM(sys.argv[1], threads=2, mmap=True)
os.kill(os.getpid(), signal.SIGBUS)
os.truncate(sys.argv[1] + "/model.safetensors", 0)
try:
    llm.generate("def")
except ModelFormatError:
    print("alive")
"""


def test_an_ignored_signal_stays_ignored(nano: Path) -> None:
    """One that is sent, that is."""
    done = run(IGNORED, nano)
    assert (done.returncode, done.stdout.strip()) == (0, "alive"), done.stderr


FORKED = """
path = sys.argv[1]
llm = LLM(path, threads=2, mmap=True)
expected = llm.generate("def", max_tokens=4, temperature=0).tokens
ready, go = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    assert llm.generate("def", max_tokens=4, temperature=0).tokens == expected
    os.write(ready[1], b"x")
    os.read(go[0], 1)
    try:
        llm.generate("def")
    except ModelFormatError:
        os._exit(7)
    os._exit(1)
os.read(ready[0], 1)
assert llm.generate("def", max_tokens=4, temperature=0).tokens == expected
os.truncate(path + "/model.safetensors", 0)
os.write(go[1], b"x")
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    llm.generate("def")
except ModelFormatError:
    print("alive")
"""


def test_a_forked_child(nano: Path) -> None:
    """It has the mapping and the guard, too."""
    done = run(FORKED, nano)
    assert (done.returncode, done.stdout.split()) == (0, ["7", "alive"]), done.stderr
