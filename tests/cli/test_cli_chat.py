"""`sterna chat`: what it answers from a pipe, and what its commands do."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from gguf_factory import Tiny, write

from sterna import LLM, Conversation
from sterna.chat import ChatTemplate
from sterna.cli import chat_session, main
from sterna.cli.chat_session import COMMANDS, Session
from sterna.errors import RequestError

SHORT = ("--max-tokens", "8", "--temperature", "0")


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("nano")


def run(*args: str, stdin: str | bytes) -> Result:
    return CliRunner().invoke(main, ["chat", *SHORT, *args], input=stdin)


def answers(llm: LLM, *texts: str, system: str | None = None) -> list[str]:
    with Conversation(llm, system=system) as chat:
        return [chat.ask(text, max_tokens=8, temperature=0).text for text in texts]


# ------------------------------------------------------------------------------------- from a pipe


def test_lines_of_a_pipe_are_turns(llm: LLM) -> None:
    result = run(stdin="import os\n\ndef f(x):\r\n")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "".join(a + "\n" for a in answers(llm, "import os", "def f(x):"))
    assert result.stderr == ""


def test_a_block_of_a_pipe_is_one_turn(llm: LLM) -> None:
    (expected,) = answers(llm, "import os\n\nx = 1")
    for text in ('"""\nimport os\n\nx = 1\n"""\n', '"""\nimport os\n\nx = 1'):
        assert run(stdin=text).stdout == expected + "\n"
    (expected,) = answers(llm, "/etc")
    assert run(stdin="//etc\n").stdout == expected + "\n"


