"""A Jinja environment for hostile templates: bounded in time, steps, depth, memory and output.

jinja2's own sandbox keeps a template from reaching Python, but not from burning: `'x' * 10**9`
takes a gigabyte, as a constant even at compile time, and `x ~ x` doubles in a loop. Here every
value that a template makes passes one check as it is made, so expressions only meet small values:

- operators, calls, filters and attributes are intercepted; literals, `~` and loop bodies are
  rewritten into calls; each of them counts as a step and checks the time;
- operations that can multiply sizes (`*`, `replace`, `join`, `indent`, ...) are refused before
  they run if their result would be too large;
- nothing is evaluated at compile time, and the size of a template is bounded;
- filters, methods and statements that chat templates do not need do not exist.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from types import CodeType
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import SecurityError
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, TemplateReference
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace

from sterna.chat.budget import OverBudget, allow, allow_pieces, checked, current, iterated, text
from sterna.chat.clock import now
from sterna.chat.compiler import Compiler, Generation, rewrite
from sterna.chat.limits import MAX_ARGUMENTS, MAX_CHARS, MAX_DEPTH, MAX_INT_BITS, MAX_SOURCE_CHARS

__all__ = ["BoundedEnvironment", "TemplateRefusal"]


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
    list: _names("append count index pop"),
    tuple: _names("count index"),
}
#: Calls whose result or time can grow with the product of their arguments' sizes.
GROWING = _names(
    "float format indent int join lstrip replace rfind rindex round rpartition rsplit rstrip strip "
    "tojson trim truncate"
)
#: Filters that take a text apart into characters.
ITERATING = _names("list map max min reject rejectattr select selectattr sort unique")
#: Conversions of a date, without the widths that glibc accepts.
_DATE_FORMAT = re.compile(r"(?:[^%]|%[-_^#]?[A-Za-z%])*")


_compiling = threading.Lock()


class TemplateRefusal(Exception):
    """The template called `raise_exception`: it does not accept these messages."""


@jinja2.pass_context  # a finalizer that needs the context: jinja2 then folds no output constants
def _finalize(context: Context, value: object) -> str:
    current().step()  # a captured block's list grows even where its parts are empty
    return text(value)


def _concat(parts: Iterable[str]) -> str:
    # Captured blocks and macros end here. `join` would build the whole text before a check.
    parts = list(parts)
    if sum(map(len, parts)) > MAX_CHARS:
        raise OverBudget(f"{MAX_CHARS} characters in a value")
    joined = "".join(parts)
    current().create(joined)
    return joined


# ------------------------------------------------------------------------------- environment


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """jinja2's immutable sandbox with the limits above: `load` a template, then `run` it.

    Call both within `with spending():`, from whose budget they take.
    """

    intercepted_binops: frozenset[str] = frozenset(
        ImmutableSandboxedEnvironment.default_binop_table
    )
    code_generator_class: type[CodeGenerator] = Compiler
    concat: Callable[[Iterable[str]], str] = staticmethod(_concat)
    filters: dict[str, Callable[..., Any]]
    # jinja2 declares no type, and that of its own table of tests is narrower.
    tests: dict[str, Callable[..., Any]]  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_finalize,
            extensions=["jinja2.ext.loopcontrols", Generation],
        )
        filters, tests = self.filters, self.tests
        self.filters = {name: _bounded(filters[name], name) for name in FILTERS}
        self.filters["tojson"] = _bounded(_tojson, "tojson")
        self.tests = {name: _bounded(test, name) for name, test in tests.items()}
        self.globals: dict[str, object] = {
            "dict": dict,
            "namespace": _OpaqueNamespace,
            "raise_exception": _raise_exception,
            "range": _range,
            "strftime_now": _strftime_now,
        }

    @staticmethod
    def value(value: object) -> object:
        """Return a value of the template unchanged; `call` checks it."""
        return value

    def load(self, source: str) -> jinja2.Template:
        """Compile a template; raises OverBudget, or what jinja2 and Python's compiler raise."""
        if len(source) > MAX_SOURCE_CHARS:
            raise OverBudget(f"{MAX_SOURCE_CHARS} characters")
        return self.from_string(source)

    def run(self, template: jinja2.Template, variables: Mapping[str, object]) -> str:
        """Render; raises OverBudget, TemplateRefusal, or what jinja2 and the template raise."""
        parts, total = [], 0
        for part in template.generate(variables):
            parts.append(part)
            total += len(part)
            if total > MAX_CHARS:
                raise OverBudget(f"{MAX_CHARS} characters of output")
        return "".join(parts)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return rewrite(super()._parse(source, name, filename))

    def _compile(self, source: str, filename: str) -> CodeType:
        # Silence Python's warnings of odd expressions, which are the model's. The lock is there
        # because warning filters are global.
        with _compiling, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return super()._compile(source, filename)

    def handle_exception(self, source: str | None = None) -> NoReturn:
        """Raise the error unchanged: jinja2 would compile code to make its traceback prettier."""
        raise  # jinja2 calls this while it handles the error

    @staticmethod
    def part(value: object) -> object:
        """Return a slice, which `call` then checks."""
        return value

    @staticmethod
    def look(value: object) -> object:
        """Return an operand of a comparison; `call` counts a step."""
        return value

    @staticmethod
    def spread(values: Any) -> Any:
        """Return arguments to be unpacked; OverBudget if there are too many."""
        if len(values) > MAX_ARGUMENTS:
            raise OverBudget(f"{MAX_ARGUMENTS} arguments")
        return values

    @staticmethod
    def tick() -> None:
        """Do nothing: a loop's body calls this so that `call` counts a step."""

    @staticmethod
    def join(*parts: object) -> str:
        """Join texts, as the operator `~` does."""
        return _concat(map(text, parts))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Make a template's call: count a step, limit the depth and check the result."""
        left = current()
        left.step()
        if obj is BoundedEnvironment.look:
            return args[0]
        method = getattr(obj, "__wrapped__", obj)  # the sandbox wraps str.format
        subject, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(subject, list) and name == "append":
            _allow_append(args)
        if isinstance(subject, str) and name in GROWING | {"join"}:
            allow(name, subject, [*args, *_given(kwargs)])
        if isinstance(subject, str) and name in ("split", "rsplit", "splitlines"):
            allow_pieces(subject, [*args, *_given(kwargs)])
        if left.depth >= MAX_DEPTH:
            raise OverBudget(f"{MAX_DEPTH} calls deep")
        left.depth += 1
        try:
            result = super().call(context, obj, *args, **kwargs)
            return checked(result, fresh=obj is not BoundedEnvironment.part)
        finally:
            left.depth -= 1

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator: count a step, and bound the result before it is computed."""
        current().step()
        if operator == "%" and isinstance(left, str):
            allow("format", left, [right])
        elif operator in ("*", "**", "+"):
            _allow_arithmetic(operator, left, right)
        return checked(super().call_binop(context, operator, left, right), fresh=False)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Get an attribute, and count a step."""
        current().step()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Get an item, and count a step."""
        current().step()
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may use `value`: data, METHODS and jinja2's own objects."""
        changes = isinstance(obj, list) and attr in METHODS[list]  # jinja2's sandbox refuses these
        if not changes and not super().is_safe_attribute(obj, attr, value):
            return False
        if isinstance(obj, (LoopContext, Macro, Namespace, BlockReference, TemplateReference)):
            return True
        kind = next((kind for kind in METHODS if isinstance(obj, kind)), None)
        return not callable(value) or (kind is not None and attr in METHODS[kind])

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return the sandboxed form of str.format; SecurityError for format_map."""
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


def _allow_append(items: Iterable[object]) -> None:
    """Count the growth of a list; it takes no containers, so no list becomes part of itself."""
    for item in items:
        if not (item is None or isinstance(item, (str, int, float))):
            raise SecurityError("lists in chat templates grow only by texts and numbers")
        current().spend(8 + sys.getsizeof(item))


def _given(kwargs: Mapping[str, Any]) -> list[object]:
    return [value for key, value in kwargs.items() if not key.startswith("_")]  # not jinja2's own


def _bounded(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Wrap a filter or test: count a step, and check its arguments and its result."""
    first = 1 if hasattr(function, "jinja_pass_arg") else 0  # the context comes before the subject

    @functools.wraps(function)  # copies `jinja_pass_arg`, too
    def bounded(*args: Any, **kwargs: Any) -> Any:
        current().step()
        if name in ITERATING:
            iterated(args[first])
        elif name in ("indent", "title"):  # by lines, by words
            allow_pieces(text(args[first]), ())
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
    raise TemplateRefusal(text(message))


def _strftime_now(format: str) -> str:
    format = text(format)
    if len(format) > 100 or not _DATE_FORMAT.fullmatch(format):
        raise OverBudget("100 characters and no widths in a date format")
    return now().strftime(format)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # transformers' signature; jinja2's own escapes HTML.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
