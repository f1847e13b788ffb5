"""`Renderer`: the templates of one model, compiled and run in the sandbox.

`chat.template` imports this when a template is first used: Jinja takes time to import, and a prompt
that is continued needs none.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from sterna.chat.budget import OverBudget, spending
from sterna.chat.sandbox import BoundedEnvironment, TemplateRefusal
from sterna.chat.sources import malformed
from sterna.errors import ModelFormatError, RequestError, shown

__all__ = ["Renderer"]


class Renderer:
    """Renders templates, each compiled at its first use.

    file: named in errors. sources: Jinja sources by name; "default" is used for missing names.
    """

    def __init__(self, file: Path, sources: Mapping[str, str]) -> None:
        self._file, self._sources = file, sources
        self._compiled: dict[str, tuple[BoundedEnvironment, jinja2.Template]] = {}

    def check(self, name: str) -> None:
        """Compile a template; ModelFormatError if it is malformed."""
        with spending():
            self._template(name)

    def run(self, name: str, values: Mapping[str, Any]) -> str:
        """Render a template with these variables.

        RequestError if the template refuses them, ModelFormatError if it is broken or exceeds the
        sandbox's limits.
        """
        try:
            with spending():  # the first rendering pays for compiling, too
                environment, template = self._template(name)
                return environment.run(template, values)
        except ModelFormatError:
            raise
        except OverBudget as error:
            raise malformed(self._file, f"at most {error}", "more") from None
        except TemplateRefusal as error:
            raise RequestError(
                f"messages: the chat template refuses them with {shown(str(error)[:300])}; "
                "change the roles or the content"
            ) from None
        except Exception as error:  # the template's expressions may raise anything
            raise RequestError(
                f"messages: the chat template failed with {type(error).__name__}: "
                f"{str(error)[:300]}; see which fields the template reads"
            ) from None

    def _template(self, name: str) -> tuple[BoundedEnvironment, jinja2.Template]:
        name = name if name in self._sources else "default"
        if name not in self._compiled:
            source = self._sources[name]
            try:
                environment = BoundedEnvironment()
                self._compiled[name] = environment, environment.load(source)
            except OverBudget as error:
                raise malformed(self._file, f"at most {error}", "more") from None
            except jinja2.TemplateSyntaxError as error:
                got = f"{error.message} (line {error.lineno})"
                raise malformed(self._file, "a valid Jinja template", got) from None
            except Exception as error:  # nested too deeply for the parser or the compiler
                got = f"{type(error).__name__}: {error}"
                raise malformed(self._file, "a valid Jinja template", got) from None
        return self._compiled[name]
