"""Small GGUF models of every type, and what their tests compare."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
from gguf_factory import LINEARS, Tiny, build, checkpoint, metadata, raw_file

from sterna import LLM

TEXT = "def read_lines(path): the meaning of life is 42, née"
#: Q4_K_M likewise gives more bits to what matters most.
MIXED = {"": "Q4_K", "attn_v": "Q6_K", "ffn_down": "Q6_K"}
MODELS = {
    **{
        kind: Tiny(types={"": kind}, seed=i)
        for i, kind in enumerate(
            ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K",
             "Q5_K", "Q6_K", "TQ1_0", "TQ2_0", "MXFP4", "IQ4_NL", "IQ4_XS", "NVFP4")
        )
    },
    "mixed": Tiny(types=MIXED, table="Q6_K", seed=20),
    "untied": Tiny(types=MIXED, table="Q8_0", tied=False, seed=21),
    "biased": Tiny(types={"": "Q8_0"}, keys={"bias": True}, seed=22),
    "heads of 20": Tiny(types={"": "F16"}, head_dim=20, seed=29),
    "rope": Tiny(rope_factors=True, rope_theta=500000.0, seed=23),
    "qwen2": Tiny("qwen2", types={"": "Q4_0"}, tied=False, table="F16", seed=24),
    "qwen3": Tiny("qwen3", types=MIXED, head_dim=128, seed=25),
    "bitnet-b1.58": Tiny("bitnet-b1.58", types={"": "TQ2_0"}, table="F16", seed=26),
    "bitnet": Tiny("bitnet", types={"": "TQ2_0"}, table="F16", seed=28),
    "bitnet-25": Tiny("bitnet-25", types={"": "TQ1_0"}, table="F16", seed=27),
}  # fmt: skip


def logits(llm: LLM) -> np.ndarray:
    return llm.logits(llm.tokenizer.encode(TEXT))


def hf_name(name: str) -> str:
    """A layer's matrix in a checkpoint."""
    _, layer, module, _ = name.split(".")
    return f"model.layers.{layer}.{LINEARS[module]}.weight"


def floating(folder: Path, tiny: Tiny, floats: dict[str, np.ndarray]) -> LLM:
    """The float32 checkpoint; of BitNet a file of floats, since a checkpoint's would be taken for
    masters and rounded."""
    if not tiny.arch.startswith("bitnet"):
        return LLM(checkpoint(folder, tiny, floats), format="f32", head="f32")
    write_path = folder.with_suffix(".gguf")
    file, _ = build(replace(tiny, types={}))
    tensors = []
    for name, (w, _) in file.items():
        inside = w.ndim == 2 and name.startswith("blk.")
        data = floats[hf_name(name)] if inside else w.astype(np.float32)
        data = floats["model.embed_tokens.weight"] if name == "token_embd.weight" else data
        tensors.append((name, w.shape, 0, data.tobytes()))
    raw_file(write_path, {"general.architecture": tiny.arch, **metadata(tiny)}, tensors)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return LLM(write_path, head="f32")
