"""llama.cpp, asked in a process of its own: its server, as xllamacpp carries it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import assets
from waits import HANGS_S

_OPEN = """
import json, sys, urllib.request
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, asked = sys.argv[1], json.load(sys.stdin)
params.n_ctx, params.n_parallel, params.n_gpu_layers, params.warmup = 512, 1, 0, False
params.no_extra_bufts = True  # what llama.cpp's AMX code needs, not every host grants
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server, answers = xllamacpp.Server(params), []
"""
_TOKENIZE = """
for text in asked:
    body = json.dumps({"content": text, "add_special": True, "parse_special": True}).encode()
    request = urllib.request.Request(
        server.listening_address + "/tokenize", body, {"Content-Type": "application/json"})
    answers.append(json.load(urllib.request.urlopen(request))["tokens"])
"""
_GREEDY = """
for prompt in asked["prompts"]:
    body = {"prompt": prompt, "n_predict": asked["n"], "temperature": 0, "n_probs": 5,
            "cache_prompt": False, "ignore_eos": True}
    (choice,) = server.handle_completions(body)["choices"]
    answers.append([(one["id"], one["logprob"]) for one in choice["logprobs"]["content"]])
"""
_COMPLETE = """
for body in asked:
    request = urllib.request.Request(
        server.listening_address + "/completion", json.dumps(body).encode(),
        {"Content-Type": "application/json"})
    answers.append(json.load(urllib.request.urlopen(request)))
"""


def completions(path: Path, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Its answers to requests of /completion."""
    return _asked(path, _COMPLETE, bodies)


def tokens(path: Path, strings: list[str]) -> list[list[int]]:
    """Its tokenizer's ids of texts, with BOS where the file has one."""
    return _asked(path, _TOKENIZE, strings)


def greedy(path: Path, prompts: list[list[int]], n: int) -> list[list[tuple[int, float]]]:
    """Of each prompt of token ids, n greedy tokens and their log-probabilities."""
    return _asked(path, _GREEDY, {"prompts": prompts, "n": n})


def _asked(path: Path, script: str, what: Any) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", _OPEN + script + 'print("ANSWERS" + json.dumps(answers))', path],
        env={"PYTHONPATH": str(assets.xllamacpp()), "PATH": "/usr/bin:/bin"},
        input=json.dumps(what), capture_output=True, text=True, check=False, timeout=HANGS_S,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS")]
    assert lines, done.stderr[-2000:]
    return json.loads(lines[0].removeprefix("ANSWERS"))
