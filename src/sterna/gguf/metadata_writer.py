"""Write the metadata of a GGUF file: sizes, rotations, tokenizer, chat template, sampling."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.errors import ModelFormatError, UnsupportedModelError, shown, warn
from sterna.files.jsonfile import load_json_object
from sterna.gguf.file import GgufModel
from sterna.gguf.hf_config import GGUF_POOLINGS
from sterna.gguf.pre_tokenizers import pre_of_splits
from sterna.gguf.rope_scaling import LONGROPE, ROPE_FACTORS
from sterna.models.config import TransformerConfig
from sterna.models.rope import Yarn, default_attention_factor, scaling_kind, yarn_of
from sterna.tokenizer import MAX_TOKENIZER_BYTES, Tokenizer

__all__ = ["add_sampling", "add_sizes", "add_tokenizer", "rope_factors", "title_of"]

_LEAST_SCORE = -1e9  # of a token that no merge makes


def title_of(src: Path, name: str) -> str:
    """Return the name that a GGUF file at `src` gives its model, or else `name`, without suffix."""
    if src.is_dir():
        return name
    return GgufModel(src).metadata.text("general.name", Path(name).stem)


def add_sizes(writer: Any, c: TransformerConfig, name: str, file_type: int) -> None:
    """Add the sizes of a model, and the name and type of the file."""
    writer.add_name(name)
    writer.add_file_type(file_type)
    writer.add_quantization_version(2)  # of ggml's block layouts
    writer.add_vocab_size(c.vocab_size)
    # Readers of these files know no windows. Within the smallest, no window has an effect.
    writer.add_context_length(min([c.max_position, *(a.window for a in c.attention if a.window)]))
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.n_layers)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.n_heads)
    writer.add_head_count_kv(c.n_kv_heads)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_rope_dimension_count(c.head_dim)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    if c.pooling:
        writer.add_uint32(f"{writer.arch}.pooling_type", GGUF_POOLINGS[c.pooling.kind])


def rope_factors(
    gguf: Any, writer: Any, c: TransformerConfig
) -> dict[str, npt.NDArray[np.float32]]:
    """Add the base and scaling of the rotations; return the tensors [head_dim / 2] that divide
    frequencies, by name.

    One tensor of factors holds Llama 3's scaling or a linear one; YaRN and LongRoPE have keys.
    UnsupportedModelError for a YaRN that the keys cannot express.
    """
    scaling = c.fields.mapping("rope_parameters")
    theta = c.fields.having({**c.fields.config, **scaling}).number("rope_theta")
    writer.add_rope_freq_base(theta)
    base = np.asarray(_native.inverse_frequencies(theta, c.head_dim), np.float32)
    (rotary,) = {a.rotary for a in c.attention}  # the architectures that GGUF files have
    assert rotary is not None
    kind = scaling_kind(scaling)
    if kind == "yarn":
        _add_yarn(gguf, writer, yarn_of(c.fields, scaling), rotary.factor, c.file)
        return {}
    if kind == "longrope":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        writer.add_rope_scaling_orig_ctx_len(rotary.short_context)
        writer.add_rope_scaling_attn_factors(rotary.factor)
        frequencies = {"short": rotary.inverse_frequencies, "long": rotary.long}
        return {LONGROPE.format(k): _quotients(base, f) for k, f in frequencies.items()}
    if np.array_equal(base, np.asarray(rotary.inverse_frequencies, np.float32)):
        return {}
    return {ROPE_FACTORS: _quotients(base, rotary.inverse_frequencies)}


def _add_yarn(gguf: Any, writer: Any, yarn: Yarn, factor: float, file: Path) -> None:
    """Add YaRN's keys; factor: of cosines and sines, divided by the paper's."""
    if not yarn.truncate:
        raise UnsupportedModelError(
            f"{file}: truncate must be true for a GGUF file, but got false; GGUF has no key for it"
        )
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(yarn.factor)
    writer.add_rope_scaling_orig_ctx_len(yarn.original)
    writer.add_rope_scaling_yarn_beta_fast(yarn.beta_fast)
    writer.add_rope_scaling_yarn_beta_slow(yarn.beta_slow)
    papers = default_attention_factor(yarn.factor)
    if factor != papers:
        writer.add_rope_scaling_attn_factors(factor / papers)


def _quotients(
    base: npt.NDArray[np.float32], frequencies: Sequence[float]
) -> npt.NDArray[np.float32]:
    """Return base / frequencies such that, if possible, base / result gives the same bits back."""
    scaled = np.asarray(frequencies, np.float32)
    # Rounding may miss the frequency; a neighbouring factor may give it back.
    factors = (base / scaled).astype(np.float32)
    for towards in (0.0, np.inf):
        near = np.nextafter(factors, np.float32(towards))
        better = (base / near != base / factors) & (base / near == scaled)
        factors = np.where(better, near, factors).astype(np.float32)
    return factors


def add_tokenizer(gguf: Any, writer: Any, folder: Path, loaded: Tokenizer, vocab_size: int) -> None:
    """Add the tokenizer of a folder: tokenizer.json, special tokens and chat template.

    loaded: the same, ready to use. Raises UnsupportedModelError for a kind that GGUF has no words
    for, ModelFormatError.
    """
    file = folder / "tokenizer.json"
    tokenizer = load_json_object(file, MAX_TOKENIZER_BYTES)
    try:
        byte_level = _add_vocabulary(gguf, writer, tokenizer, file, vocab_size)
        logging.getLogger("gguf").setLevel(logging.ERROR)  # it logs all that it finds
        special = gguf.SpecialVocab(folder, load_merges=byte_level, n_vocab=vocab_size)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        rule = "a tokenizer of the tokenizers library"
        raise ModelFormatError(file, "model", rule, f"{type(error).__name__}: {error}") from None
    # The tokenizer's behaviour decides what begins and ends a text, not the words of its files.
    around = loaded.encode("")
    special.add_special_token["bos"] = bool(around) and around[0] == loaded.bos_id
    special.add_special_token["eos"] = bool(around) and around[-1] in loaded.eos_ids
    special.add_to_gguf(writer, quiet=True)


def _add_vocabulary(
    gguf: Any, writer: Any, tokenizer: dict[str, Any], file: Path, vocab_size: int
) -> bool:
    model = tokenizer["model"]
    if model.get("type", "BPE") != "BPE":
        raise UnsupportedModelError(
            f"{file}: model.type must be BPE for a GGUF file, but got {shown(model.get('type'))}"
        )
    byte_level = not model.get("byte_fallback", False)
    tokens, types = _tokens(gguf, tokenizer, vocab_size, file)
    if byte_level:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(_pre(tokenizer, file))
    else:
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_scores(_scores(model, tokens))
        writer.add_add_space_prefix(_has_prefix(tokenizer))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    return byte_level


def _tokens(
    gguf: Any, tokenizer: dict[str, Any], vocab_size: int, file: Path
) -> tuple[list[str], list[int]]:
    """List spellings and types of all ids; embedding rows without a token are unused."""
    kinds = gguf.TokenType
    tokens = [f"[PAD{i}]" for i in range(vocab_size)]
    types = [int(kinds.UNUSED)] * vocab_size
    model = tokenizer["model"]
    named = {**{i: token for token, i in model["vocab"].items()}}
    added = {
        entry["id"]: entry
        for entry in tokenizer.get("added_tokens") or ()
        if entry["id"] < vocab_size  # as Tokenizer.check has it
    }
    last = max(named, default=0)
    if last >= vocab_size:
        raise ModelFormatError(file, "model.vocab", f"ids below {vocab_size}", last)
    for i, token in named.items():
        byte = model.get("byte_fallback") and len(token) == 6 and token[:3] == "<0x"
        tokens[i], types[i] = token, int(kinds.BYTE if byte else kinds.NORMAL)
    for i, entry in added.items():
        special = entry.get("special", False)
        tokens[i] = entry["content"]
        types[i] = int(kinds.CONTROL if special else kinds.USER_DEFINED)
    unknown = model.get("unk_token")
    if unknown in model["vocab"]:
        types[model["vocab"][unknown]] = int(kinds.UNKNOWN)
    return tokens, types


def _scores(model: dict[str, Any], tokens: list[str]) -> list[float]:
    """Return scores of tokens, higher for earlier merges, as in SentencePiece."""
    rank: dict[str, int] = {}
    for i, merge in enumerate(model["merges"]):
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        rank.setdefault(left + right, i)
    return [-float(rank[token]) if token in rank else _LEAST_SCORE for token in tokens]


def _has_prefix(tokenizer: dict[str, Any]) -> bool:
    """Whether a text gets a space in front."""
    steps = [*_steps(tokenizer, "normalizer"), *_steps(tokenizer, "pre_tokenizer")]
    return any(
        step["type"] == "Prepend"
        or (step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")
        for step in steps
    )


def _pre(tokenizer: dict[str, Any], file: Path) -> str:
    """Return GGUF's name of the pre-tokenizer."""
    cuts: list[str] = []
    for step in _steps(tokenizer, "pre_tokenizer"):
        if step["type"] == "Split":
            cuts.append(step["pattern"].get("Regex", ""))
        elif step["type"] == "Digits":
            cuts.append(r"\p{N}" if step.get("individual_digits") else r"\p{N}+")
        elif step["type"] == "ByteLevel":
            cuts += [""] * bool(step.get("use_regex", True))
        else:
            cuts.append(str(step["type"]))
    name = pre_of_splits(tuple(cuts))
    if name is None:
        raise UnsupportedModelError(
            f"{file}: pre_tokenizer must split text by a rule that GGUF has a name for, but got "
            f"{cuts}; llama.cpp could not tokenize text for this model"
        )
    return name


def _steps(tokenizer: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """List the steps of a normalizer or pre-tokenizer; sequences are unrolled once."""
    whole = tokenizer.get(key)
    if not whole:
        return []
    steps: list[dict[str, Any]] = whole.get("pretokenizers") or whole.get("normalizers") or [whole]
    return steps


def add_sampling(writer: Any, sampling: Mapping[str, Any], suppressed: Sequence[int]) -> None:
    """Add the sampling options that the model's makers recommend, and the tokens to suppress.

    sampling: in the words of generation_config.json; empty for greedy decoding, since GGUF has no
    key for do_sample.
    """
    add = {
        "temperature": writer.add_sampling_temp,
        "top_k": writer.add_sampling_top_k,
        "top_p": writer.add_sampling_top_p,
        "min_p": writer.add_sampling_min_p,
        "repetition_penalty": writer.add_sampling_penalty_repeat,
    }
    for name, value in sampling.items():
        if name in add:
            add[name](value)
        else:
            warn(
                f"general.sampling: has no key for {name} {value}, which the model's files set; "
                "pass it where you run the file"
            )
    if suppressed:
        writer.add_array("tokenizer.ggml.suppress_tokens", suppressed)
