"""Tokenizers of both families: ids, special tokens, incremental text, and damaged files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from sterna.errors import ModelFormatError, RequestError
from sterna.tokenizer import Detokenizer, Tokenizer

CORPUS = [
    "the quick brown fox\n    jumps over",
    "naïve café größe",
    "日本語 と 漢字",
    "def f(x):",
] * 5
SPECIAL = ["<s>", "</s>"]


def _byte_level() -> tokenizers.Tokenizer:
    built = tokenizers.Tokenizer(models.BPE())
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    built.train_from_iterator(CORPUS, trainer)
    built.add_tokens(["   ", "<tool>"])  # added, not special: spelt as they are
    return built


def _sentencepiece() -> tokenizers.Tokenizer:
    """Llama 2's kind: a space becomes "▁", one is put in front, unknown text becomes bytes."""
    words = ["▁", "▁the", "▁fox", "t", "h", "e", "f", "o", "x", "é", "日", "\n", "▁t", "▁f", "▁▁"]
    merges = [("▁", "t"), ("▁", "f"), ("▁t", "h"), ("▁th", "e"), ("▁f", "o"), ("▁fo", "x")]
    merges += [("▁", "▁")]
    spelt = [*SPECIAL, "<unk>", *(f"<0x{b:02X}>" for b in range(256)), *words, "▁th", "▁fo"]
    vocab = {token: id for id, token in enumerate(spelt)}
    bpe = models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True)
    built = tokenizers.Tokenizer(bpe)
    built.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    built.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1),
        ]
    )
    built.add_special_tokens(SPECIAL)
    return built


def _metaspace() -> tokenizers.Tokenizer:
    built = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    built.pre_tokenizer = pre_tokenizers.Metaspace()
    built.decoder = decoders.Metaspace()
    special = [*SPECIAL, "<unk>"]
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    built.train_from_iterator(CORPUS, trainer)
    return built


def _wordpiece() -> tokenizers.Tokenizer:
    """A decoder that the detokeniser has no spelling for."""
    words = ["<unk>", *SPECIAL, "the", "fox", "##es", "jump", "##s", ","]
    built = tokenizers.Tokenizer(
        models.WordPiece({word: id for id, word in enumerate(words)}, unk_token="<unk>")
    )
    built.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    built.decoder = decoders.WordPiece(cleanup=False)
    built.add_special_tokens(SPECIAL)
    return built


FAMILIES = {
    "byte_level": _byte_level,
    "sentencepiece": _sentencepiece,
    "metaspace": _metaspace,
    "wordpiece": _wordpiece,
}
FULL = ["byte_level", "sentencepiece"]  # these two can spell any text


def _save(folder: Path, built: tokenizers.Tokenizer, bos: bool = True, **config: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if bos:
        built.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", built.token_to_id("<s>"))]
        )
    built.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="session")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tokenizer]:
    root = tmp_path_factory.mktemp("tokenizers")
    made: dict[str, Tokenizer] = {}

    def get(name: str) -> Tokenizer:
        if name not in made:
            made[name] = Tokenizer(_save(root / name, FAMILIES[name]()))
        return made[name]

    return get


def _stream(tokenizer: Tokenizer, ids: list[int], prompt: list[int] | None = None) -> list[str]:
    detokenizer = Detokenizer(tokenizer, prompt or [])
    return [*map(detokenizer.push, ids), detokenizer.flush()]


def _library_decode(tokenizer: Tokenizer, ids: list[int]) -> str:
    return tokenizers.Tokenizer.from_file(str(tokenizer.path)).decode(ids)


@pytest.mark.parametrize("name", FULL)
@settings(max_examples=300)
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_pieces_equal_the_whole(family: Callable[[str], Tokenizer], name: str, text: str) -> None:
    tokenizer = family(name)
    ids = tokenizer.encode(text)
    pieces = _stream(tokenizer, ids)
    assert "".join(pieces) == _library_decode(tokenizer, ids) == tokenizer.decode(ids)
    if name == "byte_level" or "▁" not in text:  # SentencePiece cannot tell its mark from a space
        assert "".join(pieces) == text
        assert "\ufffd" not in "".join(pieces) or "\ufffd" in text


