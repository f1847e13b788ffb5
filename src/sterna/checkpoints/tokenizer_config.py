"""What tokenizer_config.json says beyond tokenizer.json: further tokens, and settings.

Tokens that it names are added as transformers adds them. tokenizer.json has the rest, so that most
settings only describe it or another library's calls; those that would change ids are refused.
Makers also add fields for classes of their own, which give a warning.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from sterna.errors import ModelFormatError, UnsupportedModelError, shown
from sterna.files.known_fields import KnownFields

__all__ = ["FIELDS", "apply_tokenizer_config", "check_fields"]

#: The tokens of every tokenizer of transformers; others have names that end in _token, too.
NAMED = "bos_token eos_token unk_token sep_token pad_token cls_token mask_token"
ADDED = "added_tokens_decoder"
#: Lists of tokens, or objects of named ones.
LISTS = ("additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens")
#: Where the file came from, and which class reads it.
_ORIGIN = """
_commit_hash auto_map backend cache_dir device_map files_loaded from_slow full_tokenizer_file
gguf_file init_inputs is_local local_files_only merges merges_file name_or_path processor_class
special_tokens_map_file tokenizer_class tokenizer_file tokenizer_type transformers_version
trust_remote_code use_fast verbose vocab vocab_file vocab_size _name_or_path tokenizer_object
tokenizer
"""
#: Of the conversion that made tokenizer.json.
_CONVERSION = """
add_dummy_prefix do_basic_tokenize keep_accents legacy never_split normalization remove_space
sp_model sp_model_kwargs spm_file trim_offsets wordpieces_prefix bos_token_id eos_token_id
pad_token_id unk_id unk_token_id sep_token_id cls_token_id mask_token_id image_token_id
post_processor pretokenize_regex
"""
#: Of calls with batches: padding and truncation.
_BATCHES = """
add_eos_token add_special_tokens max_len max_length model_input_names model_max_length
pad_to_multiple_of pad_token_type_id padding padding_side return_attention_mask
return_token_type_ids stride tokenizer_padding tokenizer_truncation truncation truncation_side
truncation_strategy
"""
#: Of decoding and of chat, for which Sterna has rules of its own.
_DECODING = """
chat_control_tokens clean_up_tokenization_spaces errors response_schema response_template
clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output
spaces_between_special_tokens use_default_system_prompt
"""
FIELDS = KnownFields(open=True).plus(
    read=f"""
    {NAMED} {ADDED} {" ".join(LISTS)} add_bos_token chat_template add_prefix_space do_lower_case
    strip_accents tokenize_chinese_chars
    """,
    without_effect=_ORIGIN + _CONVERSION + _BATCHES + _DECODING,
    refused="split_special_tokens fix_mistral_regex",
    neutral={"dropout": (0.0,)},
)
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
#: Fields of BERT's normalizer, by their names in tokenizer_config.json.
_OF_BERT = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


_REMEDY = "remove it to read texts as tokenizer.json does"


def check_fields(settings: Mapping[str, Any], file: Path) -> None:
    """Warn of unknown settings; UnsupportedModelError for one that would change ids."""
    others = {k: v for k, v in settings.items() if not (k.endswith("_token") and _is_token(v))}
    FIELDS.check(others, file, remedy=_REMEDY)


def apply_tokenizer_config(
    backend: tokenizers.Tokenizer, settings: Mapping[str, Any], file: Path
) -> None:
    """Add the tokens that settings name, and compare settings with tokenizer.json's.

    Errors name `file`. `check_fields` has the rest.

    Raises UnsupportedModelError for a setting that would change ids, ModelFormatError for tokens
    that are malformed or that get other ids than stated.
    """
    for name, own in _stated_elsewhere(backend):
        said = settings.get(name)
        if said is not None and own is not None and said != own:
            raise UnsupportedModelError(
                f"{file}: {name}: must be {shown(own)}, as in tokenizer.json, but got "
                f"{shown(said)}; {_REMEDY}"
            )
    _add_tokens(backend, settings, file)


def _stated_elsewhere(backend: tokenizers.Tokenizer) -> Iterator[tuple[str, Any]]:
    """Yield settings that tokenizer.json has as well, with its values."""
    if isinstance(backend.normalizer, tokenizers.normalizers.BertNormalizer):
        own = json.loads(backend.normalizer.__getstate__())
        yield from ((name, own.get(field)) for name, field in _OF_BERT.items())
    if isinstance(backend.pre_tokenizer, tokenizers.pre_tokenizers.ByteLevel):
        yield "add_prefix_space", backend.pre_tokenizer.add_prefix_space


def _add_tokens(backend: tokenizers.Tokenizer, settings: Mapping[str, Any], file: Path) -> None:
    """Add tokens that tokenizer.json lacks.

    Those of added_tokens_decoder replace tokens of the same text that have other flags. The named
    ones become added tokens if they are in the vocabulary; others would have ids beyond the
    model's.
    """
    own = {t.content: _flags(t) for t in backend.get_added_tokens_decoder().values()}
    stated = _stated(settings, file)
    new = [token for token in stated.values() if own.get(token.content) != _flags(token)]
    missing = {id: t for id, t in stated.items() if backend.token_to_id(t.content) is None}
    known = own.keys() | {token.content for token in new}
    for text in _named(settings, file):
        if text not in known and backend.token_to_id(text) is not None:
            new.append(tokenizers.AddedToken(text, special=True, normalized=False))
    if new:
        backend.add_tokens(new)
    for id, token in missing.items():
        if backend.token_to_id(token.content) != id:
            raise ModelFormatError(
                file,
                f"{ADDED}.{id}",
                f"id {backend.token_to_id(token.content)} of {shown(token.content)}, "
                "which follows those of tokenizer.json",
                id,
                remedy="copy both files from one repository",
            )


def _flags(token: tokenizers.AddedToken) -> tuple[bool, ...]:
    return tuple(getattr(token, flag) for flag in _FLAGS)


def _stated(settings: Mapping[str, Any], file: Path) -> dict[int, tokenizers.AddedToken]:
    """Read added_tokens_decoder, by ascending ids."""
    given = settings.get(ADDED)
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise ModelFormatError(file, ADDED, "an object", shown(given))
    found = {}
    for key, value in given.items():
        if not key.isdecimal() or not key.isascii() or len(key) > 10 or not _is_token(value):
            rule = "ids with objects that have content and flags"
            raise ModelFormatError(file, f"{ADDED}.{key}", rule, shown(value))
        token = value if isinstance(value, dict) else {"content": value}
        flags = {flag: token[flag] for flag in _FLAGS if isinstance(token.get(flag), bool)}
        if token["content"]:
            found[int(key)] = tokenizers.AddedToken(token["content"], **flags)
    return dict(sorted(found.items()))


def _named(settings: Mapping[str, Any], file: Path) -> Iterator[str]:
    """Yield the texts of tokens that settings name, each as a string or an object."""
    for name, value in settings.items():
        if name.endswith("_token") and _is_token(value):
            yield _text(value)
    for name in LISTS:
        given = settings.get(name) or []
        tokens = list(given.values()) if isinstance(given, dict) else given
        if not isinstance(tokens, list) or not all(map(_is_token, tokens)):
            raise ModelFormatError(file, name, "tokens", shown(given))
        yield from map(_text, tokens)


def _is_token(value: object) -> bool:
    return isinstance(value.get("content") if isinstance(value, dict) else value, str)


def _text(value: Any) -> str:
    return str(value["content"] if isinstance(value, dict) else value)
