"""Sampling defaults of a model's generation_config.json or GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sterna.errors import ModelFormatError, RequestError, shown
from sterna.files.known_fields import KnownFields
from sterna.loading import Model
from sterna.sampling_params import SamplingParams

__all__ = ["FIELDS", "GenerationDefaults", "chat_sampling", "sampling_of"]

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p")
#: transformers' order, in `SamplingParams.samplers`' names: that of typical_p in a model's files.
ORDER = ("penalties", "dry", "temperature", "top_k", "top_p", "min_p", "typ_p")
#: Of a chat where neither its user nor the model's files set a temperature: greedy answers of small
#: models fall into loops, and a second answer would be the first. llama.cpp has these values.
CHAT_SAMPLING = {"temperature": 0.8, "min_p": 0.05}
#: Fields of generation_config.json, as transformers has written them. Those without effect are
#: about lengths, which a request says; about memory, speed and what a call returns; or matter only
#: next to a refused one, such as beams. test_defaults.py compares them with the installed ones.
#: Makers add fields for their own code, such as the tokens of Baichuan's turns.
FIELDS = KnownFields(
    read=frozenset(
        (
            *SAMPLING,
            *"repetition_penalty do_sample suppress_tokens bad_words_ids".split(),
            *"bos_token_id eos_token_id".split(),
        )
    ),
    without_effect=frozenset(
        """
        _from_model_config _name_or_path transformers_version trust_remote_code torch_dtype dtype
        attn_implementation _attn_implementation pad_token_id decoder_start_token_id
        max_length max_new_tokens max_time
        cache_implementation cache_config max_cache_len compile_config disable_compile
        continuous_batching_config low_memory prefill_chunk_size return_legacy_cache use_cache
        output_attentions output_hidden_states output_logits output_scores num_return_sequences
        return_dict_in_generate
        assistant_confidence_threshold assistant_early_exit assistant_ensemble_weight
        assistant_lookbehind is_assistant max_matching_ngram_size num_assistant_tokens
        num_assistant_tokens_schedule prompt_lookup_num_tokens speculation_type target_lookbehind
        use_mtp
        diversity_penalty early_stopping length_penalty remove_invalid_values
        renormalize_logits
        """.split()
    ),
    refused={
        **dict.fromkeys("begin_suppress_tokens constraints dola_layers".split(), ()),
        **dict.fromkeys("exponential_decay_length_penalty force_words_ids".split(), ()),
        **dict.fromkeys("forced_bos_token_id forced_decoder_ids forced_eos_token_id".split(), ()),
        **dict.fromkeys("sequence_bias stop_strings token_healing top_h".split(), ()),
        **dict.fromkeys("watermarking_config".split(), ()),
        **dict.fromkeys("encoder_no_repeat_ngram_size no_repeat_ngram_size".split(), (0,)),
        **dict.fromkeys("min_length min_new_tokens".split(), (0,)),
        **dict.fromkeys("num_beam_groups num_beams".split(), (1,)),
        **dict.fromkeys("encoder_repetition_penalty guidance_scale".split(), (1.0,)),
        **dict.fromkeys("epsilon_cutoff eta_cutoff penalty_alpha".split(), (0.0,)),
        **dict.fromkeys("frequency_penalty presence_penalty".split(), (0.0,)),
    },
    open=True,
)


@dataclass(frozen=True)
class GenerationDefaults:
    """The settings of answers in a model's files.

    sampling: values of `SamplingParams` by field. suppressed: token sequences that no answer may
    contain.
    """

    sampling: Mapping[str, Any]
    suppressed: tuple[tuple[int, ...], ...]

    @classmethod
    def of_model(cls, model: Model) -> GenerationDefaults:
        """Read the model's settings. ModelFormatError and UnsupportedModelError name the file."""
        files = model.assets
        assert files is not None  # every model that is loaded from a path has them
        config, file = files.generation_config, files.generation_file
        suppressed = _suppressed(config, model.config.vocab_size, file)
        return cls(sampling_of(config, file), suppressed)

    def applied(self, params: SamplingParams) -> SamplingParams:
        """Return parameters with the model's values, or neutral ones, in place of None.

        The model's typical_p has its makers' order of samplers, unless the request has one.
        """
        ordered = params.samplers is not None or params.chains or params.typical_p is not None
        params = params.resolved(self.sampling)
        if not ordered and self.sampling.get("typical_p", 1.0) < 1.0:
            params = params.replaced({"samplers": ORDER})
        if not self.suppressed:
            return params
        return replace(params, bad_words=(*params.bad_words, *self.suppressed))


def chat_sampling(defaults: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, float]:
    """Return the sampling options of a chat that neither its user nor the model sets.

    defaults: the model's own, `LLM.defaults`. options: the user's; None counts as absent.
    """
    if options.get("temperature") is not None or "temperature" in defaults:
        return {}
    return {name: value for name, value in CHAT_SAMPLING.items() if options.get(name) is None}


def sampling_of(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Sampling values of generation_config.json, or of GGUF's general.sampling in the same words.

    As in vLLM, they apply unless do_sample is false, and a missing temperature means 1. A
    repetition penalty applies to greedy answers, too. ModelFormatError names `file` for values out
    of range, UnsupportedModelError a field that Sterna does not apply.
    """
    FIELDS.check(config, file, remedy="remove it from the file to do without it")
    sampling = {
        n: config[n] for n in (*SAMPLING, "repetition_penalty") if config.get(n) is not None
    }
    sampled = config.get("do_sample")
    if sampled is False or not (sampled or sampling.keys() & set(SAMPLING)):
        sampling = {n: v for n, v in sampling.items() if n not in SAMPLING}
    else:
        sampling = {"temperature": 1.0, **sampling}
    if sampling.get("top_k") == -1:  # off, in vLLM's words
        sampling["top_k"] = 0
    try:
        SamplingParams(**sampling)
    except RequestError as e:
        raise ModelFormatError(
            file=file, field="generation", expected="usable sampling values", got=e
        ) from None
    return sampling


def _suppressed(config: Mapping[str, Any], vocab: int, file: Path) -> tuple[tuple[int, ...], ...]:
    """Read suppress_tokens and bad_words_ids of generation_config.json as sequences of ids.

    Gemma 4 lists its markers of images and audio there. Ids outside the model's vocabulary are left
    out, as in llama.cpp. ModelFormatError names `file` for malformed lists.
    """
    tokens, words = (config.get(key) or [] for key in ("suppress_tokens", "bad_words_ids"))
    try:
        named = [*((token,) for token in tokens), *map(tuple, words)]
        whole = all(type(id) is int and id >= 0 for word in named for id in word)
    except TypeError:
        whole = False
    if not whole:
        raise ModelFormatError(
            file=file,
            field="suppress_tokens, bad_words_ids",
            expected="ids, and lists of ids",
            got=shown([tokens, words]),
        )
    return tuple(word for word in named if word and max(word) < vocab)
