"""Open connections of a server: how long each may take, and how many a client may have."""

from __future__ import annotations

import ipaddress
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from vramtop.estimator.common.limits import Deadline, Limit

    Address = tuple[Any, ...]
    """The other side, as ``accept`` of a socket returns it."""


class _Connection(msgspec.Struct, eq=False):
    end: Callable[[], object]
    address: Address
    client: str
    until: Deadline
    has_asked: bool = False
    """The whole request has arrived."""


class Connections(msgspec.Struct):
    """Makes room for a new connection by ending the oldest one that has not sent its request, else the oldest one.

    So nobody keeps others out by connections that stay open: who sends a request at once is answered.

    Args:
        limit: seconds from the connection to the end of its answer; items: of all.
        of_one: items: of one client, who is an address, or a network of IPv6 as a host is given one.
    """

    limit: Limit
    of_one: Limit
    _open: dict[Address, _Connection] = msgspec.field(default_factory=dict)
    """By the client's address and port; the oldest first."""
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)

    def add(self, address: Address, end: Callable[[], object]) -> None:
        """Take note of a new connection, and end those that it takes the place of.

        Args:
            address: its other side.
            end: ends it; may be called after it has ended, and raise OSError then.
        """
        client = _client(address[0])
        with self._lock:
            self._make_room([each for each in self._open.values() if each.client == client], self.of_one)
            self._make_room(list(self._open.values()), self.limit)
            self._open[address] = _Connection(end, address, client, self.limit.deadline())

    def note_request(self, address: Address) -> None:
        """Take note that the whole request has arrived."""
        with self._lock:
            if found := self._open.get(address):
                found.has_asked = True

    def forget(self, address: Address) -> None:
        """Leave a connection alone from now on: it has ended, or its client is trusted."""
        with self._lock:
            self._open.pop(address, None)

    def end_late(self) -> None:
        """End those whose time is over; to be called now and then."""
        with self._lock:
            for each in [each for each in self._open.values() if each.until.passed]:
                self._end(each)

    def _make_room(self, among: list[_Connection], limit: Limit) -> None:
        if limit.items is not None and len(among) >= limit.items:
            self._end(min(among, key=lambda each: each.has_asked))  # the first, and so the oldest, of the least

    def _end(self, ended: _Connection) -> None:
        del self._open[ended.address]
        with suppress(OSError):
            ended.end()


def _client(address: str) -> str:
    found = ipaddress.ip_address(address.partition("%")[0])
    return address if found.version == 4 else str(ipaddress.ip_network((found, 64), strict=False))
