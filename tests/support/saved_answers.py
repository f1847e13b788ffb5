"""Compares Sterna's answers for saved models with transformers' own, and edits such folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import saved_models
from model_configs import MODELS, POSITIONS
from safetensors.torch import load_file, save_file

from sterna import loading
from sterna.engine import Engine, classify

TOKENS = np.random.default_rng(1).integers(0, 256, POSITIONS).tolist()
TEXTS = [TOKENS[n:] for n in range(10)]  # of a cross-encoder


def logits(path: Path) -> np.ndarray:
    """Sterna's, float32 [n, vocab], with float32 keys and the file's own weights."""
    model = loading.load(path, cached=False)
    return Engine(model, threads=1, kv_dtype="f32", deterministic=True).logits([TOKENS])[0]


def scores(path: Path, texts: list[list[int]]) -> np.ndarray:
    """Scores of Sterna's cross-encoder, float32 [texts]."""
    model = loading.load(path, cached=False)
    engine = Engine(model, threads=1, kv_dtype="f32", deterministic=True)
    return classify(engine, [(tokens, len(tokens)) for tokens in texts])[:, 0]


def error(got: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, relative to the spread of logits."""
    return float(np.abs(got - expected).max() / expected.std())


def mean_error(got: np.ndarray, expected: np.ndarray) -> float:
    """The root of the mean square, relative to the spread of logits."""
    return float(((got - expected) ** 2).mean() ** 0.5 / expected.std())


def answers(name: str, path: Path) -> np.ndarray:
    """Sterna's logits of a row of `MODELS`, or its scores."""
    return scores(path, TEXTS) if MODELS[name].scores else logits(path)


def expected_of(name: str, model: Any) -> np.ndarray:
    """Scores of transformers."""
    if MODELS[name].scores:
        return saved_models.scores_of(model, TEXTS)
    return saved_models.logits_of(model, TOKENS)


def error_of(name: str, folder: Path) -> float:
    """That of a row of `MODELS`, which is saved to the folder and opened."""
    model = saved_models.write(folder, MODELS[name])
    return error(answers(name, folder), expected_of(name, model))


def edit(folder: Path, **fields: Any) -> None:
    """Sets fields of config.json; "absent" removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({k: v for k, v in config.items() if v != "absent"}))


def change(folder: Path, **tensors: Any) -> None:
    """Replaces tensors, whose names have _ for each dot; None removes one."""
    path = folder / "model.safetensors"
    stored = load_file(path)
    names = {name.replace(".", "_"): name for name in stored}
    for key, make in tensors.items():
        name = names.get(key, key)
        value = make(stored)
        stored.pop(name, None)
        if value is not None:
            stored[name] = value.contiguous().clone()
    save_file(stored, path, {"format": "pt"})
