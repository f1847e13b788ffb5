"""The tokenizers that only encoders have: BERT's word pieces and XLM-RoBERTa's Unigram."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from sterna.gguf.metadata import Metadata
from sterna.gguf.token_types import CONTROL, UNKNOWN

__all__ = ["around", "unigram", "unphantomed", "word_pieces"]

PREFIX = "tokenizer.ggml."
_WORD, _CONTINUES = "▁", "##"


def unphantomed(tokens: Sequence[str], types: Sequence[int]) -> list[str]:
    """Spell BERT's tokens as its vocabulary does.

    Files mark tokens that begin a word by ▁, and have those that continue one without ##.
    """
    return [
        token
        if type in (CONTROL, UNKNOWN) or not token
        else token[1:]
        if token.startswith(_WORD)
        else _CONTINUES + token
        for token, type in zip(tokens, types, strict=True)
    ]


def word_pieces(metadata: Metadata, ids: dict[str, int], unknown: str) -> Tokenizer:
    """Make BERT's tokenizer, which lower-cases and strips accents where the file does not say."""
    backend = Tokenizer(models.WordPiece(ids, unk_token=unknown))
    lowercase = metadata.boolean(f"{PREFIX}normalizer.lowercase", True)
    accents = metadata.boolean(f"{PREFIX}normalizer.strip_accents", lowercase)
    backend.normalizer = normalizers.BertNormalizer(strip_accents=accents, lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=_CONTINUES)
    return backend


def unigram(metadata: Metadata, tokens: Sequence[str], unknown: int | None) -> Tokenizer:
    """Make SentencePiece's Unigram from the tokens' scores and the file's map of characters."""
    scores = metadata.numbers(f"{PREFIX}scores", len(tokens)).tolist()
    backend = Tokenizer(models.Unigram(list(zip(tokens, scores, strict=True)), unk_id=unknown))
    steps: list[normalizers.Normalizer] = []
    if (key := f"{PREFIX}precompiled_charsmap") in metadata:
        steps.append(normalizers.Precompiled(metadata.array(key).astype("u1").tobytes()))
    if metadata.boolean(f"{PREFIX}remove_extra_whitespaces", False):
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if steps:
        backend.normalizer = normalizers.Sequence(steps)
    scheme = "always" if metadata.boolean(f"{PREFIX}add_space_prefix", True) else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(_WORD, scheme)
    backend.decoder = decoders.Metaspace(_WORD, scheme)
    return backend


def around(
    tokens: Sequence[str], first: int, end: int, *, twice: bool, kinds: bool
) -> processors.TemplateProcessing:
    """Return the tokens around an encoder's text, and around the two of a pair.

    first, end: ids. twice: `end` is repeated between the two. kinds: the two have different token
    types.
    """
    kind = ":1" if kinds else ":0"
    named = {"first": first, "end": end}
    return processors.TemplateProcessing(
        single="[first] $A [end]",
        pair=f"[first] $A [end] {'[end] ' if twice else ''}$B{kind} [end]{kind}",
        special_tokens=[
            {"id": f"[{name}]", "ids": [id], "tokens": [tokens[id]]} for name, id in named.items()
        ],
    )
