"""`PrefixCaching`: where an `LLM` caches prefixes, in memory and on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sterna.checks import checked_flag, checked_whole
from sterna.engine import Engine, PrefixCache, PrefixDiskCache, PrefixPack
from sterna.errors import RequestError, shown

__all__ = ["PrefixCaching"]


@dataclass(frozen=True)
class PrefixCaching:
    """The arguments `prefix_cache`, `cache_disk`, `cache_disk_max` and `prefix` of `LLM`.

    RequestError.
    """

    enabled: bool
    folder: str | Path | None
    max_bytes: int
    packs: str | Path | Sequence[str | Path] | None = None

    def __post_init__(self) -> None:
        checked_flag("prefix_cache", self.enabled)
        checked_whole("cache_disk_max", self.max_bytes, 0, 1 << 62)
        if self.packs is not None and not self.enabled:
            raise RequestError("prefix: needs prefix_cache, but that is False; leave one out")
        folder = self.folder
        if folder is None:
            return
        if not isinstance(folder, (str, Path)) or not str(folder) or "\0" in str(folder):
            raise RequestError(f"cache_disk: must be the path of a folder, but got {shown(folder)}")
        if not self.enabled:
            raise RequestError("cache_disk: needs prefix_cache, but that is False; leave one out")

    def open(self, engine: Engine) -> PrefixCache | None:
        """Open the prefix cache of an engine; None if it is disabled."""
        if not self.enabled:
            return None
        disk, kv_cache = None, engine.kv_cache
        if self.folder is not None:
            disk = PrefixDiskCache(self.folder, kv_cache, engine.identity, self.max_bytes)
        cache = PrefixCache(kv_cache.pool, kv_cache.prefix_cache_pages, disk)
        cache.packs = tuple(
            PrefixPack(path, kv_cache, engine.identity) for path in self._pack_paths()
        )
        return cache

    def _pack_paths(self) -> list[Path]:
        packs = self.packs
        one = [packs] if isinstance(packs, (str, Path)) else list(packs or ())
        for path in one:
            if not isinstance(path, (str, Path)) or not str(path) or "\0" in str(path):
                raise RequestError(
                    f"prefix: must be a file of `sterna prefix`, but got {shown(path)}"
                )
        return [Path(path) for path in one]
