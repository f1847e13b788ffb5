"""Every supported family by llama.cpp's own converter: logits are those of transformers in float32.

Models are those of `model_configs`, small and random, as transformers saves them. The converter is
that of the sdist of llama-cpp-python, run in a process of its own with the gguf package beside it.
It knows pre-tokenizers by hashes; the one here is named to it, outside of its sources.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import saved_models
from assets import llama_cpp
from model_configs import MODELS
from test_saved_models import TOKENS, error, logits

from sterna import loading
from sterna.errors import SternaError

CONVERT = """
import json, sys
from pathlib import Path
sources = sys.argv[1]
sys.path[:0] = [sources, f"{sources}/gguf-py"]
import gguf, torch
assert Path(gguf.__file__).is_relative_to(sources), gguf.__file__
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
from conversion.base import TextModel
TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
load_hparams = ModelBase.load_hparams
def with_older_names(*args, **options):  # the only ones that a converter knows
    hparams = load_hparams(*args, **options)
    rope = hparams.get("rope_parameters") or {}
    if "partial_rotary_factor" in rope or hparams.get("model_type") == "cohere2":
        hparams.setdefault("rotary_pct", rope.get("partial_rotary_factor", 1.0))
    if "n_positions" in hparams:
        hparams.setdefault("n_ctx", hparams["n_positions"])
    return hparams
ModelBase.load_hparams = staticmethod(with_older_names)
for folder, out in json.loads(sys.argv[2]):
    folder, out = Path(folder), Path(out)
    try:
        hparams = ModelBase.load_hparams(folder, False)
        name = get_model_architecture(hparams, ModelType.TEXT)
        name = {"PhimoeForCausalLM": "PhiMoEForCausalLM"}.get(name, name)  # of the first files
        kind = get_model_class(name)
        for one in (kind, getattr(kind, "Ministral3Model", kind)):
            one.set_vocab = TextModel._set_vocab_gpt2
        if kind.supports_mtp_export:
            kind.no_mtp = True
        with torch.inference_mode():
            kind(folder, gguf.LlamaFileType.ALL_F32, out).write()
    except Exception as error:
        out.with_suffix(".error").write_text(f"{type(error).__name__}: {error}")
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with NAME.gguf, or NAME.error, and NAME.npy, the logits of transformers."""
    root = tmp_path_factory.mktemp("converted")
    sources = llama_cpp()
    for name, saved in MODELS.items():
        model = saved_models.write(root / name, saved)
        np.save(root / f"{name}.npy", saved_models.logits_of(model, TOKENS))
    pairs = [[str(root / name), str(root / f"{name}.gguf")] for name in MODELS]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run(
        [sys.executable, "-c", CONVERT, str(sources), json.dumps(pairs)],
        check=True, env=environment, timeout=1200, capture_output=True,
    )  # fmt: skip
    return root


@pytest.mark.parametrize("name", [n for n, s in MODELS.items() if s.converted and not s.unsaid])
def test_logits(name: str, files: Path) -> None:
    """Of float32 weights, keys and values: the order of sums alone differs."""
    told = files / f"{name}.error"
    assert not told.exists(), told.read_text()
    assert error(logits(files / f"{name}.gguf"), np.load(files / f"{name}.npy")) < 1e-3


@pytest.mark.parametrize("name", [n for n, s in MODELS.items() if s.unsaid or not s.converted])
def test_others(name: str, files: Path) -> None:
    """The converter or Sterna refuses it, or it is right, or no key says what is special."""
    path = files / f"{name}.gguf"
    if (files / f"{name}.error").exists():
        return
    try:
        loading.load(path, cached=False)
    except SternaError:
        return
    if not MODELS[name].unsaid:
        assert error(logits(path), np.load(files / f"{name}.npy")) < 1e-3
