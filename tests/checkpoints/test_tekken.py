"""tekken.json alone: its ids by the published rule, its template, and what is refused."""

from __future__ import annotations

import base64
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import saved_models
from helpers import failure
from hypothesis import given
from hypothesis import strategies as st
from model_configs import Saved
from tool_calls import tool

from sterna import LLM
from sterna.checkpoints.assets import FolderAssets
from sterna.checkpoints.hub.choose import choose
from sterna.checkpoints.hub_names import HubName
from sterna.convert import convert
from sterna.errors import ModelFormatError
from sterna.gguf.pre_tokenizers import TEKKEN
from sterna.llm.tool_call_formats import format_of

SPECIAL = [
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]",
    "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
]  # fmt: skip
LATER = [*SPECIAL, "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"]
N_SPECIAL = 40
PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WORDS = [
    "ab",
    "aa",
    "aaa",
    " a",
    "ba",
    "bab",
    " ab",
    "ab ab",
    "  ",
    "é",
    "12",
    "\n\n",
    "abab",
    "cut",
]
TOKENS = [*(bytes([i]) for i in range(256)), *(word.encode() for word in WORDS)]
SIZE = N_SPECIAL + len(TOKENS) - 1  # the last one, "cut", is cut off


def content(version: str = "v13") -> dict[str, Any]:
    """A file as Mistral's library reads it."""
    vocab = [
        {"rank": i, "token_bytes": base64.b64encode(t).decode(), "token_str": None}
        for i, t in enumerate(TOKENS)
    ]
    special = [
        {"rank": i, "token_str": t, "is_control": True}
        for i, t in enumerate(SPECIAL if version == "v7" else LATER)
    ]
    config = {
        "pattern": PATTERN, "num_vocab_tokens": len(TOKENS), "default_vocab_size": SIZE,
        "default_num_special_tokens": N_SPECIAL, "version": version,
    }  # fmt: skip
    return {"config": config, "vocab": vocab, "special_tokens": special}


def folder_of(folder: Path, file: dict[str, Any]) -> FolderAssets:
    folder.mkdir(exist_ok=True)
    (folder / "tekken.json").write_text(json.dumps(file))
    return FolderAssets.of(folder, {})


def published_rule(word: bytes) -> list[int]:
    """A word that is a token; else the two neighbours of the lowest joined rank merge first."""
    ranks = {token: rank for rank, token in enumerate(TOKENS[:-1])}
    if word in ranks:
        return [ranks[word] + N_SPECIAL]
    parts = [bytes([byte]) for byte in word]
    while True:
        joined = [(ranks.get(a + b, SIZE), i) for i, (a, b) in enumerate(pairwise(parts))]
        rank, i = min(joined, default=(SIZE, 0))
        if rank == SIZE:
            return [ranks[part] + N_SPECIAL for part in parts]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


@pytest.fixture(scope="module")
def assets(tmp_path_factory: pytest.TempPathFactory) -> FolderAssets:
    return folder_of(tmp_path_factory.mktemp("tekken"), content())


@given(st.lists(st.sampled_from(["a", "b", "ab ", " a", "é", "1", "12", "\n", "cut", "?"])))
def test_ids_are_those_of_the_rule(assets: FolderAssets, parts: list[str]) -> None:
    text = "".join(parts)
    plain = r"[^\r\na-zé0-9]?[a-zé]+|[0-9]| ?[^\sa-zé0-9]+|\s+(?!\S)|\s+"
    words = re.findall(plain, text)
    assert "".join(words) == text
    tokenizer = assets.tokenizer()
    ids = tokenizer.encode(text)
    assert ids == [1, *(id for word in words for id in published_rule(word.encode()))]
    assert tokenizer.decode(ids) == text


def test_special_tokens_and_sizes(assets: FolderAssets) -> None:
    tokenizer = assets.tokenizer()
    assert assets.has_tokenizer
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.vocab_size) == (1, (2,), SIZE)
    assert tokenizer.encode("[INST]ab[THINK]</s>", add_special=False) == [3, 296, 22, 2]
    assert tokenizer.token_id(f"<SPECIAL_{N_SPECIAL - 1}>") == N_SPECIAL - 1
    assert tokenizer.encode("cut", add_special=False) == [40 + ord(c) for c in "cut"]
    with assets.as_folder() as folder:  # what a packed copy has
        same = FolderAssets.of(folder, {})
        assert (folder / "tokenizer.json").exists()
        assert same.tokenizer().digest == tokenizer.digest
        own, copied = assets.template(), same.template()
        assert own is not None
        assert copied is not None
        assert own.source == copied.source


def test_files_without_a_list(tmp_path: Path) -> None:
    """Versions up to 7 have the first twenty special tokens."""
    file = content("v7")
    del file["special_tokens"]
    assert folder_of(tmp_path, file).tokenizer().token_id("[TOOL_CONTENT]") == 19


def test_a_template_of_the_folder_is_used(tmp_path: Path) -> None:
    folder_of(tmp_path, content())
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}")
    template = FolderAssets.of(tmp_path, {}).template()
    assert template is not None
    assert template.render([{"role": "user", "content": "x"}]) == "<s>x"
    (tmp_path / "chat_template.jinja").unlink()
    assert folder_of(tmp_path, content("v99")).template() is None


# ------------------------------------------------------------------------------------ conversations