@settings(max_examples=300)
@given(ids=st.lists(st.integers(0, 345), max_size=40))
def test_any_ids_of_a_byte_level_model(family: Callable[[str], Tokenizer], ids: list[int]) -> None:
    tokenizer = family("byte_level")
    assert "".join(_stream(tokenizer, ids)) == _library_decode(tokenizer, ids)


@pytest.mark.parametrize("name", FULL)
@settings(max_examples=200)
@given(text=st.text(alphabet="the fox日é😀\n ▁", min_size=1), cut=st.integers(0, 30))
def test_a_continuation_goes_on_where_the_prompt_stopped(
    family: Callable[[str], Tokenizer], name: str, text: str, cut: int
) -> None:
    tokenizer = family(name)
    ids = tokenizer.encode(text)
    cut = min(cut, len(ids))
    head = Detokenizer(tokenizer)
    before = "".join(map(head.push, ids[:cut]))  # without a character the prompt left unfinished
    after = "".join(_stream(tokenizer, ids[cut:], prompt=ids[:cut]))
    assert before + after == tokenizer.decode(ids)


@pytest.mark.parametrize("name", FULL)
def test_a_long_prompt_is_read_at_its_ends(family: Callable[[str], Tokenizer], name: str) -> None:
    """Of which a character may be unfinished, and special tokens the last."""
    tokenizer = family(name)
    ids = tokenizer.encode("the fox😀" * 12 + "日é😀 the")
    special = [tokenizer.bos_id or 0] * 20
    for cut in range(len(ids) - 24, len(ids)):
        head = Detokenizer(tokenizer)
        before = "".join(map(head.push, ids[:cut]))
        for prompt in (ids[:cut], [*ids[:cut], *special]):
            after = "".join(_stream(tokenizer, ids[cut:], prompt=prompt))
            assert before + after == tokenizer.decode(ids)


def test_a_sentencepiece_continuation_keeps_its_space(
    family: Callable[[str], Tokenizer],
) -> None:
    tokenizer = family("sentencepiece")
    prompt, more = tokenizer.encode("the"), tokenizer.encode(" fox", add_special=False)
    fox = tokenizer.encode("fox", add_special=False)
    assert "".join(_stream(tokenizer, fox)) == "fox"
    assert "".join(_stream(tokenizer, fox, prompt=prompt)) == " fox"
    assert "".join(_stream(tokenizer, more, prompt=[tokenizer.bos_id or 0])) == " fox"


@pytest.mark.parametrize("name", FULL)
def test_a_character_comes_whole(family: Callable[[str], Tokenizer], name: str) -> None:
    tokenizer = family(name)
    ids = tokenizer.encode("a😀b", add_special=False)
    pieces = _stream(tokenizer, ids)
    assert "😀" in pieces
    assert len(ids) >= 6
    assert "".join(_stream(tokenizer, ids[:-2])).endswith("\ufffd")  # flushed, not lost
    cut = Detokenizer(tokenizer)
    assert "".join([*map(cut.push, ids[:-2]), cut.flush(cut=True)]) == "a"


def test_an_unfinished_prompt_is_not_the_stream_s(family: Callable[[str], Tokenizer]) -> None:
    tokenizer = family("byte_level")
    ids = tokenizer.encode("😀")
    assert _stream(tokenizer, [], prompt=ids[:-1]) == [""]
    assert _stream(tokenizer, [1], prompt=ids[:-1]) == ["", ""]  # the end, a special token
    assert "".join(_stream(tokenizer, ids[-1:], prompt=ids[:-1])) == "😀"


