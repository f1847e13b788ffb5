"""GGUF adapters that llama.cpp's own converter writes, against the folders that it read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import adapter_folders
import numpy as np
from adapter_folders import parts_of
from assets import llama_cpp

from sterna import loading
from sterna.engine import Adapter, Engine

TOKENS = np.random.default_rng(3).integers(3, 250, 40).tolist()


#: Rows of q and k that are permuted, heads of an odd size, joint layers; and types of the files.
CASES = (("llama-bias", "f32"), ("llama-heads-of-20", "q8_0"), ("gemma2", "f16"), ("phi3", "f32"))
#: Runs a script several times in one process: its imports take longer than its work.
RUN = """
import json, pathlib, runpy, sys
sys.path.insert(0, str(pathlib.Path(json.loads(sys.argv[1])[0][0]).parent))
for arguments in json.loads(sys.argv[1]):
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")
"""


def test_converted_adapters(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """A file of float32 has the bits of its folder; others are as near as their type."""
    script, runs, folders = llama_cpp() / "convert_lora_to_gguf.py", [], {}
    for name, kind in CASES:
        base = checkpoint(name)
        model = loading.load(base)
        path = adapter_folders.write(tmp_path / name, parts_of(model), lora_alpha=6, size=2.0)
        folders[name] = (model, path, tmp_path / f"{name}.gguf")
        asked = ["--base", base, "--outtype", kind, "--outfile", folders[name][2], path]
        runs.append([str(word) for word in (script, *asked)])
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(runs)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for name, kind in CASES:
        model, path, file = folders[name]
        engine = Engine(model, threads=1)
        (plain,) = engine.logits([TOKENS])
        (expected,) = engine.logits([TOKENS], adapter=Adapter.open(path, model))
        (got,) = engine.logits([TOKENS], adapter=Adapter.open(file, model))
        scale = np.abs(expected - plain).max()
        assert scale > 0.1, name
        if kind == "f32":
            assert got.tobytes() == expected.tobytes(), name
        assert np.abs(got - expected).max() < 0.05 * scale, name
