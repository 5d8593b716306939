"""The address that a server of this machine listens on, and the names by which it may be asked there."""

from __future__ import annotations

import functools
import ipaddress
import re
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

import msgspec

from vramtop.estimator.common.errors import InputError

DEFAULT_PORT = 10440
"""Outside 9100 to 9999, which the list of Prometheus's exporters has given away."""
_MAX_PORT = 65_535


class ListenAddress(msgspec.Struct, frozen=True):
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
        address = _address(self.host)
        return self.host == "localhost" if address is None else address.is_loopback

    def names(self, further: Iterable[str]) -> HostNames:
        """Return the names by which the server here may be asked: the one it is told to listen on is one of them."""
        return HostNames(self.is_loopback, (self.host, *further))

    def url(self, port: int) -> str:
        """Return the address of the metrics on the port that the server has."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{port}/metrics"


class HostNames(msgspec.Struct, frozen=True):
    """Decides about a request by its ``Host`` header.

    Args:
        on_loopback: the server listens on the loopback address only; then it has no other name.
        further: names by which this machine may be asked too, such as that of a proxy.
    """

    on_loopback: bool = True
    further: tuple[str, ...] = ()

    def allow(self, host: str | None) -> bool:
        """Return True if the header names this machine.

        A page of a stranger's whose name resolves to this machine (DNS rebinding) sends its own name here. The port is
        that of a tunnel where there is one, and is not compared.
        """
        try:
            name = urlsplit(f"//{host}").hostname if _HOST.fullmatch(host or "") else None
        except ValueError:
            name = None
        if not name:
            return False
        if name in ("localhost", *(each.lower() for each in self.further)):
            return True
        address = _address(name)
        if self.on_loopback:
            return address is not None and address.is_loopback
        return address is not None or name in _own_names()


_HOST = re.compile(r"[A-Za-z0-9._\-]+(:\d{1,5})?|\[[0-9A-Fa-f:.]+\](:\d{1,5})?")


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


@functools.cache
def _own_names() -> frozenset[str]:
    """Return the names of this machine."""
    name = socket.gethostname().lower()
    return frozenset((name, socket.getfqdn(name).lower(), name.partition(".")[0]))
