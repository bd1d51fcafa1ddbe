"""Addresses of the Envoy plane: Unix sockets within one host, or IP addresses."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

MAX_SOCKET_BYTES = 107
"""Longest path of a Unix socket that Linux takes."""


@dataclass(frozen=True, slots=True)
class Address:
    """An IP address with a port, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""
    """Path of the socket; empty: ``host`` and ``port`` count."""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse ``unix:/PATH``, ``IP:PORT`` or ``[IPv6]:PORT``. Raises ValueError."""
        if text.startswith("unix:"):
            return cls.socket(Path(text.removeprefix("unix:")))
        host, _, port = text.rpartition(":")
        try:
            host = str(ip_address(host.removeprefix("[").removesuffix("]")))
            number = int(port) if port.isascii() and port.isdecimal() else -1
        except ValueError:
            number = -1
        if not 0 <= number <= 65535:
            raise ValueError(f"{text!r} is no address; allowed: IP:PORT, [IPv6]:PORT or unix:/PATH")
        return cls(host, number)

    @classmethod
    def socket(cls, path: Path) -> Address:
        """Return the address of a Unix socket. Raises ValueError for a path that is too long."""
        if len(str(path).encode()) > MAX_SOCKET_BYTES or not path.is_absolute():
            raise ValueError(
                f"the path of the socket {path} must be absolute and have at most"
                f" {MAX_SOCKET_BYTES} bytes"
            )
        return cls(path=str(path))

    def envoy(self) -> dict[str, Any]:
        """Return the address as Envoy's configuration has it."""
        if self.path:
            return {"pipe": {"path": self.path, "mode": 0o600}}
        return {"socket_address": {"address": self.host, "port_value": self.port}}

    def endpoint(self) -> dict[str, Any]:
        """Return the address as an endpoint of a cluster."""
        if self.path:
            return {"endpoint": {"address": {"pipe": {"path": self.path}}}}
        return {"endpoint": {"address": self.envoy()}}


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses and files of one Envoy."""

    listen: Address
    """Public address; port 0 takes a free one."""
    api: Address
    """The server's HTTP side, which is also the relay of calls that Envoy cannot carry."""
    decisions: Address
    """The server's gRPC side: external processing and access logs."""
    admin: Address
    """Envoy's admin interface; never public."""
    workers_file: Path
    """Endpoints of the workers (:mod:`fairserve.platform.envoy.workers_file`)."""
    ends_file: Path
    """JSON log of ended calls."""

    @property
    def certificate_file(self) -> Path:
        """File that names the certificate (:mod:`fairserve.platform.envoy.tls`)."""
        return self.workers_file.with_name("certificate.json")
