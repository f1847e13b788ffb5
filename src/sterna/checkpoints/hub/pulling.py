"""One pull: the listing of a commit, its missing files, and the transfers."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sterna.checkpoints.directory import CONFIG, INDEX, WEIGHTS, weight_map
from sterna.checkpoints.hub.bounded_http import headers
from sterna.checkpoints.hub.choose import Choice, RemoteFile, choose, human
from sterna.checkpoints.hub.failures import no_space
from sterna.checkpoints.hub.listing import Listing, url_of
from sterna.checkpoints.hub.room import room_of
from sterna.checkpoints.hub.store import (
    Download,
    Repository,
    cache_root,
    downloads,
)
from sterna.checkpoints.hub.transfer import Progress, check, fetch
from sterna.checkpoints.hub_names import HubName
from sterna.errors import ModelFormatError, RequestError

MAX_CONNECTIONS = 4
SPARE_BYTES = 64 << 20  # of the disk, beyond the files: records, links, and others at work


class Pull:
    """One pull, to be run under the repository's lock."""

    def __init__(
        self,
        name: HubName,
        listing: Listing,
        repository: Repository,
        recheck: bool,
        announce: Callable[[str], None],
        inspect: Callable[[Path], None],
        context: int | None = None,
    ) -> None:
        """Arguments as of `sterna.checkpoints.hub.pull`."""
        self.name = name
        self.listing = listing
        self.repository = repository
        self.recheck = recheck
        self.announce = announce
        self.inspect = inspect
        self.context = context
        # Files that an earlier pull has checked need no second hash
        self.checked: set[str] = {file.digest for d in downloads(name.repo) for file in d.files}

    def run(self) -> Download:
        """Fetch missing files, small ones first, and record the model."""
        room = room_of(self.name, self.listing, self.context)
        choice = choose(self.name, self.listing.sizes, room)
        if choice.why:
            self.announce(f"{self.name}: {choice.why}")
        files = [self.listing.files[path] for path in choice.files]
        if choice.gguf is None:
            self._fetch([file for file in files if file.path != WEIGHTS])
            self.inspect(self.repository.snapshot(self.listing.commit) / CONFIG)
        if choice.index:
            files += self._shards()
        self._fetch(files, self.announce)
        return self._record(choice, files)

    def _record(self, choice: Choice, files: list[RemoteFile]) -> Download:
        asked = (self.name.file.lower(),) if self.name.file else ()
        download = Download(
            repo=self.name.repo,
            revision=self.name.revision,
            commit=self.listing.commit,
            gguf=choice.gguf,
            default=choice.default,
            asked=asked,
            files=tuple(files),
            pulled=time.time(),
        )
        if not self.name.is_commit(download.commit):
            self.repository.set_ref(self.name.revision, download.commit)
        download.save()
        return download

    def _shards(self) -> list[RemoteFile]:
        """List the files that the index names."""
        path = self.repository.snapshot(self.listing.commit) / INDEX
        names = sorted(set(weight_map(path).values()))
        for shard in names:
            if shard not in self.listing.files:
                raise ModelFormatError(
                    f"{self.name}:{INDEX}", "weight_map", "files of the repository", shard
                )
        return [self.listing.files[shard] for shard in names]

    def _fetch(
        self, files: list[RemoteFile], announce: Callable[[str], None] = lambda text: None
    ) -> None:
        # Equal contents come once, whatever their names
        missing = list({file.digest: file for file in files if not self._is_here(file)}.values())
        if missing:
            (self.repository.folder / "blobs").mkdir(parents=True, exist_ok=True)
            self._require_space(missing)
            total = human(sum(file.size for file in missing))
            count = f"{len(missing)} file{'s' if len(missing) > 1 else ''}"
            announce(f"{self.name}: {total} in {count}, to {cache_root()}")
            self._transfer(missing)
        for file in files:
            self.repository.link(self.listing.commit, file)

    def _transfer(self, files: list[RemoteFile]) -> None:
        total = sum(file.size for file in files)
        with _bar(str(self.name), total) as progress, ThreadPoolExecutor(MAX_CONNECTIONS) as pool:
            try:
                for job in [pool.submit(self._fetch_one, file, progress) for file in files]:
                    job.result()
            except BaseException:  # also Ctrl-C: the bytes so far stay for the next attempt
                progress.stop()
                pool.shutdown(cancel_futures=True)
                raise

    def _fetch_one(self, file: RemoteFile, progress: Progress) -> None:
        url = url_of(self.name, self.listing.commit, file.path)
        partial = self.repository.partial(file.digest)
        fetch(url, headers(), file, partial, progress)
        partial.replace(self.repository.blob(file.digest))

    def _is_here(self, file: RemoteFile) -> bool:
        """Whether the contents are here and sound; removes damaged ones."""
        target = self.repository.snapshot(self.listing.commit) / file.path
        blob = self.repository.blob(file.digest)
        path = blob if blob.exists() else target
        if not path.exists():
            return False
        sound = path.stat().st_size == file.size
        if sound and (self.recheck or file.digest not in self.checked):
            try:
                check(path, file)
            except ModelFormatError:
                sound = False
        if not sound:
            path.unlink()
        return sound

    def _require_space(self, missing: list[RemoteFile]) -> None:
        need = SPARE_BYTES
        for file in missing:
            partial = self.repository.partial(file.digest)
            need += file.size - (min(partial.stat().st_size, file.size) if partial.exists() else 0)
        free = shutil.disk_usage(self.repository.folder).free
        if free < need:
            raise no_space(self.name, need, free)


class _Meter:
    """Counts bytes of several threads into one bar; ends the transfers when told to stop."""

    def __init__(self, bar: Any) -> None:
        self._bar, self._lock, self._stopped = bar, threading.Lock(), False

    def __call__(self, nbytes: int) -> None:
        if self._stopped:
            raise RequestError("download: was stopped")
        with self._lock:
            self._bar.update(nbytes)

    def stop(self) -> None:
        self._stopped = True


@contextlib.contextmanager
def _bar(text: str, total: int) -> Iterator[_Meter]:
    """Show the package's own progress bar on stderr, if that is a terminal."""
    from huggingface_hub.utils import tqdm

    bar: Any = tqdm
    style = {"unit": "B", "unit_scale": True, "disable": None, "leave": False}
    with bar(total=total, desc=text, **style) as drawn:
        yield _Meter(drawn)
