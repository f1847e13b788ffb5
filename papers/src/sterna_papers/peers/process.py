"""The parent's side of a participant's process: start it, ask it, notice its end."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from sterna_papers.peers.case import Case, Options, Work, last_words

__all__ = ["Lost", "Process", "Timing"]


class Timing(NamedTuple):
    """A timed run: seconds, whether its output was right, and the machine's energy if known."""

    seconds: float
    ok: bool
    joules: float | None


class Lost(Exception):
    """A participant failed, crashed or took too long; the message has the reason."""


class Process:
    """A participant in a process of its own, with threads and memory apart from others'."""

    def __init__(self, module: str, options: Options, limit_s: float) -> None:
        self._limit_s = limit_s
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        threads = str(options.threads)
        pools = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
        self._child = subprocess.Popen(
            [sys.executable, "-m", "sterna_papers.peers.worker", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **pools},
            text=True,
            encoding="utf-8",
            start_new_session=True,  # so that `close` reaches its children too
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            started = self._ask(asdict(options))
        except BaseException:  # Ctrl-C, too: the child has a session of its own
            self.close()
            raise
        self.version: str | None = started["version"]
        self.format: str = started["format"]
        self.head: str | None = started["head"]
        self.cases = [Case(**case) for case in started["cases"]]

    def check(self, case: Case) -> tuple[bool, str, float | None, Work | None]:
        """Check this case's output.

        Returns whether it is right, how that was checked, bytes of weights, and a token's work.
        """
        answer = self._ask({"do": "check", "case": self.cases.index(case)})
        work = answer.get("work")
        return answer["ok"], answer["how"], answer["bytes"], Work(*work) if work else None

    def time(self, case: Case) -> Timing:
        answer = self._ask({"do": "time", "case": self.cases.index(case)})
        return Timing(answer["seconds"], answer["ok"], answer.get("joules"))

    def rss_bytes(self) -> int | None:
        """Return the resident memory of the process and its children; None if it has ended."""
        family = 0
        for process in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
            with contextlib.suppress(OSError):  # the process has ended
                if os.getsid(process) == self._child.pid:  # the session that it was started in
                    pages = Path(f"/proc/{process}/statm").read_text().split()[1]
                    family += int(pages) * os.sysconf("SC_PAGE_SIZE")
        return family or None

    def close(self) -> None:
        """End the process, and free its memory."""
        self._kill()
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout, self._errors):
            with contextlib.suppress(OSError):  # the child ended before it had read everything
                if stream:
                    stream.close()

    def _kill(self) -> None:
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
        else:
            self._child.kill()

    def _read(self) -> None:
        assert self._child.stdout
        with contextlib.suppress(ValueError):  # `close` has closed the stream
            for line in self._child.stdout:
                self._lines.put(line)
        self._lines.put(None)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._child.stdin
        try:
            self._child.stdin.write(json.dumps(request) + "\n")
            self._child.stdin.flush()
            line = self._lines.get(timeout=self._limit_s)
        except OSError:
            line = None
        except queue.Empty:
            self._kill()
            raise Lost(f"no answer within {self._limit_s:g} s") from None
        if line is None:
            raise Lost(self._epitaph())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Lost(answer["error"])
        return answer

    def _epitaph(self) -> str:
        code = self._child.wait()
        self._errors.seek(0)
        said = last_words(self._errors.read().decode(errors="replace"))
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        memory = " (out of memory?)" if code == -9 else ""
        return f"process ended with {how}{memory}: {said}"
