"""Reads the input of a chat: history, several lines, pasted text, completion."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from sterna.cli.chat_commands import COMMANDS
from sterna.errors import reason
from sterna.files.system import make_private

__all__ = ["Commands", "MessageReader", "history_path"]

QUOTES = '"""'


def history_path() -> Path | None:
    """STERNA_HISTORY (a file, or off), else chat_history in the user's data folder."""
    setting = os.environ.get("STERNA_HISTORY", "")
    if setting:
        return None if setting == "off" else Path(setting).expanduser()
    data = os.environ.get("XDG_DATA_HOME", "")
    folder = Path(data) if os.path.isabs(data) else Path.home() / ".local" / "share"
    return folder / "sterna" / "chat_history"


class _PrivateHistory(FileHistory):
    """A file that only its owner can read, and whose errors do not end the chat."""

    def store_string(self, string: str) -> None:
        with contextlib.suppress(OSError):  # a full disk: the line stays in memory
            super().store_string(string.encode("utf-8", "replace").decode())

    def load_history_strings(self) -> Iterable[str]:
        try:
            return list(super().load_history_strings())
        except OSError:
            return []


def open_history(note: Callable[[str], None]) -> History:
    """Open the history file, mode 0600; falls back to memory, with a notice."""
    try:
        path = history_path()
        if path is None:
            return InMemoryHistory()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Not a pipe or a device, which would block or swallow the input.
        if path.exists() and not path.is_file():
            raise OSError(f"{path} is not a regular file")
        handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        try:
            make_private(handle)
        finally:
            os.close(handle)
        return _PrivateHistory(str(path))
    except (OSError, RuntimeError) as error:
        note(f"no history file ({reason(error)}); STERNA_HISTORY names another, or off")
        return InMemoryHistory()


class Commands(Completer):
    """Tab completes a command."""

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        """Yield the commands that begin with the text."""
        text = document.text
        if text.startswith("/") and " " not in text:
            for usage, what in COMMANDS.items():
                name = usage.split()[0]
                if name.startswith(text):
                    yield Completion(name, -len(text), display_meta=what)


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        """Enter sends, except within triple quotes."""
        text = event.current_buffer.text.strip()
        open_quotes = text.startswith(QUOTES) and (
            len(text) < 2 * len(QUOTES) or not text.endswith(QUOTES)
        )
        if open_quotes:
            event.current_buffer.insert_text("\n")
        else:
            event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


class MessageReader:
    """Reads one message after another; streams are those of prompt_toolkit's PromptSession."""

    def __init__(self, note: Callable[[str], None], **streams: Any) -> None:
        self._session: PromptSession[str] = PromptSession(
            FormattedText([("bold", "> ")]),
            multiline=True,
            prompt_continuation=". ",
            history=open_history(note),
            key_bindings=_keys(),
            completer=Commands(),
            complete_while_typing=False,
            **streams,
        )

    def read(self) -> str:
        """Read a line; KeyboardInterrupt on Ctrl-C, EOFError on Ctrl-D in an empty line."""
        return self._session.prompt()
