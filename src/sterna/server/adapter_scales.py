"""`AdapterScales`: the scales of adapters, as clients of llama.cpp's server set them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from sterna.llm.adapters import MOST_SCALE
from sterna.server.active_request import ActiveRequest
from sterna.server.errors import invalid
from sterna.server.model_manager import ModelManager
from sterna.server.sampling_fields import LoraScale

__all__ = ["AdapterScales"]


class AdapterScales:
    """The scales of each API key, which its requests have unless they name an adapter or scales.

    An adapter's id is its place among all adapters of the server. Without a scale it has 0.
    """

    def __init__(self, models: ModelManager) -> None:
        self._models = models
        self._set: dict[str, dict[str, float]] = {}

    @property
    def names(self) -> list[str]:
        """The adapters, by id."""
        return [name for name in self._models.names if self._models.adapter_of(name)]

    def of(self, key: str) -> dict[str, float]:
        """Return the scale of each adapter for a key."""
        return {name: self._set.get(key, {}).get(name, 0.0) for name in self.names}

    def set(self, key: str, asked: Sequence[LoraScale]) -> None:
        """Set the scales of a key; adapters that are left out have 0. ApiError 400."""
        self._set[key] = self._by_name(asked)

    def used_by(self, active: ActiveRequest) -> list[dict[str, float]]:
        """Return the adapters of a request in llama.cpp's form: id and scale of each."""
        choice = active.adapter
        scales = choice if isinstance(choice, Mapping) else {choice: 1.0}
        return [{"id": i, "scale": scales[n]} for i, n in enumerate(self.names) if n in scales]

    async def choose(self, active: ActiveRequest, asked: Sequence[LoraScale] | None) -> None:
        """Give a request the adapters of its own scales, or else of its key's. ApiError 400.

        An adapter that the request names in `model` stays, unless it has scales of its own.
        """
        if asked is not None:
            scales = self._by_name(asked)
            where = {self._models.model_of(name) for name in scales}
            if where - {active.model.name}:
                raise invalid("lora", "must be of adapters of the request's model", active.name)
        elif active.adapter is None:
            model, all_scales = active.model.name, self._set.get(active.key, {})
            scales = {n: s for n, s in all_scales.items() if self._models.model_of(n) == model}
        else:
            return
        if asked is None and not any(scales.values()):
            return
        active.adapter = scales
        active.names["adapter"] = "lora"
        # Held until the request has ended; made here, or the loop would wait for its matrices.
        adapters = active.model.llm.adapters
        active.scaled = await asyncio.to_thread(adapters.chosen, scales)

    def _by_name(self, asked: Sequence[LoraScale]) -> dict[str, float]:
        names, scales = self.names, dict[str, float]()
        for one in asked:
            if not 0 <= one.id < len(names):
                raise invalid("lora", f"ids must be below {len(names)}", one.id)
            if not abs(one.scale) <= MOST_SCALE:
                raise invalid("lora", f"scales must lie within {MOST_SCALE:g}", one.scale)
            scales[names[one.id]] = one.scale
        return scales
