"""`sterna chat`: a conversation, typed or piped in."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from sterna.cli.decorators import flag, option
from sterna.cli.option_groups import grouped_command
from sterna.cli.options import (
    chat_template_option,
    context_overflow_option,
    drafting_options,
    model_options,
    open_model,
    refuse_model,
)
from sterna.cli.sampling_options import CHAT_MAX_TOKENS, sampling, sampling_options
from sterna.errors import RequestError, SternaError, reason, shown

if TYPE_CHECKING:
    from sterna.cli.chat_session import Session

MAX_LINE_BYTES = 64 << 20  # more than any context holds
QUOTES = '"""'


@grouped_command(
    short_help="Talk with a model.",
    context_settings={"default_map": {"max_tokens": CHAT_MAX_TOKENS}},
)
@click.argument("message", required=False)
@model_options
@chat_template_option
@drafting_options
@sampling_options
@option("--system", "System prompt.", metavar="TEXT")
@option(
    "--template-option template_options",
    "A variable of the chat template, such as enable_thinking=false; may be repeated.",
    multiple=True,
    metavar="NAME=VALUE",
)
@context_overflow_option("truncate-oldest-turn")
@flag("--stats", "Show the speed after every answer, as /stats does.")
def command(
    message: str | None,
    system: str | None,
    template_options: tuple[str, ...],
    context_overflow: str,
    stats: bool,
    **options: Any,
) -> None:
    """Talk with a model, or answer a single MESSAGE; /help lists the commands of a conversation.

    Enter sends, Alt-Enter starts a new line, Ctrl-C stops an answer, Ctrl-D leaves. A line of
    \"\"\" begins and ends a text of several lines. In a pipe, each line is a message, and stdout
    gets only the answers.
    """
    from sterna.cli.chat_session import Session
    from sterna.llm.conversation import Conversation

    refuse_model(message)
    rendering = _template_options(template_options)
    typed = message is None and sys.stdin.isatty() and sys.stdout.isatty()
    llm = open_model(options)
    if system is None:
        system = llm.prefix_text("system")
    conversation = Conversation(
        llm, system=system, template_options=rendering, context_overflow=context_overflow
    )
    # Fail now, before anything is typed, if there is no template or it refuses the system prompt.
    conversation.llm.chat_prompt(
        [*conversation.messages, {"role": "user", "content": "Hello"}],
        template_options=rendering,
    )
    asked = sampling(options)
    if (
        click.get_current_context().get_parameter_source("max_tokens")
        != ParameterSource.COMMANDLINE
    ):
        del asked["max_tokens"]  # the session has the same default, and shows it in /settings
    session = Session(conversation, asked, stats=stats, interactive=typed)
    if message is not None:
        session.take(message)
    elif typed:
        from sterna.cli.chat_input import MessageReader
        from sterna.files.system import without_echo

        session.greet()
        with without_echo():
            _talk(session, MessageReader(session.note).read)
    else:
        for text in _lines(sys.stdin.buffer):
            if not session.take(text):
                break


def _talk(session: Session, read: Callable[[], str]) -> None:
    """Run turns until Ctrl-D or /exit; an error ends only its turn."""
    while True:
        try:
            if not session.take(unquoted(read())):
                return
        except KeyboardInterrupt:  # at the prompt: drops the line, as a shell does
            session.note("Ctrl-D or /exit leaves")
        except EOFError:
            return
        except SternaError as error:
            session.note(" ".join(str(error).split()))
        except OSError as error:
            session.note(f"{error.filename or 'files'}: {reason(error)}")


def unquoted(text: str) -> str:
    """Return the text between triple quotes, or the whole text."""
    bare = text.strip()
    if bare.startswith(QUOTES) and bare.endswith(QUOTES) and len(bare) >= 2 * len(QUOTES):
        return bare[len(QUOTES) : -len(QUOTES)].strip("\n")
    return text.strip("\n")


def _lines(stdin: IO[bytes]) -> Iterator[str]:
    """Yield the messages of a pipe: lines, or texts between two lines of triple quotes."""
    block: list[str] | None = None
    while data := stdin.readline(MAX_LINE_BYTES + 1):
        if len(data) > MAX_LINE_BYTES:
            raise RequestError(f"stdin: a line must be at most {MAX_LINE_BYTES} bytes; shorten it")
        try:
            line = data.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise RequestError(
                f"stdin: must be UTF-8 text, but byte {error.start} of a line is not; convert it"
            ) from None
        if block is not None:
            if line.strip() == QUOTES:
                yield "\n".join(block)
                block = None
            else:
                block.append(line)
        elif line.strip() == QUOTES:
            block = []
        elif line.strip():
            yield unquoted(line)
    if block:
        yield "\n".join(block)


def _template_options(items: tuple[str, ...]) -> dict[str, Any] | None:
    """Parse NAME=VALUE; a value is JSON, or else text."""
    options: dict[str, Any] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals:
            raise RequestError(
                f"--template-option: must be NAME=VALUE, but got {shown(item)}; "
                "try --template-option enable_thinking=false"
            )
        try:
            options[name] = json.loads(value)
        except (ValueError, RecursionError):
            options[name] = value
    return options or None
