"""Tools at random in six forms of calls: what constraints allow is parsed as a valid call.

STERNA_SCHEMAS says how many tools each form has (500 take about a minute on one core).
"""

from __future__ import annotations

import os
import random
from collections import Counter

import jsonschema_rs
import pytest
from random_tools import FORMS, arguments, closing_tokens, template, walked
from tool_calls import parsed

from sterna import LLM
from sterna.llm.tool_call_formats import format_of


@pytest.mark.parametrize("form", FORMS)
def test_random_tools(form: str) -> None:
    llm, counted = LLM("nano", threads=1), Counter[str]()
    closing, source = closing_tokens(llm), template(form)
    call_format = format_of(source)
    tools, seed = int(os.environ.get("STERNA_SCHEMAS", "500")), 0
    while counted["valid"] < tools:
        rng, seed = random.Random(seed), seed + 1
        schema = arguments(rng)
        calls = list(call_format.tool_calls("f", schema, True))
        made = llm.constraints.tools(
            calls, call_format.trigger, required=True, several=False, frame=call_format.frame
        )
        text = next(filter(None, (walked(llm, made, rng, closing) for _ in range(4))), None)
        if text is None:
            counted["without an end"] += 1
            continue
        ((name, found),), content = parsed(source, text, {"f": schema})
        assert (name, content) == ("f", ""), (seed, text)
        assert jsonschema_rs.validator_for(schema).is_valid(found), (seed, schema, text)
        counted["valid"] += 1
    print(f"\n{form}:", dict(counted))
    assert counted["without an end"] < tools / 4
