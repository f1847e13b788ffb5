"""params.json and consolidated.safetensors: the model is that of the Hugging Face layout."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import saved_models
import torch
from helpers import assert_same_bits, failure
from model_configs import Saved
from safetensors.torch import load_file, save_file
from saved_answers import logits
from test_tekken import SIZE, content, folder_of

from sterna import LLM, loading
from sterna.convert import convert
from sterna.errors import ModelFormatError, SternaError, UnsupportedModelError

SIZES: dict[str, Any] = {
    "vocab_size": SIZE, "head_dim": 24, "sliding_window": None, "tie_word_embeddings": False,
    "rms_norm_eps": 1e-3, "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
}  # fmt: skip
#: As Mistral's own code names them.
NAMES = {
    "self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv", "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3", "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm", "model.embed_tokens": "tok_embeddings",
    "model.norm": "norm", "lm_head": "output", "model.layers": "layers",
}  # fmt: skip


def own(name: str, tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
    """A tensor in Mistral's layout: neighbours among the rows of q and k rotate together."""
    for theirs, to in NAMES.items():
        name = name.replace(theirs, to)
    if name.endswith(("wq.weight", "wk.weight")):
        halves = tensor.reshape(-1, 2, 12, tensor.shape[1])
        tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
    return name, tensor.contiguous()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model as transformers saves it, and in Mistral's layout."""
    root = tmp_path_factory.mktemp("layouts")
    saved_models.write(root / "hf", Saved("MistralForCausalLM", SIZES))
    config = json.loads((root / "hf" / "config.json").read_text())
    params = {
        "dim": config["hidden_size"], "n_layers": config["num_hidden_layers"], "head_dim": 24,
        "hidden_dim": config["intermediate_size"], "n_heads": config["num_attention_heads"],
        "n_kv_heads": config["num_key_value_heads"], "norm_eps": 1e-3, "rope_theta": 5000.0,
        "vocab_size": SIZE, "tied_embeddings": False, "max_position_embeddings": 256,
        "causal": True, "model_type": "transformer", "moe": None,
    }  # fmt: skip
    folder_of(root / "own", content())
    (root / "own" / "params.json").write_text(json.dumps(params))
    tensors = dict(own(*item) for item in load_file(root / "hf" / "model.safetensors").items())
    assert {"tok_embeddings.weight", "layers.4.attention.wq.weight"} < tensors.keys()
    save_file(tensors, root / "own" / "consolidated.safetensors")
    return root / "hf", root / "own"


def test_it_is_the_same_model(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """To the bit; so are its copies."""
    expected = logits(folders[0])
    assert_same_bits(logits(folders[1]), expected)
    convert(folders[1], tmp_path / "packed", None)
    assert_same_bits(logits(tmp_path / "packed"), expected)
    llm = LLM(folders[1], threads=1, cache=False)
    assert (llm.tokenizer.bos_id, llm.info()["context"]) == (1, 256)
    llm.chat([{"role": "user", "content": "ab"}], max_tokens=3)


def changed(folder: Path, to: Path, **fields: Any) -> Path:
    """A copy with other fields of params.json; "absent" removes one."""
    to.mkdir()
    for name in ("tekken.json", "consolidated.safetensors"):
        (to / name).symlink_to(folder / name)
    params = {**json.loads((folder / "params.json").read_text()), **fields}
    params = {name: value for name, value in params.items() if value != "absent"}
    (to / "params.json").write_text(json.dumps(params))
    return to


@pytest.mark.parametrize(
    ("fields", "kind", "name"),
    [
        ({"moe": {"num_experts": 8}}, UnsupportedModelError, "moe"),
        ({"quantization": {"qformat_weight": "fp8_e4m3"}}, UnsupportedModelError, "quantization"),
        ({"not_yet_known": 1}, UnsupportedModelError, "not_yet_known"),
        ({"causal": False}, ModelFormatError, "causal"),
        ({"dim": "absent"}, ModelFormatError, "dim"),
        ({"n_layers": "5"}, SternaError, "5"),
        ({"head_dim": 7}, ModelFormatError, "head_dim"),
        ({"head_dim": None}, ModelFormatError, "head_dim"),
        ({"n_layers": 4}, SternaError, "layers.4"),
    ],
)
def test_what_is_refused(
    folders: tuple[Path, Path], tmp_path: Path, fields: dict[str, Any], kind: type, name: str
) -> None:
    folder = changed(folders[1], tmp_path / "m", **fields)
    failure(lambda: loading.load(folder, cached=False), kind, name)


def test_a_tower_is_left_out(folders: tuple[Path, Path], tmp_path: Path) -> None:
    folder = changed(folders[1], tmp_path / "m", vision_encoder={"hidden_size": 8})
    with pytest.warns(RuntimeWarning, match="params.json: 'vision_encoder' is left out"):
        loading.load(folder, cached=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loading.load(folders[1], cached=False)
