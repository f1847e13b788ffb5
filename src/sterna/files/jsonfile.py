"""JSON from untrusted files: one meaning per file, bounded depth, finite numbers, typed errors.

The standard library's parser, since orjson and msgspec take the last of two equal keys without a
word. They would save 7 ms of the largest header that is common (721 tensors of a 70B model's file).
"""

from __future__ import annotations

import codecs
import json
import math
import os
import re
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from sterna.errors import ModelFormatError, shown
from sterna.files.reading import read_file

MAX_DEPTH = 64  # far above any real file, far below the interpreter's own limit
MAX_BYTES = 100_000_000  # as a safetensors header
#: Bound of config.json and similar files: real ones have a few kilobytes, a quantisation map some
#: hundred, tokenizer_config.json with its added tokens up to some megabytes.
MAX_CONFIG_BYTES = 16 << 20
MAX_INT_DIGITS = 64  # tokenizer_config.json holds 31 digits (int(1e30)); int() is quadratic in them
_SCAN_BYTES = 1 << 14  # the depth scan's arrays, 8 bytes for each of these, stay in the cache

_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class _Refused(ValueError):
    """A rule of ours broken inside the JSON decoder: (field, expected, got)."""

    def __init__(self, field: str | None, expected: str, got: object) -> None:
        super().__init__(field, expected, got)
        self.field, self.expected, self.got = field, expected, got


def load_json_object(path: Path, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Read a JSON file whose top level is an object; ModelFormatError if it breaks any rule."""
    value = parse_json(read_file(path, max_bytes), path)
    if not isinstance(value, dict):
        raise ModelFormatError(path, "top level", "a JSON object", json_kind(value))
    return value


def load_settings(path: Path) -> dict[str, Any]:
    """Read config.json or another small file of a model's folder; {} if there is none."""
    return load_json_object(path, MAX_CONFIG_BYTES) if os.path.exists(path) else {}


def parse_json(data: bytes | bytearray, path: Path, offset: int = 0) -> Any:
    """Parse UTF-8 JSON; duplicate keys, NaN, infinities, huge numbers and depth are refused.

    `offset`: where `data` begins in the file, for messages. A byte order mark, which editors on
    Windows put first, is passed over. Raises ModelFormatError.
    """
    if data.startswith(codecs.BOM_UTF8):
        data, offset = data[len(codecs.BOM_UTF8) :], offset + len(codecs.BOM_UTF8)
    _check_depth(data, path, offset)
    try:
        text = data.decode("utf-8")
        value = json.loads(
            text,
            object_pairs_hook=_unique_keys,
            parse_int=_bounded_int,
            parse_float=_finite_float,
            parse_constant=_no_constant,
        )
        if _SURROGATE.search(data):  # rare: an emoji escaped as a pair is fine, half of one is not
            _refuse_lone_surrogates(value)
    except UnicodeDecodeError as error:
        raise ModelFormatError(
            path, expected="JSON in UTF-8", got="invalid UTF-8", offset=offset + error.start
        ) from None
    except json.JSONDecodeError as error:
        at = offset + len(text[: error.pos].encode("utf-8"))
        raise ModelFormatError(
            path, expected="valid JSON", got=f"the error {shown(error.msg)}", offset=at
        ) from None
    except _Refused as error:
        raise ModelFormatError(path, error.field, error.expected, error.got) from None
    return value


def json_kind(value: object) -> str:
    """Name a JSON value's kind, for messages."""
    kinds = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    return kinds.get(type(value), "null" if value is None else "a number")


def _check_depth(data: bytes | bytearray, path: Path, offset: int) -> None:
    # Before the parser: it recurses, and how deep it may is the interpreter's business, not ours.
    # Escapes are blanked first so that every remaining quote opens or closes a string; a backslash
    # outside a string can mislead the count only after the place where the parser stops anyway.
    if b"\\" in data:
        data = _ESCAPE.sub(b"  ", data)
    depth, in_string = 0, 0
    for start in range(0, len(data), _SCAN_BYTES):
        codes = np.frombuffer(data, np.uint8, min(_SCAN_BYTES, len(data) - start), start)
        quotes = np.cumsum(codes == ord('"')) + in_string
        outside = (quotes & 1) == 0
        opened = ((codes == ord("[")) | (codes == ord("{"))) & outside
        closed = ((codes == ord("]")) | (codes == ord("}"))) & outside
        depths = np.cumsum(opened.astype(np.int8) - closed.astype(np.int8), dtype=np.int64) + depth
        if depths.max() > MAX_DEPTH:
            raise ModelFormatError(
                path,
                expected=f"JSON at most {MAX_DEPTH} levels deep",
                got="more",
                offset=offset + start + int(np.argmax(depths > MAX_DEPTH)),
            )
        depth, in_string = int(depths[-1]), int(quotes[-1]) & 1


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Refused(key, "each key once in an object", "the key again")
            seen.add(key)
    return value


def _bounded_int(digits: str) -> int:
    if len(digits) > MAX_INT_DIGITS:
        raise _Refused(None, f"integers of at most {MAX_INT_DIGITS} digits", f"{len(digits)}")
    return int(digits)


def _finite_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):  # 1e999
        raise _Refused(None, "finite numbers", digits)
    return value


def _no_constant(name: str) -> NoReturn:
    raise _Refused(None, "finite numbers", name)


def _refuse_lone_surrogates(value: object) -> None:
    # Such a string cannot be encoded again: it would fail later, in a file name or on a terminal.
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending.extend(item)
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, str) and any("\ud800" <= c <= "\udfff" for c in item):
            raise _Refused(
                None, "strings of whole characters", f"the lone surrogate in {shown(item)}"
            )
