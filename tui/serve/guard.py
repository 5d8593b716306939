"""Admits requests: of those who know the token, at an address of this machine, from the server's own pages."""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from vramtop.monitor.export.listen_address import HostNames

TOKEN_BYTES = 32


def new_token() -> str:
    """Return a random token of 256 bits, for an address."""
    return secrets.token_urlsafe(TOKEN_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Decides about a request by its path and two of its headers.

    Args:
        token: the first part of every path.
        hosts: by which this machine may be asked.
    """

    token: str = field(default_factory=new_token, repr=False)
    hosts: HostNames = field(default_factory=HostNames)

    def knows(self, path: str) -> bool:
        """Return True if a path begins with the token; the time it takes does not depend on how much is right."""
        _, _, rest = path.partition("/")
        given, _, _ = rest.partition("/")
        return hmac.compare_digest(given.encode(errors="replace"), self.token.encode())

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
