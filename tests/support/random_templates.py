"""Random templates that put large values through what a template may call, with fitting types."""

from __future__ import annotations

import random
from collections.abc import Callable

#: {name} is a value of that type, bigger ones being more likely.
RULES: dict[str, tuple[str, ...]] = {
    "text": (
        "'x' * 4000000", "'\\U0001f600' * 4000000", "'a b\\n' * 1000000", "'\\u0390' * 2000000",
        "'9' * 4000000", "'\\x00' * 3000000", "'{{0:99}}%(a)99d' * 50000",
        "'ab' * 1000", "'a'", "''",
        "messages[0].content", "{text} | upper", "{text} | lower", "{text} | title", "{text} | e",
        "{text} | capitalize", "{text} | indent({int}, true)", "{text} | replace({text}, {text})",
        "{text} | reverse", "{text} | trim({text})", "{text} | truncate({int}, true)",
        "{text} | string", "{any} | tojson", "{any} | tojson(indent={int})", "{any} | string",
        "{any} | tojson(ensure_ascii=true, separators=({text}, {text}))", "{list} | join({text})",
        "{list} | first | string", "{list} | last | string", "{list} | join(',', attribute='0')",
        "{text}.casefold()", "{text}.swapcase()", "{text}.join({list})", "{text}.strip({text})",
        "{text}.replace({text}, {text}, {int})", "{text}.format({any}, a={int})",
        "{text} % {any}", "{text} % dict(a={int})", "{text} | format({any})", "{text} + {text}",
        "{text} ~ {any} ~ {any}", "{text} * {int}", "{text}[{int}:]", "{text}[::-1]",
        "{text}[:{int}]", "{text}.removeprefix({text})", "{any} | default({text}, true)",
        "{text} | safe + {text}", "({text} | safe) % {any}", "({text} | safe).join({list})",
    ),
    "list": (
        "range(100000) | list", "['\\u4e00' * 1000] * 3000", "[0] * 400000",
        "[[1, 2], [3]] * 50000",
        "[''] * 400000", "[[[[]]]] * 100000", "messages", "[1, 'a']", "[]", "dict(a={any}) | list",
        "{list} | map('string') | list", "{list} | map('upper') | list", "{list} | sort",
        "{list} | map('tojson') | list", "{list} | map('replace', '', {text}) | list",
        "{list} | map('indent', {int}, true) | list", "{list} | unique | list", "{list} | reverse",
        "{list} | select | list", "{list} | reject('in', {any}) | list", "{text} | list",
        "{list} | select('in', {any}) | list", "{list} + {list}", "{list} * {int}", "{list}[1:]",
        "{list}[::-1]", "[{any}, {any}]", "[{list}, {list}]", "({list}, {any})", "{text}.split()",
        "{text}.split({text})", "{text}.rsplit({text}, {int})", "{text}.splitlines()",
        "{text}.partition({text})", "{text}.rpartition({text})", "range({int})",
        "dict(a={any}).items()", "dict(a={any}).values() | list", "dict(a={any}) | dictsort",
        "{list} | map(attribute='0') | list", "{list} | map('list') | list",
    ),
    "int": (
        "0", "1", "-1", "7", "99", "1000", "99999", "100000", "10 ** 9", "2 ** 4000",
        "{any} | length",
        "{int} + {int}", "{int} * {int}", "{int} ** {int}", "{int} - {int}", "{int} // {int}",
        "{text} | int", "{text}.count({text})", "{text}.rfind({text})", "{list}.count({any})",
        "{int} | round({int}) | int", "{int} | abs", "({any} in {any}) | int",
        "{text}.find({text})",
        "({any} == {any}) | int", "({list} < {list}) | int", "{list}.index({any})",
        "({text} | float) | int",
    ),
}  # fmt: skip
WRAPS = (
    "{0}",
    "{{% for i in range(100000) %}}{0}{{% endfor %}}",
    "{{% for i in {list} %}}{0}{{% endfor %}}",
    "{{% macro m(a) %}}{0}{{{{ m(n.x) }}}}{{% endmacro %}}{{{{ m({any}) }}}}",
    "{{% set y %}}{{% for i in range(100000) %}}{0}{{% endfor %}}{{% endset %}}",
    "{{% filter upper %}}{{% for i in {text} %}}{0}{{% endfor %}}{{% endfilter %}}",
    "{{% for i in {list} recursive %}}{0}{{{{ loop({list}) }}}}{{% endfor %}}",
)


def template(seed: int) -> str:
    """A template of some assignments, most of them in a loop, a macro or a captured block."""
    rng = random.Random(seed)
    known: dict[str, list[str]] = {"text": ["n.t"], "list": ["n.l"], "int": ["n.i"]}

    def value(kind: str, depth: int) -> str:
        if kind == "any":
            kind = rng.choice(("text", "list", "int"))
        if depth > 3 or rng.random() < 0.2:
            rules = [*(rule for rule in RULES[kind] if "{" not in rule), *known[kind] * 3]
        else:
            rules = [*RULES[kind]]
        return "(" + fill(rng.choice(rules), depth + 1) + ")"

    def fill(rule: str, depth: int) -> str:
        return rule.format(
            text=_Lazy(value, "text", depth), list=_Lazy(value, "list", depth),
            int=_Lazy(value, "int", depth), any=_Lazy(value, "any", depth),
        )  # fmt: skip

    def assignments(count: int) -> str:
        kinds = [rng.choice(("text", "list", "int")) for _ in range(count)]
        return "".join(f"{{% set n.{kind[0]} = {value(kind, 0)} %}}" for kind in kinds)

    start = "{% set n = namespace(t='x', l=[1], i=2) %}" + assignments(rng.randint(1, 3))
    body = assignments(rng.randint(1, 3)) + "{{ " + value("any", 2) + " }}"
    wrap = rng.choice(WRAPS)
    for kind in ("text", "list", "any"):
        wrap = wrap.replace("{" + kind + "}", value(kind, 2).replace("{", "{{").replace("}", "}}"))
    return start + wrap.format(body)


class _Lazy:
    """A part of a rule: another value each time that it is formatted."""

    def __init__(self, rule: Callable[..., object], *arguments: object) -> None:
        self.rule, self.arguments = rule, arguments

    def __format__(self, _: str) -> str:
        return str(self.rule(*self.arguments))
