"""No test fails because the machine is busy: bounds of waits are HANGS_S, or tell nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from waits import wait_until

ROOT = Path(__file__).parents[2]
FILES = [
    path
    for path in (*ROOT.glob("tests/**/*.py"), *ROOT.glob("papers/tests/**/*.py"))
    if "long" not in path.relative_to(ROOT).parts
]
#: Calls whose last argument, where it is a number, is a bound in seconds; and such arguments.
WAITS = ("wait", "join", "settimeout", "communicate", "create_connection", "fail_after")
BOUNDS = ("timeout", "timeout_s", "limit_s")


def own_bounds(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls that wait for a second or more, of their own number, or for as long as httpx likes."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        given = [word.value for word in call.keywords if word.arg in BOUNDS]
        bounds = given + (call.args[-1:] if name in WAITS else [])
        if any(
            isinstance(bound, ast.Constant)
            and isinstance(bound.value, (int, float))
            and bound.value >= 1
            for bound in bounds
        ):
            yield call
        if ast.unparse(call.func) in ("httpx.get", "httpx.post", "httpx.stream") and not given:
            yield call


def test_bounds_are_those_of_what_hangs() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}: {ast.unparse(call)}"
        for path in FILES
        for call in own_bounds(ast.parse(path.read_text()))
    ]
    assert not found, "use HANGS_S or wait_until of tests/support/waits.py"


def test_what_is_found() -> None:
    bad = (
        "process.wait(30)",
        "run(timeout=5)",
        "httpx.get(url)",
        "anyio.fail_after(60)",
        "a.join(2.0)",
    )
    good = ("process.wait()", "event.wait(0.01)", "run(timeout=HANGS_S)", "httpx.get(a, timeout=b)")
    assert all(list(own_bounds(ast.parse(text))) for text in bad)
    assert not [text for text in good if list(own_bounds(ast.parse(text)))]


def test_a_wait_ends_with_what_it_waits_for() -> None:
    answers = iter([0, "", "here"])
    assert wait_until(lambda: next(answers)) == "here"
