"""`sterna chat` as a person types: at a prompt_toolkit prompt, and on a pseudo-terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import stat
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from children import spawn
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from waits import HANGS_S

from sterna import LLM, Conversation
from sterna.cli.chat import unquoted
from sterna.cli.chat_input import Commands, MessageReader, history_path, open_history
from sterna.cli.word_wrap import WordWrap


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("nano")


# ------------------------------------------------------------------------------------ the prompt


@pytest.fixture
def typed() -> Iterator[Callable[[str], str]]:
    with create_pipe_input() as pipe:
        reader = MessageReader(lambda _: None, input=pipe, output=DummyOutput())

        def read(keys: str) -> str:
            pipe.send_text(keys)
            return reader.read()

        yield read


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("hello\r", "hello"),
        ("a\x1b\rb\r", "a\nb"),  # Alt-Enter
        ("\x1b[200~a\r\nb\nc\x1b[201~\r", "a\nb\nc"),  # bracketed paste
        ('"""\ra\r\rb"""\r', '"""\na\n\nb"""'),
        ("hellp\x7fo\r", "hello"),
    ],
)
def test_keys(typed: Callable[[str], str], keys: str, text: str) -> None:
    assert typed(keys) == text


def test_ways_out_of_the_prompt(typed: Callable[[str], str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        typed("hello\x03")
    with pytest.raises(EOFError):
        typed("\x04")


def test_commands_complete() -> None:
    def completed(text: str) -> list[str]:
        completions = Commands().get_completions(Document(text), CompleteEvent())
        return [completion.text for completion in completions]

    assert completed("/ex") == ["/exit"]
    assert completed("/s") == ["/system", "/set", "/settings", "/stats", "/save"]
    assert completed("/save a") == completed("ex") == []


def test_triple_quotes() -> None:
    assert unquoted('"""\na\n\nb\n"""') == "a\n\nb"
    assert unquoted('"""a"""') == "a"
    assert unquoted('"""') == '"""'
    assert unquoted(" a\n") == " a"


def test_history_is_kept_and_private(typed: Callable[[str], str], home: Path) -> None:
    typed("one\r")
    typed("two\r")
    path = history_path()
    assert path == home / "sterna" / "chat_history"
    assert "+one" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert typed("\x1b[A\x1b[A\r") == "one"
    path.chmod(0o644)  # as an older umask may have left it
    history = open_history(lambda _: None)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    history.store_string("lone \ud800")
    assert "lone ?" in path.read_text()


def test_history_that_cannot_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    notes: list[str] = []
    (tmp_path / "file").write_text("")
    for value in (tmp_path / "file" / "below", Path("/dev/null")):
        monkeypatch.setenv("STERNA_HISTORY", str(value))
        open_history(notes.append).append_string("x")
    assert len(notes) == 2
    assert "STERNA_HISTORY" in notes[0]
    monkeypatch.setenv("STERNA_HISTORY", "off")
    assert history_path() is None


# ---------------------------------------------------------------------------------- on a terminal


#: Ctrl-C reaches the foreground of a controlling terminal, which a pseudo-terminal is made first.
PROGRAM = """
import fcntl, sys, termios, time
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
import sterna.engine
step = sterna.engine.Engine.run
def slow(*args, **kwargs):
    time.sleep(0.05)
    return step(*args, **kwargs)
