"""Chat templates of a model folder, rendered in a sandbox with limits.

A template comes from the model's files, from who opens the model, or from a request where the
server's settings trust these.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2

from sterna.chat.budget import MAX_CHARS, OverBudget, spending
from sterna.chat.calls import respelt
from sterna.chat.named import NAMED
from sterna.chat.sandbox import BoundedEnvironment, Refusal
from sterna.chat.thoughts import CLOSE, Thoughts, without_thoughts
from sterna.chat.tools import described, has_calls, told
from sterna.errors import ModelFormatError, RequestError, shown
from sterna.files.jsonfile import MAX_CONFIG_BYTES, load_settings
from sterna.files.reading import read_file

__all__ = ["ChatTemplate"]

MAX_MESSAGE_DEPTH = 32
#: Stands for the end of a text in a rendering: no template has a reason to change it.
_MARK = "STERNA0END0OF0TEXT"
_REASONING = ("reasoning_content", "thinking", "reasoning")
_RESERVED = ("messages", "tools", "documents", "add_generation_prompt")
_NO_PARAMETERS = {"type": "object", "properties": {}, "required": []}
_TOOL = {"name": _MARK, "description": _MARK, "parameters": _NO_PARAMETERS}
_REMEDY = "put a working chat_template.jinja into the model's folder"


class ChatTemplate:
    """The chat template of a model folder; get one with `ChatTemplate.load`."""

    def __init__(self, file: Path, templates: Mapping[str, str], tokens: Mapping[str, str]) -> None:
        self.file = file
        self._sources = templates
        self._tokens = tokens
        self._compiled: dict[str, tuple[BoundedEnvironment, jinja2.Template]] = {}

    @classmethod
    def load(
        cls, folder: str | Path, settings: Mapping[str, Any] | None = None
    ) -> ChatTemplate | None:
        """The folder's template, or None if it has none; ModelFormatError if it is malformed.

        chat_template.jinja comes before chat_template.json and tokenizer_config.json, as in
        transformers; a list of named templates uses "default", and "tool_use" for tools. settings:
        what tokenizer_config.json says, where it was read already.
        """
        folder = Path(folder)
        file = folder / "tokenizer_config.json"
        settings = load_settings(file) if settings is None else settings
        named: dict[str, str] = {}
        for path in (folder / "chat_template.json", file):
            config = settings if path == file else load_settings(path)
            if config.get("chat_template") is not None:
                named, file = _named_templates(path, config["chat_template"]), path
                break
        jinja = folder / "chat_template.jinja"
        if (source := _read_text(jinja)) is not None:
            named["default"], file = source, jinja
        for path in sorted(folder.glob("additional_chat_templates/*.jinja")):
            named[path.stem] = _read_text(path) or ""
        if not named:
            return None
        if "default" not in named:
            if len(named) > 1:
                raise _malformed(file, 'a template named "default"', ", ".join(sorted(named)))
            named["default"] = next(iter(named.values()))
        return cls(file, named, _special_tokens(settings))

    @classmethod
    def from_settings(cls, file: Path, settings: Mapping[str, Any]) -> ChatTemplate | None:
        """The template of a tokenizer_config.json that `file` holds within it, None without one."""
        if settings.get("chat_template") is None:
            return None
        named = _named_templates(file, settings["chat_template"])
        named.setdefault("default", next(iter(named.values())))
        return cls(file, named, _special_tokens(settings))

    @classmethod
    def chosen(cls, given: str | Path, settings: Mapping[str, Any]) -> ChatTemplate:
        """The template of a name in `named.NAMED`, or of a file of Jinja; RequestError where there
        is neither. settings: as tokenizer_config.json, whose tokens it may name."""
        source = NAMED.get(str(given))
        if source is None and isinstance(given, (str, Path)) and "\0" not in str(given):
            source = _read_text(Path(given)) if Path(given).is_file() else None
        if source is None:
            raise RequestError(
                f"chat_template: must be a file, or one of {', '.join(NAMED)}, but got "
                f"{shown(given)}"
            )
        return cls.given(source, settings, Path(given))

    @classmethod
    def given(
        cls, source: str, settings: Mapping[str, Any], file: Path = Path("chat_template")
    ) -> ChatTemplate:
        """A template of this text. ModelFormatError where it is no template."""
        made = cls(file, {"default": source}, _special_tokens(settings))
        with spending():
            made._template("default")
        return made

    @property
    def source(self) -> str:
        """The text of the default template."""
        return self._sources["default"]

    @property
    def digest(self) -> str:
        """SHA-256, in hex, of the templates and of the tokens that they name."""
        found = repr((sorted(self._sources.items()), sorted(self._tokens.items())))
        return hashlib.sha256(found.encode("utf-8", "surrogatepass")).hexdigest()

    def mentions(self, text: str) -> bool:
        """Whether a template has this text in it, which tells the forms of tool calls apart."""
        return any(text in source for source in self._sources.values())

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
        """The prompt for `messages`, each a mapping with a "role" and usually "content".

        variables: more names that the template may read; where they say that there are no thoughts
        (`without_thoughts`), and the template opens them all the same, they are closed.
        continue_final_message: the prompt stops at the end of the last message's text, for the
        model to go on with it.

        Raises RequestError if the arguments are malformed or the template does not accept them,
        ModelFormatError if the template is broken or exceeds the sandbox's limits.
        """
        check_messages(messages)
        plain = [_message(message) for message in _plain(messages, "messages")]
        if continue_final_message:
            _mark_end(plain)
        named = _variables(variables)
        silent = without_thoughts(named)
        if named.get("reasoning_effort") == "none":
            named.setdefault("enable_thinking", False)
        values = {
            **self._tokens,
            **named,
            "documents": _objects(documents, "documents"),
            "messages": plain,
            "tools": _objects(tools, "tools"),
            "add_generation_prompt": bool(add_generation_prompt and not continue_final_message),
        }
        rendered = self._written("tool_use" if tools else "default", values)
        if continue_final_message:
            return _until_mark(rendered)
        if silent and self.thoughts(rendered) is Thoughts.OPENED:
            return f"{rendered.rstrip()}\n\n{CLOSE}\n\n"
        return rendered

    def thoughts(self, prompt: str) -> Thoughts:
        """How an answer to a rendered prompt begins."""
        return Thoughts.at_the_end(prompt, self.mentions(CLOSE))

    def told(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None]:
        """Messages and tools for `render`; RequestError. Tools for which the template has no place
        are told in the system prompt (`chat.tools`)."""
        check_messages(messages)
        if not (tools or has_calls(messages)):
            return messages, tools
        checked = _objects(tools, "tools")
        bare = bool(checked) and not any("function" in tool for tool in checked)
        if self.takes_bare_tools if bare else self.takes_tools:
            return messages, tools
        return told(messages, checked, self.takes_system), None

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the template writes the tools that it is given in OpenAI's form."""
        return self._writes({"type": "function", "function": _TOOL})

    @cached_property
    def takes_bare_tools(self) -> bool:
        """Whether it writes tools without that form: each a function's own object."""
        return self._writes(_TOOL)

    def _writes(self, tool: Mapping[str, Any]) -> bool:
        return _MARK in self._probed([{"role": "user", "content": "Q"}], tools=[tool])

    @cached_property
    def takes_system(self) -> bool:
        """Whether the template writes a system prompt."""
        exchange = [{"role": "system", "content": _MARK}, {"role": "user", "content": "Q"}]
        return _MARK in self._probed(exchange)

    def _probed(self, messages: list[dict[str, Any]], **given: Any) -> str:
        """What the template makes of messages; empty where it refuses them."""
        values = {**self._tokens, "documents": None, "tools": None, **given, "messages": messages}
        try:
            name = "tool_use" if given else "default"
            return self._run(name, {**values, "add_generation_prompt": True})
        except (RequestError, ModelFormatError):
            return ""

    def after_answer(self) -> str:
        """What the template writes after an assistant's message, without leading space.

        It begins with the token that ends a turn, where there is one; where the template writes
        none behind the last message, with what stands before the next. Empty if the template does
        not accept a plain exchange.
        """
        exchange = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": _MARK}]
        for messages in (exchange, [*exchange, exchange[0]]):
            try:
                parts = self.render(messages, add_generation_prompt=False).rpartition(_MARK)
            except (RequestError, ModelFormatError):
                return ""
            if end := parts[2].lstrip() if parts[1] else "":
                return end
        return ""

    def _written(self, name: str, values: Mapping[str, Any]) -> str:
        """Of messages and tools as they are, or else as the template takes them."""
        try:
            return self._run(name, values)
        except RequestError as error:
            whole = described(values["tools"])
            for messages in (values["messages"], *respelt(values["messages"])):
                for tools in (values["tools"], whole):
                    if messages is values["messages"] and tools == values["tools"]:
                        continue  # tried
                    with contextlib.suppress(RequestError):
                        return self._run(name, {**values, "messages": messages, "tools": tools})
            raise error

    def _run(self, name: str, values: Mapping[str, Any]) -> str:
        try:
            with spending():  # of the first rendering: compiling included
                environment, template = self._template(name)
                return environment.run(template, values)
        except ModelFormatError:
            raise
        except OverBudget as error:
            raise _malformed(self.file, f"at most {error}", "more") from None
        except Refusal as error:
            raise RequestError(
                f"messages: the chat template refuses them with {shown(str(error)[:300])}; "
                "change the roles or the content"
            ) from None
        except Exception as error:  # whatever the template's own expressions raise
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
                raise _malformed(self.file, f"at most {error}", "more") from None
            except jinja2.TemplateSyntaxError as error:
                got = f"{error.message} (line {error.lineno})"
                raise _malformed(self.file, "a valid Jinja template", got) from None
            except Exception as error:  # nested too deeply for the parser or the compiler
                got = f"{type(error).__name__}: {error}"
                raise _malformed(self.file, "a valid Jinja template", got) from None
        return self._compiled[name]


