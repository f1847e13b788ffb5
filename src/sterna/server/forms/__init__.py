"""How families of models write calls of tools, one family a file.

A template tells which: each module has a FORM, and the first whose `marks` its template has is the
model's. A model of none of them answers in text alone.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from sterna.llm import LLM
from sterna.server.forms.base import Form

__all__ = ["Form", "form_of"]


def forms() -> list[Form]:
    """All of them, those with the most particular marks first."""
    names = [module.name for module in iter_modules(__path__) if module.name != "base"]
    found = [import_module(f"{__name__}.{name}").FORM for name in names]
    return sorted(found, key=lambda form: form.rank)


def form_of(llm: LLM) -> Form | None:
    """The form that a model's template shows, None for one that is not known."""
    template = llm.template
    if template is None:
        return None
    fitting = (f for f in forms() if all(template.mentions(mark) for mark in f.marks))
    return next(fitting, None)
