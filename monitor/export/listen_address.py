"""The address that the exporter listens on."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramtop.estimator.common import InputError

from .host_names import HostNames

if TYPE_CHECKING:
    from collections.abc import Iterable

DEFAULT_PORT = 10440
"""Outside 9100 to 9999, which the list of Prometheus's exporters has given away."""
_MAX_PORT = 65_535


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Host and port."""

    host: str
    port: int
    """0: a free one."""

    @classmethod
    def parse(cls, text: str) -> ListenAddress:
        """Return the address of ``HOST:PORT``, ``PORT`` (on loopback) or ``:PORT`` (on all IPv4 addresses).

        Raises:
            InputError: it is none of these.
        """
        host, colon, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise InputError(f"--listen {text}: write an IPv6 address in brackets, such as [::1]:{DEFAULT_PORT}")
        if not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= _MAX_PORT):
            raise InputError(f"--listen {text}: give HOST:PORT, such as 127.0.0.1:{DEFAULT_PORT}")
        return cls(host or ("0.0.0.0" if colon else "127.0.0.1"), int(port))  # noqa: S104 - asked for by ":PORT"

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def names(self, further: Iterable[str]) -> HostNames:
        """Return the names by which the server here may be asked: the one it is told to listen on is one of them."""
        return HostNames(self.is_loopback, (self.host, *further))

    def url(self, scheme: str, port: int) -> str:
        """Return the address of the metrics.

        Args:
            scheme: ``http`` or ``https``.
            port: the one that it listens on.
        """
        return f"{scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{port}/metrics"
