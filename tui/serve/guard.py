"""Admits requests: of those who know the token, at an address of this machine, from the server's own pages."""

from __future__ import annotations

import functools
import hmac
import ipaddress
import re
import secrets
import socket
from dataclasses import dataclass, field
from urllib.parse import urlsplit

TOKEN_BYTES = 32
_HOST = re.compile(r"[A-Za-z0-9._\-]+(:\d{1,5})?|\[[0-9A-Fa-f:.]+\](:\d{1,5})?")


def new_token() -> str:
    """Return a random token of 256 bits, for an address."""
    return secrets.token_urlsafe(TOKEN_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Decides about a request by its path and two of its headers.

    Args:
        token: the first part of every path.
        on_loopback: the server listens on the loopback address only; then it has no other name.
        names: further names by which this machine may be asked, such as that of a proxy.
    """

    token: str = field(default_factory=new_token, repr=False)
    on_loopback: bool = True
    names: tuple[str, ...] = ()

    def knows(self, path: str) -> bool:
        """Return True if a path begins with the token; the time it takes does not depend on how much is right."""
        _, _, rest = path.partition("/")
        given, _, _ = rest.partition("/")
        return hmac.compare_digest(given.encode(errors="replace"), self.token.encode())

    def allows_host(self, host: str | None) -> bool:
        """Return True if the ``Host`` header names this machine.

        A page of a stranger's whose name resolves to this machine (DNS rebinding) sends its own name here. The port is
        that of a tunnel where there is one, and is not compared.
        """
        name = _host_name(host or "")
        if name is None:
            return False
        if name in ("localhost", *(each.lower() for each in self.names)):
            return True
        address = _address(name)
        if self.on_loopback:
            return address is not None and address.is_loopback
        return address is not None or name in _own_names()

    def allows_origin(self, origin: str | None, host: str | None) -> bool:
        """Return True if a websocket is asked for by a page of this server: the ``Origin`` is the ``Host``.

        Browsers let every page open a websocket to every server, and send the page's origin with it.
        """
        if not origin or not host:
            return False
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and not parts.path and parts.netloc.lower() == host.lower()


def _host_name(host: str) -> str | None:
    """Return the name or address in a ``Host`` header, without its port; None: it is none."""
    try:
        name = urlsplit(f"//{host}").hostname if _HOST.fullmatch(host) else None
    except ValueError:
        return None
    return name or None


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
