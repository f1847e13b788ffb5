"""Sterna's layers in models of transformers, by `from_pretrained`; register by importing this.

>>> import sterna.integrations.transformers
>>> model = AutoModelForCausalLM.from_pretrained("my-model")     # a packed folder of Sterna's
>>> model = AutoModelForCausalLM.from_pretrained(
...     "org/floats", quantization_config=SternaConfig("i8"))    # floats, rounded once loaded
>>> delegate(model, LLM("my-model")).generate(**inputs)          # written by Sterna's own engine

Without the import, transformers warns, and opens a packed folder with random floats.
`save_pretrained` of a model with Sterna's layers writes a packed folder. Needs
`pip install 'sterna[transformers]'`. See docs/how-to/pytorch.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from sterna import formats, train
from sterna.errors import ModelFormatError, RequestError, shown
from sterna.llm import LLM
from sterna.torch import accelerate
from sterna.torch.packed_layers import OpenedLayers, open_layers

__all__ = ["SternaConfig", "SternaQuantizer", "delegate"]

METHOD = "sterna"
#: Options of transformers' `generate` -> their names in LLM.
_OPTIONS = {
    **{name: name for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")},
    "min_new_tokens": "min_tokens",
}
#: Fields of a generation config that change nothing here while they have these values.
_PLAIN: dict[str, Any] = {
    **dict.fromkeys("no_repeat_ngram_size min_length".split(), 0),
    **dict.fromkeys("num_beams num_return_sequences num_beam_groups".split(), 1),
    **dict.fromkeys("epsilon_cutoff eta_cutoff".split(), 0.0),
    **dict.fromkeys("typical_p encoder_repetition_penalty".split(), 1.0),
    **dict.fromkeys("return_dict_in_generate output_scores output_logits".split(), False),
    **dict.fromkeys("output_attentions output_hidden_states".split(), False),
    **dict.fromkeys("penalty_alpha guidance_scale max_time stop_strings".split()),
    **dict.fromkeys("bad_words_ids suppress_tokens begin_suppress_tokens sequence_bias".split()),
    **dict.fromkeys("forced_bos_token_id forced_eos_token_id watermarking_config".split()),
    **dict.fromkeys("exponential_decay_length_penalty prompt_lookup_num_tokens".split()),
    "assistant_early_exit": None,
}
#: Options of `save_pretrained` that change nothing here while they have these values.
_SAVED = {"safe_serialization": True, "is_main_process": True, "push_to_hub": False}


@register_quantization_config(METHOD)
class SternaConfig(QuantizationConfigMixin):
    """How the linear layers of a float checkpoint are rounded; a packed folder needs no config.

    format: a name of `sterna formats`. modules_to_not_convert: names, or last parts of names, of
    layers that stay floats; by default the head.
    """

    def __init__(
        self,
        format: str | None = None,
        modules_to_not_convert: list[str] | None = None,
        **stored: Any,
    ) -> None:
        """Raise RequestError for an unknown format. stored: fields of a packed config.json."""
        self.quant_method = METHOD  # type: ignore[assignment]
        self.format = None if format is None else str(formats.get(format))
        self.modules_to_not_convert = modules_to_not_convert
        stored.pop("quant_method", None)
        self.__dict__.update(stored)


@register_quantizer(METHOD)
class SternaQuantizer(HfQuantizer):
    """The hooks that transformers calls while it loads a model."""

    quantization_config: SternaConfig
    requires_calibration = False
    _opened: OpenedLayers | None = None

    def validate_environment(self, *args: Any, **kwargs: Any) -> None:
        """Raise RequestError for a device other than the CPU, and for floats without a format."""
        placed = kwargs.get("device_map")  # a dict, None, or a word: see update_device_map
        devices = placed.values() if isinstance(placed, dict) else ()
        if wrong := [d for d in devices if str(d).partition(":")[0] != "cpu"]:
            raise RequestError(
                f"device_map: must be cpu, where Sterna computes, but got {shown(wrong[0])}"
            )
        if not self.pre_quantized and self.quantization_config.format is None:
            raise RequestError("format: must be given for a float checkpoint, such as i8 or q8_0")

    def update_device_map(self, device_map: Any) -> Any:
        """Choose the CPU for "auto" and other words that leave the choice to transformers."""
        return {"": "cpu"} if isinstance(device_map, str) else device_map

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
        """Put placeholders for a packed folder's layers, so that no weights are made for them."""
        if not self.pre_quantized:
            return
        files = kwargs.get("checkpoint_files") or []
        if len(files) != 1:
            raise RequestError(f"model: a packed folder has one file of weights, but got {files}")
        with torch.device("cpu"):  # transformers' own is meta, at this point
            self._opened = open_layers(Path(files[0]).parent)
        for name in self._opened.layers:
            layer = _child(model, name)
            if layer is None:
                raise RequestError(
                    f"{name}: must be in the model, but {type(model).__name__} has none of this "
                    "name; open a packed folder with AutoModelForCausalLM, or sterna.LLM"
                )
            if type(layer) is not nn.Linear:
                raise RequestError(
                    f"{name}: must be an nn.Linear of transformers to become a SternaLinear, "
                    f"but is {type(layer).__name__}; run the folder with sterna.LLM"
                )
            _put(model, name, nn.Identity())
        model._keys_to_ignore_on_load_missing = {".*"}  # they come below
        model._keys_to_ignore_on_load_unexpected = {".*"}  # Sterna's own names
        # `tie_weights` would warn of a damaged checkpoint if it were told that both tensors of a
        # tied head are missing. The class's method is looked up at the call, because transformers
        # has replaced it for the moment.
        model.tie_weights = lambda missing_keys=None, **rest: type(model).tie_weights(model, **rest)

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        config = self.quantization_config
        if self._opened is None:
            skip = config.modules_to_not_convert
            accelerate(model, config.format, skip=("lm_head",) if skip is None else skip)
        else:
            del model.tie_weights  # the class has its own
            _fill(model, self._opened)
            self._opened = None
        model.save_pretrained = _Saving(model)
        return model

    def is_serializable(self) -> bool:
        """Return True: `save_pretrained` writes a packed folder."""
        return True

    @property
    def is_trainable(self) -> bool:
        """True: gradients pass through the frozen layers, so adapters are trainable."""
        return True

    @property
    def is_compileable(self) -> bool:
        """True: `torch.compile` supports its operator."""
        return True