def test_commands_of_a_pipe(llm: LLM, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    script = f"import os\n/save {file}\n/reset\n/system Numbers\nx = 1\n/stats\n/exit\nnever\n"
    result = run(stdin=script)
    assert result.exit_code == 0, result.stderr
    first, second = answers(llm, "import os")[0], answers(llm, "x = 1", system="Numbers")[0]
    assert result.stdout == f"{first}\n{second}\n"
    assert "a new conversation" in result.stderr
    assert "system prompt: Numbers" in result.stderr
    assert "tok/s; prompt" in result.stderr
    saved = json.loads(file.read_text())
    assert saved["messages"] == [
        {"role": "user", "content": "import os"},
        {"role": "assistant", "content": first},
    ]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    loaded = run(stdin=f"/load {file}\ndef f(x):\n")
    assert loaded.stdout == answers(llm, "import os", "def f(x):")[1] + "\n"


@pytest.mark.parametrize(
    ("args", "stdin", "part"),
    [
        ((), "/nonsense\n", "command: must be one of /exit"),
        ((), "/set size 3\n", "/set: must be one of temperature"),
        ((), "/set top_p x\n", "must be a number"),
        ((), "/set top_p 7\n", "top_p: must lie in"),
        ((), "/save\n", "/save: needs a file's name"),
        ((), "/load /dev/null\n", "must be a regular file"),
        ((), "/load missing.json\n", "missing.json"),
        ((), b"\xff\n", "must be UTF-8"),
        ((), "word " * 3000, "must fit the context of 1024 tokens"),
        (("--template-option", "x"), "x\n", "must be NAME=VALUE"),
        (("--template-option", "messages=[]"), "x\n", "template_options"),
        (("--top-p", "3"), "x\n", "top_p"),
    ],
)
def test_errors_of_a_pipe(args: tuple[str, ...], stdin: str | bytes, part: str) -> None:
    result = run(*args, stdin=stdin)
    assert result.exit_code == 2
    assert part in result.stderr
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output


@pytest.mark.parametrize("text", ["[", "3", "{}", '{"messages": [1]}', '[{"content": "x"}]', "\0"])
def test_files_that_are_no_conversations(tmp_path: Path, text: str) -> None:
    file = tmp_path / "chat.json"
    file.write_text(text)
    result = run(stdin=f"/load {file}\n")
    assert result.exit_code == 2
    assert result.stderr.startswith("sterna: ")


def test_a_model_without_a_template(folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    result = run("--model", str(folder), stdin="x\n")
    assert result.exit_code == 2
    assert "must have a chat template" in result.stderr
    assert "use generate, or give one (chat_template, --chat-template)" in result.stderr
    tiny, file = Tiny(keys={"tokenizer.chat_template": None}), tmp_path / "m.gguf"
    write(file, tiny)
    result = run("--model", str(file), stdin="x\n")
    assert "use generate, or give one (chat_template, --chat-template)" in result.stderr


def test_template_options_arrive(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(
        "{% if thinking %}{{ raise_exception('thinking ' ~ thinking) }}{% endif %}x"
    )
    result = run("--model", str(folder), "--template-option", "thinking=3", stdin="x\n")
    assert "thinking 3" in result.stderr
    result = run("--model", str(folder), "--template-option", "thinking=false", stdin="x\n")
    assert result.exit_code == 0, result.stderr


# ---------------------------------------------------------------------------------- one session


def session(llm: LLM, **options: Any) -> Session:
    return Session(
        Conversation(llm, context_overflow="truncate-oldest-turn"),
        {"max_tokens": 8, "temperature": 0, **options},
        interactive=True,
    )


def test_every_command_does_something(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    talk = session(llm)
    for usage in COMMANDS:
        name = usage.split()[0]
        if name in ("/save", "/load", "/image", "/exit"):
            continue
        capfd.readouterr()
        talk.take(name)
        assert capfd.readouterr().err, name
    assert not talk.take("/quit")


def test_undo_and_retry(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    talk = session(llm, temperature=1.0, seed=5, max_tokens=20)
    talk.take("import os")
    first = talk.conversation.messages
    texts = {first[1]["content"]}
    for _ in range(3):  # another seed each time, and the same ones the next time
        talk.take("/retry")
        texts.add(talk.conversation.last.text)
        assert len(talk.conversation.messages) == 2
    assert len(texts) == 4
    other = session(llm, temperature=1.0, seed=5, max_tokens=20)
    for text in ("import os", "/retry", "/retry", "/retry"):
        other.take(text)
    assert other.conversation.messages == talk.conversation.messages
    talk.take("/undo")
    assert talk.conversation.messages == []
    assert "taken back: import os" in capfd.readouterr().err


def test_settings(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    talk = session(llm)
    for command in ("/set max-tokens 3", "/set top_k=7", "/set temperature -"):
        talk.take(command)
    assert talk.options == {"max_tokens": 3, "top_k": 7}
    capfd.readouterr()
    talk.take("/set")
    said = capfd.readouterr().err
    assert "temperature 0.7 (the model's), top_k 7 (set)" in said
    talk.take("/settings")
    assert capfd.readouterr().err == said
    talk.take("import os")
    assert talk.conversation.last.stats.n_generated <= 3
    assert "[cut off: 3 tokens; /set max_tokens]" in capfd.readouterr().err


def test_sampling_where_nobody_says_how(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A model without settings of its own is sampled; the seed that was drawn repeats the chat."""
    llm = LLM(folder)
    assert llm.defaults == {}
    first = Session(Conversation(llm), {"max_tokens": 12})
    first.take("/settings")
    said = capfd.readouterr().err
    assert said.startswith(
        "temperature 0.8 (default of chat), min_p 0.05 (default of chat), max_tokens 12 (set), seed"
    )
    (seed,) = re.findall(r"seed (\d+) \(drawn\)", said)
    again = Session(Conversation(llm), {"max_tokens": 12, "seed": int(seed)})
    other = Session(Conversation(llm), {"max_tokens": 12, "seed": int(seed) + 1})
    for talk in (first, again, other):
        for text in ("import os", "/retry", "x = 1"):
            talk.take(text)
    assert again.conversation.messages == first.conversation.messages
    assert other.conversation.messages != first.conversation.messages


def test_reasoning_is_told_apart(capfd: pytest.CaptureFixture[str]) -> None:
    """On stderr, before the answer; also without one, since max_tokens cut it off."""
    llm = LLM("nano", threads=1)
    template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n"
        "{% if enable_thinking is false %}</think>{% endif %}"
    )
    llm.renderer.template = ChatTemplate.from_source(template, {})
    for most in (3, 30):
        asked: Any = {
            "max_tokens": most,
            "ignore_eos": True,
            "reasoning_budget": 5,
            "temperature": 0,
        }
        done = Conversation(llm).ask("def f(x):", **asked)
        assert done.reasoning
        assert bool(done.content) == (most == 30)
        session(llm, **asked).take("def f(x):")
        said = capfd.readouterr()
        assert said.out == f"{done.content}\n"
        assert done.reasoning.strip() in said.err


def test_a_full_context_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    talk = session(LLM("nano", context=64), max_tokens=16)
    for i in range(6):
        talk.take(f"value_{i} = compute(first, second, third)")
    assert "context full: forgot the oldest 1 exchange(s); /reset" in capfd.readouterr().err
    whole = session(LLM("nano", context=16), max_tokens=500)
    whole.take("import os")
    if whole.conversation.last.finish_reason == "length":
        assert "the context of 16 tokens is full" in capfd.readouterr().err


def test_a_stop_before_the_first_word_of_a_retry_changes_nothing(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = session(llm)
    talk.take("import os")
    before = talk.conversation.messages

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(llm.engine, "run", interrupted)
    talk.take("/retry")
    assert talk.conversation.messages == before
    talk.take("import re")
    assert talk.conversation.messages == before


def test_saving_is_whole_or_not_at_all(
    tmp_path: Path, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = session(llm)
    file = tmp_path / "chat.json"
    file.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(chat_session.os, "fsync", full)
    with pytest.raises(RequestError, match=r"chat\.json: .*No space"):
        talk.take(f"/save {file}")
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["chat.json"]
