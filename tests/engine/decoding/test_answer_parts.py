"""Reasoning and content of an answer: stop strings end the content alone, and tokens of reasoning
are counted, from pieces of any length."""

from __future__ import annotations

from typing import Any

import pytest
from tool_calls import byte_tokenizer

from sterna import _native
from sterna.chat import ChatTemplate
from sterna.chat.reasoning import ReasoningState
from sterna.engine.decoding.answer_parts import AnswerParts, PartMarks
from sterna.engine.decoding.answer_text import AnswerText
from sterna.llm.answer_format import AnswerFormat
from sterna.llm.tool_call_formats import functionary, harmony, muse, solar
from sterna.llm.tool_choice import ToolChoice
from sterna.outputs import Completion
from sterna.sampling_params import SamplingParams
from sterna.tokenizer import Tokenizer

THINK = ChatTemplate.from_source("{{ '<think>' if x else '</think>' }}", {})
FREE, OPENED, CLOSED = ReasoningState.FREE, ReasoningState.OPENED, ReasoningState.CLOSED


def marks(state: ReasoningState = FREE, template: ChatTemplate | None = THINK) -> PartMarks:
    return AnswerFormat(template, ToolChoice(), state).part_marks


def of_family(module: Any) -> PartMarks:
    """The marks of answers that consist of messages."""
    own = module.FORMAT.messages
    said = f"{own.starts or own.ends}{own.content}{{{{ m.content }}}}{own.ends}"
    template = ChatTemplate.from_source(f"{{% for m in messages %}}{said}{{% endfor %}}", {})
    return marks(FREE, template)


def parts(of: PartMarks, text: str, step: int) -> dict[str, str]:
    """The text of each kind."""
    made, found = AnswerParts(of), dict[str, str]()
    pieces = [text[i : i + step] for i in range(0, len(text), step)]
    for i, piece in enumerate(pieces):
        for kind, some in made.split(piece, i == len(pieces) - 1):
            found[kind] = found.get(kind, "") + some
    assert sum(map(len, found.values())) == len(text)
    return found


CASES = (
    (marks(), "<think>a\n</think>\n\nb\n", "<think>a\n</think>\n\n", "b\n"),
    (marks(), "\n<think>a", "\n<think>a", ""),
    (marks(), "<thing>a</think>", "", "<thing>a</think>"),
    (marks(), "<thi", "", "<thi"),
    (marks(OPENED), "a<think>b</think>c</think>", "a<think>b</think>", "c</think>"),
    (marks(CLOSED), "a</think>b", "", "a</think>b"),
    (marks(CLOSED, None), "a<think>b", "", "a<think>b"),
    (of_family(solar), "<|think|>a<|end|><|begin|>assistant<|content|>b", "a<|end|>", "b"),
    (of_family(functionary), "all\nb", "", "b"),
    (
        of_family(harmony),
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b",
        "a<|end|>", "b",
    ),
    (of_family(harmony), "plain", "", "plain"),
    (of_family(harmony), "<|channel|>commentary to=functions.f <|message|>{}", "", ""),
    (of_family(muse), " to=self<|message|>a<|eom|><|start|>assistant to=user<|message|>b",
     "a<|eom|>", "b"),
)  # fmt: skip


@pytest.mark.parametrize("step", [1, 3, 100])
@pytest.mark.parametrize("case", CASES, ids=[case[1][:24] for case in CASES])
def test_kinds(case: tuple[PartMarks, str, str, str], step: int) -> None:
    of, text, reasoning, content = case
    found = parts(of, text, step)
    assert (found.get("reasoning", ""), found.get("content", "")) == (reasoning, content)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("bytes")
    return byte_tokenizer(folder, ["<think>", "</think>", "<eos>"], "<eos>")


def answered(tokenizer: Tokenizer, text: str, stop: tuple[str, ...], of: PartMarks) -> Completion:
    """The completion of an answer of these tokens."""
    ids = tokenizer.encode(text, add_special=False)
    done = Completion()
    visible = tokenizer.special_in("<think></think>")
    answer = AnswerText(tokenizer, [], SamplingParams(stop=stop), done, visible, of)
    pieces = ""
    for id in ids:
        pieces += answer.add(_native.SampleResult(id)).text
        if answer.stopped:
            break
    pieces += "".join(piece.text for piece in answer.finish("length"))
    assert pieces == done.text
    return done


def test_stop_strings_mean_content(tokenizer: Tokenizer) -> None:
    for text, stop, whole, n_reasoning in (
        ("<think>a.\n\nb.</think>\n\nc. d\n\ne", ("\n\n",), "<think>a.\n\nb.</think>\n\nc. d", 8),
        ("<think>a.", (".",), "<think>a.", 3),
        ("a. b", (".",), "a", 0),
        ("<think>a</think>b", ("think", "</think>"), "<think>a</think>b", 3),
        ("x<think>y", ("k>",), "x<think>y"[:6], 0),
    ):
        done = answered(tokenizer, text, stop, marks())
        assert done.text == whole, text
        assert done.stats.n_reasoning == n_reasoning, text
        ended = whole != text
        assert (done.finish_reason, done.stop_string is not None) == (
            "stop" if ended else "length", ended
        ), text  # fmt: skip
