#!/usr/bin/env python3
"""Time from `LLM(path)` to ready and to the first token, and the memory that it takes.

    python examples/time_load.py MODEL [--rounds 5] [--threads 2]

There are three ways to load. `packed` reads a published checkpoint without a cache; `read` and
`mmap` take its packed copy from a cache folder of their own, removed at the end. A packed folder has
only the last two. Rounds take turns among the ways, each in a new process. The output has medians
and, in brackets, the fastest start. `MB` is the largest resident size, `unshared` the part of it
that no other process can share. Files should be in the page cache, so run it twice.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from statistics import median

from sterna.checkpoints.resolve import resolve

CODE = """
import json, sys, time
from sterna import LLM
way, threads = sys.argv[2], int(sys.argv[3]) or None
begin = time.perf_counter()
llm = LLM(sys.argv[1], threads=threads, cache=way != "packed", mmap=way == "mmap")
ready = time.perf_counter() - begin
llm.generate([1, 2, 3], max_tokens=1, temperature=0)
first = time.perf_counter() - begin
memory = dict(line.split(":", 1) for line in open("/proc/self/status"))
mb = {key: int(memory[key].split()[0]) / 1e3 for key in ("VmHWM", "RssAnon")}
if llm.engine.model.store is not None:
    llm.engine.model.store.wait()
print(json.dumps({"ready": ready, "first": first, "MB": mb["VmHWM"], "unshared": mb["RssAnon"]}))
"""


def load(model: str, way: str, threads: int) -> dict[str, float]:
    """Time one start in a process of its own."""
    command = [sys.executable, "-c", CODE, model, way, str(threads)]
    times: dict[str, float] = json.loads(subprocess.check_output(command))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="0: the usable cores")
    args = parser.parse_args()
    config = resolve(args.model) / "config.json"
    is_packed = config.is_file() and '"quant_method": "sterna"' in config.read_text()
    ways = ["read", "mmap"] if is_packed else ["packed", "read", "mmap"]
    rows: dict[str, list[dict[str, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["STERNA_CACHE"] = cache
        load(args.model, "read", args.threads)  # fills the caches, the system's and Sterna's
        for _ in range(args.rounds):
            for way in ways:
                rows[way].append(load(args.model, way, args.threads))
    for way, runs in rows.items():
        ready, first, peak, unshared = (
            sorted(run[key] for run in runs) for key in ("ready", "first", "MB", "unshared")
        )
        print(
            f"{way:<7} ready {median(ready):6.2f} s ({ready[0]:.2f}), "
            f"first token {median(first):6.2f} s ({first[0]:.2f}), "
            f"{median(peak):8,.0f} MB, unshared {median(unshared):8,.0f} MB"
        )


if __name__ == "__main__":
    main()