def test_endless_invalid_bytes_are_not_held_back(family: Callable[[str], Tokenizer]) -> None:
    tokenizer = family("sentencepiece")
    byte = tokenizer._backend.token_to_id("<0xFF>")
    pieces = _stream(tokenizer, [byte] * 10)
    assert pieces[:-1] == ["\ufffd"] * 10


def _library_stream(tokenizer: Tokenizer, ids: list[int], prompt: list[int]) -> str | None:
    """Text of the library's own stream; None where it raises."""
    stream = decoders.DecodeStream(ids=prompt) if prompt else decoders.DecodeStream()
    try:
        return "".join(stream.step(tokenizer._backend, id) or "" for id in ids)
    except Exception:
        return None


def test_why_the_detokenizer_is_ours(family: Callable[[str], Tokenizer]) -> None:
    """Where the library's stream answers otherwise, in 0.23: should it change, it may take over."""
    bytes_of = [family("byte_level")._backend.token_to_id(token) for token in "Ã©"]
    token_to_id = family("sentencepiece")._backend.token_to_id
    j, bad, x = (token_to_id(token) for token in ("<0x6A>", "<0xFF>", "x"))
    cases: list[tuple[str, list[int], list[int], str, str | None]] = [
        # An answer that ends in the middle of a character: the rest is never given.
        ("byte_level", [], bytes_of[:1], "\ufffd", ""),
        # A prompt that ends so: its own text comes again.
        ("byte_level", [*bytes_of, bytes_of[0]], bytes_of[1:], "é", "éé"),
        # Bytes that are no character are held back as long as they come; after one that was given
        # already, what follows is an error.
        ("sentencepiece", [], [bad] * 3, "\ufffd" * 3, ""),
        ("sentencepiece", [], [j, bad, x], "j\ufffdx", None),
    ]
    for name, prompt, ids, ours, theirs in cases:
        assert "".join(_stream(family(name), ids, prompt)) == ours
        assert _library_stream(family(name), ids, prompt) == theirs


@pytest.mark.parametrize("name", ["metaspace", "wordpiece"])
@pytest.mark.parametrize("text", ["the fox", "the  foxes jumps , the", "fox"])
def test_other_decoders(family: Callable[[str], Tokenizer], name: str, text: str) -> None:
    tokenizer = family(name)
    ids = tokenizer.encode(text)
    assert "".join(_stream(tokenizer, ids)) == _library_decode(tokenizer, ids)


def test_special_tokens(family: Callable[[str], Tokenizer], tmp_path: Path) -> None:
    tokenizer = family("byte_level")
    assert tokenizer.encode("fox")[0] == tokenizer.bos_id == 0
    assert tokenizer.eos_ids == (1,)
    ids = tokenizer.encode("fox</s>", add_special=False)
    assert ids[-1] == 1
    assert tokenizer.decode(ids) == "fox"
    assert tokenizer.decode(ids, skip_special=False) == "fox</s>"
    folder = _save(tmp_path / "m", _byte_level())
    (folder / "config.json").write_text('{"eos_token_id": 7, "bos_token_id": null}')
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 9, -1]}')
    assert Tokenizer(folder).eos_ids == (1, 7, 9)


@pytest.mark.parametrize(("bos", "explicit", "added"), [(1, None, 1), (1, False, 0), (0, True, 1)])
def test_an_explicit_add_bos_token_decides(
    tmp_path: Path, bos: int, explicit: bool | None, added: int
) -> None:
    config = {} if explicit is None else {"add_bos_token": explicit}
    tokenizer = Tokenizer(_save(tmp_path / "m", _byte_level(), bos=bool(bos), **config))
    assert tokenizer.encode("fox")[:1] == [0][:added] or not added
    assert tokenizer.encode("fox").count(0) == added


