"""Rebuild a tokenizer of the `tokenizers` library from a GGUF file's metadata.

Byte-level BPE (`gpt2`, its pre-tokenizer is named by `tokenizer.ggml.pre`), SentencePiece's BPE
(`llama`, whose merges follow from the tokens' scores), BPE over `▁` for spaces with its own merges
(`gemma4`), and of encoders word pieces (`bert`) and Unigram (`t5`).
"""

from __future__ import annotations

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, processors

from sterna.checkpoints.merges import scored_merges
from sterna.errors import UnsupportedModelError, shown, warn
from sterna.gguf.architectures import ARCHITECTURES_OF
from sterna.gguf.encoder_vocabularies import around, unigram, unphantomed, word_pieces
from sterna.gguf.metadata import Metadata
from sterna.gguf.pre_tokenizers import PRE
from sterna.gguf.token_types import (
    ADDED,
    USER_DEFINED,
    TokenTypes,
    special_id,
    types_of,
    unique_spellings,
)
from sterna.tokenizer import MAX_VOCAB, checked_backend

__all__ = ["Vocabulary"]

PREFIX = "tokenizer.ggml."
LLAMA3_VOCAB = 128256  # tokens of Llama 3 and of BitNet b1.58 2B


class Vocabulary:
    """The tokenizer of a file's metadata.

    backend: the library's tokenizer. bos_id: the id that begins a text, or None. eos_ids: the ids
    that end one. tokens: all spellings, each unique. Raises ModelFormatError, or
    UnsupportedModelError for another kind of tokenizer.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._kind = metadata.text(f"{PREFIX}model", "none")
        makers = {
            "gpt2": self._byte_level,
            "llama": self._sentencepiece,
            "gemma4": self._merged_pieces,
            "bert": self._word_pieces,
            "t5": self._unigram,
        }
        if self._kind not in makers:
            raise UnsupportedModelError(
                f"{metadata.path}: {PREFIX}model must be {', '.join(makers)}, "
                f"but got {shown(self._kind)}; Sterna has no such tokenizer"
            )
        tokens = metadata.texts(f"{PREFIX}tokens")
        if not 0 < len(tokens) <= MAX_VOCAB:
            raise metadata.error(f"{PREFIX}tokens", f"1 to {MAX_VOCAB} tokens", len(tokens))
        if self._kind == "bert":
            tokens = unphantomed(tokens, types_of(metadata, tokens))
        self.tokens: list[str]
        self.tokens, self._copies = unique_spellings(metadata, tokens)
        # An empty token has no spelling, so its id has no text.
        self._ids = {token: i for i, token in enumerate(self.tokens) if token}
        self.pre: str = self._pre()
        self.bos_id: int | None = self._id("bos")
        self._eos = self._id("eos")
        ends = [i for i in (self._eos, self._id("eot"), self._id("eom")) if i is not None]
        self._merges = self._read_merges()
        self._roles = TokenTypes(
            metadata,
            self.tokens,
            self._ids,
            named=ends if self.bos_id is None else [self.bos_id, *ends],
            merged={left + right for left, right in self._merges},
        )
        self.eos_ids: tuple[int, ...] = self._roles.ends(ends)
        self.backend: tokenizers.Tokenizer = checked_backend(metadata.path, makers[self._kind])

    # ------------------------------------------------------------------------------ the metadata

    def _id(self, kind: str) -> int | None:
        return special_id(self._metadata, kind, self.tokens)

    def _pre(self) -> str:
        """Return the name of the pre-tokenizer; guess it, with a warning, if the file has none."""
        metadata = self._metadata
        if self._kind != "gpt2":
            return ""
        if f"{PREFIX}pre" not in metadata:
            architecture = metadata.text("general.architecture", "")
            if architecture.startswith("bitnet") or len(self.tokens) == LLAMA3_VOCAB:
                return "llama-bpe"  # files of BitNet b1.58 2B lack the key
            warn(
                f"{metadata.path}: the file does not say how text is cut before tokenizing "
                f"({PREFIX}pre): GPT-2's rule is taken, and answers may suffer if it is another"
            )
            return "gpt-2"
        name = metadata.text(f"{PREFIX}pre")
        if name not in PRE:
            raise UnsupportedModelError(
                f"{metadata.path}: {PREFIX}pre must be one of {', '.join(PRE)}, "
                f"but got {shown(name)}; use the model's safetensors"
            )
        return name

    def _read_merges(self) -> list[tuple[str, str]]:
        if self._kind == "llama":
            scores = self._metadata.numbers(f"{PREFIX}scores", len(self.tokens)).astype(np.float64)
            if np.isnan(scores).any():
                raise self._metadata.error(f"{PREFIX}scores", "numbers", "NaN")
            return scored_merges(self._ids, scores) if self._ids else []
        merges: list[tuple[str, str]] = []
        if self._kind in ("bert", "t5"):
            return merges
        for merge in self._metadata.texts(f"{PREFIX}merges"):
            left, space, right = merge.partition(" ")
            if not left or not right or not space:
                raise self._metadata.error(f"{PREFIX}merges", "two tokens and a space", merge)
            merges.append((left, right))
        if self._copies:  # the displaced token of a duplicate still has merges
            has = self._ids.__contains__
            merges = [(a, b) for a, b in merges if has(a) and has(b) and has(a + b)]
        return merges

    # -------------------------------------------------------------------------------- the families

    def _byte_level(self) -> tokenizers.Tokenizer:
        pre = PRE[self.pre]
        bpe = models.BPE(vocab=self._ids, merges=self._merges, ignore_merges=pre.whole)
        backend = tokenizers.Tokenizer(bpe)
        if pre.composed:
            backend.normalizer = normalizers.NFC()
        backend.pre_tokenizer = pre.steps()
        level = decoders.ByteLevel()
        backend.decoder = decoders.Sequence([*self._copies, level]) if self._copies else level
        self._add_special(backend, pre.opens)
        return backend

    def _sentencepiece(self) -> tokenizers.Tokenizer:
        prefix = self._metadata.boolean(f"{PREFIX}add_space_prefix", True)
        return self._pieces([normalizers.Prepend("▁")] if prefix else [])

    def _merged_pieces(self) -> tokenizers.Tokenizer:
        prefix = self._metadata.boolean(f"{PREFIX}add_space_prefix", False)
        return self._pieces([normalizers.Prepend("▁")] if prefix else [])

    def _pieces(self, prefix: list[normalizers.Normalizer]) -> tokenizers.Tokenizer:
        """Make a BPE over ▁ for spaces with byte fallback; prefix: normalizers for the first ▁."""
        unknown = self._id("unknown")
        bpe = models.BPE(
            vocab=self._ids,
            merges=self._merges,
            unk_token=(self.tokens[unknown] or None) if unknown is not None else None,
            fuse_unk=True,
            byte_fallback=True,
        )
        backend = tokenizers.Tokenizer(bpe)
        backend.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
        steps: list[decoders.Decoder] = [
            *self._copies,
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
        ]
        backend.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1)] * len(prefix))])
        self._add_special(backend, True)
        return backend

    def _word_pieces(self) -> tokenizers.Tokenizer:
        unknown = self._id("unknown")
        name = "[UNK]" if unknown is None else self.tokens[unknown]
        backend = word_pieces(self._metadata, self._ids, name)
        self._add_special(backend, True)
        return backend

    def _unigram(self) -> tokenizers.Tokenizer:
        backend = unigram(self._metadata, self.tokens, self._id("unknown"))
        self._add_special(backend, True)
        return backend

    def _add_special(self, backend: tokenizers.Tokenizer, opens: bool) -> None:
        """Add the added tokens and BOS and EOS; opens: whether BOS is added by default."""
        added = [
            AddedToken(
                token,
                special=type != USER_DEFINED,
                normalized=False,
                rstrip=self._roles.takes_space(token),
            )
            for token, type in zip(self.tokens, self._roles.types, strict=True)
            if type in ADDED and token
        ]
        backend.add_tokens([token for token in added if not token.special])
        backend.add_special_tokens([token for token in added if token.special])
        self._surround(backend, opens)

    def _surround(self, backend: tokenizers.Tokenizer, opens: bool) -> None:
        """Set the tokens around a text; opens: whether BOS is added by default."""
        metadata = self._metadata
        kind = ARCHITECTURES_OF.get(metadata.text("general.architecture", ""))
        encoder = kind is not None and kind.encoder and self._kind == "gpt2"
        if encoder or self._kind in ("bert", "t5"):
            self._surround_pairs(backend)
            return
        # Gemma 4 fails without BOS, but its early files say that there is none.
        opens = self._kind == "gemma4" or metadata.boolean(f"{PREFIX}add_bos_token", opens)
        bos = self.bos_id if opens else None
        eos = self._eos if metadata.boolean(f"{PREFIX}add_eos_token", False) else None
        around = {f"[{i}]": i for i in (bos, eos) if i is not None and self.tokens[i]}
        if not around:
            return
        parts = [f"[{bos}]"] * (bos is not None), [f"[{eos}]"] * (eos is not None)
        special = [
            {"id": name, "ids": [i], "tokens": [self.tokens[i]]} for name, i in around.items()
        ]
        backend.post_processor = processors.TemplateProcessing(
            single=[*parts[0], "$A", *parts[1]], special_tokens=special
        )

    def _surround_pairs(self, backend: tokenizers.Tokenizer) -> None:
        """Set the tokens around an encoder's text, and those around a pair.

        BERT's separator has a key of its own, or is the end of a text. `add_sep_token` says that
        there are two between the parts; ModernBERT's files have it for another reason.
        """
        metadata = self._metadata
        named = {"gpt2": ("<s>", "</s>"), "t5": ("<s>", "</s>")}.get(self._kind, ("[CLS]", "[SEP]"))
        first, end = self.bos_id, self._eos
        if self._kind == "bert":
            first, end = (self._id(kind) for kind in ("cls", "seperator"))
            first = self.bos_id if first is None else first
        first = self._ids.get(named[0]) if first is None else first
        end = self._eos if end is None else end
        end = self._ids.get(named[1]) if end is None else end
        if first is None or end is None:
            raise metadata.error(f"{PREFIX}bos_token_id", "an id, and one that ends a text", None)
        architecture = metadata.text("general.architecture")
        twice = self._kind != "bert" and architecture != "modern-bert"
        twice = twice and metadata.boolean(f"{PREFIX}add_sep_token", True)
        kinds = self._kind == "bert" and metadata.integer(f"{PREFIX}token_type_count", 2) > 1
        backend.post_processor = around(self.tokens, first, end, twice=twice, kinds=kinds)
