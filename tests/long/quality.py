"""Measures real models in every format, head and type of cache: docs/measurements/quality.md.

    python tests/long/quality.py --results FILE [--only PATTERN] [--chat RUNS] [--write]

Models and texts are those of tests/real: KL and first choices are against transformers in float32
on the same file. Results are kept in FILE by row, so that rows may be measured in several runs;
--only measures those whose names contain PATTERN, --write replaces the tables of the page by all
that FILE has. llama.cpp is the one in the wheel `xllamacpp`.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parent / "real")]
os.environ.setdefault("STERNA_CACHE", "off")

import assets  # noqa: E402
import measuring  # noqa: E402
import numpy as np  # noqa: E402
import references  # noqa: E402
import rounding  # noqa: E402

from sterna import LLM, formats  # noqa: E402
from sterna.engine import KV_DTYPES  # noqa: E402
from sterna.errors import SternaError  # noqa: E402

PAGE = HERE.parent.parent / "docs/measurements/quality.md"
BEGIN, END = "<!-- begin: tests/long/quality.py -->", "<!-- end: tests/long/quality.py -->"
NAMES = {"smollm2": "SmolLM2-135M-Instruct, Q4_1", "gemma3": "Gemma 3 270M, Q4_K_M"}
HEADS = ("f32", "f16", "bf16")  # the files' heads are rounded already, and not a second time
FLOATS = {"format": "f32", "head": "f32", "deterministic": True}
EXACT = {**FLOATS, "kv_dtype": "f32"}
GROUPS = ("i4:g128", "i4:g64", "i4:g32")
KEPT = 1000  # of a distribution of llama.cpp, the likeliest tokens that it is asked for
Row = dict[str, Any]


# -------------------------------------------------------------------------------- what is measured


def rows(name: str, floats: Callable[[], Path]) -> Iterator[tuple[str, str, Callable[[], Row]]]:
    """(table, row, what measures it) of one model; tables follow what the library offers."""
    gguf = assets.model(name)

    def of(path: Callable[[], Path], **options: Any) -> Callable[[], Row]:
        return lambda: by_sterna(name, path(), options)

    def own() -> Path:
        return gguf

    for kind in activations():
        yield "file", f"Sterna, activations {kind}", of(own, activations=kind)
    if not activations():
        yield "file", "Sterna", of(own)
    yield "file", "llama.cpp", lambda: by_llama_cpp(name, gguf)
    yield "file", "Sterna, in float32", of(own, **EXACT)
    for kv_dtype in KV_DTYPES:
        yield "keys and values", kv_dtype, of(own, **FLOATS, kv_dtype=kv_dtype)
    for head in HEADS:
        yield "head", head, of(own, **{**EXACT, "head": head})
    for format in sorted([*formats.names(), *GROUPS], key=lambda one: formats.get(one).bits):
        yield "format", format, of(floats, format=format, head="f16")


def activations() -> tuple[str, ...]:
    """How integer layers may round what they read, where the library has a choice."""
    if importlib.util.find_spec("sterna.graph.activations") is None:
        return ()
    from sterna.graph import activations as module

    return tuple(module.ACTIVATIONS)


def by_sterna(name: str, path: Path, options: dict[str, Any]) -> Row:
    """Figures of a model with options of `LLM`; what refuses says why."""
    try:
        llm = LLM(path, context=512, cache=False, prefix_cache=False, **options)
        found = measuring.quality(llm.logits, references.reference(name, assets.model(name)))
    except SternaError as error:
        return {"refused": str(error).replace(str(path), path.name)}
    return {**dataclasses.asdict(found), "bytes": llm.info()["bytes_per_token"]}


# The likeliest tokens after each beginning of each text, as one .npz file.
LLAMA_CPP = """
import json, sys
import numpy as np
import xllamacpp
path, asked, kept, out = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
whole = asked["prose"][-1]
params = xllamacpp.CommonParams()
params.model.path = path
params.n_ctx, params.n_parallel, params.n_gpu_layers, params.warmup = 512, 1, 0, False
params.no_extra_bufts = True  # its AMX code needs what not every host grants
server, found = xllamacpp.Server(params), {}
for text, ids in asked.items():
    tokens, logprobs = [], []
    for n in range(1, len(ids) + 1):
        # The answer is a token that is whole characters, since others are told late or never;
        # what is told of the likeliest is of the logits before that.
        answer = server.handle_completions({
            "prompt": ids[:n], "n_predict": 1, "temperature": 0, "n_probs": kept,
            "cache_prompt": True, "logit_bias": [[whole, 1000]],
        })
        (place,) = answer["choices"][0]["logprobs"]["content"]
        tokens.append([one["id"] for one in place["top_logprobs"]])
        logprobs.append([one["logprob"] for one in place["top_logprobs"]])
    found[f"tokens {text}"] = np.array(tokens, np.int32)
    found[f"logprobs {text}"] = np.array(logprobs, np.float32)