sterna.engine.Engine.run = slow
sys.argv[0] = "sterna"
from sterna.cli import main
main()
"""


class Terminal:
    """`sterna chat` on a pseudo-terminal, 20 tokens a second."""

    def __init__(self, *args: str) -> None:
        self.main, side = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
        self.process = spawn(
            [sys.executable, "-c", PROGRAM, "chat", "--threads", "1", *args],
            stdin=side, stdout=side, stderr=side, start_new_session=True, env=environment,
        )  # fmt: skip
        os.close(side)
        self.seen = ""

    def wait_for(self, text: str) -> str:
        """The output up to `text`, which is included."""
        end = time.monotonic() + HANGS_S
        while text not in self.seen:
            ready, _, _ = select.select([self.main], [], [], max(0, end - time.monotonic()))
            assert ready, f"{text!r} did not come: {self.seen[-2000:]!r}"
            try:
                self.seen += os.read(self.main, 65536).decode(errors="replace")
            except OSError:
                raise AssertionError(f"it ended before {text!r}: {self.seen[-2000:]!r}") from None
        before, _, self.seen = self.seen.partition(text)
        return before + text

    def send(self, keys: str) -> None:
        """Types at the prompt, once it is there: before, the terminal would take some keys."""
        self.wait_for(">")
        self.press(keys)

    def press(self, keys: str) -> None:
        os.write(self.main, keys.encode())

    def end(self) -> int:
        """The exit code; what still comes is read, or the program could not finish."""
        end = time.monotonic() + HANGS_S
        while self.process.poll() is None and time.monotonic() < end:
            if select.select([self.main], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):  # the other side is closed
                    self.seen += os.read(self.main, 65536).decode(errors="replace")
        assert self.process.poll() is not None, self.seen[-2000:]
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.main)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal("--temperature", "0", "--max-tokens", "900")
    try:
        made.wait_for("/help lists commands")
        yield made
    finally:
        made.close()


def test_ctrl_c_stops_the_answer_and_not_the_program(terminal: Terminal, llm: LLM) -> None:
    terminal.send("import os, sys\r")
    with Conversation(llm) as chat:
        whole = chat.ask("import os, sys", max_tokens=8, temperature=0).text
    terminal.wait_for(whole.strip()[:4])
    terminal.press("\x03")
    terminal.wait_for("[stopped: it stays as it is; /retry or /undo]")
    terminal.send("/stats\r")
    terminal.wait_for("tok/s; prompt")
    terminal.send("abc\x03")
    terminal.wait_for("Ctrl-D or /exit leaves")
    terminal.send("/undo\r")
    terminal.wait_for("taken back: import os, sys")
    terminal.send("/what\r")
    terminal.wait_for("must be one of")
    terminal.send("\x04")
    assert terminal.end() == 0


def test_what_is_typed_meanwhile_waits_for_the_prompt(llm: LLM) -> None:
    """Keys are not printed into the answer, which stands alone; the next prompt has them."""
    terminal = Terminal("--temperature", "0", "--max-tokens", "20")
    try:
        terminal.wait_for("/help lists commands")
        terminal.send("import os, sys\r")
        with Conversation(llm) as chat:
            whole = chat.ask("import os, sys", max_tokens=20, temperature=0).text
        terminal.wait_for(whole.strip()[:4])
        terminal.press("/undo")
        said = terminal.wait_for("[cut off: 20 tokens")
        assert "/undo" not in said
        terminal.wait_for("/undo")
        terminal.press("\r")
        terminal.wait_for("taken back: import os, sys")
        terminal.send("/exit\r")
        assert terminal.end() == 0
    finally:
        terminal.close()


def test_lines_end_between_words(llm: LLM) -> None:
    """At the terminal's width, which may change between two answers."""
    terminal = Terminal("--temperature", "0", "--max-tokens", "30")
    try:
        terminal.wait_for("/help lists commands")
        for columns in (24, 120):
            size = struct.pack("HHHH", 24, columns, 0, 0)
            fcntl.ioctl(terminal.main, termios.TIOCSWINSZ, size)
            wrap = WordWrap(lambda columns=columns: columns)
            terminal.send("import os, sys\r")
            with Conversation(llm) as chat:
                whole = chat.ask("import os, sys", max_tokens=30, temperature=0).text
            lines = wrap.feed(whole) + wrap.end()
            assert (lines != whole) == (columns == 24)
            said = terminal.wait_for("[cut off: 30 tokens")
            assert lines.replace("\n", "\r\n") in said
            terminal.send("/reset\r")
        terminal.send("/exit\r")
        assert terminal.end() == 0
    finally:
        terminal.close()


def test_a_terminal_is_not_driven_by_a_text(tmp_path: Path) -> None:
    """Control characters come as pictures."""
    terminal = Terminal("--system", "a\x1b[5mb")
    try:
        terminal.wait_for("/help lists commands")
        terminal.send("/system\r")
        terminal.wait_for("system prompt: a\u241b[5mb")
        terminal.send("/exit\r")
        assert terminal.end() == 0
    finally:
        terminal.close()
