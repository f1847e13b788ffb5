"""Failures of the Hub and of the network as Sterna's errors. No message holds a token."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from urllib.parse import urlsplit

from sterna.checkpoints.hub.store import cache_root
from sterna.checkpoints.hub_names import DEFAULT_REVISION, HubName
from sterna.errors import HubError, RequestError, SternaError, shown
from sterna.files.writing import unwritable


def host() -> str:
    """Return the Hub's host and port only: the rest of an address may hold a password."""
    from huggingface_hub import constants

    parts = urlsplit(constants.ENDPOINT)
    return f"{parts.hostname}:{parts.port}" if parts.port else f"{parts.hostname}"


def check_endpoint() -> None:
    """Raise RequestError unless HF_ENDPOINT, if set, is the address of a server."""
    from huggingface_hub import constants

    try:
        parts = urlsplit(constants.ENDPOINT)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # such as a port that is no number
        sound = False
    if not sound:
        address = constants.ENDPOINT.rpartition("@")[2]  # a password may precede it
        raise RequestError(
            "HF_ENDPOINT: must be an address such as https://huggingface.co, but got "
            f"{shown(address)}; write https:// or http:// in front of the host, or unset it"
        )


@contextlib.contextmanager
def hub_errors(name: HubName) -> Iterator[None]:
    """Turn errors of huggingface_hub, of the network and of the disk into Sterna's."""
    try:
        yield
    except SternaError:
        raise
    except Exception as error:
        known = _translated(error, name)
        if known is None:
            raise
        raise known from None  # the cause's text may hold a signed address


def _translated(error: Exception, name: HubName) -> SternaError | None:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return _gated(name)
    if isinstance(error, errors.RepositoryNotFoundError):
        return RequestError(
            f"{name}: must be a model on {host()}, but there is none of this name, or it is "
            "private; check the spelling, or log in with `hf auth login`"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return RequestError(
            f"{name}: the revision must be a branch, a tag or a commit of {name.repo}, but got "
            f"{shown(name.revision)}; leave it out for {DEFAULT_REVISION}"
        )
    if isinstance(error, errors.HFValidationError):
        return RequestError(f"{name}: must be a name that the Hub allows; check the spelling")
    if isinstance(error, errors.OfflineModeIsEnabled):
        return offline(name)
    if isinstance(error, errors.HfHubHTTPError):
        return _http(error.response.status_code, name)
    if isinstance(error, network_errors()):
        return HubError(
            f"{host()}: must be reachable to download {name}, but got {reason_of(error)}; check "
            "the network and proxy, or set HF_ENDPOINT to a mirror",
            "network",
        )
    if isinstance(error, OSError):
        return _disk(error, name)
    return None


def network_errors() -> tuple[type[Exception], ...]:
    """Return the HTTP client's exceptions for connections that fail or are cut."""
    from huggingface_hub.errors import HfHubHTTPError

    # Its base is the client's own HTTPError: httpx before version 2 of the package, httpx2 since
    base: type[Exception] = HfHubHTTPError.__mro__[1]
    return (base, ConnectionError, TimeoutError)


def offline(name: HubName, there: str = "") -> HubError:
    """Make the error for a model that is not here and may not be fetched."""
    return HubError(
        f"{name}: must be downloaded before it is used offline, but is not{there}; run "
        f"`sterna pull {name}` without --offline and HF_HUB_OFFLINE",
        "offline",
    )


def no_space(name: HubName, need: int, free: int) -> HubError:
    """Make the error for a disk that is too small, before a byte is fetched."""
    return HubError(
        f"{name}: needs {need:,} bytes in {cache_root()}, but got {free:,} free; free disk space "
        "(`sterna models` lists, `sterna rm` removes), or set HF_HOME to another disk",
        "space",
    )


def _gated(name: HubName) -> HubError:
    from huggingface_hub import constants

    where = f"https://{urlsplit(constants.ENDPOINT).hostname}/{name.repo}"
    return HubError(
        f"{name}: is gated, and your account (if logged in) has no access; accept its licence at "
        f"{where}, then log in with `hf auth login` or set HF_TOKEN",
        "gated",
    )


def _http(status: int, name: HubName) -> SternaError:
    if status in (401, 403):
        return HubError(
            f"{name}: {host()} refuses access (HTTP {status}); accept the model's licence on its "
            "page, and log in with `hf auth login` or set HF_TOKEN to a token that may read it",
            "gated",
        )
    if status == 404:
        return RequestError(
            f"{name}: {host()} has not all of the model's files (HTTP 404); try again, or choose "
            "another revision"
        )
    remedy = "wait a moment, or log in" if status == 429 else "try again later"
    return HubError(f"{name}: {host()} answers with HTTP {status}; {remedy}", "server")


def reason_of(error: Exception) -> str:
    """Why a connection failed, in words that are safe to print."""
    # Only the system's own words: the HTTP client's may hold a proxy's address with its password
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__


def _disk(error: OSError, name: HubName) -> SternaError:
    if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):
        return HubError(
            f"{name}: the disk of {cache_root()} is full; free disk space (`sterna models` lists, "
            "`sterna rm` removes), or set HF_HOME to another disk; the download goes on where it "
            "stopped",
            "space",
        )
    from pathlib import Path

    return unwritable(Path(error.filename) if error.filename else cache_root(), error)
