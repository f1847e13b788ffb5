"""`ChatTemplate`: conversations as prompts, rendered in a sandbox with limits.

A template comes from the model's files, from the user who opens the model, or, where the server's
settings allow it, from a request.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sterna.chat.calls import with_other_arguments, with_short_ids
from sterna.chat.limits import MAX_SECONDS
from sterna.chat.messages import (
    MARK,
    check_messages,
    json_copy,
    json_objects,
    mark_end,
    template_message,
    template_variables,
    text_until_mark,
)
from sterna.chat.named import NAMED
from sterna.chat.reasoning import (
    ReasoningMarks,
    ReasoningState,
    disables_reasoning,
    marks_of,
    with_switches,
)
from sterna.chat.sources import malformed, named_templates, read_text, special_tokens
from sterna.chat.tools import with_all_fields
from sterna.errors import ModelFormatError, RequestError, shown
from sterna.files.jsonfile import load_settings

if TYPE_CHECKING:
    from sterna.chat.rendering import Renderer

__all__ = ["ChatTemplate"]

_NO_PARAMETERS = {"type": "object", "properties": {}, "required": []}
_TOOL = {"name": MARK, "description": MARK, "parameters": _NO_PARAMETERS}


class ChatTemplate:
    """A chat template; `load`, `from_settings`, `from_name_or_file` and `from_source` make one.

    file: named in errors. templates: Jinja sources by name. tokens: special tokens by name.
    """

    def __init__(self, file: Path, templates: Mapping[str, str], tokens: Mapping[str, str]) -> None:
        self.file = file
        self._sources = templates
        self._tokens = tokens

    @classmethod
    def load(
        cls, folder: str | Path, settings: Mapping[str, Any] | None = None
    ) -> ChatTemplate | None:
        """Read a folder's template; None if it has none, ModelFormatError if it is malformed.

        chat_template.jinja precedes chat_template.json and tokenizer_config.json, as in
        transformers. Of several named templates, "default" is used, and "tool_use" for tools.
        settings: tokenizer_config.json, if it was read already.
        """
        folder = Path(folder)
        file = folder / "tokenizer_config.json"
        settings = load_settings(file) if settings is None else settings
        named: dict[str, str] = {}
        for path in (folder / "chat_template.json", file):
            config = settings if path == file else load_settings(path)
            if config.get("chat_template") is not None:
                named, file = named_templates(path, config["chat_template"]), path
                break
        jinja = folder / "chat_template.jinja"
        if (source := read_text(jinja)) is not None:
            named["default"], file = source, jinja
        for path in sorted(folder.glob("additional_chat_templates/*.jinja")):
            named[path.stem] = read_text(path) or ""
        if not named:
            return None
        if "default" not in named:
            if len(named) > 1:
                raise malformed(file, 'a template named "default"', ", ".join(sorted(named)))
            named["default"] = next(iter(named.values()))
        return cls(file, named, special_tokens(settings))

    @classmethod
    def from_settings(cls, file: Path, settings: Mapping[str, Any]) -> ChatTemplate | None:
        """Make the template of the tokenizer_config.json that `file` contains; None without one."""
        if settings.get("chat_template") is None:
            return None
        named = named_templates(file, settings["chat_template"])
        named.setdefault("default", next(iter(named.values())))
        return cls(file, named, special_tokens(settings))

    @classmethod
    def from_name_or_file(cls, given: str | Path, settings: Mapping[str, Any]) -> ChatTemplate:
        """Make a template by a name in `named.NAMED` or from a Jinja file; else RequestError.

        settings: tokenizer_config.json; the template may use its special tokens.
        """
        source = NAMED.get(str(given))
        if source is None and isinstance(given, (str, Path)) and "\0" not in str(given):
            source = read_text(Path(given)) if Path(given).is_file() else None
        if source is None:
            raise RequestError(
                f"chat_template: must be a file, or one of {', '.join(NAMED)}, but got "
                f"{shown(given)}"
            )
        return cls.from_source(source, settings, Path(given))

    @classmethod
    def from_source(
        cls, source: str, settings: Mapping[str, Any], file: Path = Path("chat_template")
    ) -> ChatTemplate:
        """Make a template from Jinja text; ModelFormatError if it is malformed."""
        made = cls(file, {"default": source}, special_tokens(settings))
        made._renderer.check("default")
        return made

    @cached_property
    def _renderer(self) -> Renderer:
        # Imports jinja2, which takes time, once a conversation is rendered.
        from sterna.chat.rendering import Renderer

        return Renderer(self.file, self._sources)

    @property
    def source(self) -> str:
        """The text of the default template."""
        return self._sources["default"]

    @property
    def digest(self) -> str:
        """SHA-256, in hex, of the templates and the special tokens."""
        content = repr((sorted(self._sources.items()), sorted(self._tokens.items())))
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        documents: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        continue_final_message: bool = False,
    ) -> str:
        """Render the prompt of a conversation.

        Args:
            messages: Mappings with a "role" and usually "content".
            add_generation_prompt: Whether to end with the text that opens the answer.
            tools, documents: JSON objects.
            variables: More variables of the template. If they disable reasoning
                (`disables_reasoning`) but the template opens it, the prompt closes it again.
            continue_final_message: Whether to stop at the end of the last message's text.

        RequestError if the arguments are malformed or the template refuses them, ModelFormatError
        if the template is broken or exceeds the sandbox's limits.
        """
        check_messages(messages)
        plain = [template_message(message) for message in json_copy(messages, "messages")]
        if continue_final_message:
            mark_end(plain)
        named = template_variables(variables)
        silent = disables_reasoning(named)
        effort = named.get("reasoning_effort")
        if effort is not None:  # some with reasoning off by default read only a switch
            named = with_switches(named, effort != "none")
        values = {
            **self._tokens,
            **named,
            "documents": json_objects(documents, "documents"),
            "messages": plain,
            "tools": json_objects(tools, "tools"),
            "add_generation_prompt": bool(add_generation_prompt and not continue_final_message),
        }
        kind = "tool_use" if tools else "default"
        try:
            rendered = self._render_in_any_form(kind, values)
        except RequestError:
            if effort != "none":
                raise
            del values["reasoning_effort"]
            rendered = self._render_in_any_form(kind, values)  # it has another word for "none"
        if continue_final_message:
            return text_until_mark(rendered)
        marks = self.reasoning_marks
        if silent and marks and self.reasoning_state(rendered) is ReasoningState.OPENED:
            return f"{rendered.rstrip()}\n\n{marks.closes}\n\n"
        return rendered

    def reasoning_state(self, prompt: str) -> ReasoningState:
        """Return how an answer to a rendered prompt begins."""
        return ReasoningState.after_prompt(prompt, self.reasoning_marks)

    @cached_property
    def reasoning_marks(self) -> ReasoningMarks | None:
        """The marks of reasoning in the template's family; None if it has none."""
        end = time.thread_time() + MAX_SECONDS  # of all these renderings together

        def render(messages: list[dict[str, Any]], variables: dict[str, Any]) -> str:
            if time.thread_time() > end:
                return ""
            prompt = messages[-1]["role"] == "user"
            return self._probed(messages, add_generation_prompt=prompt, **variables)

        return marks_of(render)

    @cached_property
    def takes_effort(self) -> bool:
        """Whether the template reads the variable reasoning_effort."""
        asked = [{"role": "user", "content": "Q"}]
        low, high = (self._probed(asked, reasoning_effort=effort) for effort in ("low", "high"))
        return low != high

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the template writes tools in OpenAI's form."""
        return self._writes({"type": "function", "function": _TOOL})

    @cached_property
    def takes_bare_tools(self) -> bool:
        """Whether the template writes tools that are bare function objects."""
        return self._writes(_TOOL)

    def _writes(self, tool: Mapping[str, Any]) -> bool:
        return MARK in self._probed([{"role": "user", "content": "Q"}], tools=[tool])

    @cached_property
    def takes_system(self) -> bool:
        """Whether the template writes a system prompt."""
        exchange = [{"role": "system", "content": MARK}, {"role": "user", "content": "Q"}]
        return MARK in self._probed(exchange)

    def image_text(self, placeholder: str) -> str | None:
        """Return the text that the template writes for an image part; None without placeholder.

        placeholder: the token that represents an image in a prompt.
        """
        mark = {"type": "text", "text": MARK}
        content: Any = [mark, {"type": "image"}, mark]
        written = self._probed([{"role": "user", "content": content}]).split(MARK)
        between = written[1] if len(written) == 3 else ""
        return between.strip() if between.count(placeholder) == 1 else None

    def _probed(self, messages: list[dict[str, Any]], **given: Any) -> str:
        """Render messages; empty if the template refuses them. given: variables, or tools."""
        values = {
            **self._tokens,
            **{"documents": None, "tools": None, "add_generation_prompt": True},
            **given,
            "messages": messages,
        }
        try:
            return self._renderer.run("tool_use" if given.get("tools") else "default", values)
        except (RequestError, ModelFormatError):
            return ""

    def after_answer(self) -> str:
        """Return the text that the template writes after an assistant's message, without leading
        space.

        The text begins with the token that ends a turn, if there is one. If the template writes
        nothing after the last message, the text is what precedes the next message. It is empty if
        the template refuses a plain exchange.
        """
        exchange = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": MARK}]
        for messages in (exchange, [*exchange, exchange[0]]):
            try:
                parts = self.render(messages, add_generation_prompt=False).rpartition(MARK)
            except (RequestError, ModelFormatError):
                return ""
            if end := parts[2].lstrip() if parts[1] else "":
                return end
        return ""

    def _render_in_any_form(self, name: str, values: Mapping[str, Any]) -> str:
        """Render messages and tools as they are, or in another form that the template takes."""
        run = self._renderer.run
        try:
            return run(name, values)
        except RequestError as error:
            whole, own = with_all_fields(values["tools"]), values["messages"]
            short = with_short_ids(own)
            forms = (own, *with_other_arguments(own), short, *with_other_arguments(short))
            for messages in forms:
                for tools in (values["tools"], whole):
                    if messages is values["messages"] and tools == values["tools"]:
                        continue  # tried
                    with contextlib.suppress(RequestError):
                        return run(name, {**values, "messages": messages, "tools": tools})
            raise error
