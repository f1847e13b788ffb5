"""tokenizer_config.json: its tokens have transformers' ids, and its other fields are known."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
import saved_models
import transformers
from helpers import failure
from transformers import PreTrainedTokenizerFast, tokenization_utils_base
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

from sterna.checkpoints.assets import FolderAssets
from sterna.checkpoints.tokenizer_config import FIELDS
from sterna.errors import ModelFormatError, UnsupportedModelError
from sterna.models import architectures

FIRST = saved_models.SIZES["vocab_size"]  # the first id after those of tokenizer.json
NEW = {"content": "<new>", "lstrip": True, "rstrip": False, "single_word": False,
       "normalized": False, "special": True}  # fmt: skip
WORD = NEW | {"content": "word", "lstrip": False, "special": False, "single_word": True}
MARK = NEW | {"content": "<x1>", "rstrip": True, "lstrip": False}


def folder_of(folder: Path, **settings: Any) -> Path:
    """A tokenizer.json, and a tokenizer_config.json of these fields."""
    saved_models.tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


CASES: list[dict[str, Any]] = [
    {"added_tokens_decoder": {str(FIRST): NEW}},
    {"added_tokens_decoder": {str(FIRST + 1): WORD, str(FIRST): NEW}},
    {"added_tokens_decoder": {"260": MARK}},  # with other flags than tokenizer.json's
    {"additional_special_tokens": ["ab"], "pad_token": "<s>"},
    {"extra_special_tokens": {"boi_token": "ab"}},
    {"image_token": {"content": "ab", "__type": "AddedToken", "lstrip": False, "rstrip": False,
     "single_word": False, "normalized": False}},
    {"split_special_tokens": False, "clean_up_tokenization_spaces": True, "unknown": None},
]  # fmt: skip
TEXTS = ("a <new> ab", "a  <x1>  word words <s>", "abab <new>word <x2>")


@pytest.mark.parametrize("settings", CASES)
def test_tokens_have_the_ids_of_transformers(settings: dict[str, Any], tmp_path: Path) -> None:
    """Whether they are new, have other flags, or were plain tokens of the vocabulary."""
    folder = folder_of(tmp_path, **settings)
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    own = FolderAssets.of(folder, {}).tokenizer()
    for text in TEXTS:
        assert own.encode(text, add_special=False) == theirs.encode(text, add_special_tokens=False)
    ids = theirs.encode(TEXTS[0], add_special_tokens=False)
    assert own.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_a_name_without_a_token_adds_none(tmp_path: Path) -> None:
    """transformers would add it with an id that the model does not embed."""
    folder = folder_of(tmp_path, pad_token="[PAD]")
    assert FolderAssets.of(folder, {}).tokenizer().token_id("[PAD]") is None


REFUSED: list[tuple[dict[str, Any], type, str]] = [
    ({"split_special_tokens": True}, UnsupportedModelError, "split_special_tokens"),
    ({"fix_mistral_regex": True}, UnsupportedModelError, "fix_mistral_regex"),
    ({"add_prefix_space": True}, UnsupportedModelError, "add_prefix_space"),
    ({"added_tokens_decoder": {str(FIRST + 5): NEW}}, ModelFormatError, str(FIRST)),
    ({"added_tokens_decoder": {"x": NEW}}, ModelFormatError, "added_tokens_decoder.x"),
    ({"added_tokens_decoder": {"1": 5}}, ModelFormatError, "added_tokens_decoder.1"),
    ({"added_tokens_decoder": []}, ModelFormatError, "added_tokens_decoder"),
    ({"additional_special_tokens": [5]}, ModelFormatError, "additional_special_tokens"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "kind", "name"), REFUSED)
def test_refused_by_name(settings: dict[str, Any], kind: type, name: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, **settings)
    failure(FolderAssets.of(folder, {}).tokenizer, kind, "tokenizer_config.json", name)


#: Names in 67 tokenizer_config.json of public repositories, next to names of tokens; those below
#: are of single makers, and no library reads them.
PUBLISHED = (
    "add_bos_token", "add_eos_token", "add_prefix_space", "added_tokens_decoder",
    "additional_special_tokens", "auto_map", "backend", "chat_template",
    "clean_up_tokenization_spaces", "do_basic_tokenize", "do_lower_case", "errors",
    "extra_special_tokens", "is_local", "legacy", "local_files_only", "model_input_names",
    "model_max_length", "model_specific_special_tokens", "name_or_path", "never_split",
    "padding_side", "post_processor", "pretokenize_regex", "processor_class", "remove_space",
    "response_schema", "sp_model_kwargs", "spaces_between_special_tokens",
    "special_tokens_map_file", "split_special_tokens", "strip_accents", "tokenize_chinese_chars",
    "tokenizer_class", "truncation_side", "use_default_system_prompt", "use_fast", "verbose",
    "vocab_size", "wordpieces_prefix",
)  # fmt: skip
PRIVATE = (
    "end_n_top", "extra_ids", "handle_chinese_chars", "model_type", "normalizer", "pre_tokenizer",
    "special_tokens", "start_n_top",
)  # fmt: skip


def test_published_names(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """No name that a maker made up stops a load; one warning has all of them."""
    assert set(PUBLISHED) <= FIELDS.names
    own = {name: f"its {name}" for name in PRIVATE}
    folder = folder_of(tmp_path, **own, other_token=5, pretokenize_regex="x", add_eos_token=True)
    assert FolderAssets.of(folder, {}).tokenizer().encode("ab") != []
    (warning,) = [str(w.message) for w in recwarn if w.category is RuntimeWarning]
    assert all(f"'{name}'" in warning for name in (*PRIVATE, "other_token"))
    assert "tokenizer_config.json" in warning
    assert "pretokenize_regex" not in warning


def test_lower_case_is_that_of_tokenizer_json(tmp_path: Path) -> None:
    """BERT's normalizer has settings of the same meaning; others are refused."""
    folder = folder_of(tmp_path, do_lower_case=False, strip_accents=None)
    file = folder / "tokenizer.json"
    normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                  "strip_accents": None, "lowercase": True}  # fmt: skip
    file.write_text(json.dumps(json.loads(file.read_text()) | {"normalizer": normalizer}))
    assets = FolderAssets.of(folder, {})
    failure(assets.tokenizer, UnsupportedModelError, "do_lower_case", "True")
    folder_of(tmp_path, do_lower_case=False)
    assert FolderAssets.of(folder, {}).tokenizer().encode("A") != []


