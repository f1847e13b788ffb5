"""Pre-tokenizers by their names in `tokenizer.ggml.pre`: how byte-level BPE splits a text.

The expressions are those of the models' own tokenizer.json.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

__all__ = ["PRE", "PreTokenizer", "pre_of_splits"]

_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = _SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = _WORDS % r"\p{N}{1,3}"
QWEN2 = _WORDS % r"\p{N}"
QWEN35 = (  # combining marks belong to words
    _SHORT + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _SPACES
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (  # words begin where lower case ends; %s: what may follow them, and numbers
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
    r"|%s| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
)
TEKKEN = _CASED % ("", "", r"\p{N}")
GPT4O = _CASED % (f"{_SHORT}?", f"{_SHORT}?", r"\p{N}{1,3}")
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    _CJK,
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*" + _SPACES,
)
SEED = (
    _SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_HAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
# Letters of scripts with case, as DeepSeek LLM's tokenizer.json spells them out.
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
    "\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b"
    "\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787"
    "\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_CASED_LETTERS}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    _HAN,
    r"\p{N}+",
)
BLOOM = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, r"\p{N}")


@dataclass(frozen=True)
class PreTokenizer:
    """A way of cutting text before merges.

    cuts: expressions applied in turn; whole: a word that is a token is taken without merges;
    composed: text is brought into NFC first, as the models' makers do and llama.cpp does not;
    opens: BOS precedes a text if the file does not say.
    """

    cuts: tuple[str, ...]
    whole: bool = False
    composed: bool = False
    opens: bool = False

    def steps(self) -> pre_tokenizers.PreTokenizer:
        """Make the library's pre-tokenizer."""
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        cuts = [pre_tokenizers.Split(Regex(cut), "isolated") for cut in self.cuts]
        return pre_tokenizers.Sequence([*cuts, level])

    def normalizer(self) -> normalizers.Normalizer | None:
        """Make the library's normalizer, if any."""
        return normalizers.NFC() if self.composed else None


#: All names of tokenizer.ggml.pre that Sterna knows, with llama.cpp's meaning except for NFC.
_NAMES: tuple[tuple[str, PreTokenizer], ...] = (
    (
        "llama-bpe llama3 llama-v3 falcon3 falcon_e falcon-e falcon-h1 pixtral lfm2 midm-2.0",
        PreTokenizer((LLAMA3,), whole=True, opens=True),
    ),
    ("glm4", PreTokenizer((LLAMA3,), whole=True)),
    ("chatglm-bpe smaug-bpe dbrx", PreTokenizer((LLAMA3,))),
    ("qwen2 deepseek-r1-qwen megrez stablelm2", PreTokenizer((QWEN2,), composed=True)),
    ("hunyuan kormo solar-open grok-2", PreTokenizer((QWEN2,))),
    ("jina-v5-nano", PreTokenizer((LLAMA3,), whole=True, opens=True)),
    ("qwen35", PreTokenizer((QWEN35,), composed=True)),
    ("tekken", PreTokenizer((TEKKEN,), whole=True, opens=True)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", PreTokenizer((GPT4O,))),
    ("hunyuan-dense deepseek-v3 joyai-llm", PreTokenizer(DEEPSEEK3)),
    ("deepseek-llm", PreTokenizer(DEEPSEEK_LLM)),
    ("deepseek-coder", PreTokenizer(DEEPSEEK_CODER)),
    ("seed-coder", PreTokenizer((SEED,))),
    ("minicpm5", PreTokenizer((r"\p{N}{1,3}", _WORDS % r"\p{N}+"), whole=True)),
    (
        "gpt-2 phi-2 olmo mpt jais gigachat a.x-4.0 mellum exaone4 trillion granite-docling "
        "roberta-bpe jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code",
        PreTokenizer((GPT2,)),
    ),
    ("modern-bert", PreTokenizer((GPT2,), composed=True)),
    (
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
        PreTokenizer((r"\p{N}", GPT2)),
    ),
    ("bloom poro-chat gpt3-finnish", PreTokenizer((BLOOM,))),
    ("falcon", PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"))),
    ("superbpe", PreTokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))"))),
    ("default", PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))),
)
PRE: dict[str, PreTokenizer] = {name: pre for names, pre in _NAMES for name in names.split()}


def pre_of_splits(cuts: tuple[str, ...]) -> str | None:
    """Return the name in tokenizer.ggml.pre of expressions that split text in sequence, or None.

    "" means GPT-2's expression.
    """
    cuts = tuple(cut or GPT2 for cut in cuts)
    return next((name for name, pre in PRE.items() if pre.cuts == cuts), None)
