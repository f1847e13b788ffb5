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

from sterna.chat.budget import MAX_LOOPS, MAX_NODES, MAX_SCOPES, MAX_TOKENS, OverBudget, current

__all__ = ["Compiler", "Generation", "rewrite"]


def rewrite(tree: nodes.Template) -> nodes.Template:
    """The tree with calls in place of what cannot be intercepted; OverBudget if it is large."""
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
        """A step before every output: it may be text alone, and its parts may be empty."""
        self.generic_visit(node)
        return [nodes.ExprStmt(self._call("tick", [], node), lineno=node.lineno), node]

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        """Count a step for each operand, since comparing takes time by the operands' sizes."""
        self.generic_visit(node)
        for operand in node.ops:
            operand.expr = self._call("look", [operand.expr], node)
        return node

    def visit_Call(self, node: Any) -> nodes.Node:
        """Arguments that are unpacked, which happens before anyone could look."""
        self.generic_visit(node)
        if node.dyn_args is not None:
            node.dyn_args = self._call("spread", [node.dyn_args], node)
        if node.dyn_kwargs is not None:
            node.dyn_kwargs = self._call("spread", [node.dyn_kwargs], node)
        return cast("nodes.Node", node)

    visit_Filter = visit_Test = visit_Call

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        """A slice, which jinja2 compiles to Python's own."""
        self.generic_visit(node)
        return self._call("part", [node], node) if isinstance(node.arg, nodes.Slice) else node

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


class Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks trainable text; here it is just its body.

    It is also where the parser's tokens are counted.
    """

    # jinja2 declares a set and reads it alone; one that nothing can add to is as good for all.
    tags = frozenset({"generation"})  # type: ignore[assignment]

    def filter_stream(self, stream: Iterable[Any]) -> Iterator[Any]:
        """The tokens, as long as there are not too many."""
        for count, token in enumerate(stream):
            current().step()
            if count >= MAX_TOKENS:
                raise OverBudget(f"{MAX_TOKENS} tokens of a template")
            yield token

    def parse(self, parser: Any) -> Any:
        """The statements between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Compiler(CodeGenerator):
    """jinja2's compiler, whose time grows faster than the template: it looks at the clock too."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        """A node: a step."""
        current().step()
        return super().visit(node, *args, **kwargs)