class _Saving:
    """`model.save_pretrained`, which writes a packed folder."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __call__(self, save_directory: str | Path, **kwargs: Any) -> None:
        """Write the folder; RequestError if it has files, or for options of other folders."""
        if other := [k for k, value in kwargs.items() if value not in (None, _SAVED.get(k))]:
            raise RequestError(f"save_pretrained: takes only a folder, but got {', '.join(other)}")
        train.export(self._model, save_directory)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Saving:
        return _Saving(memo.get(id(self._model), self._model))


def _child(model: nn.Module, name: str) -> nn.Module | None:
    try:
        return model.get_submodule(name)
    except AttributeError:
        return None


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)


def _fill(model: Any, opened: OpenedLayers) -> None:
    for name, layer in opened.layers.items():
        _put(model, name, layer.to(model.dtype))
    own = dict(model.named_parameters())
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    layers = tuple(f"{name}." for name in opened.layers)
    wanted = {name for name in own if not name.startswith(layers)} - tied
    if wanted != opened.tensors.keys():
        odd = sorted(wanted ^ opened.tensors.keys())[0]
        raise ModelFormatError(
            file=model.config._name_or_path,
            field=odd,
            expected="the tensors that transformers has for this architecture",
            got="none of this name" if odd in wanted else "one more",
            remedy="run the folder with sterna.LLM",
        )
    with torch.no_grad():
        for name, tensor in opened.tensors.items():
            own[name].copy_(tensor.reshape(own[name].shape))


def delegate(model: PreTrainedModel, llm: LLM) -> PreTrainedModel:
    """Let an LLM of the same model answer `model.generate`; returns the model.

    `model.generate` still takes input_ids and attention_mask [B, T] and a generation config or its
    fields, and returns sequences [B, T + n], padded on the right. Greedy tokens are those of
    `llm.generate`; torch's generator seeds sampled ones. Raises RequestError for what LLM does not
    do, such as beams.
    """
    if not isinstance(llm, LLM):
        raise RequestError(f"llm: must be a sterna.LLM, but got {type(llm).__name__}")
    vocab, other = model.config.get_text_config().vocab_size, llm.engine.model.config.vocab_size
    if vocab != other:
        raise RequestError(f"llm: must have the model's vocabulary of {vocab}, but has {other}")

    def generate(
        inputs: Tensor | None = None,
        generation_config: Any = None,
        *,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        rows = input_ids if inputs is None else inputs
        if rows is None or rows.ndim != 2 or rows.dtype.is_floating_point:
            raise RequestError("input_ids: must be token ids [B, T]")
        prepare: Any = model._prepare_generation_config
        config, unused = prepare(generation_config, **kwargs)
        if unused:
            raise RequestError(f"generate: Sterna's takes no {', '.join(unused)}")
        mask = torch.ones_like(rows) if attention_mask is None else attention_mask
        prompts = [row[attended.bool()].tolist() for row, attended in zip(rows, mask, strict=True)]
        answers = llm.generate(prompts, **_options(config, rows.shape[1]))
        longest = max((len(answer.tokens) for answer in answers), default=0)
        ends = config.eos_token_id
        end = ends[0] if isinstance(ends, list) else ends
        pad = next((p for p in (config.pad_token_id, end) if p is not None), 0)
        out = torch.full((len(rows), rows.shape[1] + longest), int(pad))
        out[:, : rows.shape[1]] = rows
        for i, answer in enumerate(answers):
            out[i, rows.shape[1] : rows.shape[1] + len(answer.tokens)] = torch.tensor(answer.tokens)
        return out

    model.generate = generate  # type: ignore[assignment]
    return model


def _options(config: Any, length: int) -> dict[str, Any]:
    """Translate a generation config into LLM's options."""
    for name, plain in _PLAIN.items():
        value = getattr(config, name, None)
        if value not in (None, plain):
            raise RequestError(f"{name}: Sterna's generate has {plain}, but got {shown(value)}")
    most = config.max_new_tokens
    if most is None:
        most = max(1, (config.max_length or length + 20) - length)
    options: dict[str, Any] = {"max_tokens": most}
    for theirs, ours in _OPTIONS.items():
        if (value := getattr(config, theirs, None)) is not None:
            options[ours] = value
    if not config.do_sample:
        options = {k: v for k, v in options.items() if k not in ("top_k", "top_p", "min_p")}
        options["temperature"] = 0
    else:
        options["seed"] = int(torch.randint(2**31, ()))
        options.setdefault("temperature", 1.0)
    ends = config.eos_token_id
    if ends is not None:
        options["stop_token_ids"] = [int(t) for t in (ends if isinstance(ends, list) else [ends])]
    return options
