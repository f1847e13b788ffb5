"""Every supported family by llama.cpp's own converter: answers are transformers' in float32.

Models are those of `model_configs`, small and random, as transformers saves them but in published
spellings. The converter comes from the sdist of llama-cpp-python and runs in a process of its own,
with the gguf package of that sdist. It knows pre-tokenizers by hashes, so the tests tell it the
name of the one that these models have, and the kind of NomicBERT's tokenizer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import published_spellings
import pytest
import saved_models
from assets import llama_cpp
from model_configs import MODELS
from published_spellings import SPELLINGS
from saved_answers import answers, error, expected_of
from saved_models import config_of

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
from conversion.bert import NomicBertModel
TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
NomicBertModel._is_tokenizer_xlmroberta = lambda self: False
def load_hparams(folder, is_mistral_format, load=ModelBase.load_hparams):
    published = json.loads((folder / "config.json").read_text())
    if published["model_type"] == "nemotron_h":  # transformers would add the fields of experts
        return published
    return {**published, **load(folder, is_mistral_format)}
ModelBase.load_hparams = staticmethod(load_hparams)
for folder, out in json.loads(sys.argv[2]):
    folder, out = Path(folder), Path(out)
    try:
        hparams = ModelBase.load_hparams(folder, False)
        name = get_model_architecture(hparams, ModelType.TEXT)
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
    """A folder with NAME.gguf, or NAME.error, and NAME.npy, what transformers answers."""
    root = tmp_path_factory.mktemp("converted")
    sources = llama_cpp()
    for name, saved in MODELS.items():
        model = saved_models.write(root / name, saved)
        np.save(root / f"{name}.npy", expected_of(name, model))
        published_spellings.rewrite(root / name)
    pairs = [[str(root / name), str(root / f"{name}.gguf")] for name in MODELS]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run(
        [sys.executable, "-c", CONVERT, str(sources), json.dumps(pairs)],
        check=True, env=environment, timeout=1200, capture_output=True,
    )  # fmt: skip
    return root


@pytest.mark.parametrize("name", [n for n, s in MODELS.items() if s.converted and not s.unsaid])
def test_answers(name: str, files: Path) -> None:
    """Of float32 weights, keys and values: the order of sums alone differs."""
    told = files / f"{name}.error"
    assert not told.exists(), told.read_text()
    assert error(answers(name, files / f"{name}.gguf"), np.load(files / f"{name}.npy")) < 1e-3


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
        assert error(answers(name, path), np.load(files / f"{name}.npy")) < 1e-3


@pytest.mark.filterwarnings("ignore:.*are skipped, a vision tower")
@pytest.mark.parametrize(
    "name", [n for n, s in MODELS.items() if config_of(s).model_type in SPELLINGS]
)
def test_published_spellings(name: str, files: Path) -> None:
    """The folder that the converter read opens."""
    wanted = np.load(files / f"{name}.npy")
    assert error(answers(name, files / name), wanted) < 1e-3
