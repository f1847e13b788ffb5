"""The command line: what goes to stdout and stderr, exit codes, and one line for each error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from sterna.cli import COMMANDS, main
from sterna.errors import ModelFormatError, NonFiniteError, RequestError


@dataclass
class FakeLLM:
    """Says "é, b, c" whatever the prompt, and keeps what it was given."""

    model: Any
    threads: int | None = None
    cores: str | None = None
    format: str | None = None
    head: str | None = None
    context: int | None = None
    rope_scaling: str | None = None
    activations: str | None = None
    chat_template: str | None = None
    kv_dtype: str = "i16"
    deterministic: bool | None = None
    i2s: str | None = None
    mmap: bool = False
    weights_ram: int | None = None
    mmproj: str | None = None
    tower_format: str | None = None
    prefix: tuple[str, ...] = ()
    speculate: str = "auto"
    draft: Any = None
    progress: Any = None
    calls: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)
    made: Any = None

    def prefix_text(self, kind: str) -> None:
        """None: no pack."""

    def __post_init__(self) -> None:
        type(self).made = self
        if self.model == "broken":
            raise ModelFormatError(file="broken/model.safetensors", expected="a", got="b\nc")
        self.name, self.model = self.model, SimpleNamespace(weight_cache=None)
        self.asked_context, self.context = self.context, self.context or 16
        stats = SimpleNamespace(
            n_prompt=2,
            n_generated=3,
            ttft_s=0.5,
            total_s=1.5,
            decode_s=1.0,
            decode_tok_s=2.0,
            head_bytes=0,
            head_rows_rescored=0,
        )
        self.last = SimpleNamespace(
            text="é, b, c", tokens=[5, 6, 7], finish_reason="length", stats=stats, logprobs=[]
        )
        self.tokenizer = SimpleNamespace(
            encode=lambda text: [256, *text.encode()], decode=lambda ids: ""
        )

    def stream(self, prompt: Any, **options: Any) -> Iterator[Any]:
        self.calls.append((prompt, options))
        if options.get("top_p", 1) > 1:
            raise RequestError("top_p: must lie in 0..1, but got 2; lower it")
        return FakeStream(self._pieces(prompt), self.last)

    def _pieces(self, prompt: str) -> Iterator[Any]:
        for text in ("é", ", b", "", ", c"):
            if prompt == "interrupt" and text == "":
                raise KeyboardInterrupt
            if prompt == "nan" and text == "":
                raise NonFiniteError("layer 3: must be finite, but got NaN; check the weights")
            yield SimpleNamespace(text=text, token=1, logprob=None)

    def generate(self, prompt: Any, **options: Any) -> Any:
        list(self.stream(prompt, **options))
        return self.last

    def logprobs(self, tokens: list[int], start: int = 1) -> Any:
        return np.full(len(tokens) - start, -np.log(256))

    def info(self) -> dict[str, Any]:
        return {
            "model": self.name,
            "isa": "scalar",
            "threads": self.threads or 1,
            "format": self.format or "i2",
            "head": self.head or "bf16",
            "bits": 4.6,
            "kv_dtype": self.kv_dtype,
            "activations": "int8",
        }


class FakeStream:
    """Pieces and their completion."""

    def __init__(self, pieces: Iterator[Any], completion: Any) -> None:
        self.pieces, self.completion = pieces, completion

    def __iter__(self) -> Iterator[Any]:
        return self.pieces


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sterna.llm.LLM", FakeLLM)


def run(*args: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, list(args), input=stdin)


def failed(result: Result, *parts: str) -> None:
    """Exit code 2, one line on stderr with these parts, no traceback."""
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("sterna: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output
    for part in parts:
        assert part in result.stderr


# ------------------------------------------------------------------------------------- generate


def test_into_a_pipe_goes_the_continuation_alone() -> None:
    result = run("generate", "a prompt")
    assert result.stdout_bytes == "é, b, c".encode()
    assert (result.exit_code, result.stderr) == (0, "")
    assert FakeLLM.made.calls == [("a prompt", {"max_tokens": 128, "stop": None})]


def test_every_flag_arrives() -> None:
    flags = "--max-tokens 3 --temperature 0.5 --top-k 4 --top-p 0.9 --min-p 0.1 --seed 7"
    flags += " --repetition-penalty 1.1 --stop A --stop B --context 9 --kv-dtype f32"
    flags += " --model m --format i8 --head int8 --threads 2 --cores 0-1 --mmap"
    flags += " --speculate lookup --draft small --dry-multiplier 0.8 --mirostat 2"
    result = run("generate", "p", *flags.split())
    assert result.exit_code == 0, result.output
    made = FakeLLM.made
    assert (made.name, made.threads, made.format, made.head) == ("m", 2, "i8", "int8")
    assert (made.asked_context, made.kv_dtype, made.cores) == (9, "f32", "0-1")
    assert (made.speculate, made.draft.name, made.draft.threads) == ("lookup", "small", 2)
    assert (made.mmap, made.progress is not None) == (True, True)
    expected = {"max_tokens": 3, "temperature": 0.5, "top_k": 4, "top_p": 0.9, "min_p": 0.1}
    expected |= {"repetition_penalty": 1.1, "seed": 7, "stop": ["A", "B"]}
    expected |= {"dry_multiplier": 0.8, "mirostat": 2}
    assert made.calls == [("p", expected)]


@pytest.mark.parametrize(
    ("args", "stdin", "prompt"),
    [
        ((), "piped\n", "piped"),
        ((), "a\nb\r\n", "a\nb"),
        (("-",), "two lines\n\n", "two lines\n"),
        (("argument",), "ignored", "argument"),
    ],
)
def test_a_prompt_from_stdin(args: tuple[str, ...], stdin: str, prompt: str) -> None:
    assert run("generate", *args, stdin=stdin).exit_code == 0
    assert FakeLLM.made.calls[0][0] == prompt


def test_json_is_one_array() -> None:
    result = run("generate", "p", "--json", "--seed", "3")
    (row,) = json.loads(result.stdout)
    assert row["text"] == "é, b, c"
    assert row["tokens"] == [5, 6, 7]
    assert (row["ttft_ms"], row["prefill_tok_s"], row["decode_tok_s"]) == (500, 4, 2)
    assert (row["seed"], row["finish_reason"], row["model"]) == (3, "length", "nano")
    assert result.stderr == ""


def test_bad_input_is_one_line_and_exit_code_2() -> None:
    failed(run("generate", ""), "prompt: must not be empty")
    failed(run("generate", stdin=""), "prompt: must not be empty")
    failed(run("generate", stdin="\n"), "prompt: must not be empty")
    failed(run("generate", stdin=b"a\xff"), "stdin: must be UTF-8", "byte 1")
    failed(run("generate", "p", "--top-p", "2"), "top_p", "lower it")
    failed(run("generate", "p", "--top-k", "x"), "--top-k", "sterna generate --help")
    failed(run("generate", "p", "--kv-dtype", "f8"), "f16")
    failed(run("generate", "p", "--model", "broken"), "broken/model.safetensors", "b")
    failed(run("generate", "p", "--unknown"), "--unknown")
    failed(run("generate", "p", "q"), "sterna generate --help")
    failed(run("nothing"), "nothing", "sterna --help")
    failed(run("generate", "nan"), "layer 3")
    failed(run("generate", "nan", "--json"), "layer 3")


def test_a_failure_prints_no_half_array() -> None:
    assert run("generate", "nan", "--json").stdout == ""
    assert run("generate", "interrupt", "--json").stdout == ""


def test_ctrl_c_is_130() -> None:
    result = run("generate", "interrupt")
    assert result.exit_code == 130
    assert result.stdout == "é, b"
    assert "Traceback" not in result.output


# ------------------------------------------------------------------------------ other commands


def test_help_and_version() -> None:
    from sterna import __version__

    assert run("--version").stdout == f"sterna {__version__}\n"
    for args in ([], ["--help"], ["bench"], *([name, "--help"] for name in COMMANDS)):
        result = run(*args)
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith("Usage: ")


def test_perplexity(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("naïve\n".encode() * 30)
    (tmp_path / "b.txt").write_text("b")
    (row,) = json.loads(run("perplexity", "--dir", str(tmp_path), "--json").stdout)
    assert (row["files"], row["bytes"], row["tokens"]) == (2, 211, 211)
    assert row["bits_per_byte"] == pytest.approx(8)
    assert row["perplexity"] == pytest.approx(256)
    assert row["nats_per_token"] == pytest.approx(np.log(256), abs=1e-6)
    file = str(tmp_path / "b.txt")
    (row,) = json.loads(run("perplexity", "--file", file, "--json", "--context", "8").stdout)
    assert (row["files"], row["bytes"], row["context"]) == (1, 1, 8)
    (row,) = json.loads(run("perplexity", "--stdlib", "--limit", "2", "--json").stdout)
    assert row["files"] == 2
    text = run("perplexity", "--file", file)
    assert "8.0000" in text.stdout
    assert "sterna" in text.stdout
    file = str(tmp_path / "a.txt")
    llama = ("perplexity", "--file", file, "--convention", "llama.cpp", "--context", "8")
    (row,) = json.loads(run(*llama, "--stride", "4", "--json").stdout)
    assert (row["convention"], row["context"], row["stride"]) == ("llama.cpp", 10, 4)
    assert (row["bytes"], row["bits_per_byte"]) == (None, None)
    assert row["nats_stderr"] == pytest.approx(0, abs=1e-6)
    assert "windows of 8" in run(*llama).stdout
    (row,) = json.loads(run(*llama[:3], "--convention", "transformers", "--json").stdout)
    assert (row["bytes"], row["stride"]) == (210, row["context"] // 2)
    assert text.stderr == ""


def test_perplexity_of_bad_input(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff")
    failed(run("perplexity"), "--stdlib")
    failed(run("perplexity", "--stdlib", "--file", str(binary)), "one of")
    failed(run("perplexity", "--file", str(binary)), "UTF-8")
    failed(run("perplexity", "--file", str(tmp_path)), "regular file")
    failed(run("perplexity", "--dir", str(tmp_path)), "has none")
    failed(run("perplexity", "--dir", str(tmp_path / "missing")), "must be a folder")
    failed(run("perplexity", "--stdlib", "--limit", "0"), "--limit")


def test_info(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path))
    monkeypatch.setattr("sterna._native.bandwidth_gb_s", lambda threads, nbytes: 12.25)
    (row,) = json.loads(run("info", "--json", "--threads", "2").stdout)
    assert (row["bandwidth_gb_s"], row["threads"]) == (12.25, 2)
    assert row["isa"] in row["isas"]
    assert row["cache_dir"] == str(tmp_path)
    assert row["cache_bytes"] == 0
    assert row["logical_cpus"] >= row["usable_cpus"] >= row["usable_cores"] >= 1
    assert row["performance_cores"] + row["efficiency_cores"] == row["usable_cores"]
    assert row["numa_nodes"] >= 1
    assert row["amx"] in ("granted", "refused by the system", "not present")
    assert (row["thread_cpus"], row["pinned"]) == (None, False)
    (row,) = json.loads(run("info", "--json", "--no-bandwidth").stdout)
    assert row["bandwidth_gb_s"] is None
    text = run("info", "--no-bandwidth").stdout
    for word in (
        "AMX",
        row["amx"].split()[0],
        "kind",
        "NUMA",
        "kernels",
        row["isa"],
        "threads",
        "cache",
        "cgroup",
        "not measured",
    ):
        assert word in text


def test_info_on_a_hybrid_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = [{"cpus": [i], "performance": i < 2} for i in range(6)]
    nodes = [{"id": i, "cpus": [3 * i, 3 * i + 1, 3 * i + 2]} for i in range(2)]
    topology = {"cpus": list(range(6)), "cores": cores, "nodes": nodes, "cpu_quota": 3.5}
    monkeypatch.setattr("sterna._native.topology", lambda: topology)
    monkeypatch.setattr("sterna.runtime._topology", lambda _: topology)
    for name in ("STERNA_CORES", "STERNA_THREADS"):
        monkeypatch.delenv(name, raising=False)
    flags = ("info", "--no-bandwidth", "--cores")
    (row,) = json.loads(run(*flags, "performance", "--json").stdout)
    assert (row["performance_cores"], row["efficiency_cores"], row["numa_nodes"]) == (2, 4, 2)
    assert (row["threads"], row["thread_cpus"], row["pinned"]) == (2, "0-1", False)
    (row,) = json.loads(run(*flags, "0,2-3", "--json").stdout)
    assert (row["threads"], row["thread_cpus"], row["pinned"]) == (3, "0,2-3", True)
    text = " ".join(run(*flags, "0,2-3").stdout.split())
    for words in ("2 for performance and 4 for efficiency", "2 NUMA nodes", "pinned to CPUs 0,2-3"):
        assert words in text


def test_info_reports_bad_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    failed(run("info", "--threads", "0", "--no-bandwidth"), "threads")
    failed(run("info", "--cores", "fast", "--no-bandwidth"), "cores", "fast", "performance")
    monkeypatch.setenv("STERNA_ISA", "abacus")
    failed(run("info", "--no-bandwidth"), "STERNA_ISA", "abacus", "choose")


def test_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = "m-None-None-" + "0" * 20 + "-" + "1" * 20
    entry, damaged = tmp_path / name, tmp_path / name.replace("0", "2")
    for folder in (entry, damaged):
        folder.mkdir()
    config = {"architectures": ["A"], "quantization_config": {"default_format": "i2"}}
    (entry / "config.json").write_text(json.dumps(config))
    (damaged / "config.json").write_text("[")
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path))
    rows = {row["path"]: row for row in json.loads(run("models", "--json").stdout)}
    assert rows[str(entry)]["format"] == "i2"
    assert rows[str(entry)]["architecture"] == "A"
    assert rows[str(entry)]["size_bytes"] == len(json.dumps(config))
    assert rows[str(damaged)]["format"] is None
    assert [row["model"] for row in rows.values() if row["source"] == "built-in"] == ["nano"]
    assert "nano" in run("models").stdout


def test_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def fake(model: str, *, progress: Any, **options: Any) -> list[dict[str, Any]]:
        progress("working")
        asked.append((model, options))
        names = ("tok_s", "gops", "peak_gops", "fraction_of_peak", "bytes_per_token")
        values = dict.fromkeys((*names, "bandwidth_gb_s", "fraction_of_bandwidth", "rss_mb"), 0.5)
        values |= {"batch": 1, "tok_s_min": 0.25, "tok_s_max": 0.75}
        settings = {"model": model, "format": "i2", "head": "bf16", "threads": 1, "isa": "avx2"}
        return [{"test": "pp8", **settings, **values, "ttft_ms": None, "x": float("nan")}]

    monkeypatch.setattr("sterna.bench.e2e.run", fake)
    flags = (
        "--model random:tiny --format i2 --head bf16 --pp 8,16 --tg 0 --threads 1 --cores 0 --json"
    )
    result = run("bench", "e2e", *flags.split())
    (row,) = json.loads(result.stdout)
    assert (row["test"], row["ttft_ms"], row["x"]) == ("pp8", None, None)
    expected = {"format": "i2", "head": "bf16", "pp": (8, 16), "tg": (), "threads": 1}
    expected |= {"batch": (1,), "cores": "0", "isa": None, "kv_dtype": None, "repeat": 3}
    expected |= {"deterministic": None, "depth": (0,), "zeros": None, "activations": None}
    assert asked == [("random:tiny", expected)]
    assert "pp8" in run("bench", "e2e", "--model", "random:tiny").stdout
    assert asked[-1][1]["pp"] == (128, 512)
    failed(run("bench", "e2e", "--pp", "a,b"), "--pp", "whole numbers")


def test_an_unreadable_path_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(13, "Permission denied", "/secret")

    monkeypatch.setattr("sterna.llm.LLM", refuse)
    failed(run("generate", "p"), "/secret: Permission denied", "permissions")


def test_bugs_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr("sterna.llm.LLM", crash)
    assert isinstance(run("generate", "p").exception, AssertionError)