def _malformed(file: Path, expected: str, got: object) -> ModelFormatError:
    return ModelFormatError(
        file=file, field="chat_template", expected=expected, got=got, remedy=_REMEDY
    )


def _named_templates(file: Path, value: object) -> dict[str, str]:
    """{"default": template}, or the list form [{"name", "template"}, ...] as a dictionary."""
    if isinstance(value, str):
        return {"default": value}
    entries = value if isinstance(value, list) else [value]
    named = {}
    for entry in entries:
        name, source = (
            (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)
        )
        if not isinstance(name, str) or not isinstance(source, str):
            expected = "a string, or a list of objects with a name and a template"
            raise _malformed(file, expected, type(entry).__name__)
        named[name] = source
    return named


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token`, `eos_token` and the like, as templates name them."""
    tokens = {"bos_token": "", "eos_token": ""}
    for key, value in settings.items():
        text = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(text, str):
            tokens[key] = text
    return tokens


def check_messages(messages: object) -> None:
    """RequestError unless `messages` is a list of mappings with a role and content."""
    remedy = 'pass [{"role": "user", "content": "..."}]'
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        kind = type(messages).__name__
        raise RequestError(f"messages: must be a list of mappings, but got {kind}; {remedy}")
    if not messages:
        raise RequestError(f"messages: must not be empty; {remedy}")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            kind = type(message).__name__
            raise RequestError(f"messages[{i}]: must be a mapping, but got {kind}; {remedy}")
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not role:
            raise RequestError(f"messages[{i}]: must have a role, but got {shown(role)}; {remedy}")
        if not isinstance(content, (str, Sequence, type(None))):
            kind = type(content).__name__
            raise RequestError(f"messages[{i}]: content must be text, but got {kind}; {remedy}")


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """A message as templates expect it, as in transformers: a key without a value is left out
    (OpenAI's API writes "content": null), and reasoning has the names that templates give it."""
    given = {key: value for key, value in message.items() if value is not None}
    reasoning = next((given[key] for key in _REASONING if key in given), None)
    if reasoning is None:
        return given
    return {"thinking": reasoning, **given, "reasoning_content": reasoning}


def _objects(value: object, name: str) -> Any:
    """None, or a list of JSON objects."""
    if value is None:
        return None
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    wrong = [item for item in items if not isinstance(item, Mapping)]
    if wrong or not isinstance(value, (list, tuple)):
        kind = type((wrong or [value])[0]).__name__
        raise RequestError(f"{name}: must be a list of JSON objects, but got {kind}; pass dicts")
    return _plain(value, name)


def _variables(values: Mapping[str, Any] | None) -> dict[str, Any]:
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        kind = type(values).__name__
        raise RequestError(f"template_options: must be a mapping, but got {kind}; pass a dict")
    for name in values:
        if not isinstance(name, str) or not name.isidentifier() or name in _RESERVED:
            raise RequestError(
                f"template_options: must be names other than {', '.join(_RESERVED)}, "
                f"but got {shown(name)}; rename it"
            )
    return {name: _plain(value, name) for name, value in values.items()}


def _mark_end(messages: list[dict[str, Any]]) -> None:
    """Appends the mark to the text of the last message, whose last part is it."""
    content = messages[-1].get("content")
    parts = content if isinstance(content, list) else [messages[-1]]
    key = "text" if isinstance(content, list) else "content"
    texts = [part for part in parts if isinstance(part, dict) and isinstance(part.get(key), str)]
    if not texts:
        raise RequestError(
            "continue_final_message: the last message must have text, but it has none; "
            "add an assistant message to go on with"
        )
    texts[-1][key] += _MARK + " "


def _until_mark(rendered: str) -> str:
    """The text before the mark; without trailing space if the template has trimmed the message."""
    before, mark, after = rendered.rpartition(_MARK)
    if not mark:
        raise RequestError(
            "continue_final_message: the template must write the last message, but left it out; "
            "end the messages with one of the assistant"
        )
    before = before.replace(_MARK + " ", "").replace(_MARK, "")  # of a text that is written twice
    return before if after.startswith(" ") else before.rstrip()


def _plain(value: object, name: str) -> Any:
    """A copy made of JSON's types alone, so that a template meets no other object."""
    left = MAX_CHARS

    def copy(item: object, depth: int) -> Any:
        nonlocal left
        left -= 8 + (len(item) if isinstance(item, str) else 0)
        if left < 0:
            raise RequestError(
                f"{name}: must be under {MAX_CHARS} characters, but got more; shorten it"
            )
        if depth > MAX_MESSAGE_DEPTH:
            raise RequestError(
                f"{name}: must be at most {MAX_MESSAGE_DEPTH} levels deep, but got more; flatten it"
            )
        if isinstance(item, str):
            return str(item)
        if item is None or isinstance(item, (bool, float)):
            return item
        if isinstance(item, int) and item.bit_length() <= 1024:
            return int(item)
        if isinstance(item, Mapping) and all(isinstance(key, str) for key in item):
            return {copy(key, depth + 1): copy(value, depth + 1) for key, value in item.items()}
        if isinstance(item, (list, tuple)):
            return [copy(value, depth + 1) for value in item]
        raise RequestError(
            f"{name}: must hold text, numbers, lists and mappings, but got "
            f"{type(item).__name__}; convert it first"
        )

    return copy(value, 0)


# --------------------------------------------------------------------------------------- files


def _read_text(path: Path) -> str | None:
    """The text of a small UTF-8 file, None if there is no such file; ModelFormatError otherwise."""
    if not os.path.exists(path):
        return None
    try:
        return read_file(path, MAX_CONFIG_BYTES).decode()
    except UnicodeDecodeError as error:
        raise ModelFormatError(
            file=path, offset=error.start, expected="a text in UTF-8", got="invalid UTF-8"
        ) from None
