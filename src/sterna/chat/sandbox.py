"""A Jinja environment for hostile templates: bounded in time, steps, depth, memory and output.

jinja2's own sandbox keeps a template from reaching Python, but not from burning: `'x' * 10**9`
takes a gigabyte, as a constant even at compile time, and `x ~ x` doubles in a loop. Here every
value that a template makes passes one check as it is made, so all that expressions meet is small:

- operators, calls, filters and attributes are intercepted; literals, `~` and loop bodies are
  rewritten into calls; each of them is a step that looks at the clock;
- what can multiply (`*`, `replace`, `join`, `indent`, ...) is refused before it runs;
- nothing is evaluated at compile time;
- filters, methods and statements that chat templates have no use for do not exist.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, TemplateReference
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from sterna.chat.budget import (
    MAX_CHARS,
    MAX_DEPTH,
    MAX_INT_BITS,
    MAX_LOOPS,
    MAX_SOURCE_CHARS,
    OverBudget,
    allow,
    budget,
    checked,
    current,
    text,
)

__all__ = ["BoundedEnvironment", "Refusal"]


def _names(names: str) -> frozenset[str]:
    return frozenset(names.split())


FILTERS = _names(
    "abs capitalize count d default dictsort e escape first float format indent int items join "
    "last length list lower map max min reject rejectattr replace reverse round safe select "
    "selectattr sort string title tojson trim truncate unique upper"
)
METHODS: dict[type, frozenset[str]] = {
    str: _names(
        "capitalize casefold count endswith find format index isalnum isalpha isascii isdecimal "
        "isdigit islower isnumeric isspace istitle isupper join lower lstrip partition "
        "removeprefix removesuffix replace rfind rindex rpartition rsplit rstrip split "
        "splitlines startswith strip swapcase title upper"
    ),
    dict: _names("get items keys values"),
    list: _names("count index"),
    tuple: _names("count index"),
}
#: Their result, or their time, can grow with the product of their arguments' sizes.
GROWING = _names("format indent int join lstrip replace round rstrip strip tojson trim truncate")


class Refusal(Exception):
    """The template called `raise_exception`: it does not accept these messages."""


@jinja2.pass_context  # a finalizer that needs the context: jinja2 then folds no output constants
def _finalize(context: Context, value: object) -> str:
    return text(value)


def _concat(parts: Iterable[str]) -> str:
    # Captured blocks and macros end here; `join` itself would build before anyone could look.
    parts = list(parts)
    current().create(sum(map(len, parts)))
    return "".join(parts)


# ------------------------------------------------------------------------------- environment


class _Rewriter(NodeTransformer):
    """Turns what the environment cannot intercept into calls, which it can."""

    _refused: tuple[type[nodes.Node], ...] = (
        *(nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends),
        nodes.EvalContextModifier,  # `autoescape`, whose argument runs at compile time
    )

    _loops = 0

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        if isinstance(node, self._refused):
            message = f"{type(node).__name__.lower()} statements do not exist in chat templates"
            raise jinja2.TemplateAssertionError(message, node.lineno)
        return super().visit(node, *args, **kwargs)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        if self._loops >= MAX_LOOPS:
            raise OverBudget(f"{MAX_LOOPS} loops within one another")
        self._loops += 1
        self.generic_visit(node)
        self._loops -= 1
        node.body.insert(0, nodes.ExprStmt(self._call("tick", [], node), lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._call("join", node.nodes, node)

    def _literal(self, node: nodes.Literal) -> nodes.Node:
        if getattr(node, "ctx", "load") != "load":
            return node  # the targets of an assignment
        if all(isinstance(n, (nodes.Const, nodes.Pair)) for n in node.find_all(nodes.Node)):
            return node  # as large as its source
        self.generic_visit(node)
        return self._call("value", [node], node)

    visit_List = visit_Tuple = visit_Dict = _literal

    def _call(self, method: str, args: list[nodes.Expr], at: nodes.Node) -> nodes.Call:
        call = nodes.Call(nodes.EnvironmentAttribute(method), args, [], None, None)
        call.set_lineno(at.lineno)
        return call


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks trainable text; here it is just its body."""

    tags = frozenset({"generation"})  # type: ignore[assignment]

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Compiler(CodeGenerator):
    """jinja2's compiler, whose time grows faster than the template: it looks at the clock too."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        current().step()
        return super().visit(node, *args, **kwargs)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """jinja2's immutable sandbox with the limits above: `load` a template, then `run` it."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)
    code_generator_class = _Compiler
    concat = staticmethod(_concat)
    value = staticmethod(lambda value: value)  # `call` checks it

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_finalize,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        filters = cast("dict[str, Callable[..., Any]]", self.filters)
        tests = cast("dict[str, Callable[..., Any]]", self.tests)
        self.filters = {name: _bounded(filters[name], name) for name in FILTERS}
        self.filters["tojson"] = _bounded(_tojson, "tojson")
        self.tests = {name: _bounded(test, name) for name, test in tests.items()}
        self.globals = {
            "dict": dict,
            "namespace": _OpaqueNamespace,
            "raise_exception": _raise_exception,
            "range": _range,
            "strftime_now": _strftime_now,
        }

    def load(self, source: str) -> jinja2.Template:
        """The compiled template; OverBudget, or what jinja2 and Python's compiler raise."""
        if len(source) > MAX_SOURCE_CHARS:
            raise OverBudget(f"{MAX_SOURCE_CHARS} characters")
        with budget():
            return self.from_string(source)

    def run(self, template: jinja2.Template, variables: Mapping[str, object]) -> str:
        """The rendered text; OverBudget, Refusal, or what jinja2 and the template raise."""
        parts, total = [], 0
        with budget():
            for part in template.generate(variables):
                parts.append(part)
                total += len(part)
                if total > MAX_CHARS:
                    raise OverBudget(f"{MAX_CHARS} characters of output")
        return "".join(parts)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _Rewriter().visit(tree)
        return tree

    @staticmethod
    def tick() -> None:
        """A step of a loop: `call` counts it."""

    @staticmethod
    def join(*parts: object) -> str:
        """The operator `~`."""
        return _concat(map(text, parts))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Calls what a template calls: a step, of limited depth, whose result is checked."""
        left = current()
        left.step()
        method = getattr(obj, "__wrapped__", obj)  # the sandbox wraps str.format
        subject, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(subject, str) and name in GROWING | {"join"}:
            allow(name, subject, [*args, *_given(kwargs)])
        if left.depth >= MAX_DEPTH:
            raise OverBudget(f"{MAX_DEPTH} calls deep")
        left.depth += 1
        try:
            return checked(super().call(context, obj, *args, **kwargs))
        finally:
            left.depth -= 1

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operator: a step whose result is bounded before it is computed."""
        current().step()
        if operator == "%" and isinstance(left, str):
            allow("format", left, [right])
        elif operator in ("*", "**", "+"):
            _allow_arithmetic(operator, left, right)
        return checked(super().call_binop(context, operator, left, right))

    def getattr(self, obj: Any, attribute: str) -> Any:
        """An attribute: a step."""
        current().step()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """An item: a step."""
        current().step()
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may see it: data, the methods listed above, jinja2's own objects."""
        if not super().is_safe_attribute(obj, attr, value):
            return False
        if isinstance(obj, (LoopContext, Macro, Namespace, BlockReference, TemplateReference)):
            return True
        kind = next((kind for kind in METHODS if isinstance(obj, kind)), None)
        return not callable(value) or (kind is not None and attr in METHODS[kind])

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """The sandboxed form of str.format; format_map does not exist."""
        if getattr(value, "__name__", "") == "format_map":
            raise SecurityError("format_map does not exist in chat templates")
        return super().wrap_str_format(value)


