"""`Adapters`: the LoRA adapters of an `LLM`, by name."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TypeAlias
from weakref import WeakValueDictionary

from sterna.checks import checked_real
from sterna.engine import Adapter
from sterna.errors import RequestError, shown
from sterna.loading import Model

__all__ = ["BASE", "AdapterChoice", "Adapters"]

#: The adapter of a request: its name, or several with a scale each; None: the default.
AdapterChoice: TypeAlias = str | Mapping[str, float] | None

#: Names the model without an adapter, as in PEFT.
BASE = "__base__"
#: The name of an adapter that `LLM` got without one.
UNNAMED = "default"
MOST_CHARS = 200
#: The largest scale; alpha / rank, which it multiplies, may have any value.
MOST_SCALE = 1000.0
#: Combinations of adapters with scales that requests use at a time, each with a copy of its
#: matrices.
MOST_MIXED = 16
#: Combinations that stay when no request uses them.
MOST_KEPT = 4


class Adapters(Mapping[str, Adapter]):
    """Adapters of a model by name. They may be loaded and unloaded at any time.

    A request keeps the adapter that it began with.

    Args:
        model: The model.
        argument: The argument `adapter` of `LLM`: a folder or GGUF file, which becomes the default,
            or several by name.

    Attributes:
        default: The name of the adapter of requests that choose none; None: they have none.
    """

    def __init__(self, model: Model, argument: object = None) -> None:
        self._model = model
        self._adapters: dict[str, Adapter] = {}
        self._lock = threading.Lock()
        # Combinations by the digest and the scale of each adapter.
        self._mixed: WeakValueDictionary[tuple[tuple[str, float], ...], Adapter]
        self._mixed = WeakValueDictionary()
        self._kept: deque[Adapter] = deque(maxlen=MOST_KEPT)
        self.default: str | None = None
        if isinstance(argument, Mapping):
            for name, folder in argument.items():
                self.load(name, folder)
        elif argument is not None:
            if not isinstance(argument, (str, os.PathLike)):
                raise RequestError(
                    "adapter: must be a folder or file, or several by name, but got "
                    f"{shown(argument)}"
                )
            self.load(UNNAMED, argument)
            self.default = UNNAMED

    def __getitem__(self, name: str) -> Adapter:
        """Return the adapter of a name; KeyError if there is none."""
        return self._adapters[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names, in the order of loading."""
        return iter(tuple(self._adapters))

    def __len__(self) -> int:
        """Return the number of adapters."""
        return len(self._adapters)

    def load(self, name: str, folder: str | os.PathLike[str]) -> Adapter:
        """Load an adapter; replaces one of the same name."""
        checked = _checked_name(name)
        adapter = Adapter.open(folder, self._model)
        adapter.warn_of_base(self._model.name)
        self._adapters[checked] = adapter
        return adapter

    def unload(self, name: str) -> None:
        """Unload an adapter; running requests keep it to their end."""
        self._require(name)
        self._adapters.pop(name, None)
        if self.default == name:
            self.default = None

    def chosen(self, choice: AdapterChoice) -> Adapter | None:
        """Return the adapter of a request; None if it has none.

        Scales that no request uses now take a copy of the matrices, which reads the files again.
        RequestError for an unknown name, or too many combinations at a time.
        """
        if isinstance(choice, Mapping):
            return self._scaled(choice)
        name = self.default if choice is None else choice
        return None if name is None or name == BASE else self._require(name)

    def _scaled(self, scales: Mapping[str, float]) -> Adapter | None:
        for name, scale in scales.items():
            self._require(name)
            checked_real(f"adapter: scale of {name}", scale, -MOST_SCALE, MOST_SCALE)
        # In the order of loading, so that one choice has one sum.
        shares = [(self._adapters[n], float(scales[n])) for n in self if scales.get(n)]
        if not shares:
            return None
        if len(shares) == 1 and shares[0][1] == 1.0:
            return shares[0][0]
        key = tuple((adapter.digest, scale) for adapter, scale in shares)
        with self._lock:
            mixed = self._mixed.get(key)
            if mixed is None:
                if len(self._mixed) >= MOST_MIXED:
                    self._kept.clear()
                if len(self._mixed) >= MOST_MIXED:
                    raise RequestError(
                        f"adapter: must be of at most {MOST_MIXED} combinations of scales at a "
                        "time, but requests use as many others; try again when one has ended"
                    )
                mixed = self._mixed[key] = Adapter.mixed(shares, self._model)
            self._kept.append(mixed)
        return mixed

    def _require(self, name: object) -> Adapter:
        adapter = self._adapters.get(name) if isinstance(name, str) else None
        if adapter is None:
            known = ", ".join([*self._adapters, BASE])
            raise RequestError(
                f"adapter: must be one of {known}, but got {shown(name)}; load_adapter loads others"
            )
        return adapter


def _checked_name(name: object) -> str:
    sound = isinstance(name, str) and name.isprintable() and 0 < len(name) <= MOST_CHARS
    if not sound or name == BASE:
        raise RequestError(
            f"adapter: must have a printable name of at most {MOST_CHARS} characters, and not "
            f"{BASE}, but got {shown(name)}"
        )
    assert isinstance(name, str)
    return name
