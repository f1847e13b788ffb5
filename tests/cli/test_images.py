"""Images on the command line: --image, /image, paths that are dropped, files of prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import seeing_folders
from click.testing import CliRunner, Result
from seeing_folders import data_url, png

from sterna import LLM, Conversation
from sterna.cli import main
from sterna.cli.chat_images import message_content, take_dropped
from sterna.cli.chat_session import Session
from sterna.errors import RequestError

OPTIONS = {"max_tokens": 6, "temperature": 0.0, "seed": 1}
SHORT = ("--max-tokens", "6", "--temperature", "0", "--threads", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seeing_folders.write(tmp_path_factory.mktemp("seeing"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, threads=1, cache=False)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    file = tmp_path / "my photo.png"
    file.write_bytes(png())
    return file


def generate(folder: Path | str, *args: str) -> Result:
    return CliRunner().invoke(main, ["generate", "--model", str(folder), *SHORT, *args])


def test_generate_shows_images(folder: Path, llm: LLM, image: Path) -> None:
    said = [{"role": "user", "content": message_content("What?", [str(image)])}]
    expected = llm.chat(said, max_tokens=6, temperature=0.0)
    result = generate(folder, "--image", str(image), "What?")
    assert result.exit_code == 0, result.output
    assert result.stdout == expected.text
    result = generate(folder, "--image", str(image), "--json", "What?")
    (row,) = json.loads(result.stdout)
    assert row["tokens"] == expected.tokens
    assert row["prompt_tokens"] == expected.stats.n_prompt


def test_a_model_of_text(image: Path) -> None:
    result = generate("nano", "--image", str(image), "What?")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "reads only text; use a model that sees" in result.stderr


def test_a_file_that_is_no_image(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("<html>")
    result = generate(folder, "--image", str(tmp_path / "a.png"), "What?")
    assert result.exit_code == 2
    assert "must be PNG, JPEG" in result.stderr
    assert generate(folder, "--image", str(tmp_path / "none.png"), "What?").exit_code == 2


def test_files_of_prompts(folder: Path, llm: LLM, image: Path, tmp_path: Path) -> None:
    contents = [message_content("What?", [str(image)]), [
        {"type": "image_url", "image_url": {"url": data_url(png())}},
        {"type": "text", "text": "What?"},
    ], message_content("What?", ["/nowhere.png"])]  # fmt: skip
    lines = [json.dumps({"messages": [{"role": "user", "content": one}]}) for one in contents]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    result = generate(folder, "--file", str(tmp_path / "in.jsonl"))
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    expected = llm.chat([{"role": "user", "content": contents[0]}], max_tokens=6, temperature=0.0)
    assert [row.get("text") for row in rows] == [expected.text, expected.text, None]
    assert "must be a file, but got nothing" in rows[2]["error"]


def session(llm: LLM, interactive: bool = True) -> Session:
    return Session(Conversation(llm), dict(OPTIONS), interactive=interactive)


def contents(session: Session) -> list[object]:
    messages = session.conversation.messages
    return [one["content"] for one in messages if one["role"] == "user"]


def test_the_image_command(
    llm: LLM, image: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    talk = session(llm)
    assert talk.take(f"/image {image}")
    assert "40 x 30" in capsys.readouterr().err
    assert talk.take("What?")
    assert talk.take("And now?")
    assert contents(talk) == [message_content("What?", [str(image)]), "And now?"]
    talk.take(f"/save {tmp_path / 'chat.json'}")
    again = session(llm)
    again.take(f"/load {tmp_path / 'chat.json'}")
    assert again.conversation.messages == talk.conversation.messages
    talk.take("/undo")
    talk.take("/retry")  # with its image
    assert contents(talk) == [message_content("What?", [str(image)])]
    with pytest.raises(RequestError, match="must be a file"):
        talk.take("/image /nowhere.png")
    with pytest.raises(RequestError, match="reads only text"):
        session(LLM("nano", threads=1)).take(f"/image {image}")


def test_dropped_paths(llm: LLM, image: Path) -> None:
    path = str(image)
    escaped = path.replace(" ", "\\ ")
    for written in (f"'{path}'", f'"{path}"', escaped, f"file://{escaped}"):
        assert take_dropped(f"{written} What is it?") == ([path], "What is it?")
        assert take_dropped(f"What is it? {written} ") == ([path], "What is it?")
        assert take_dropped(f"{written} {written}") == ([path, path], "")
    for text in ("/help", "/nowhere/a.png what", "see a.png", "/etc/passwd", "", f"x{escaped}"):
        assert take_dropped(text) == ([], text)
    talk = session(llm)
    assert talk.take(f"{escaped} What?")
    assert contents(talk) == [message_content("What?", [path])]
    with pytest.raises(RequestError, match="command: must be one of"):
        session(llm, interactive=False).take(f"{escaped} What?")  # text of a pipe stays text
