"""Models of the Hugging Face Hub: fetched once, checked, then found on the disk without a network.

`pull` asks the Hub for the commit of a revision, chooses the files of the model, fetches the
missing ones and records the commit. `find` looks only at the disk.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from sterna.checkpoints.hub.adopt import adopt
from sterna.checkpoints.hub.choose import human, offer_of
from sterna.checkpoints.hub.failures import check_endpoint, hub_errors, offline
from sterna.checkpoints.hub.fitting import SAFETENSORS, Candidate, Offer
from sterna.checkpoints.hub.listing import listing_of
from sterna.checkpoints.hub.pulling import Pull
from sterna.checkpoints.hub.removal import partial_bytes, remove, remove_partial
from sterna.checkpoints.hub.room import room_of, shape_of_file
from sterna.checkpoints.hub.store import Download, Repository, downloads, find
from sterna.checkpoints.hub_names import PREFIX, HubName, looks_like_name

__all__ = [
    "PREFIX",
    "SAFETENSORS",
    "Candidate",
    "Download",
    "HubName",
    "Offer",
    "adopt",
    "downloads",
    "find",
    "human",
    "looks_like_name",
    "offered",
    "partial_bytes",
    "pull",
    "remove",
    "remove_partial",
    "shape_of_file",
]


def pull(
    name: HubName,
    *,
    offline_only: bool = False,
    recheck: bool = False,
    announce: Callable[[str], None] = lambda text: None,
    inspect: Callable[[Path], None] = lambda config: None,
    context: int | None = None,
) -> Download:
    """Fetch the model that `name` means now, unless this commit is here already.

    offline_only: use a local copy, or fail; HF_HUB_OFFLINE does the same. recheck: hash local files
    once more. announce: called with the size before a download. inspect: called with config.json
    before the weights are fetched, and may raise. context: tokens that must fit into memory with
    the weights, if Sterna chooses among GGUF files; None: as in `Shape.tokens`. If stderr is a
    terminal, it shows a progress bar.

    Raises RequestError (no such model, revision or file; several GGUF files that are not one model,
    or none that fits into memory), ModelFormatError (no weights that Sterna reads, or damaged
    files) or HubError (network, access, disk).
    """
    from huggingface_hub import constants

    if offline_only or constants.HF_HUB_OFFLINE:
        download = find(name) or adopt(name, context)
        if download is None:
            raise offline(name, _present_revisions(name))
        return download
    check_endpoint()
    with _quiet(), hub_errors(name):
        listing = listing_of(name)
        repository = Repository(name.repo)
        with repository.lock(announce):
            return Pull(name, listing, repository, recheck, announce, inspect, context).run()


def offered(name: HubName, context: int | None = None) -> Offer:
    """Ask the Hub which models a repository has, and weigh them for this machine; fetch none.

    Raises as `pull`.
    """
    check_endpoint()
    with _quiet(), hub_errors(name):
        listing = listing_of(name)
        return offer_of(name, listing.sizes, room_of(name, listing, context))


def _present_revisions(name: HubName) -> str:
    there = [d.name for d in downloads(name.repo)]
    return f" (of this repository there is {', '.join(there)})" if there else ""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence huggingface_hub's warnings of retries and missing tokens; Sterna's errors say it."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
