"""config.json with another number in the place of any: a model, or an error of Sterna's own.

Every number of every family's file is changed, those of nested objects and lists, too; weights have
whatever shape is asked for, so that no file of others contradicts. STERNA_FUZZ sets the number of
mutations; 200,000 are all, and take half an hour.
"""

from __future__ import annotations

import copy
import json
import os
import random
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import saved_models
import seeing_models
from blank_weights import Blank
from model_configs import MODELS

from sterna.errors import SternaError
from sterna.loading import from_weights

MUTATIONS = int(os.environ.get("STERNA_FUZZ", "400"))
WHOLE = (-1, 0, 1, 2, 3, 5, 7, 1 << 16, 1 << 24, (1 << 24) + 1, 1 << 31, 1 << 63, 10**30)
REAL = (-1.0, 0.0, 1e-30, 0.3, 1.0, 1e6, 1e30)

Path_ = tuple[str | int, ...]


@cache
def configs() -> dict[str, dict[str, Any]]:
    """What save_pretrained writes, defaults included, of each family and each tower."""
    made = {name: (saved.name, saved_models.config_of(saved)) for name, saved in MODELS.items()}
    for name, seeing in seeing_models.SEEING.items():
        made[f"seeing {name}"] = seeing.name, seeing_models.config_of(seeing)
    return {
        name: {**json.loads(config.to_json_string(use_diff=False)), "architectures": [kind]}
        for name, (kind, config) in made.items()
    }


def numbers(value: Any, path: Path_ = ()) -> Iterator[tuple[Path_, float]]:
    """The places of all numbers."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from numbers(item, (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from numbers(item, (*path, i))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def mutations() -> list[tuple[str, Path_, float, bool]]:
    """(family, place, value, whether optional tensors are there), all of them."""
    found = []
    for name, config in configs().items():
        for path, value in numbers(config):
            near = (value - 1, value + 1, 2 * value, value // 2) if type(value) is int else ()
            others = dict.fromkeys([*near, *(WHOLE if type(value) is int else REAL)])
            found += [(name, path, n, with_all) for n in others if n != value
                      for with_all in (False, True)]  # fmt: skip
    return found


def changed(config: dict[str, Any], path: Path_, value: float) -> dict[str, Any]:
    config = copy.deepcopy(config)
    at: Any = config
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return config


def trace(config: dict[str, Any], complete: bool = False) -> None:
    """Writes the model's graph and its tower's."""
    text, tower = Blank(complete), Blank(complete=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from_weights(config, Path("config.json"), lambda _: text, tower=lambda *_: tower)


def test_any_other_number() -> None:
    """A sample, the same each time; errors of Python's own leave through none."""
    every = mutations()
    assert len(every) > 100_000
    chosen = random.Random(1).sample(every, min(MUTATIONS, len(every)))
    refused = 0
    for name, path, value, complete in chosen:
        try:
            trace(changed(configs()[name], path, value), complete)
        except SternaError:
            refused += 1
        except Exception as error:
            where = ".".join(map(str, path))
            raise AssertionError(f"{name}: {where} = {value!r}, {complete=}") from error
    assert 0 < refused < len(chosen)


#: What the run of all has found.
FOUND: list[tuple[str, Path_, float, bool]] = [
    ("seeing qwen3-vl", ("vision_config", "deepstack_visual_indexes", 1), 3, True),
    ("seeing gemma4", ("vision_config", "head_dim"), 2, True),
]


@pytest.mark.parametrize(("name", "path", "value", "complete"), FOUND)
def test_numbers_that_were_no_errors_of_sterna(
    name: str, path: Path_, value: float, complete: bool
) -> None:
    trace(configs()[name], complete)
    with pytest.raises(SternaError):
        trace(changed(configs()[name], path, value), complete)
