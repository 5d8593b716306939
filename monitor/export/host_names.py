"""The names by which a server of this machine may be asked, against DNS rebinding."""

from __future__ import annotations

import functools
import ipaddress
import re
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

_HOST = re.compile(r"[A-Za-z0-9._\-]+(:\d{1,5})?|\[[0-9A-Fa-f:.]+\](:\d{1,5})?")


@dataclass(frozen=True, slots=True)
class HostNames:
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
        name = _host_name(host or "")
        if name is None:
            return False
        if name in ("localhost", *(each.lower() for each in self.further)):
            return True
        address = _address(name)
        if self.on_loopback:
            return address is not None and address.is_loopback
        return address is not None or name in _own_names()


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
