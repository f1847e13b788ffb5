"""A tokenizer rebuilt from a GGUF file's metadata, as the `tokenizers` library runs it.

Two families: byte-level BPE (`gpt2`, its way of cutting text named by `tokenizer.ggml.pre`) and
SentencePiece's BPE (`llama`, whose merges follow from the tokens' scores).
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence

import numpy as np
import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from sterna.checkpoints.gguf_metadata import Metadata
from sterna.errors import UnsupportedModelError, shown
from sterna.tokenizer import MAX_VOCAB, checked_backend

__all__ = ["Vocabulary"]

PREFIX = "tokenizer.ggml."
# Values of token_type: llama.cpp's llama_token_type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
#: Control tokens that end a turn, whatever the file says of them, as in llama.cpp.
END_OF_TURN = (
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>",
    "<end_of_turn>", "<|end_of_turn|>",
)  # fmt: skip
MAX_PIECE_CHARS = 256  # SentencePiece makes at most 512 bytes; longer ones are not cut into merges

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = _WORDS % r"\p{N}{1,3}" + _SPACES
QWEN2 = _WORDS % r"\p{N}" + _SPACES
QWEN35 = (  # marks belong to words
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _SPACES
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
)
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SHORT}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
)
HUNYUAN = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*" + _SPACES,
)
#: What cuts text before the merges: expressions applied in turn, then GPT-2's own if "".
_CUTS: dict[str, tuple[str, ...]] = {
    "llama3": (LLAMA3,),
    "qwen2": (QWEN2,),
    "qwen35": (QWEN35,),
    "tekken": (TEKKEN,),
    "gpt-4o": (GPT4O,),
    "hunyuan-dense": HUNYUAN,
    "gpt-2": ("",),
    "digits": (r"\p{N}", ""),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", "", r"\p{N}+", "[0-9][0-9][0-9]"),
}
#: Names of tokenizer.ggml.pre -> the cuts.
_NAMES: dict[str, tuple[str, ...]] = {
    "llama3": (
        "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon_e", "falcon-e", "falcon-h1",
        "pixtral", "lfm2", "midm-2.0", "smaug-bpe", "dbrx", "glm4", "chatglm-bpe",
    ),
    "qwen2": ("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"),
    "qwen35": ("qwen35",),
    "tekken": ("tekken",),
    "gpt-4o": ("gpt-4o",),
    "hunyuan-dense": ("hunyuan-dense",),
    "gpt-2": ("gpt-2", "phi-2", "olmo", "mpt"),
    "digits": ("smollm", "starcoder", "refact", "command-r", "codeshell"),
    "default": ("default",),
}  # fmt: skip
PRE = {name: cut for cut, names in _NAMES.items() for name in names}
_CANONICAL = {"llama3": "llama-bpe", "digits": "smollm"}  # as llama.cpp's converter names them
#: Cut as Llama 3's, but no word is taken whole.
_SLOW_MERGES = ("smaug-bpe", "dbrx", "glm4", "chatglm-bpe")
LLAMA3_VOCAB = 128256  # tokens of Llama 3 and of BitNet b1.58 2B


def pre_of_cuts(cuts: tuple[str, ...]) -> str | None:
    """The name in tokenizer.ggml.pre of expressions that cut text in turn, "" or GPT2 for GPT-2's.

    None if there is no name for them.
    """
    plain = tuple("" if cut == GPT2 else cut for cut in cuts)
    return next((_CANONICAL.get(n, n) for n, known in _CUTS.items() if known == plain), None)


class Vocabulary:
    """The tokenizer of a file's metadata.

    `backend`: the library's tokenizer; `bos_id`: the id that opens a text, or None; `eos_ids`:
    those that end one; `tokens`: all spellings. Raises ModelFormatError, or UnsupportedModelError
    for a kind of tokenizer that Sterna does not have.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        kind = metadata.text(f"{PREFIX}model", "none")
        if kind not in ("gpt2", "llama"):
            raise UnsupportedModelError(
                f"{metadata.path}: {PREFIX}model must be gpt2 or llama, but got {shown(kind)}; "
                "Sterna has no such tokenizer"
            )
        self.tokens = metadata.texts(f"{PREFIX}tokens")
        if not 0 < len(self.tokens) <= MAX_VOCAB:
            raise metadata.error(f"{PREFIX}tokens", f"1 to {MAX_VOCAB} tokens", len(self.tokens))
        self._ids = {token: i for i, token in enumerate(self.tokens)}
        if len(self._ids) < len(self.tokens):
            repeated = Counter(self.tokens).most_common(1)[0][0]
            raise metadata.error(f"{PREFIX}tokens", "each token once", f"{shown(repeated)} again")
        self._types = self._read_types()
        self.pre = self._pre(kind)
        self.bos_id = self._id("bos")
        self.eos_ids = self._ends()
        make = self._byte_level if kind == "gpt2" else self._sentencepiece
        self.backend = checked_backend(metadata.path, make)

    # ------------------------------------------------------------------------------ the metadata

    def _read_types(self) -> list[int]:
        """A type for each token; normal where the file has none."""
        if f"{PREFIX}token_type" not in self._metadata:
            return [NORMAL] * len(self.tokens)
        types = self._metadata.numbers(f"{PREFIX}token_type", len(self.tokens))
        kinds: list[int] = types.astype(np.int64).tolist()
        return kinds

    def _id(self, kind: str) -> int | None:
        """The id of a special token, None if the file names none."""
        key = f"{PREFIX}{kind}_token_id"
        if key not in self._metadata:
            return None
        id = self._metadata.integer(key, most=2**32 - 1)
        if id == 2**32 - 1:  # -1: none
            return None
        if id >= len(self.tokens):
            raise self._metadata.error(key, f"an id below {len(self.tokens)}", id)
        return id

    def _ends(self) -> tuple[int, ...]:
        named = {self._id(kind) for kind in ("eos", "eot", "eom")} - {None}
        spelt = {self._ids[t] for t in END_OF_TURN if t in self._ids}
        control = {i for i in spelt if self._types[i] in (CONTROL, USER_DEFINED)}
        return tuple(sorted(control.union(i for i in named if i is not None)))

    def _pre(self, kind: str) -> str:
        """The name of what cuts text; a file without one is guessed, aloud."""
        metadata = self._metadata
        if kind == "llama":
            return ""
        if f"{PREFIX}pre" not in metadata:
            architecture = metadata.text("general.architecture", "")
            if architecture.startswith("bitnet") or len(self.tokens) == LLAMA3_VOCAB:
                return "llama-bpe"  # files of BitNet b1.58 2B lack the key
            warnings.warn(
                f"{metadata.path}: the file does not say how text is cut before tokenizing "
                f"({PREFIX}pre): GPT-2's rule is taken, and answers may suffer if it is another",
                RuntimeWarning, stacklevel=2,
            )  # fmt: skip
            return "gpt-2"
        name = metadata.text(f"{PREFIX}pre")
        if name not in PRE:
            raise UnsupportedModelError(
                f"{metadata.path}: {PREFIX}pre must be one of {', '.join(PRE)}, "
                f"but got {shown(name)}; "
                "use the model's safetensors"
            )
        return name

    # ---------------------------------------------------------------------------- the two families

    def _byte_level(self) -> tokenizers.Tokenizer:
        merges = []
        for merge in self._metadata.texts(f"{PREFIX}merges"):
            left, space, right = merge.partition(" ")
            if not left or not right or not space:
                raise self._metadata.error(f"{PREFIX}merges", "two tokens and a space", merge)
            merges.append((left, right))
        whole = PRE[self.pre] in ("llama3", "tekken") and self.pre not in _SLOW_MERGES
        bpe = models.BPE(vocab=self._ids, merges=merges, ignore_merges=whole)
        backend = tokenizers.Tokenizer(bpe)
        if PRE[self.pre] in ("qwen2", "qwen35"):
            backend.normalizer = normalizers.NFC()
        cuts = _CUTS[PRE[self.pre]]
        steps: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(cut or GPT2), "isolated") for cut in cuts
        ]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
        backend.decoder = decoders.ByteLevel()
        opens = PRE[self.pre] == "tekken" or whole  # where the file does not say
        self._add_special(backend, opens)
        return backend

    def _sentencepiece(self) -> tokenizers.Tokenizer:
        scores = self._metadata.numbers(f"{PREFIX}scores", len(self.tokens)).astype(np.float64)
        if np.isnan(scores).any():
            raise self._metadata.error(f"{PREFIX}scores", "numbers", "NaN")
        unknown = self._id("unknown")
        bpe = models.BPE(
            vocab=self._ids,
            merges=_merges(self.tokens, self._ids, scores.tolist()),
            unk_token=None if unknown is None else self.tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
        backend = tokenizers.Tokenizer(bpe)
        prefix = self._metadata.boolean(f"{PREFIX}add_space_prefix", True)
        marks: list[normalizers.Normalizer] = [normalizers.Prepend("▁")] if prefix else []
        backend.normalizer = normalizers.Sequence([*marks, normalizers.Replace(" ", "▁")])
        steps: list[decoders.Decoder] = [
            decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()
        ]  # fmt: skip
        backend.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1)] * prefix)])
        self._add_special(backend, True)
        return backend

    def _add_special(self, backend: tokenizers.Tokenizer, opens: bool) -> None:
        """Added tokens, and what stands around a text; opens: whether BOS does by default."""
        added = [
            AddedToken(token, special=type != USER_DEFINED, normalized=False)
            for token, type in zip(self.tokens, self._types, strict=True)
            if type in (UNKNOWN, CONTROL, USER_DEFINED) and token
        ]
        named = [i for i in (self.bos_id, self._id("eos")) if i is not None]
        added += [
            AddedToken(self.tokens[i], special=True, normalized=False)
            for i in named
            if self._types[i] not in (UNKNOWN, CONTROL) and self.tokens[i]
        ]
        backend.add_tokens([token for token in added if not token.special])
        backend.add_special_tokens([token for token in added if token.special])
        metadata, eos = self._metadata, self._id("eos")
        bos = self.bos_id if metadata.boolean(f"{PREFIX}add_bos_token", opens) else None
        eos = eos if metadata.boolean(f"{PREFIX}add_eos_token", False) else None
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


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _merges(
    tokens: Sequence[str], ids: dict[str, int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """The merges of SentencePiece's BPE: any two tokens whose joined text is a token may merge,
    that of the highest score first."""
    scored: list[tuple[float, int, int, tuple[str, str]]] = []
    for token, score in zip(tokens, scores, strict=True):
        if len(token) > MAX_PIECE_CHARS:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                scored.append((-score, ids[left], ids[right], (left, right)))
    scored.sort()
    return [pair for *_, pair in scored]
