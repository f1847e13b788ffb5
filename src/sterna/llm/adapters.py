"""`Adapters`: the LoRA adapters of an `LLM`, by name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from sterna.engine import Adapter
from sterna.errors import RequestError, shown
from sterna.loading import Model

__all__ = ["BASE", "Adapters"]

#: Names the model without an adapter, as in PEFT.
BASE = "__base__"
#: The name of an adapter that was given without one.
UNNAMED = "default"
MOST_CHARS = 200


class Adapters(Mapping[str, Adapter]):
    """Adapters of a model by name. They may be loaded and unloaded at any time.

    A request keeps the adapter that it began with.

    default: the adapter of requests that name none; None: such requests have none.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._adapters: dict[str, Adapter] = {}
        self.default: str | None = None

    def __getitem__(self, name: str) -> Adapter:
        """Return the adapter of a name; KeyError if there is none."""
        return self._adapters[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names, in the order of loading."""
        return iter(tuple(self._adapters))

    def __len__(self) -> int:
        """Return the number of adapters."""
        return len(self._adapters)

    def begin(self, given: object) -> None:
        """Load the argument of `LLM`: a folder, which becomes the default, or folders by name."""
        if isinstance(given, Mapping):
            for name, folder in given.items():
                self.load(name, folder)
        elif given is not None:
            if not isinstance(given, (str, os.PathLike)):
                raise RequestError(
                    f"adapter: must be a folder, or folders by name, but got {shown(given)}"
                )
            self.load(UNNAMED, given)
            self.default = UNNAMED

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

    def chosen(self, name: str | None) -> Adapter | None:
        """Return the adapter of this name, or the default for None; None if there is none."""
        name = self.default if name is None else name
        return None if name is None or name == BASE else self._require(name)

    def _require(self, name: object) -> Adapter:
        found = self._adapters.get(name) if isinstance(name, str) else None
        if found is None:
            known = ", ".join([*self._adapters, BASE])
            raise RequestError(
                f"adapter: must be one of {known}, but got {shown(name)}; load_adapter loads others"
            )
        return found


def _checked_name(name: object) -> str:
    sound = isinstance(name, str) and name.isprintable() and 0 < len(name) <= MOST_CHARS
    if not sound or name == BASE:
        raise RequestError(
            f"adapter: must have a printable name of at most {MOST_CHARS} characters, and not "
            f"{BASE}, but got {shown(name)}"
        )
    assert isinstance(name, str)
    return name
