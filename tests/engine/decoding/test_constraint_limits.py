"""What bounds the work that a constraint may take."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
from helpers import failure
from test_constraints import accepts

from sterna import LLM
from sterna.engine.decoding import cpu_time, grammar_compiler, json_schema_rewriting
from sterna.engine.decoding.grammar_compiler import GrammarCompiler
from sterna.engine.decoding.grammars import ToolCall
from sterna.errors import RequestError


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("nano", threads=2)


def test_no_clock_but_that_of_the_thread(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling that waits for a busy machine may take any time; what computes is given up."""
    monkeypatch.setattr(cpu_time, "LOOK_S", 1e-3)
    monkeypatch.setattr(grammar_compiler, "MAX_CPU_S", 0.05)
    compile_now, go_on = GrammarCompiler.new_matcher, threading.Event()

    def late(self: GrammarCompiler, grammar: str) -> Any:
        go_on.wait()
        return compile_now(self, grammar)

    def endless(self: GrammarCompiler, grammar: str) -> Any:
        while not go_on.is_set():
            pass

    monkeypatch.setattr(GrammarCompiler, "new_matcher", late)
    timer = threading.Timer(0.2, go_on.set)
    timer.start()
    assert accepts(llm, llm.constraints.regex("[a-z]"), "a")
    timer.join()
    go_on.clear()
    monkeypatch.setattr(GrammarCompiler, "new_matcher", endless)
    failure(lambda: llm.constraints.regex("[a-z]"), RequestError, "regex", "0.05 s of CPU time")
    go_on.set()


def test_patterns_for_one_value_are_counted(llm: LLM) -> None:
    """llguidance's work doubles with each; alternatives and other values do not add up."""
    patterns = [{"type": "string", "pattern": f"a.{{{i}}}b"} for i in range(30)]
    many = {"$defs": {"two": {"allOf": patterns[:2]}}, "allOf": [{"$ref": "#/$defs/two"}] * 7}
    looped = {"properties": {"a": {"allOf": [{"$ref": "#/properties/a"}, {"pattern": "b"}]}}}
    for schema, place in (
        ({"allOf": patterns}, "/"), (many, "/"), ({"items": {"allOf": patterns[:13]}}, "/items"),
    ):  # fmt: skip
        words = ["12 patterns", f"but {place} has"]
        failure(partial(llm.constraints.json_schema, schema), RequestError, *words)
        call = ToolCall("<call>", schema, strict=False)
        failure(partial(llm.constraints.tools, [call], "<call>"), RequestError, *words)
    assert not accepts(llm, llm.constraints.json_schema({"anyOf": patterns}), '"c"')
    named = {"properties": {f"p{i}": one for i, one in enumerate(patterns)}}
    assert accepts(llm, llm.constraints.json_schema(named), '{"p0":"ab"}')
    counted = json_schema_rewriting._PatternCount(looped)
    assert counted.of(looped["properties"]["a"]) == 1
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(2000)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**chain, "d2000": {"type": "null"}}}
    failure(lambda: llm.constraints.json_schema(schema), RequestError, "chain")
