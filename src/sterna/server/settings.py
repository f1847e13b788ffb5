"""`Settings`: the options of `sterna serve`, checked."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from dataclasses import dataclass, field
from pathlib import Path

from sterna.errors import RequestError
from sterna.files.system import is_unix_socket

__all__ = ["Settings"]

#: A Host header: an address in brackets or a name, and a port.
_HOST = re.compile(r"(?:\[([0-9a-f:.%]+)\]|([^\s:@/?#\[\]]+))(?::[0-9]*)?")


@dataclass(frozen=True)
class Settings:
    """Addresses, access and limits of a server. RequestError if they contradict each other.

    Times are in seconds, sizes in bytes; None means no limit.

    Attributes:
        fd: a listening socket, instead of host and port.
        insecure: allow an address that others can reach without keys.
        origins: origins of web pages that may send requests; "*" is any.
        hosts: further names of this server in Host headers; "*" is any.
        max_body: bytes of a request's body; None is 32 MiB if a model sees images, else 1 MiB or
            as much as a context may need.
        max_queue: how many requests may wait.
        max_wait: the longest predicted wait at which a request is still accepted.
        max_per_key: how many requests a key may have at a time.
        timeout: the limit for a whole answer.
        reasoning_budget: the most tokens of reasoning, unless a request sets its own budget.
        context_overflow: what to do with conversations that do not fit, as in `LLM.chat`, unless a
            request says it.
        keep_alive: how long an unused model stays in memory.
        max_loaded: how many models stay in memory.
        share_cache: keys share cached prefixes with each other.
        files: the folder for files and batches; None turns both off.
        files_max: bytes of all files together.
        page: serve the web page at "/".
        strict_requests: refuse unknown fields of requests instead of ignoring them.
        otel: make OpenTelemetry spans of requests.
        image_hosts: hosts from which images are fetched; "*" is any public host, "*.example.org"
            any host below that name.
        trust_request_chat_template: render chat templates that requests bring.
        engine: options of `AsyncLLM`.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    fd: int | None = None
    api_keys: tuple[str, ...] = ()
    api_key_file: Path | None = None
    insecure: bool = False
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    max_body: int | None = None
    max_queue: int = 256
    max_wait: float = 600.0
    max_per_key: int | None = None
    timeout: float | None = None
    reasoning_budget: int | None = None
    context_overflow: str = "error"
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
    strict_requests: bool = False
    otel: bool = False
    image_hosts: tuple[str, ...] = ()
    trust_request_chat_template: bool = False
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    engine: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the options. A server that others can reach needs a key."""
        if self.fd is not None:
            self.listener().close()
        if any(not key for key in self.api_keys):
            raise RequestError("api-key: must not be empty; omit it for a server without keys")
        if not (self.is_local or self.has_keys or self.insecure):
            raise RequestError(
                f"host: must be this machine's own (127.0.0.1) if there is no key, but got "
                f"{self.address}; set --api-key or --api-key-file, or --insecure to let anyone in"
            )
        if self.ssl_keyfile and not self.ssl_certfile:
            raise RequestError("ssl-keyfile: needs --ssl-certfile")

    @property
    def max_running(self) -> int:
        """How many requests a model computes at the same time."""
        most = self.engine.get("max_running", 1)
        return most if isinstance(most, int) else 1

    @property
    def has_keys(self) -> bool:
        """Whether requests need a key."""
        return bool(self.api_keys) or self.api_key_file is not None

    def listener(self) -> socket.socket:
        """Return a duplicate of the socket `fd`. RequestError if it is not a listening socket."""
        assert self.fd is not None
        try:
            listening = socket.socket(fileno=os.dup(self.fd))
        except OSError as error:
            raise RequestError(f"fd: must be a socket, but {self.fd} is not: {error}") from None
        if not listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            listening.close()
            raise RequestError(f"fd: must be a listening socket, but {self.fd} is not")
        return listening

    @property
    def address(self) -> str:
        """The address without the port."""
        if self.fd is None:
            return self.host
        with self.listener() as listening:
            return "localhost" if is_unix_socket(listening.family) else listening.getsockname()[0]

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        address = self.address
        if address == "localhost":
            return True
        try:
            return ipaddress.ip_address(address).is_loopback
        except ValueError:
            return False

    def allows_host(self, header: str) -> bool:
        """Whether a Host header names this server.

        This stops DNS rebinding, where a web page's own name resolves to this machine: its
        requests have that name. Numeric addresses cannot be rebound, so all are allowed.
        """
        match = _HOST.fullmatch(header.strip().lower())
        if match is None:  # also user:password@host, whose host is another one
            return False
        name = match[1] or match[2]
        try:
            ipaddress.ip_address(name)
        except ValueError:
            own = {"localhost", self.host.lower(), socket.gethostname().lower()}
            return name in own or not {name, "*"}.isdisjoint(host.lower() for host in self.hosts)
        return True
