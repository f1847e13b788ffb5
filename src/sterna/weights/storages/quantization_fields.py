"""The fields of `quantization_config` by method, as the libraries write them, sorted by effect.

Most repeat what the tensors' names, dtypes and shapes say, tell how the weights were found, or
round activations: layers round theirs to 8 bits or not at all. Fields that change what the weights
mean are read, or refused by name. test_quantization_fields.py compares the names with those of the
libraries' own sources.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NoReturn

from sterna.errors import UnsupportedModelError, shown
from sterna.files.known_fields import KnownFields
from sterna.files.words import words

__all__ = ["ARGUMENTS", "FIELD", "METHODS", "SCHEME", "check_fields"]

FIELD = "quantization_config"
#: What every method may have; names of modules that are, or are not, quantised: the tensors tell.
COMMON = KnownFields().plus(
    read="quant_method",
    without_effect="""
    modules_to_not_convert ignore ignored_layers exclude_modules skip_modules
    dequantize provider producer
    """,
)
#: Of GPTQ and its relatives: how the integers were found, what the tensors repeat, and kernels.
GPTQ = """
act_group_aware batch_size block_name_to_quantize cache_block_outputs damp_auto_increment
damp_percent dataset desc_act foem gptaq hyb_act max_input_length meta model_file_base_name
model_name_or_path model_seqlen module_name_preceding_first_block modules_in_block_to_quantize mse
pad_token_id static_groups tokenizer true_sequential
bits dynamic group_size lm_head method pack_dtype
backend disable_exllama exllama_config use_cuda_fp16 use_exllama
"""
#: AutoRound's, which it also writes into files of GPTQ and AWQ.
AUTO_ROUND = """
act_bits act_data_type act_dynamic act_group_size act_sym activation_scheme amp autoround_version
batch_size bits block_name_to_quantize data_type enable_minmax_tuning enable_norm_bias_tuning
enable_quanted_input extra_config fmt gradient_accumulate_steps group_size iters low_gpu_mem_usage
lr minmax_lr nsamples quant_block_list regex_config scale_dtype seqlen static_attention_dtype
static_attention_granularity static_kv_dtype static_kv_granularity super_bits super_group_size
supported_types to_quant_block_names
"""
ROTATIONS = "rotation rotation_config rotation_configs spinquant_config transform_config"
#: Of one matrix, a group of matrices, or the inputs, in compressed-tensors and modelopt.
ARGUMENTS = KnownFields().plus(
    read="num_bits type symmetric dynamic block_structure",
    without_effect="actorder group_size observer observer_kwargs scale_dtype strategy zp_dtype",
)
SCHEME = KnownFields().plus(
    read="weights input_activations format", without_effect="targets", refused="output_activations"
)
_KV_CACHE = "kv_cache_scheme kv_cache_quant_algo"  # Sterna's cache has a type of its own
_COMPRESSED = COMMON.plus(
    read="config_groups format",
    without_effect=f"""
    {_KV_CACHE} attention_input_activations global_compression_ratio quantization_status
    run_compressed use_optimized_inference version
    """,
    refused=f"moe_sparsity_config sparsity_config {ROTATIONS}",
)
_AUTO_ROUND = COMMON.plus(
    read="sym packing_format data_type format checkpoint_format",
    without_effect=AUTO_ROUND + GPTQ,
    refused=ROTATIONS,
)
METHODS: dict[str, KnownFields] = {
    "bitnet": COMMON.plus("linear_class quantization_mode use_rms_norm rms_norm_eps"),
    "power_of_two": COMMON.plus("encoding zero_free scale"),
    "mxfp4": COMMON,
    "gptq": COMMON.plus(
        read="sym format checkpoint_format rotation",
        without_effect=AUTO_ROUND + GPTQ + "activation",
        refused=f"{ROTATIONS} adapter is_marlin_format",
    ),
    "awq": COMMON.plus(
        read="version format checkpoint_format bits w_bit",
        without_effect=f"""
        {AUTO_ROUND} {GPTQ}
        do_fuse fuse_max_seq_len modules_to_fuse q_group_size sym zero_point
        """,
        refused=f"{ROTATIONS} activation",
    ),
    "auto-round": _AUTO_ROUND,
    "intel/auto-round": _AUTO_ROUND,
    "compressed-tensors": _COMPRESSED,
    "bitsandbytes": COMMON.plus(
        without_effect="""
        _load_in_4bit _load_in_8bit bnb_4bit_compute_dtype bnb_4bit_quant_storage
        bnb_4bit_quant_type bnb_4bit_use_double_quant llm_int8_enable_fp32_cpu_offload
        llm_int8_has_fp16_weight llm_int8_skip_modules llm_int8_threshold load_in_4bit load_in_8bit
        """
    ),
    "torchao": COMMON.plus(
        without_effect="""
        include_input_output_embeddings quant_type quant_type_kwargs untie_embedding_weights
        """
    ),
    "hqq": COMMON.plus(
        without_effect="axis dynamic_config group_size nbits quant_config view_as_float"
    ),
    "fp8": COMMON.plus(
        read="weight_block_size",
        without_effect=f"""
        {AUTO_ROUND} {_KV_CACHE} modules_to_convert packing_format scale_fmt sym
        """,
        refused=ROTATIONS,
        neutral={"expert_dtype": ("fp8",)},
    ),
    "fbgemm_fp8": COMMON.plus(without_effect="activation_scale_ub"),
    "modelopt": _COMPRESSED.plus(
        without_effect="group_size quant_algo quantization quantized_layers",
        refused="has_zero_point pre_quant_scale",
    ),
}
#: Layouts of compressed-tensors, as `format` names them; weights of the first two are integers.
LAYOUTS = words("""
    int-quantized pack-quantized float-quantized naive-quantized nvfp4-pack-quantized
    mxfp4-pack-quantized mxfp8-quantized mixed-precision
