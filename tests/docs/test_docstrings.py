"""Public members say what they do; one that overrides or implements another inherits its text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src/sterna"


def _classes(tree: ast.AST, public: bool = True) -> Iterator[tuple[ast.ClassDef, bool]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            shown = public and not node.name.startswith("_")
            yield node, shown
            yield from _classes(node, shown)


def _methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (n for n in node.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)))


def _bases(node: ast.ClassDef) -> set[str]:
    return {ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases}


def test_public_members_have_docstrings() -> None:
    found = {
        path: list(_classes(ast.parse(path.read_text()))) for path in sorted(SOURCES.rglob("*.py"))
    }
    every = [node for classes in found.values() for node, _ in classes]
    # A class may implement a protocol without naming it, so its members count for all classes.
    protocols = {m.name for c in every if "Protocol" in _bases(c) for m in _methods(c)}
    known = {c.name for c in every}
    members = {c.name: {m.name for m in _methods(c)} for c in every}
    parents = {c.name: _bases(c) for c in every}

    def inherits(name: str, member: str) -> bool:
        for base in parents.get(name, ()):
            if base not in known and base not in {"Protocol", "ABC", "Generic", "NamedTuple"}:
                return True  # third-party: its members are not known here
            if member in members.get(base, ()) or (base != name and inherits(base, member)):
                return True
        return False

    silent = [
        f"{path.relative_to(SOURCES)}:{m.lineno}: {c.name}.{m.name}"
        for path, classes in found.items()
        for c, public in classes
        for m in _methods(c)
        if public and not m.name.startswith("_") and ast.get_docstring(m) is None
        if not (m.name in protocols and "Protocol" not in _bases(c))
        and not inherits(c.name, m.name)
        if not any(
            "overload" in ast.unparse(d) or ".setter" in ast.unparse(d) for d in m.decorator_list
        )
    ]
    assert not silent, "\n".join(silent)
