"""What the Hub says of a commit: its files, their sizes and digests, and how many weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from sterna.checkpoints.hub.bounded_http import answer, body, headers
from sterna.checkpoints.hub.choose import RemoteFile
from sterna.checkpoints.hub.failures import host
from sterna.checkpoints.hub.store import checked_commit, checked_digest, checked_size
from sterna.checkpoints.hub_names import HubName, is_plain_path
from sterna.errors import HubError

__all__ = ["Listing", "listing_of", "url_of"]

MAX_PARAMS = 1 << 50  # far above any model


@dataclass(frozen=True)
class Listing:
    """A commit of a repository, and its files by path; params: weights of the model, if known."""

    commit: str
    files: dict[str, RemoteFile]
    params: int | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of the files, by path."""
        return {path: file.size for path, file in self.files.items()}


def listing_of(name: HubName) -> Listing:
    """Ask for the revision's commit and the repository's files, and check the answer.

    Raises HubError for an answer that is too long or not a Hub's, and the errors of
    huggingface_hub.
    """
    from huggingface_hub import constants

    revision = quote(name.revision, safe="")
    url = f"{constants.ENDPOINT}/api/models/{name.repo}/revision/{revision}?blobs=true"
    try:
        with answer(url, headers()) as response:
            info = json.loads(body(response))
        files = {}
        for sibling in info.get("siblings") or ():
            # Files without a hash, and names that could leave the cache, are not offered
            lfs, path = sibling.get("lfs"), sibling["rfilename"]
            digest = lfs["sha256"] if lfs else sibling.get("blobId")
            size = lfs["size"] if lfs else sibling.get("size")
            if digest and size is not None and is_plain_path(path):
                files[path] = RemoteFile(path, checked_size(size), checked_digest(digest))
        return Listing(checked_commit(info.get("sha")), files, _params(info))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, OSError):  # an HTTP status 400 is also a ValueError
            raise
        raise HubError(
            f"{host()}: does not answer as a Hub does; check HF_ENDPOINT, the network's login page "
            "and the proxy",
            "server",
        ) from None


def _params(info: dict[str, Any]) -> int | None:
    """Return how many weights the Hub found in the files, None if it does not say."""
    for kind in ("gguf", "safetensors"):
        about = info.get(kind)
        total = about.get("total") if isinstance(about, dict) else None
        if type(total) is int and 0 < total <= MAX_PARAMS:
            return total
    return None


def url_of(name: HubName, commit: str, path: str) -> str:
    """Return the address of a file of a commit."""
    from huggingface_hub import constants, hf_hub_url

    return hf_hub_url(name.repo, path, revision=commit, endpoint=constants.ENDPOINT)
