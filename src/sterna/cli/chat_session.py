"""`Session`: answers the messages of a chat, and runs its commands."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from sterna.chat import check_messages
from sterna.cli.chat_commands import COMMANDS
from sterna.cli.chat_images import message_content, take_dropped
from sterna.cli.disk_use import awaited, disk_use
from sterna.cli.report import weights
from sterna.cli.sampling_options import CHAT_MAX_TOKENS, SETTINGS
from sterna.cli.terminal import VISIBLE
from sterna.cli.word_wrap import WordWrap, columns_of
from sterna.errors import ModelFormatError, RequestError, shown
from sterna.files.jsonfile import parse_json
from sterna.files.reading import read_file, require_regular
from sterna.files.writing import replacing
from sterna.images import load_image
from sterna.llm.conversation import Conversation
from sterna.llm.generation_config import chat_sampling
from sterna.outputs import Delta
from sterna.sampling_params import SamplingParams

__all__ = ["Session"]

MAX_FILE_BYTES = 64 << 20


class Session:
    """A conversation on a terminal (interactive) or in a pipe.

    options: sampling options of `LLM.generate`. Without a seed, one is drawn for the session;
    /settings shows it, and --seed with it repeats the conversation. Answers go to stdout, notices
    to stderr.
    """

    def __init__(
        self,
        conversation: Conversation,
        options: dict[str, Any],
        *,
        stats: bool = False,
        interactive: bool = False,
    ) -> None:
        self.conversation = conversation
        self.options: dict[str, Any] = options
        self.stats = stats
        self.interactive = interactive
        self.retries: int = 0
        self._images: list[str] = []  # of the next message
        self._seed = SamplingParams.fresh_seed()
        self._reasoned = False  # whether reasoning was the last that was printed
        self._answer_wrap = WordWrap(lambda: columns_of(sys.stdout) if interactive else 0)
        self._reasoning_wrap = WordWrap(lambda: columns_of(sys.stderr) if interactive else 0)

    def note(self, text: str, newline: bool = True) -> None:
        """Print a notice, dimmed on a terminal with colours."""
        plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
        text = text.translate(VISIBLE) if sys.stderr.isatty() else text
        click.echo(text if plain else click.style(text, dim=True), nl=newline, err=True)

    def greet(self) -> None:
        """Print the first line: the model, and how to get help."""
        info = self.conversation.llm.info()
        self.note(
            f"{info['model']}: {weights(info)}, context {info['context']}, "
            f"{info['threads']} threads, {info['isa']}. /help lists commands; Ctrl-D leaves."
        )

    def take(self, text: str) -> bool:
        """Run a turn or a command; False after /exit. Of two slashes, the text keeps one."""
        if self.interactive:
            dropped, text = take_dropped(text)
            for path in dropped:
                self._image(path)
        if text.startswith("/") and not text.startswith("//"):
            name, _, argument = text.partition(" ")
            return self._command(name.strip(), argument.strip())
        if text.strip():
            self.retries = 0
            text = text.removeprefix("/") if text.startswith("//") else text
            images, self._images = self._images, []
            self.answer(message_content(text, images))
        return True

    def settings(self) -> dict[str, tuple[Any, str]]:
        """Return the value and the source of every setting that has a value."""
        model = self.conversation.llm.defaults
        layers = (
            (self.options, "set"),
            ({"seed": self._seed}, "drawn"),
            (model, "the model's"),
            (chat_sampling(model, self.options), "default of chat"),
            ({"max_tokens": CHAT_MAX_TOKENS}, "default of chat"),
        )
        rows = {}
        for name in SETTINGS:
            for values, origin in layers:
                if values.get(name) is not None:
                    rows[name] = values[name], origin
                    break
        return rows

    # --------------------------------------------------------------------------------- answers

    def answer(self, content: str | list[dict[str, Any]]) -> None:
        """Print an answer while it is computed. Ctrl-C on a terminal stops it."""
        options = {**self.options, **{name: value for name, (value, _) in self.settings().items()}}
        options["seed"] = (options["seed"] + self.retries) % (1 << 64)
        pieces = self.conversation.stream(content, **options)
        if self.conversation.dropped:
            self.note(
                f"context full: forgot the oldest {self.conversation.dropped} exchange(s); "
                "/reset starts anew"
            )
        stopped, parser = False, pieces.completion.parser()
        self._reasoned = False
        try:
            for piece in awaited(self.conversation.llm, pieces):
                self._show(parser.feed(piece.text))
        except KeyboardInterrupt:
            if not self.interactive:
                raise
            stopped = True
        finally:
            pieces.close()
            self._show(parser.end())
            self._end_reasoning()
            self._write(self._answer_wrap.end() + "\n")
        self._explain(stopped)

    def _show(self, deltas: list[Delta]) -> None:
        """Print parts of an answer: content to stdout, reasoning to stderr as a notice."""
        for delta in deltas:
            if delta.kind == "reasoning_content":
                self._reasoned = True
                self.note(self._reasoning_wrap.feed(delta.text), newline=False)
                continue
            if self._reasoned:
                self._end_reasoning()
                self.note("\n")
            visible = delta.text.translate(VISIBLE) if sys.stdout.isatty() else delta.text
            self._write(self._answer_wrap.feed(visible))

    def _end_reasoning(self) -> None:
        if self._reasoned:
            self.note(self._reasoning_wrap.end(), newline=False)
            self._reasoned = False

    def _write(self, text: str) -> None:
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))
        sys.stdout.buffer.flush()

    def _explain(self, stopped: bool) -> None:
        """Say why an answer was cut off and, with --stats, its speed."""
        done, llm = self.conversation.last, self.conversation.llm
        if stopped:
            state = "it stays as it is; /retry or /undo" if done.text else "nothing was said yet"
            self.note(f"[stopped: {state}]")
        elif done.finish_reason == "length" and self.interactive:
            used = done.prompt_tokens + len(done.tokens)
            full = used >= llm.context and self.conversation.context_overflow != "shift"
            reason = (
                f"the context of {llm.context} tokens is full; /reset, or start with --context"
                if full
                else f"{len(done.tokens)} tokens; /set max_tokens"
            )
            self.note(f"[cut off: {reason}]")
        if self.stats:
            self._stats("")

    # -------------------------------------------------------------------------------- commands

    def _command(self, name: str, argument: str) -> bool:
        command = {"/quit": "/exit", "/?": "/help"}.get(name, name)
        if command == "/exit":
            return False
        names = {usage.split()[0] for usage in COMMANDS}
        if command not in names:
            raise RequestError(
                f"command: must be one of {', '.join(sorted(names))}, but got {shown(name)}; "
                "two slashes begin a message with one"
            )
        getattr(self, f"_{command[1:]}")(argument)
        return True

    def _help(self, _: str) -> None:
        width = max(map(len, COMMANDS))
        keys = (
            'Enter sends; Alt-Enter or Esc Enter starts a new line; """ begins and ends a text '
            "of several lines.\nCtrl-C stops an answer; Ctrl-D leaves; the arrows find what you "
            "wrote before."
        )
        self.note("\n".join([*(f"{u:{width}}  {what}" for u, what in COMMANDS.items()), keys]))

    def _reset(self, _: str) -> None:
        self.conversation.reset(system=self.conversation.system)
        self.note("a new conversation")

    def _system(self, text: str) -> None:
        if text:
            self.conversation.system = None if text == "-" else text
        self.note(f"system prompt: {self.conversation.system or 'none'}")

    def _image(self, file: str) -> None:
        path = _path("/image", file)
        _ = self.conversation.llm.renderer.images.processor  # RequestError if text-only
        image = load_image(path)
        self._images.append(str(path))
        self.note(f"{path}: {image.width} x {image.height}, goes with your next message")

    def _undo(self, _: str) -> None:
        text = self.conversation.undo()
        self.note("nothing to take back" if text is None else f"taken back: {text[:200]}")

    def _retry(self, _: str) -> None:
        before = self.conversation.messages
        text = self.conversation.undo()
        if text is None:
            self.note("nothing to answer again")
            return
        self.retries += 1
        without = self.conversation.messages
        try:
            self.answer(before[len(without)]["content"])
        finally:
            if self.conversation.messages == without:  # stopped before the first word
                self.conversation.messages = before

    def _set(self, argument: str) -> None:
        name, _, value = argument.replace("=", " ", 1).partition(" ")
        if not name:
            self._settings("")
            return
        name = name.replace("-", "_")
        if name not in SETTINGS:
            raise RequestError(f"/set: must be one of {', '.join(SETTINGS)}, but got {shown(name)}")
        options = dict(self.options)
        if value.strip() == "-":
            options.pop(name, None)
        else:
            try:
                options[name] = SETTINGS[name](value)
            except ValueError:
                raise RequestError(
                    f"/set {name}: must be a number, but got {shown(value)}"
                ) from None
        self.conversation.llm.requests.check_options(options)
        self.options = options
        value, origin = self.settings().get(name, ("off", "default"))
        self.note(f"{name} {value} ({origin})")

    def _settings(self, _: str) -> None:
        self.note(", ".join(f"{n} {v} ({why})" for n, (v, why) in self.settings().items()))

    def _stats(self, _: str) -> None:
        done = self.conversation.last
        stats = done.stats
        if not stats.n_generated:
            self.note("no answer yet")
            return
        context = self.conversation.llm.context
        used = min(stats.n_prompt + stats.n_generated, context)  # a shifted one leaves tokens out
        self.note(
            f"{stats.n_generated} tokens, first after {stats.ttft_s * 1e3:.0f} ms, then "
            f"{stats.decode_tok_s:.1f} tok/s; prompt {stats.n_prompt} tokens, {stats.n_cached} of "
            f"them computed before; context {used} of {context}"
            f"{disk_use(self.conversation.llm)}"
        )

    def _save(self, file: str) -> None:
        path = _path("/save", file)
        value = {"model": self.conversation.llm.name, "messages": self.conversation.messages}
        text = json.dumps(value, ensure_ascii=False, indent=2) + "\n"
        data = text.encode("utf-8", "surrogatepass")
        if os.path.exists(path):
            require_regular(path)
        with replacing(path, len(data), 0o600) as out:  # readable by its owner only
            out.write(data)
        self.note(f"saved to {path}")

    def _load(self, file: str) -> None:
        path = _path("/load", file)
        messages = read_messages(path)
        self.conversation.messages = messages
        self.note(f"{len(messages)} messages from {path}")


def _path(command: str, file: str) -> Path:
    if not file or "\0" in file:
        raise RequestError(f"{command}: needs a file's name; try {command} chat.json")
    return Path(os.path.expanduser(file))


def read_messages(path: Path) -> list[dict[str, Any]]:
    """Read the messages of a file that /save wrote, or of a JSON list; RequestError."""
    require_regular(path)
    try:
        value = parse_json(read_file(path, MAX_FILE_BYTES), path)
    except ModelFormatError as error:
        raise RequestError(f"{error}; use what /save wrote") from None
    messages: Any = value.get("messages") if isinstance(value, dict) else value
    if messages != []:
        check_messages(messages)
    return [dict(message) for message in messages]