def popped(kind: Any) -> set[str]:
    """Names that a class's constructor takes out of its keyword arguments."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind.__init__)))
    return {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("pop", "get", "setdefault")
        and getattr(node.func.value, "id", "") == "kwargs"
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    }


def families() -> list[Any]:
    """Tokenizer classes of transformers that Sterna's families name."""
    types = {
        getattr(transformers, name).config_class.model_type
        for name in architectures()
        if hasattr(transformers, name)
    }
    assert len(types) > 40
    names = {TOKENIZER_MAPPING_NAMES.get(kind) for kind in types} - {None}
    kinds = {getattr(transformers, name, None) for name in names if isinstance(name, str)}
    fast = [k for k in kinds if k and issubclass(k, PreTrainedTokenizerFast)]
    assert len(fast) > 5
    return fast


def test_every_field_of_transformers_is_known() -> None:
    """Of the two base classes, and arguments of the families' classes."""
    names = popped(tokenization_utils_base.PreTrainedTokenizerBase)
    names |= popped(PreTrainedTokenizerFast)
    assert "split_special_tokens" in names
    for kind in families():
        names |= set(inspect.signature(kind.__init__).parameters) - {"self", "args", "kwargs"}
    unknown = {name for name in names if not name.endswith("_token")} - FIELDS.names
    assert {name for name in unknown if not name.startswith("_")} == set()