TOOL = tool("f", {"type": "object", "properties": {"x": {"type": "string"}}})
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {"x": "é"}}}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
    {"role": "assistant", "content": "ok ", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "abcdefghi", "content": '{"t": 20}'},
    {"role": "assistant", "content": "20 "},
    {"role": "user", "content": " more "},
]
TOOLS = (
    '[AVAILABLE_TOOLS][{"type": "function", "function": {"name": "f", "description": "Tries a '
    'call.", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}}}]'
    "[/AVAILABLE_TOOLS]"
)
SYSTEM = "<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT]"
# As mistral-common 1.13.1 writes them.
PROMPTS = {
    "v7": SYSTEM + "[INST]one\n\ntwo[/INST]ok"
    '[TOOL_CALLS][{"name": "f", "arguments": {"x": "é"}, "id": "abcdefghi"}]</s>'
    '[TOOL_RESULTS]abcdefghi[TOOL_CONTENT]{"t": 20}[/TOOL_RESULTS]20</s>'
    + TOOLS + "[INST] more [/INST]",
    "v11": SYSTEM + "[INST]one\n\ntwo[/INST]ok"
    '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"x": "é"}</s>'
    '[TOOL_RESULTS]abcdefghi[TOOL_CONTENT]{"t": 20}[/TOOL_RESULTS]20</s>'
    + TOOLS + "[INST] more [/INST]",
    "v13": SYSTEM + TOOLS + '[INST]one\n\ntwo[/INST]ok[TOOL_CALLS]f[ARGS]{"x": "é"}</s>'
    '[TOOL_RESULTS]{"t": 20}[/TOOL_RESULTS]20</s>[INST] more [/INST]',
}  # fmt: skip


@pytest.mark.parametrize("version", PROMPTS)
def test_prompts_are_those_of_mistral(version: str, tmp_path: Path) -> None:
    template = folder_of(tmp_path, content(version)).template()
    assert template is not None
    assert template.render(TALK, tools=[TOOL]) == PROMPTS[version]
    assert template.takes_tools
    assert format_of(template).trigger == "[TOOL_CALLS]"
    marks = template.reasoning_marks
    assert (marks is not None) == (version == "v13")
    thought = {"role": "assistant", "content": "yes", "reasoning_content": "hm"}
    written = template.render([TALK[-1], thought, TALK[-1]])
    assert ("[THINK]hm[/THINK]yes</s>" in written) == (version == "v13")


def test_a_model_with_it_talks(tmp_path: Path) -> None:
    """So do its packed copy and its GGUF file, which have the same ids."""
    sizes = {"vocab_size": SIZE, "bos_token_id": 1, "eos_token_id": 2}
    saved_models.write(tmp_path / "m", Saved("LlamaForCausalLM", sizes))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "m" / name).unlink()
    file = content()
    file["config"]["pattern"] = TEKKEN
    folder_of(tmp_path / "m", file)
    convert(tmp_path / "m", tmp_path / "packed", None)
    convert(tmp_path / "m", tmp_path / "m.gguf", "gguf:F32")
    talk = [{"role": "user", "content": "ab cut é 12\n\n"}]
    llms = [LLM(tmp_path / name, threads=1, cache=False) for name in ("m", "packed", "m.gguf")]
    answers = []
    for llm in llms:
        answers.append(llm.chat(talk, max_tokens=5))
        assert llm.tokenizer.encode("ab[INST]bab\n") == llms[0].tokenizer.encode("ab[INST]bab\n")
    assert answers[0].tokens == answers[1].tokens == answers[2].tokens
    prompt = f"[INST]{talk[0]['content']}[/INST]"
    assert {done.prompt_tokens for done in answers} == {len(llms[0].tokenizer.encode(prompt))}


# ---------------------------------------------------------------------------------------- refusals


def changed(path: str, value: Any) -> dict[str, Any]:
    file = content()
    *parts, last = path.split(".")
    place: Any = file
    for part in parts:
        place = place[int(part)] if isinstance(place, list) else place[part]
    place[int(last) if isinstance(place, list) else last] = value
    return file


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("config", None, "default_num_special_tokens"), ("config.pattern", 5, "config.pattern"),
        ("config.default_vocab_size", -1, "default_vocab_size"), ("config.version", 3, "version"),
        ("config.default_vocab_size", SIZE + 5, "vocab"), ("vocab", {}, "vocab"),
        ("vocab.262", None, "vocab.262"), ("vocab.5.rank", 6, "vocab.5"),
        ("vocab.5.token_bytes", "AA==", "vocab.5"), ("vocab.260.token_bytes", "?", "vocab.260"),
        ("vocab.260.token_bytes", "", "vocab.260"), ("special_tokens", 3, "special_tokens"),
        ("special_tokens.2.token_str", 5, "special_tokens.2"), ("config.pattern", "(", "error"),
        ("special_tokens.2.token_str", "<s>", "vocab"), ("vocab.260.token_bytes", "YWI=", "vocab"),
        ("config.default_num_special_tokens", 3, "special_tokens"),
    ],
)  # fmt: skip
def test_damaged_files(path: str, value: Any, named: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, changed(path, value))
    failure(folder.tokenizer, ModelFormatError, "tekken.json", named)


def test_the_hub_sends_it_where_there_is_no_other() -> None:
    files = dict.fromkeys(("config.json", "model.safetensors", "tekken.json"), 10)
    name = HubName("mistralai/x")
    assert "tekken.json" in choose(name, files).files
    assert "tekken.json" not in choose(name, {**files, "tokenizer.json": 10}).files
