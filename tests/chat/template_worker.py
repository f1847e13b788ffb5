"""Renders templates one after the other and reports each as a line of JSON: a process of its own.

Argument: seconds that a template may take. Reads from stdin a line {"source"} for each template;
answers with a line {"kind", "text", "cpu", "unit", "peak_mb", "events"}. cpu: seconds of the
processor. unit: those that a million steps of Python take here. peak_mb: most memory of the whole
process so far.
events: what Python's audit hooks saw while the template ran that no template has any business with.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from sterna.chat import ChatTemplate, budget
from sterna.chat.sandbox import BoundedEnvironment
from sterna.errors import SternaError

FORBIDDEN = ("open", "os.", "subprocess.", "socket.", "ctypes.", "shutil.", "pty.", "import",
             "exec", "compile", "pickle.", "code.", "function.", "object.__setattr__",
             "sys.settrace", "sys._getframe", "gc.", "marshal.")  # fmt: skip
#: jinja2 compiles a template to Python and executes that, whose body defines functions only.
LOADING = ("compile", "exec", "object.__setattr__", "sys._getframe")
events: list[str] = []
state = "idle"
run = BoundedEnvironment.run


def running(*args: Any) -> str:
    """`run`, from where on nothing is compiled any more."""
    global state
    state = "run"
    return run(*args)


BoundedEnvironment.run = running  # type: ignore[method-assign]


def hook(event: str, args: tuple[Any, ...]) -> None:
    if state == "idle" or not event.startswith(FORBIDDEN):
        return
    if state == "load" and event.startswith(LOADING):
        return
    events.append(f"{state}: {event}{str(args)[:200]}")


def peak_mb() -> float:
    """Linux keeps it for each program; getrusage would give the parent's where that is larger."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def render(source: str, messages: list[dict[str, Any]]) -> tuple[str, str]:
    """(class of the error or "text", its message or the text)."""
    global state
    template = ChatTemplate(Path("chat_template.jinja"), {"default": source}, {"bos_token": "<s>"})
    try:
        state = "load"
        return "text", template.render(messages)
    except SternaError as error:
        return type(error).__name__, str(error)
    finally:
        state = "idle"


def main() -> None:
    budget.MAX_SECONDS = float(sys.argv[1])
    user = [{"role": "user", "content": "Hello"}]
    render("{{ strftime_now('%Y') }}{{ messages | tojson }}", user)  # whatever loads on first use
    begin = time.process_time()
    sum(i for i in range(1_000_000))
    unit = time.process_time() - begin
    sys.addaudithook(hook)
    for line in sys.stdin:
        case = json.loads(line)
        events.clear()
        begin = time.process_time()
        kind, text = render(case["source"], user)
        cpu = time.process_time() - begin
        peak = peak_mb()
        row = {
            "kind": kind,
            "text": text[:1000],
            "cpu": cpu,
            "unit": unit,
        }
        print(json.dumps({**row, "peak_mb": peak, "events": events}), flush=True)


if __name__ == "__main__":
    main()