""")
#: Packings of AutoRound whose tensors are those of GPTQ, AWQ, compressed-tensors or FP8.
_PACKINGS = words("""
    auto_awq auto_gptq awq exllamav2 fake fp8 fp8_static gptq gptqmodel llm_compressor mx_fp
    mx_fp_rceil nv_fp nv_fp4_with_static_gs triton tritonv2
""")
PACKINGS = ("auto", "auto_round", *(f"auto_round:{name}" for name in _PACKINGS))
#: Its numbers: integers, or floats with scales of E4M3 or E8M0.
_NUMBERS = re.compile(r"(opt_)?(rtn_)?(int|mx_fp|nv_fp|fp|block_fp8)(?!\w*(e5m|float_zp|gaudi))\w*")
MLX_MODES = ("affine", "mxfp4", "mxfp8", "nvfp4")
#: MLX's files name no method. Its other fields are names of modules with settings of their own.
MLX = KnownFields().plus(read="mode", without_effect="bits group_size")


def check_fields(settings: dict[str, Any], file: Path) -> None:
    """Raise UnsupportedModelError for a field that asks for something that Sterna lacks.

    settings: quantization_config, of a method in METHODS or of MLX, which names none.
    """
    method = settings.get("quant_method")
    if method is None:
        _check_mlx(settings, file)
        return
    sparsity = settings.get("sparsity_config")
    if isinstance(sparsity, dict) and sparsity.get("format") == "dense":
        settings = settings | {"sparsity_config": None}
    METHODS[method].check(settings, file, f"{FIELD}.")
    if method == "awq":
        _one_of(settings, "version", ("gemm", "GEMM"), file)
        _one_of(settings, "format", ("gemm",), file)
        _one_of(settings, "bits", (4,), file)
        _one_of(settings, "w_bit", (4,), file)
    elif method == "gptq" or method.endswith("auto-round"):
        for name in ("format", "checkpoint_format"):
            _one_of(settings, name, ("gptq", "gptq_v2"), file)
        _one_of(settings, "rotation", ("hadamard", "random"), file)
        _one_of(settings, "packing_format", PACKINGS, file)
        numbers = settings.get("data_type")
        if numbers is not None and not _NUMBERS.fullmatch(str(numbers)):
            _fail(file, "data_type", "of integers, E4M3, NVFP4 or MXFP4", numbers)
    elif method in ("compressed-tensors", "modelopt"):
        _check_schemes(settings, file)


def _check_schemes(settings: dict[str, Any], file: Path) -> None:
    """Check layouts, and the activations of layers of integers."""
    _one_of(settings, "format", LAYOUTS, file)
    groups = settings.get("config_groups")
    for group, scheme in groups.items() if isinstance(groups, dict) else ():
        if not isinstance(scheme, dict):
            continue
        name = f"config_groups.{group}"
        SCHEME.check(scheme, file, f"{FIELD}.{name}.")
        _one_of(scheme, "format", LAYOUTS, file, f"{name}.")
        weights, inputs = (scheme.get(part) or {} for part in ("weights", "input_activations"))
        for part, part_scheme in (("weights", weights), ("input_activations", inputs)):
            if isinstance(part_scheme, dict):
                ARGUMENTS.check(part_scheme, file, f"{FIELD}.{name}.{part}.")
        if isinstance(weights, dict) and weights.get("type") == "float":
            continue  # layers take float activations, whatever others round them to
        if isinstance(inputs, dict) and inputs and not _is_dynamic_int8(inputs):
            rule = "symmetric int8 with a scale of each token (dynamic)"
            _fail(file, f"{name}.input_activations", rule, inputs)


def _is_dynamic_int8(inputs: dict[str, Any]) -> bool:
    return (
        inputs.get("dynamic") is True
        and (inputs.get("num_bits"), inputs.get("type")) == (8, "int")
        and inputs.get("symmetric") is not False
    )


def _check_mlx(settings: dict[str, Any], file: Path) -> None:
    """Check a model's settings, and those of single modules in the same object."""
    own = {k: v for k, v in settings.items() if not _is_module(k, v)}
    for name, quantization in {
        "": own,
        **{f"{k}.": settings[k] for k in settings.keys() - own},
    }.items():
        if isinstance(quantization, dict):
            MLX.check(quantization, file, f"{FIELD}.{name}")
            _one_of(quantization, "mode", MLX_MODES, file, name)
        elif not isinstance(quantization, bool):
            _fail(file, name.rstrip("."), "an object or a boolean", quantization)


def _is_module(name: str, value: object) -> bool:
    return isinstance(value, dict) or "." in name or name == "lm_head"


def _one_of(
    settings: dict[str, Any], name: str, values: tuple[object, ...], file: Path, prefix: str = ""
) -> None:
    value = settings.get(name)
    if value is not None and value not in values:
        rule = values[0] if len(values) == 1 else f"one of {', '.join(map(str, values))}"
        _fail(file, f"{prefix}{name}", str(rule), value)


def _fail(file: Path, name: str, rule: str, got: object) -> NoReturn:
    raise UnsupportedModelError(
        f"{file}: {FIELD}.{name}: must be {rule}, but got {shown(got)}; Sterna does not run others"
    )