np.savez(out, **found)
"""


def by_llama_cpp(name: str, gguf: Path) -> Row:
    """llama.cpp's figures, of its likeliest tokens and of all others taken as one.

    Taking tokens together can lower a KL, here by little: the others have one to three hundredths.
    Nothing tells a perplexity, which needs each of them.
    """
    reference = references.reference(name, gguf)
    with tempfile.TemporaryDirectory() as work:
        out = Path(work) / "found.npz"
        subprocess.run(
            [sys.executable, "-c", LLAMA_CPP, str(gguf), json.dumps(reference.ids), str(KEPT), out],
            env={**os.environ, "PYTHONPATH": str(assets.xllamacpp())},
            check=True, capture_output=True,
        )  # fmt: skip
        with np.load(out) as file:
            told = {key: file[key] for key in file.files}
    kl, changed = [], []
    for text in reference.ids:
        tokens, theirs = told[f"tokens {text}"], told[f"logprobs {text}"].astype(np.float64)
        x = reference.logits[text].astype(np.float64)
        ours = x - np.logaddexp.reduce(x, 1, keepdims=True)
        p, q = (with_rest(logs) for logs in (np.take_along_axis(ours, tokens, 1), theirs))
        kl.extend((np.exp(p) * (p - q)).sum(1))
        changed.extend(tokens[:, 0] != x.argmax(1))
    return {
        "kl_mean": float(np.mean(kl)), "kl_p99": float(np.quantile(kl, 0.99)),
        "changed": float(np.mean(changed)),
    }  # fmt: skip


def with_rest(logs: Any) -> Any:
    """Log-probabilities [n, KEPT] and that of all other tokens, [n, KEPT + 1]."""
    rest = np.log(np.maximum(1 - np.exp(logs).sum(1, keepdims=True), 1e-12))
    return np.concatenate([logs, rest], 1)


# ------------------------------------------------------------------------------- the first answer


def first_answer(command: list[str], env: dict[str, str], asked: str | None) -> float:
    """Seconds from the start of a process to the first byte of its answer."""
    started = time.perf_counter()
    with tempfile.TemporaryFile() as given:
        given.write((asked or "").encode())
        given.seek(0)
        process = subprocess.Popen(
            command, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
        )
        assert process.stdout is not None
        byte = process.stdout.read(1)
        seconds = time.perf_counter() - started
        process.stdout.read()
        process.wait()
    assert byte, command
    return seconds


def chats(runs: int, llama_cpp: str | None) -> Row:
    """Medians of interleaved runs: `sterna chat` with an empty cache, and with the one it left."""
    gguf, times = str(assets.smollm2()), {}
    chat = [sys.executable, "-m", "sterna", "chat", "--model", gguf, "--max-tokens", "4"]
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as cache:
            env = {**os.environ, "STERNA_CACHE": cache}
            for state in ("nothing cached", "cached"):
                seconds = first_answer(chat, env, "Hello\n")
                times.setdefault(f"`sterna chat`, {state}", []).append(seconds)
        if llama_cpp:
            # Without its AMX code, which needs what not every host grants
            other = [llama_cpp, "-m", gguf, "-p", "Hello", "-n", "4", "-st", "--no-repack"]
            other += ["--no-display-prompt"]
            seconds = first_answer(other, dict(os.environ), None)
            times.setdefault(f"`{Path(llama_cpp).name}`", []).append(seconds)
    return {"runs": runs, **{what: statistics.median(each) for what, each in times.items()}}


# --------------------------------------------------------------------------------------- the page


def table(title: str, first: str, found: dict[str, Row]) -> list[str]:
    lines = [
        f"**{title}**", "",
        f"| {first} | KL mean | p99 | other first choice | perplexity | MB a token |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    refused = []
    for name, row in found.items():
        if "refused" in row:
            refused.append(name)
            continue
        size = f"{row['bytes'] / 1e6:.1f}" if "bytes" in row else ""
        perplexity = f"{row['perplexity']:.2f}" if "perplexity" in row else ""
        lines.append(
            f"| {shown(name)} | {number(row['kl_mean'])} | {number(row['kl_p99'])} | "
            f"{100 * row['changed']:.1f} % | {perplexity} | {size} |"
        )
    if refused:
        lines += [
            "",
            f"Refused, since rows have no whole blocks: {', '.join(map(shown, refused))}.",
        ]
    return [*lines, ""]


def shown(name: str) -> str:
    return name if name[0].isupper() or name == "llama.cpp" else f"`{name}`"


def number(value: float) -> str:
    """Two digits that count, without an exponent from a millionth up."""
    if value < 1e-6:
        return "< 0.000001"
    digits = max(2, 1 - int(np.floor(np.log10(value))))
    return f"{value:.{digits}f}"


def page(results: dict[str, Any]) -> str:
    lines = [f"Sterna, transformers {results['transformers']}, {results['llama.cpp']}.", ""]
    for name, title in NAMES.items():
        found = results.get(name, {})
        positions = results["positions"].get(name)
        for kind, first in TABLES.items():
            if found.get(kind):
                what = f"{title}: {EXPLAINED[kind]} ({positions} positions)"
                lines += table(what, first, found[kind])
    if chat := results.get("chat"):
        lines += [
            "**From a start to the first token of a chat**: seconds, medians of "
            f"{chat['runs']} interleaved runs on SmolLM2's file, which the system has in memory.",
            "", "| | s |", "|---|---|",
            *(f"| {what} | {s:.2f} |" for what, s in chat.items() if what != "runs"), "",
        ]  # fmt: skip
    return "\n".join(lines)


TABLES = {"file": "model", "keys and values": "type", "head": "head", "format": "format"}
EXPLAINED = {
    "file": "the file as it is",
    "keys and values": "types of keys and values, all else in float32",
    "head": "heads, all else in float32",
    "format": "the file's values in floats, rounded to each format by `quantize`'s defaults",
}


def write(results: dict[str, Any]) -> None:
    """Replaces what lies between the page's marks."""
    text = PAGE.read_text(encoding="utf-8")
    between = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    assert between.search(text), f"{PAGE} must have {BEGIN} and {END}"
    lines = (wrapped(line) for line in page(results).split("\n"))
    made = "\n".join([BEGIN, "", *lines, END])
    PAGE.write_text(between.sub(lambda _: made, text), encoding="utf-8")


