"""Chat templates: where they are found, what they render, and what a hostile one cannot do."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import jinja2
import pytest
from hostile_templates import ATTACKS
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sterna.chat import ChatTemplate
from sterna.errors import ModelFormatError, RequestError

USER = {"role": "user", "content": "Hello"}
BOT = {"role": "assistant", "content": " Hi "}

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
BITNET = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content ="
    " message['role'] | capitalize + ': ' + message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}"
)
ALTERNATING = """
{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}
{%- set messages = messages[1:] %}{% else %}{% set system = none %}{% endif %}
{%- set ns = namespace(turns=0, tools='') %}
{%- macro tool(t, depth=0) %}{{ t.function.name ~ '(' ~ t.function.parameters | tojson ~ ')' }}
{%- endmacro %}
{%- if tools %}{% for t in tools %}{% set ns.tools = ns.tools ~ tool(t) %}{% endfor %}{% endif %}
{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('roles must alternate user/assistant') }}{% endif %}
{%- if message.content is string %}{% set text = message.content.strip() %}
{%- else %}{% set text = message.content | selectattr('type', 'equalto', 'text')
 | map(attribute='text') | join('|') %}{% endif %}
{%- if loop.first and system is not none %}[SYS]{{ system }}[/SYS]{% endif %}
{%- if '</think>' in text %}{% set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}
{%- generation %}[{{ message.role | upper }}]{{ text }}{% endgeneration %}
{%- set ns.turns = ns.turns + 1 %}{% if ns.turns >= 40 %}{% break %}{% endif %}
{%- endfor %}[{{ ns.turns }}]{{ ns.tools }}{{ eos_token }}
"""
PLAIN_TEMPLATES = {"chatml": CHATML, "bitnet": BITNET, "alternating": ALTERNATING}


def _template(folder: Path, source: Any, **config: Any) -> ChatTemplate | None:
    folder.mkdir(parents=True, exist_ok=True)
    values = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": source}
    (folder / "tokenizer_config.json").write_text(json.dumps({**values, **config}))
    return ChatTemplate.load(folder)


def _render(folder: Path, source: str, messages: Any = (USER,), **kwargs: Any) -> str:
    template = _template(folder, source)
    assert template is not None
    return template.render(list(messages), **kwargs)


# ------------------------------------------------------------------------------ what it renders


def test_known_answers(tmp_path: Path) -> None:
    assert _render(tmp_path, CHATML, [USER, BOT, USER]) == (
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n Hi <|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    # BitNet's own template: BOS, "{Role}: {content.strip()}<|eot_id|>" a turn, "Assistant: "
    assert _render(tmp_path, BITNET, [USER, BOT], add_generation_prompt=False) == (
        "<s>User: Hello<|eot_id|>Assistant: Hi<|eot_id|>"
    )
    system = {"role": "system", "content": "Be brief"}
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}
    tools = [{"function": {"name": "f", "parameters": {"é": [1, 2.5, None]}}}]
    assert _render(tmp_path, ALTERNATING, [system, parts], tools=tools) == (
        '[SYS]Be brief[/SYS][USER]a[1]f({"é": [1, 2.5, null]})</s>'
    )


@pytest.mark.parametrize("name", PLAIN_TEMPLATES)
@settings(max_examples=40)
@given(texts=st.lists(st.text(max_size=40), min_size=1, max_size=6))
def test_same_text_as_a_plain_sandbox(
    tmp_path_factory: pytest.TempPathFactory, name: str, texts: list[str]
) -> None:
    """The rewriting changes no result: the oracle is jinja2 set up as transformers does it."""
    source = PLAIN_TEMPLATES[name].replace("{%- generation %}", "").replace(
        "{% endgeneration %}", ""
    )  # fmt: skip
    plain = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    plain.filters["tojson"] = lambda x: json.dumps(x, ensure_ascii=False)
    roles = ["user", "assistant"]
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    expected = plain.from_string(source).render(
        messages=messages, tools=None, add_generation_prompt=True, bos_token="<s>", eos_token="</s>"
    )
    folder = tmp_path_factory.getbasetemp() / "plain" / name
    assert _render(folder, source, messages) == expected


def test_where_it_is_found(tmp_path: Path) -> None:
    assert ChatTemplate.load(tmp_path) is None
    assert _template(tmp_path, None) is None
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    template = _template(tmp_path, named)
    assert template is not None
    assert template.render([USER]) == "D"
    assert template.render([USER], tools=[{"name": "f"}]) == "T"
    (tmp_path / "chat_template.json").write_text('{"chat_template": "J"}')
    assert ChatTemplate.load(tmp_path).render([USER]) == "J"  # type: ignore[union-attr]
    (tmp_path / "chat_template.jinja").write_text("F{{ bos_token }}")
    assert ChatTemplate.load(tmp_path).render([USER]) == "F<s>"  # type: ignore[union-attr]


def test_compiling_warns_nobody(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    with pytest.raises(RequestError):
        _render(tmp_path, "{{ 1[2] }}{{ 3() }}")
    assert not recwarn.list


def test_globals_and_variables(tmp_path: Path) -> None:
    assert _render(tmp_path, "{{ strftime_now('%Y') }}") == str(time.localtime().tm_year)
    assert _render(tmp_path, "{{ range(3) | list }}{{ dict(a=1) }}") == "[0, 1, 2]{'a': 1}"
    variables = {"enable_thinking": False}
    assert _render(tmp_path, "{{ enable_thinking }}", variables=variables) == "False"
    assert _render(tmp_path, "{{ {'b': 1, 'a': [2]} | tojson(indent=1, sort_keys=true) }}") == (
        json.dumps({"a": [2], "b": 1}, indent=1)
    )
    assert _render(tmp_path, "{{ '%s-%03d' % ('a', 7) }}{{ '{:>4}'.format(1) }}") == "a-007   1"


# ------------------------------------------------------------------------------ what it refuses


def test_messages_name_the_limit(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="at most 4194304 characters in a value"):
        _render(tmp_path, ATTACKS["constant product"])
    with pytest.raises(ModelFormatError, match=r"at most (2 seconds|1000000 steps)"):
        _render(tmp_path, ATTACKS["silent loops"])
    with pytest.raises(ModelFormatError, match="at most 64 calls deep"):
        _render(tmp_path, ATTACKS["recursive macro"])
    with pytest.raises(RequestError, match="refuses them with 'roles must alternate"):
        _render(tmp_path, ALTERNATING, [USER, USER])
    with pytest.raises(ModelFormatError, match=r"chat_template: expected a valid Jinja template"):
        _render(tmp_path, "{% if %}")


def test_threads_have_budgets_of_their_own(tmp_path: Path) -> None:
    template = _template(tmp_path, "{% for i in range(1000) %}{{ i % 10 }}{% endfor %}")
    assert template is not None
    results: list[str] = []
    threads = [
        threading.Thread(target=lambda: results.append(template.render([USER]))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["0123456789" * 100] * 4


@pytest.mark.parametrize(
    "messages",
    [
        [],
        "Hello",
        None,
        ["Hello"],
        [{"content": "no role"}],
        [{"role": "", "content": "x"}],
        [{"role": "user", "content": 3}],
        [{"role": "user", "content": object()}],
        [{"role": "user", "content": [object()]}],
        [{"role": "user", "content": b"x"}],
        [{"role": "user", "content": "x", 3: 4}],
        [{"role": "user", "content": "x", "n": 1 << 5000}],
        [{"role": "user", "content": "x" * (5 << 20)}],
    ],
)
def test_malformed_messages(tmp_path: Path, messages: Any) -> None:
    template = _template(tmp_path, CHATML)
    assert template is not None
    with pytest.raises(RequestError, match="messages"):
        template.render(messages)


def test_deep_messages(tmp_path: Path) -> None:
    deep: Any = "x"
    for _ in range(100):
        deep = [deep]
    with pytest.raises(RequestError, match="32 levels"):
        _render(tmp_path, CHATML, [{"role": "user", "content": deep}])


@pytest.mark.parametrize("source", [3, [], [1], [{"name": "a"}], {"template": "x"}])
def test_malformed_settings(tmp_path: Path, source: Any) -> None:
    if source == []:
        assert _template(tmp_path, source) is None
        return
    with pytest.raises(ModelFormatError, match="chat_template"):
        _template(tmp_path, source)


def test_two_named_templates_without_a_default(tmp_path: Path) -> None:
    both = [{"name": "a", "template": "A"}, {"name": "b", "template": "B"}]
    with pytest.raises(ModelFormatError, match="a, b"):
        _template(tmp_path, both)
    only = _template(tmp_path, both[:1])
    assert only is not None
    assert only.render([USER]) == "A"


def test_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelFormatError, match="UTF-8"):
        ChatTemplate.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[" * 100_000)
    with pytest.raises(ModelFormatError, match="JSON"):
        ChatTemplate.load(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "chat_template.json"])
def test_a_template_that_is_there_twice(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"chat_template": "A", "chat_template": "B"}')
    with pytest.raises(ModelFormatError, match=f"{name}: chat_template: expected each key once"):
        ChatTemplate.load(tmp_path)


def test_jinja_is_recent_enough() -> None:
    # 3.1.6 closed the last known ways out of the sandbox.
    assert tuple(map(int, jinja2.__version__.split(".")[:3])) >= (3, 1, 6)
