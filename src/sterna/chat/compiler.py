"""Compiles templates: rewrites operations that the environment cannot intercept into calls."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator
from jinja2.ext import Extension
from jinja2.visitor import NodeTransformer

from sterna.chat.budget import OverBudget, current
from sterna.chat.limits import MAX_LOOPS, MAX_NODES, MAX_SCOPES, MAX_TOKENS

__all__ = ["Compiler", "Generation", "rewrite"]


def rewrite(tree: nodes.Template) -> nodes.Template:
    """Replace nodes that the environment cannot intercept by calls; OverBudget for a large tree."""
    all_nodes = list(itertools.islice(tree.find_all(nodes.Node), MAX_NODES + 1))
    branches = sum(isinstance(n, (nodes.If, nodes.For, nodes.CondExpr)) for n in all_nodes)
    assigned = sum(isinstance(n, nodes.Name) and n.ctx != "load" for n in all_nodes)
    if len(all_nodes) > MAX_NODES or branches * assigned > MAX_SCOPES:
        raise OverBudget(f"{MAX_NODES} nodes and a modest number of names and branches")
    _Rewriter().visit(tree)
    return tree


class _Rewriter(NodeTransformer):
    """Turns operations that the environment cannot intercept into calls, which it can."""

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

    def visit_Output(self, node: nodes.Output) -> list[nodes.Node]:
        """Count a step before every output, which may be only text or have empty parts."""
        self.generic_visit(node)
        return [nodes.ExprStmt(self._call("tick", [], node), lineno=node.lineno), node]

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        """Count a step for each operand: the time of a comparison grows with their sizes."""
        self.generic_visit(node)
        for operand in node.ops:
            operand.expr = self._call("look", [operand.expr], node)
        return node

    def visit_Call(self, node: Any) -> nodes.Node:
        """Check unpacked arguments here, since jinja2 unpacks them before `call` sees them."""
        self.generic_visit(node)
        if node.dyn_args is not None:
            node.dyn_args = self._call("spread", [node.dyn_args], node)
        if node.dyn_kwargs is not None:
            node.dyn_kwargs = self._call("spread", [node.dyn_kwargs], node)
        return cast("nodes.Node", node)

    visit_Filter = visit_Test = visit_Call

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        """Check slices, which jinja2 compiles to Python's own."""
        self.generic_visit(node)
        return self._call("part", [node], node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._call("join", node.nodes, node)

    def _literal(self, node: nodes.Literal) -> nodes.Node:
        if getattr(node, "ctx", "load") != "load":
            return node  # the targets of an assignment
        if all(isinstance(n, (nodes.Const, nodes.Pair)) for n in node.find_all(nodes.Node)):
            return node  # no larger than its source
        self.generic_visit(node)
        return self._call("value", [node], node)

    visit_List = visit_Tuple = visit_Dict = _literal

    def _call(self, method: str, args: list[nodes.Expr], at: nodes.Node) -> nodes.Call:
        call = nodes.Call(nodes.EnvironmentAttribute(method), args, [], None, None)
        call.set_lineno(at.lineno)
        return call


class Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks trainable text; here it is just its body.

    The extension also counts the parser's tokens.
    """

    # jinja2 declares a set but only reads it, so a frozen one does.
    tags: set[str] = frozenset({"generation"})  # type: ignore[assignment]

    def filter_stream(self, stream: Iterable[Any]) -> Iterator[Any]:
        """Pass the tokens on; OverBudget if there are too many."""
        for count, token in enumerate(stream):
            current().step()
            if count >= MAX_TOKENS:
                raise OverBudget(f"{MAX_TOKENS} tokens of a template")
            yield token

    def parse(self, parser: Any) -> Any:
        """Return the statements between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Compiler(CodeGenerator):
    """jinja2's compiler with a limit on its time, which grows faster than the template."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        """Count a step for a node."""
        current().step()
        return super().visit(node, *args, **kwargs)