def test_truncation_and_padding_of_the_file_are_ignored(tmp_path: Path) -> None:
    built = _byte_level()
    built.enable_truncation(4)
    built.enable_padding(length=4)
    tokenizer = Tokenizer(_save(tmp_path / "m", built))
    assert len(tokenizer.encode("a b c d e f g h")) > 4
    assert len(tokenizer.encode("a")) == 2


def test_check_against_the_model(family: Callable[[str], Tokenizer], tmp_path: Path) -> None:
    tokenizer = family("byte_level")
    tokenizer.check(tokenizer.vocab_size)
    with pytest.raises(ModelFormatError, match="vocab_size 100, but got id"):
        tokenizer.check(100)
    folder = _save(tmp_path / "m", _byte_level())
    (folder / "config.json").write_text('{"eos_token_id": 5000}')
    with pytest.raises(ModelFormatError, match=r"eos_token_id.*id 5000"):
        Tokenizer(folder).check(1000)
    sparse = json.loads((folder / "tokenizer.json").read_text())
    sparse["model"]["vocab"]["Z"] = 900  # few tokens, but one of them far out
    (folder / "tokenizer.json").write_text(json.dumps(sparse))
    (folder / "config.json").unlink()
    tokenizer = Tokenizer(folder)
    tokenizer.check(800)
    assert tokenizer.encode("fox")
    with pytest.raises(RequestError, match=r"below 800, .* but got 'Z', id 900"):
        tokenizer.encode("Z")


def test_added_tokens_beyond_the_model(tmp_path: Path) -> None:
    """As Gemma 3 1B has one, for images: no reason not to open the model."""
    built = _byte_level()
    size = built.get_vocab_size()
    built.add_special_tokens(["<image>"])
    tokenizer = Tokenizer(_save(tmp_path / "m", built))
    assert tokenizer.encode("a<image>")[-1] == size
    tokenizer.check(size)
    assert tokenizer.decode(tokenizer.encode("fox")) == "fox"
    with pytest.raises(RequestError, match=f"'<image>', id {size}"):
        tokenizer.encode("a<image>")
    assert "<image>" not in tokenizer.to_json()
    assert json.loads(tokenizer.to_json())["added_tokens"]


def test_bad_arguments(family: Callable[[str], Tokenizer]) -> None:
    tokenizer = family("byte_level")
    with pytest.raises(RequestError, match="surrogate"):
        tokenizer.encode("\ud800")
    with pytest.raises(RequestError, match="bytes"):
        tokenizer.encode(b"fox")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="-1"):
        tokenizer.decode([-1])
    assert tokenizer.decode([10**6]) == ""  # an id that the padded vocabulary has no token for


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"model": 3}', "\xff", "[" * 100_000, "null"])
def test_a_damaged_file_is_a_typed_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text, encoding="latin-1")
    with pytest.raises(ModelFormatError) as caught:
        Tokenizer(tmp_path)
    assert "tokenizer.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_truncated_file_is_a_typed_error(tmp_path: Path) -> None:
    data = (_save(tmp_path / "m", _byte_level()) / "tokenizer.json").read_bytes()
    (tmp_path / "cut").mkdir()
    for length in range(0, len(data), 97):
        (tmp_path / "cut" / "tokenizer.json").write_bytes(data[:length])
        with pytest.raises(ModelFormatError):
            Tokenizer(tmp_path / "cut")


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="copy it from"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"\0")
    with pytest.raises(ModelFormatError, match=r"convert tokenizer\.model"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "[" * 100_000, '{"a": NaN}', '{"eos_token_id": 1, "eos_token_id": 2}']
)
def test_damaged_settings(tmp_path: Path, text: str) -> None:
    folder = _save(tmp_path / "m", _byte_level())
    for name in ("tokenizer_config.json", "config.json", "generation_config.json"):
        copy = tmp_path / name.removesuffix(".json")
        shutil.copytree(folder, copy)
        (copy / name).write_text(text)
        with pytest.raises(ModelFormatError, match=name):
            Tokenizer(copy)
