#!/usr/bin/env python3
"""Time from `LLM(path)` to the first token, first without and then from the cache.

    python examples/time_load.py MODEL_FOLDER

Uses a cache folder of its own, removed afterwards. Each row is a new process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

CODE = """
import sys, time
from sterna import LLM
begin = time.perf_counter()
llm = LLM(sys.argv[1])
ready = time.perf_counter() - begin
llm.generate([1, 2, 3], max_tokens=1, temperature=0)
print(f"{sys.argv[2]:<12} ready {ready:6.2f} s, first token {time.perf_counter() - begin:6.2f} s")
if llm.engine.model.store is not None:
    llm.engine.model.store.wait()
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        env = {**os.environ, "STERNA_CACHE": cache}
        for label in ("first time", "from cache", "from cache", "from cache"):
            subprocess.run([sys.executable, "-c", CODE, sys.argv[1], label], env=env, check=True)


if __name__ == "__main__":
    main()