def wrapped(line: str) -> str:
    """Prose at 100 columns, as the docs have it; a table's row stays one line."""
    return line if line.startswith("|") else textwrap.fill(line, 100)


def main() -> None:
    import transformers

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--only", default="", help="rows whose 'model table row' contains this")
    parser.add_argument("--again", action="store_true", help="rows that FILE has, too")
    parser.add_argument("--chat", type=int, default=0, help="runs of a first chat")
    parser.add_argument("--llama-cpp", help="llama.cpp's program to chat with, as llama-completion")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    results = json.loads(given.results.read_text()) if given.results.exists() else {}
    results["transformers"] = transformers.__version__
    results["llama.cpp"] = assets.xllamacpp().name.replace("-", " ")
    with tempfile.TemporaryDirectory() as work:
        for name in NAMES:

            def floats(name: str = name) -> Path:
                return rounding.as_floats(assets.model(name), Path(work) / f"{name}.gguf")

            results.setdefault(name, {})
            for kind, row, measure in rows(name, floats):
                kept = results[name].get(kind, {})
                if given.only not in f"{name} {kind} {row}" or (row in kept and not given.again):
                    continue
                results[name][kind] = kept
                kept[row] = measure()
                print(name, kind, row, kept[row], flush=True)
                given.results.write_text(json.dumps(results, indent=1))
            if results[name]:
                ids = references.reference(name, assets.model(name)).ids
                results.setdefault("positions", {})[name] = sum(map(len, ids.values()))
    if given.chat:
        results["chat"] = chats(given.chat, given.llama_cpp)
        print(results["chat"])
    given.results.write_text(json.dumps(results, indent=1))
    if given.write:
        write(results)


if __name__ == "__main__":
    main()
