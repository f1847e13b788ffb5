"""`parse()` of openai over HTTP: answers follow what the server accepts; see README.md.

STERNA_SCHEMAS says how many are to be accepted: models of pydantic at random, by `parse`, and JSON
schemas of random_schemas.py, judged by jsonschema-rs.
"""

from __future__ import annotations

import enum
import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import jsonschema_rs
import openai
import pydantic
import pytest
from random_schemas import schema
from server_process import ServerProcess, serving

ACCEPTED = int(os.environ.get("STERNA_SCHEMAS", "500"))
SAID: Any = [{"role": "user", "content": "def f(x):\n"}]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    with serving(tmp_path_factory.mktemp("schemas"), "nano") as running:
        yield client_of(running)


def client_of(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def leaf(rng: random.Random) -> Any:
    low = rng.randrange(-50, 50)
    words = ["red", "green", 'a"b', "ü", "x y", "\n"]
    return rng.choice(
        [
            bool,
            Annotated[int, pydantic.Field(ge=low, le=low + rng.randrange(200))],
            Annotated[float, pydantic.Field(ge=low, lt=low + 1 + rng.randrange(9))],
            Annotated[str, pydantic.Field(max_length=rng.randrange(1, 9))],
            Annotated[str, pydantic.Field(pattern=rng.choice(["^[a-c]{1,4}$", "^x-[0-9]{2}$"]))],
            Literal[tuple(rng.sample(words, 3))],  # type: ignore[misc]
            enum.Enum(f"Kind{low + 50}", {f"k{i}": w for i, w in enumerate(words[:3])}),
            type(None),
        ]
    )


def field(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(6) if depth else 0
    if kind < 2:
        return leaf(rng)
    if kind == 2:
        return model(rng, depth - 1)
    if kind == 3:
        few = rng.randrange(2)
        most = few + rng.randrange(1, 3)
        inner = field(rng, depth - 1)
        return Annotated[list[inner], pydantic.Field(min_length=few, max_length=most)]  # type: ignore[valid-type]
    if kind == 4:
        return field(rng, depth - 1) | None if depth > 1 else leaf(rng) | None
    return field(rng, depth - 1) | Annotated[int, pydantic.Field(ge=0, le=9)]


def model(rng: random.Random, depth: int) -> type[pydantic.BaseModel]:
    names = rng.sample(["a", "name", "ö", "x y", "items", "value"], rng.randrange(1, 4))
    fields: dict[str, Any] = {
        f"f{i}": (field(rng, depth), pydantic.Field(alias=name)) for i, name in enumerate(names)
    }
    made: type[pydantic.BaseModel] = pydantic.create_model(f"M{rng.randrange(1 << 30)}", **fields)
    return made


def test_parse(client: openai.OpenAI) -> None:
    """Every answer is an object of the model, at any temperature."""
    counted = Counter[str]()
    seed = 0
    while counted["valid"] < ACCEPTED:
        rng, seed = random.Random(seed), seed + 1
        given = model(rng, 3)
        try:
            done = client.chat.completions.parse(
                model="nano", messages=SAID, response_format=given, seed=seed, temperature=1
            )
        except openai.BadRequestError as error:
            counted[f"refused by {error.param}"] += 1
            continue
        except openai.LengthFinishReasonError:
            counted["cut"] += 1
            continue
        assert isinstance(done.choices[0].message.parsed, given), seed
        counted["valid"] += 1
    print("\nparse():", dict(counted))
    assert counted.keys() <= {"valid", "cut", "refused by response_format"}
    assert counted["refused by response_format"] < counted["valid"]


def test_json_schemas(client: openai.OpenAI) -> None:
    """The same of any schema, with no client that makes it easier."""
    counted = Counter[str]()
    seed = 0
    while counted["valid"] < ACCEPTED:
        rng, seed = random.Random(seed), seed + 1
        made = schema(rng, 3)
        given = (made if isinstance(made, dict) else {}) | {"$defs": {"p": schema(rng, 1)}}
        form: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": given}}
        try:
            done = client.chat.completions.create(
                model="nano", messages=SAID, response_format=form, seed=seed, temperature=1,
                max_tokens=200,
            )  # fmt: skip
        except openai.BadRequestError as error:
            counted[f"refused by {error.param}"] += 1
            continue
        if done.choices[0].finish_reason != "stop":
            counted["cut"] += 1
            continue
        text = done.choices[0].message.content or ""
        judge = jsonschema_rs.Draft202012Validator(given, validate_formats=True)
        # jsonschema-rs is given Python's floats, which have no number above 1e308.
        if "Infinity" not in json.dumps(json.loads(text)):
            assert judge.is_valid(json.loads(text)), (seed, given, text)
        counted["valid"] += 1
    print("\nJSON schemas:", dict(counted))
    # "answer": no value is left, where a schema has none.
    refused = {"refused by response_format", "refused by answer"}
    assert counted.keys() <= {"valid", "cut", *refused}
