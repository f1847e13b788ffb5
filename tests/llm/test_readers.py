"""`LLM` from several threads, and with arguments of a wrong type: an answer or a RequestError."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers import failure
from waits import HANGS_S

from sterna import LLM, Conversation, Piece
from sterna.errors import RequestError
from sterna.outputs import Completion, Stream

PROMPT = "def read_lines(path):"


@pytest.fixture(scope="module")
def llm(checkpoint: Callable[[str], Path]) -> LLM:
    return LLM(checkpoint("bitnet-multiply"), threads=1, context=128)


def test_threads_that_share_a_stream(llm: LLM) -> None:
    """A thread gets an error while another's piece is made; all pieces together are one answer."""
    options: dict[str, Any] = {"max_tokens": 60, "temperature": 0, "ignore_eos": True}
    expected = llm.generate(PROMPT, **options)
    stream = llm.stream(PROMPT, **options)
    pieces: list[Piece] = []
    errors: list[str] = []

    def read() -> None:
        while True:
            try:
                pieces.append(next(stream))
            except StopIteration:
                return
            except RequestError as error:
                errors.append(str(error))

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    tokens = [piece.token for piece in pieces][: len(expected.tokens)]  # a rest of text may follow
    assert sorted(tokens) == sorted(expected.tokens)
    done = stream.completion
    assert (done.text, done.tokens) == (expected.text, expected.tokens)
    assert all("one thread" in error for error in errors)


def test_a_stream_in_the_middle_of_a_piece() -> None:
    """Nobody else reads or closes it; afterwards anybody may, and closing twice is harmless."""
    entered, leave = threading.Event(), threading.Event()

    def pieces() -> Generator[Piece, None, None]:
        entered.set()
        assert leave.wait(HANGS_S)
        yield Piece("a", 1)
        yield Piece("b", 2)

    stream, pieces_read = Stream(pieces(), Completion()), list[Piece]()
    reader = threading.Thread(target=lambda: pieces_read.append(next(stream)))
    reader.start()
    assert entered.wait(HANGS_S)
    failure(stream.close, RequestError, "one thread")
    failure(lambda: next(stream), RequestError, "one thread")
    leave.set()
    reader.join()
    stream.close()
    stream.close()
    assert ([piece.text for piece in pieces_read], list(stream)) == (["a"], [])


def test_options_of_generate(llm: LLM) -> None:
    """All that it takes are good, and checked, without an answer."""
    llm.requests.check_options(
        {"max_tokens": 3, "prediction": "x = 1", "constraint": None, "adapter": None}
    )
    failure(lambda: llm.requests.check_options({"prediction": ["x"]}), RequestError, "prediction")
    failure(lambda: llm.requests.check_options({"constraint": "a"}), RequestError, "constraint")
    failure(lambda: llm.requests.check_options({"adapter": "none"}), RequestError, "adapter")
    failure(
        lambda: llm.requests.check_options({"tokens": 3}),
        RequestError,
        "unknown option",
        "'tokens'",
    )


@pytest.mark.parametrize("wrong", [None, 5, "a", [1.5], object()])
def test_wrong_types(llm: LLM, wrong: Any) -> None:
    """The error names the argument, also of what few people call."""
    messages = [{"role": "user", "content": "x"}]
    failure(lambda: llm.requests.check_options(wrong), RequestError, "options")
    failure(lambda: llm.tokenizer.decode(wrong), RequestError, "id")
    failure(lambda: llm.generate(PROMPT, ignore_eos=[wrong]), RequestError, "ignore_eos")
    failure(
        lambda: llm.chat_prompt(messages, continue_final_message=wrong),
        RequestError, "continue_final_message",
    )  # fmt: skip
    failure(lambda: Conversation(wrong), RequestError, "LLM")
    failure(lambda: setattr(Conversation(llm), "messages", wrong), RequestError, "messages")
    for name in ("deterministic", "cache", "head", "context"):
        failure(partial(LLM, "nano", **{name: [wrong]}), RequestError, name)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("max_model_len", "did you mean context?"),
        ("n_ctx", "did you mean context?"),
        ("kv_cache_dtype", "did you mean kv_dtype?"),
        ("thread", "did you mean threads"),
        ("temperature", "option of generate and chat"),
        ("gpu_layers_to_offload", "there are activations, adapter, cache"),
    ],
)
def test_arguments_of_other_libraries(name: str, remedy: str) -> None:
    """The constructor answers those of vLLM, transformers and llama.cpp with its own."""
    arguments: dict[str, Any] = {name: 1}
    failure(lambda: LLM("nano", **arguments), RequestError, f"unknown argument '{name}'", remedy)
