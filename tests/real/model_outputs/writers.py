"""How models of each family write calls, from their published documentation and from reports.

`CALLS` has a writer for each way to write calls, and a writer's slips: other ways in which models
of the family were seen to write the same call. Nothing here is taken from the code under test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Arguments = dict[str, Any]
Call = tuple[str, Arguments]
Calls = Sequence[Call]
Write = Callable[[Calls], str]


@dataclass(frozen=True)
class Writer:
    """Writes calls, one or more.

    mark: opens a call. slips: what models also write, by what it is. tags: whether arguments stand
    in tags that do not say their type.
    """

    write: Write
    mark: str
    slips: dict[str, Write] = field(default_factory=dict)
    tags: bool = False


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# ------------------------------------------------------------------------- objects with a name


def json_object(name: str, arguments: Arguments, key: str = "arguments") -> str:
    return f'{{"name": {dumped(name)}, "{key}": {dumped(arguments)}}}'


def objects(
    before: str,
    after: str,
    between: str,
    key: str = "arguments",
    around: tuple[str, str] = ("", ""),
) -> Writer:
    """Calls that are objects: `around` all of them, `before` and `after` each, `between` two."""

    def written(make: Callable[[str, Arguments], str]) -> Write:
        return lambda calls: (
            around[0] + between.join(f"{before}{make(n, a)}{after}" for n, a in calls) + around[1]
        )

    slips = {
        "without white space": lambda n, a: f'{{"name":{compact(n)},"{key}":{compact(a)}}}',
        "on lines of its own": lambda n, a: json.dumps(
            {"name": n, key: a}, indent=2, ensure_ascii=False
        ),
        "arguments first": lambda n, a: f'{{"{key}": {dumped(a)}, "name": {dumped(n)}}}',
        "arguments in a text": lambda n, a: (
            f'{{"name": {dumped(n)}, "{key}": {dumped(dumped(a))}}}'
        ),
        "other key": lambda n, a: json_object(
            n, a, {"arguments": "parameters", "parameters": "arguments"}[key]
        ),
        "a type": lambda n, a: f'{{"type": "function", {json_object(n, a, key)[1:]}',
    }
    made = {what: written(slip) for what, slip in slips.items()}
    write = written(lambda n, a: json_object(n, a, key))
    mark = (around[0] + before).strip() or '{"name": ...}'
    if around[1] or after:
        made["never closed"] = lambda calls: (
            write(calls).removesuffix(around[1]).removesuffix(after)
        )
    return Writer(write, mark, made)


HERMES = objects("<tool_call>\n", "\n</tool_call>", "\n")
HERMES.slips["several in one mark"] = lambda calls: (
    "<tool_call>\n" + "\n".join(json_object(*call) for call in calls) + "\n</tool_call>"
)
HERMES.slips["a list"] = lambda calls: (
    "<tool_call>\n[" + ", ".join(json_object(*call) for call in calls) + "]\n</tool_call>"
)
HERMES.slips["a brace too many"] = lambda calls: "".join(
    f"<tool_call>\n{json_object(*call)}}}\n</tool_call>" for call in calls
)
HERMES.slips["a brace too few"] = lambda calls: "".join(
    f"<tool_call>\n{json_object(*call)[:-1]}\n</tool_call>" for call in calls
)
LLAMA3 = objects("", "", "; ", "parameters")
LLAMA3.slips["a token before"] = lambda calls: "<|python_tag|>" + LLAMA3.write(calls)
TOOLCALL = objects("", "", ", ", around=("<TOOLCALL>[", "]</TOOLCALL>"))
TOOL_CALLS = objects("", "", ", ", around=("<tool_calls>[", "]</tool_calls>"))
MINIMAX_M1 = objects("", "\n", "", around=("<tool_calls>\n", "</tool_calls>"))
GRANITE3 = objects("", "", ", ", around=("<|tool_call|>[", "]"))
GIGACHAT3 = objects("<|message_sep|>\n\nfunction call<|role_sep|>\n", "", "")
GIGACHAT31 = objects("<|function_call|>", "", "")
NEMO = objects("", "", ", ", around=("[TOOL_CALLS][", "]"))
NEMO.slips["an id"] = lambda calls: (
    "[TOOL_CALLS][" + ", ".join(f'{json_object(*c)[:-1]}, "id": "a1b2c3d4e"}}' for c in calls) + "]"
)


def cohere(calls: Calls) -> str:
    made = (
        f'    {{"tool_call_id": "{i}", "tool_name": {dumped(n)}, "parameters": {dumped(a)}}}'
        for i, (n, a) in enumerate(calls)
    )
    return "<|START_ACTION|>[\n" + ",\n".join(made) + "\n]<|END_ACTION|>"


def command_r_plus(calls: Calls) -> str:
    made = json.dumps([{"tool_name": n, "parameters": a} for n, a in calls], indent=4,
                      ensure_ascii=False)  # fmt: skip
    return f"Action:\n```json\n{made}\n```"


# ------------------------------------------------------------------ a name, then JSON arguments


def named(before: str, between: str, after: str, around: tuple[str, str] = ("", "")) -> Write:
    """`{}` in `before` is the number of the call."""

    def write(calls: Calls) -> str:
        made = (
            f"{before.replace('{}', str(i))}{n}{between.replace('{}', str(i))}{dumped(a)}{after}"
            for i, (n, a) in enumerate(calls)
        )
        return around[0] + "".join(made) + around[1]

    return write


KIMI_AROUND = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
KIMI_CALL = ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>")
DEEPSEEK_AROUND = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
DEEPSEEK_CALL = ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")


def kimi(before: str, number: str, around: tuple[str, str] = KIMI_AROUND) -> Write:
    begin, middle, end = KIMI_CALL
    return named(begin + before, number + middle, end, around)


def apertus(calls: Calls) -> str:
    made = ", ".join(f"{{{dumped(n)}: {dumped(a)}}}" for n, a in calls)
    return f"<|tools_prefix|>[{made}]<|tools_suffix|>"


# ------------------------------------------------------------------------------------ tags


def tagged(
    call: tuple[str, str], argument: tuple[str, str, str], between: str = "",
    around: tuple[str, str] = ("", ""), typed: Callable[[Any], str] = lambda value: "",
) -> Write:  # fmt: skip
    """call: before a name, and the end. argument: before and after a name, and behind a value.

    typed: the text before the second of these, which may depend on the value.
    """

    def write(calls: Calls) -> str:
        made = []
        for i, (name, arguments) in enumerate(calls):
            begin, after, end = *call[0].replace("#", str(i)).split("{}"), call[1]
            texts = (
                f"{argument[0]}{n}{typed(v)}{argument[1]}{text_of(v)}{argument[2]}"
                for n, v in arguments.items()
            )
            made.append(f"{begin}{name}{after}{''.join(texts)}{end}")
        return around[0] + between.join(made) + around[1]

    return write


QWEN_ARGUMENT = ("<parameter=", ">\n", "\n</parameter>\n")
QWEN = Writer(
    tagged(("<tool_call>\n<function={}>\n", "</function>\n</tool_call>"), QWEN_ARGUMENT, "\n"),
    "<tool_call>",
    {
        "without the mark around": tagged(("<function={}>\n", "</function>"), QWEN_ARGUMENT, "\n"),
        "closed, but not opened": tagged(
            ("<function={}>\n", "</function>\n</tool_call>"), QWEN_ARGUMENT, "\n"
        ),
        "on one line": tagged(
            ("<tool_call><function={}>", "</function></tool_call>"),
            ("<parameter=", ">", "</parameter>"),
        ),
        "several in one mark": lambda calls: (
            "<tool_call>\n"
            + tagged(("<function={}>\n", "</function>\n"), QWEN_ARGUMENT)(calls)
            + "</tool_call>"
        ),
        "the function never closed": tagged(
            ("<tool_call>\n<function={}>\n", "</tool_call>"), QWEN_ARGUMENT, "\n"
        ),
        "an argument never closed": tagged(
            ("<tool_call>\n<function={}>\n", "</function>\n</tool_call>"),
            ("<parameter=", ">\n", "\n"), "\n",
        ),
    },
    tags=True,
)  # fmt: skip
SEED = Writer(
    tagged(
        ("<seed:tool_call>\n<function={}>\n", "</function>\n</seed:tool_call>"),
        ("<parameter=", ">", "</parameter>\n"), "\n",
    ),
    "<seed:tool_call>",
    {"without the mark around": tagged(("<function={}>\n", "</function>"),
                                       ("<parameter=", ">", "</parameter>\n"), "\n")},
    tags=True,
)  # fmt: skip
GLM_LINES = tagged(
    ("<tool_call>{}\n", "</tool_call>"), ("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
    "\n",
)  # fmt: skip
GLM_LINE = tagged(
    ("<tool_call>{}", "</tool_call>"), ("<arg_key>", "</arg_key><arg_value>", "</arg_value>")
)
MINIMAX_AROUND = ("<minimax:tool_call>\n", "</minimax:tool_call>")
INVOKE = ('<invoke name="{}">\n', "</invoke>\n")
INVOKE_ARGUMENT = ('<parameter name="', '">', "</parameter>\n")
MINIMAX_M2 = Writer(
    tagged(INVOKE, INVOKE_ARGUMENT, around=MINIMAX_AROUND),
    "<minimax:tool_call>",
    {"without the mark around": tagged(INVOKE, INVOKE_ARGUMENT)},
    tags=True,
)


def dsml(around: str) -> Writer:
    def typed(value: Any) -> str:
        return f'" string="{"true" if isinstance(value, str) else "false"}'

    call = ('<｜DSML｜invoke name="{}">\n', "</｜DSML｜invoke>\n")
    argument = ('<｜DSML｜parameter name="', '">', "</｜DSML｜parameter>\n")
    marks = (f"<｜DSML｜{around}>\n", f"</｜DSML｜{around}>")
    return Writer(
        tagged(call, argument, around=marks, typed=typed),
        f"<｜DSML｜{around}>",
        {"without the mark around": tagged(call, argument, typed=typed)},
    )


def kimi_k3(calls: Calls) -> str:
    def typed(value: Any) -> str:
        kinds = {bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
        return f'" type="{"null" if value is None else kinds.get(type(value), "object")}'

    write = tagged(
        ('<|open|>call tool="{}" index="#"<|sep|>', "<|close|>call<|sep|>"),
        ('<|open|>argument key="', '"<|sep|>', "<|close|>argument<|sep|>"),
        around=("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"), typed=typed,
    )  # fmt: skip
    return write(calls)


MINICPM = tagged(('<function name="{}">', "</function>"), ('<param name="', '">', "</param>"), "\n")
HY3 = tagged(
    ("<tool_call:opensource>{}<tool_sep:opensource>\n", "</tool_call:opensource>\n"),
    ("<arg_key:opensource>", "</arg_key:opensource>\n<arg_value:opensource>",
     "</arg_value:opensource>\n"),
    around=("<tool_calls:opensource>\n", "</tool_calls:opensource>"),
)  # fmt: skip


def minimax_m3(calls: Calls) -> str:
    mark = "]<]minimax[>["

    def tags(name: str, value: Any) -> str:
        return f"{mark}<{name}>{inner(value)}{mark}</{name}>"

    def inner(value: Any) -> str:
        if isinstance(value, dict):
            return "".join(tags(name, one) for name, one in value.items())
        if isinstance(value, list):
            return "".join(tags("item", one) for one in value)
        return text_of(value)

    made = (
        f'{mark}<invoke name="{name}">{inner(arguments)}{mark}</invoke>\n'
        for name, arguments in calls
    )
    return f"{mark}<tool_call>\n{''.join(made)}{mark}</tool_call>"


# ---------------------------------------------------------------------------- values of their own


def gemma4(calls: Calls) -> str:
    def spelled(value: Any) -> str:
        if isinstance(value, str):
            return f'<|"|>{value}<|"|>'
        if isinstance(value, dict):
            return "{" + ",".join(f"{k}:{spelled(value[k])}" for k in sorted(value)) + "}"
        if isinstance(value, list):
            return f"[{','.join(map(spelled, value))}]"
        return json.dumps(value)

    return "".join(f"<|tool_call>call:{n}{spelled(a)}<tool_call|>" for n, a in calls)


def pythonic(calls: Calls) -> str:
    made = (f"{n}({', '.join(f'{k}={v!r}' for k, v in a.items())})" for n, a in calls)
    return f"<|tool_call_start|>[{', '.join(made)}]<|tool_call_end|>"
