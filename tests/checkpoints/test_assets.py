"""Files next to the weights are bounded, and nothing is kept of a model that does not load."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import pytest
import tokenizers
from helpers import command, failed, failure
from waits import HANGS_S

from sterna import LLM
from sterna.checkpoints import cache
from sterna.checkpoints.assets import FileAssets
from sterna.checkpoints.packed_writer import ASSET_FILES
from sterna.errors import ModelFormatError

HUGE = 300 << 20  # of a sparse file: no blocks of its own, but its copy would have them


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The writes to the cache that were begun; none is carried out."""
    begun: list[str] = []
    monkeypatch.setattr(cache, "store_behind", lambda key, *_: begun.append(key))
    return begun


def inflate(file: Path) -> None:
    file.touch()
    os.truncate(file, HUGE)


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"]
)
def test_nothing_is_cached_of_a_model_that_is_refused(
    folder: Path, stores: list[str], name: str
) -> None:
    inflate(folder / name)
    failure(lambda: LLM(folder, threads=1), ModelFormatError, name)
    assert stores == []


def test_nothing_is_cached_of_a_damaged_tokenizer(folder: Path, stores: list[str]) -> None:
    whole = (folder / "tokenizer.json").read_bytes()
    (folder / "tokenizer.json").write_bytes(b"{}")
    failure(lambda: LLM(folder, threads=1), ModelFormatError)
    assert stores == []
    (folder / "tokenizer.json").write_bytes(whole)
    LLM(folder, threads=1)
    assert len(stores) == 1


@pytest.mark.parametrize("name", ["LICENSE", "NOTICE", "merges.txt", "added_tokens.json"])
def test_what_is_not_read_is_not_copied_either(folder: Path, root: Path, name: str) -> None:
    """The model runs; why it has no entry is said."""
    inflate(folder / name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store = LLM(folder, threads=1).engine.model.store
        assert store is not None
        assert store.wait(HANGS_S) is None
    (said,) = [str(w.message) for w in caught if w.category is RuntimeWarning]
    assert said.startswith("cache not written: ")
    assert f"{name}: size: expected at most {ASSET_FILES[name]} bytes" in said
    assert [p for p in root.rglob("*") if p.is_file()] == []


def test_a_model_is_not_converted_without_its_licence(folder: Path, tmp_path: Path) -> None:
    """Refused before the weights are written."""
    inflate(folder / "LICENSE")
    result = command("convert", str(folder), str(tmp_path / "packed"))
    failed(result, "LICENSE: size: expected at most")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]


def test_what_the_limits_allow_is_copied(folder: Path, tmp_path: Path) -> None:
    (folder / "LICENSE").write_bytes(b"x" * ASSET_FILES["LICENSE"])
    assert command("convert", str(folder), str(tmp_path / "packed")).exit_code == 0
    assert (tmp_path / "packed" / "LICENSE").stat().st_size == ASSET_FILES["LICENSE"]


@pytest.mark.parametrize(
    ("pairs", "kind"),
    [
        ([("a", "b"), ("ab", "é")], str),
        ([("a", " "), ("a ", "b")], list),  # "a  " would be three parts
        ([("#version", "b")], list),  # the library skips such a text
    ],
)
def test_a_tokenizer_written_from_a_single_file(
    tmp_path: Path, pairs: list[tuple[str, str]], kind: type
) -> None:
    """Its merges are texts wherever the library reads the same tokenizer from them."""
    spelt = dict.fromkeys([*(part for pair in pairs for part in pair), *map("".join, pairs)])
    vocab = {token: id for id, token in enumerate(spelt)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, pairs))
    with FileAssets(tmp_path / "x.gguf", {}, {}, {}, backend).as_folder() as folder:
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    assert {type(merge) for merge in json.loads(text)["model"]["merges"]} == {kind}
    assert tokenizers.Tokenizer.from_str(text).to_str() == backend.to_str()


def test_a_tokenizer_without_merges(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.Unigram([("<unk>", 0.0), ("a b", -1.5)], 0))
    with FileAssets(tmp_path / "x.gguf", {}, {}, {}, backend).as_folder() as folder:
        read = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert read.to_str() == backend.to_str()
