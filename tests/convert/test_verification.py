"""`sterna verify` and the losses that a conversion tells."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import checkpoint_factory as factory
import numpy as np
import pytest
from test_convert import SOURCES

from sterna.checkpoints.packed_config import CONFIG_HASH
from sterna.convert import convert
from sterna.convert.verification import DAMAGED, SOUND, UNCHECKED, VERIFIED, verify
from sterna.errors import RequestError
from sterna.weights.loss import Loss


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        factory.write(root / name, factory.RECIPES[name])
    return root


def test_verify(sources: Path, tmp_path: Path) -> None:
    convert("nano", tmp_path / "m", "t5")
    seen: list[tuple[int, int]] = []
    checks = verify(tmp_path / "m", lambda *done: seen.append(done))
    assert seen == sorted(seen)
    assert 0.99 < seen[-1][0] / seen[-1][1] <= 1
    assert len(checks) == 75 + 1  # the model as a whole
    assert {check.status for check in checks} == {VERIFIED}
    path = tmp_path / "m" / "model.safetensors"
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    path.write_bytes(damaged)
    (bad,) = [check for check in verify(tmp_path / "m") if check.status == DAMAGED]
    assert bad.tensor
    assert "SHA-256" in str(bad.problem)
    path.write_bytes(whole[:-1])
    (bad,) = verify(tmp_path / "m")
    assert bad.status == DAMAGED
    with pytest.raises(RequestError):
        verify(tmp_path / "none")


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("num_key_value_heads", 4, "qkv_proj"), ("rope_theta", 1e6, None),
        ("rms_norm_eps", 0.1, None), ("num_hidden_layers", 1, None),
    ],
)  # fmt: skip
def test_verify_reads_the_settings_of_a_packed_directory(
    sources: Path, tmp_path: Path, key: str, value: float, problem: str | None
) -> None:
    """Settings have a hash; without one, in older folders, they fail where a start refuses them."""
    convert(sources / "llama-256", tmp_path / "m", "i4")
    path, weights = tmp_path / "m" / "config.json", tmp_path / "m" / "model.safetensors"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(config.items()))))  # says the same
    assert verify(tmp_path / "m")[-1].status == VERIFIED
    path.write_text(json.dumps({**config, key: value}))
    *_, whole = verify(tmp_path / "m")
    assert (whole.status, "config.json" in str(whole.problem)) == (DAMAGED, True)
    data = weights.read_bytes()
    weights.write_bytes(data.replace(CONFIG_HASH.encode(), b"x" * len(CONFIG_HASH)))
    *tensors, whole = verify(tmp_path / "m")
    assert {check.status for check in tensors} == {VERIFIED}
    assert whole.status == (SOUND if problem is None else DAMAGED)
    assert problem is None or problem in str(whole.problem)


def test_verify_of_a_model_that_sterna_does_not_run(sources: Path, tmp_path: Path) -> None:
    shutil.copytree(sources / "llama-f32", tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    path.write_text(path.read_text().replace("LlamaForCausalLM", "XGLMForCausalLM"))
    *tensors, whole = verify(tmp_path / "m")
    assert ({check.status for check in tensors}, whole.status) == ({SOUND}, UNCHECKED)
    assert "XGLM" in str(whole.problem)


def test_verify_without_hashes(tmp_path: Path) -> None:
    for name in ("llama-bf16", "bitnet-multiply"):
        factory.write(tmp_path / name, factory.RECIPES[name])
        assert {check.status for check in verify(tmp_path / name)} == {SOUND}
    import torch
    from safetensors.torch import load_file, save_file

    path = tmp_path / "llama-bf16" / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.1.mlp.down_proj.weight"
    save_file({**tensors, name: tensors[name] * torch.nan}, path)
    (bad,) = [check for check in verify(tmp_path / "llama-bf16") if check.status == DAMAGED]
    assert (bad.tensor, bad.problem) == (name, "NaN or infinity in it")
    del tensors[name]
    save_file(tensors, path)
    (bad,) = [check for check in verify(tmp_path / "llama-bf16") if check.status == DAMAGED]
    assert name in str(bad.problem)


def test_loss_of_nothing() -> None:
    loss = Loss("w", 1, 1)
    assert (loss.exact, loss.relative_rms, loss.snr_db) == (True, 0.0, math.inf)
    loss.add(np.zeros((1, 1), np.float32), np.ones((1, 1), np.float32))
    assert (loss.exact, loss.relative_rms, loss.snr_db) == (False, math.inf, -math.inf)


def test_zeros_that_move_are_counted() -> None:
    loss = Loss("w", 2, 3)
    before = np.array([[0, 1, 0], [2, 0, 0]], np.float32)
    loss.add(before, np.array([[0, 2, 1], [2, -1, 0]], np.float32))
    loss.add(before, before)
    assert loss.row()["moved_zeros"] == 2
