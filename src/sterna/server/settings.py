"""What the options of `sterna serve` say, checked."""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from sterna.errors import RequestError

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """Where a server listens, whom it answers, and its limits; RequestError where they disagree.

    Times in seconds, sizes in bytes; None: no limit. fd: a socket that listens, in place of host
    and port. api_keys, api_key_file: who may ask. origins:
    of pages in browsers that may. hosts: names of this machine, *: any. max_queue:
    requests that wait at most; max_wait: seconds that one is predicted to wait at most;
    max_per_key: requests of one key at a time. timeout: of a whole answer. keep_alive: how long a
    model that nobody asks stays in memory; max_loaded: how many models stay at most.
    share_cache: prefixes that were computed for one key serve the others. files: a folder for files
    and batches, None: there are none; files_max: their bytes.
    trust_request_chat_template: templates of requests are rendered.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    fd: int | None = None
    api_keys: tuple[str, ...] = ()
    api_key_file: Path | None = None
    insecure: bool = False
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    max_body: int = 1 << 20
    max_queue: int = 256
    max_wait: float = 60.0
    max_per_key: int | None = None
    timeout: float | None = None
    header_timeout: float = 10.0
    body_timeout: float = 30.0
    write_timeout: float = 30.0
    shutdown_timeout: float = 30.0
    ping: float = 15.0
    keep_alive: float | None = None
    max_loaded: int | None = None
    share_cache: bool = False
    files: Path | None = None
    files_max: int = 1 << 30
    metrics: bool = True
    page: bool = True
    log_format: str = "text"
    log_prompts: bool = False
    trust_request_chat_template: bool = False
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    engine: dict[str, object] = field(default_factory=dict)  # options of AsyncLLM

    def __post_init__(self) -> None:
        """A server that strangers reach has a key."""
        if self.fd is not None:
            self.listener().close()
        if any(not key for key in self.api_keys):
            raise RequestError("api-key: must not be empty; leave it out for a server without one")
        if not (self.is_local or self.has_keys or self.insecure):
            raise RequestError(
                f"host: must be this machine's own (127.0.0.1) where there is no key, but got "
                f"{self.address}; set --api-key or --api-key-file, or --insecure to let all in"
            )
        if self.ssl_keyfile and not self.ssl_certfile:
            raise RequestError("ssl-keyfile: must come with --ssl-certfile, but came alone")

    @property
    def has_keys(self) -> bool:
        """Whether a key is asked for."""
        return bool(self.api_keys) or self.api_key_file is not None

    def listener(self) -> socket.socket:
        """The socket that `fd` is, under a number of its own. RequestError where it is none."""
        assert self.fd is not None
        try:
            found = socket.socket(fileno=os.dup(self.fd))
        except OSError as error:
            raise RequestError(f"fd: must be a socket, but {self.fd} is none: {error}") from None
        if not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            found.close()
            raise RequestError(f"fd: must be a socket that listens, but {self.fd} does not")
        return found

    @property
    def address(self) -> str:
        """Where it listens, without the port."""
        if self.fd is None:
            return self.host
        with self.listener() as found:
            return "localhost" if found.family == socket.AF_UNIX else found.getsockname()[0]

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        address = self.address
        if address == "localhost":
            return True
        try:
            return ipaddress.ip_address(address).is_loopback
        except ValueError:
            return False

    def allows_host(self, header: str) -> bool:
        """Whether a Host header names this server.

        A page elsewhere whose name was made to mean 127.0.0.1 says that name (DNS rebinding);
        addresses cannot be made to mean another, so they are all right.
        """
        name = header.strip().lower()
        name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
        try:
            ipaddress.ip_address(name)
        except ValueError:
            own = {"localhost", self.host.lower(), socket.gethostname().lower()}
            return name in own or not {name, "*"}.isdisjoint(host.lower() for host in self.hosts)
        return True