def _allow_arithmetic(operator: str, left: Any, right: Any) -> None:
    sized = (str, list, tuple)
    if operator == "+" and isinstance(left, sized) and isinstance(right, sized):
        chars = len(left) + len(right)
    elif operator == "*" and isinstance(left, sized) and isinstance(right, int):
        chars = len(left) * max(right, 0)
    elif operator == "*" and isinstance(left, int) and isinstance(right, sized):
        chars = max(left, 0) * len(right)
    elif isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * max(right, 0)  # of the power
        if (bits if operator == "**" else left.bit_length() + right.bit_length()) > MAX_INT_BITS:
            raise OverBudget(f"{MAX_INT_BITS} bits in a number")
        return
    else:
        return
    if chars > MAX_CHARS:
        raise OverBudget(f"{MAX_CHARS} characters in a value")


def _given(kwargs: Mapping[str, Any]) -> list[object]:
    return [value for key, value in kwargs.items() if not key.startswith("_")]  # not jinja2's own


def _bounded(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A filter or test that counts as a step and whose arguments and result are checked."""
    first = 1 if hasattr(function, "jinja_pass_arg") else 0  # the context comes before the subject

    @functools.wraps(function)  # which copies `jinja_pass_arg`
    def bounded(*args: Any, **kwargs: Any) -> Any:
        current().step()
        if name in GROWING:
            allow(name, args[first], [*args[first + 1 :], *_given(kwargs)])
        return checked(function(*args, **kwargs))

    return bounded


# ----------------------------------------------------------------------- what templates can call


class _OpaqueNamespace(Namespace):
    def __repr__(self) -> str:
        return "<Namespace>"  # namespaces within namespaces would print without bound


def _range(*bounds: int) -> list[int]:
    return list(safe_range(*bounds))  # jinja2's limit on its length; a list, so that it is weighed


def _raise_exception(message: object = "") -> NoReturn:
    raise Refusal(text(message))


def _strftime_now(format: str) -> str:
    if len(str(format)) > 100:
        raise OverBudget("100 characters in a date format")
    return datetime.datetime.now().strftime(str(format))


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # transformers' signature; jinja2's own escapes HTML.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
