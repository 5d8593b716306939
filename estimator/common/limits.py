"""Limits of what others give: peers, files, and other users' processes.

Each limit is a total: who sends one byte at a time, or many small pieces, reaches it as well. A limit ends in one
sentence, which names what was too much and how much is taken.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, overload

_T = TypeVar("_T")
_CHUNK_BYTES = 1 << 16


class LimitError(ValueError):
    """A limit was reached, or what was given cannot be read at all; its text is a sentence without a full stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How much of one kind of input is taken, in total; None: this does not limit it.

    Args:
        what: begins the sentence, such as "an answer of Prometheus".
    """

    what: str
    seconds: float | None = None
    bytes: int | None = None
    items: int | None = None

    def deadline(self) -> "Deadline":
        """Return the end of the time, which begins now."""
        return Deadline(self.seconds)

    def too_long(self) -> LimitError:
        """Return the error of a time that is over."""
        return LimitError(f"{self.what} took more than {self.seconds:g} s")

    def too_large(self) -> LimitError:
        """Return the error of too many bytes."""
        return LimitError(f"{self.what} has more than {_size(self.bytes or 0)}")

    def too_many(self, items: str) -> LimitError:
        """Return the error of too many items, such as "files"."""
        return LimitError(f"{self.what} has more than {self.items:,} {items}")


class Deadline:
    """The end of a total time.

    Args:
        seconds: from now; None: there is no end.
    """

    def __init__(self, seconds: float | None) -> None:
        self._until = None if seconds is None else time.monotonic() + seconds

    @property
    def left(self) -> float | None:
        """Seconds that are left, at least 0; None: there is no end."""
        return None if self._until is None else max(0.0, self._until - time.monotonic())

    @property
    def passed(self) -> bool:
        """True once the time is over."""
        return self.left == 0.0


def read_all(read: Callable[[int], bytes], limit: Limit) -> bytes:
    """Return all that a stream gives.

    Args:
        read: returns at most so many bytes as soon as there are some, such as ``read1`` of a response; none at the end.
        limit: of the bytes.

    Raises:
        LimitError: it is too much.
    """
    parts, size = [], 0
    while part := read(_CHUNK_BYTES):
        parts.append(part)
        size += len(part)
        if limit.bytes is not None and size > limit.bytes:
            raise limit.too_large()
    return b"".join(parts)


@overload
def decode_json(text: bytes | str, kind: type[_T]) -> _T: ...


@overload
def decode_json(text: bytes | str) -> Any: ...


def decode_json(text: bytes | str, kind: Any = Any) -> Any:
    """Return JSON as a type; every failure is the same error, also nesting that no stack holds.

    Raises:
        LimitError: it is no JSON, none of this type, or nested too deeply.
    """
    import msgspec  # here: what reads no JSON need not load it

    try:
        return _json_decoder(kind).decode(text)
    except RecursionError:
        raise LimitError("it is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise LimitError(str(error)) from None


@cache
def _json_decoder(kind: Any) -> Any:
    import msgspec

    return msgspec.json.Decoder(kind)


def _size(size: int) -> str:
    return f"{size >> 20:,} MiB" if size >= 1 << 20 else f"{size >> 10:,} KiB"


RESERVATIONS = Limit(what="the folder of reservations", items=10_000)
"""Files in it: any user may fill the folder, which is read every second."""
RESERVATION_FILE = Limit(what="a reservation", bytes=2**16)

# What is read of one process on a GPU, which may be another user's (monitor/host, monitor/attach).
PROCESS_COMMAND_LINE = Limit(what="its command line", bytes=256 << 10, items=5_000)
PROCESS_ENVIRONMENT = Limit(what="its environment", bytes=1 << 20, items=20_000)
PROCESS_READING = Limit(what="reading it", seconds=5.0)
"""A reading takes 20 to 50 ms."""


# What servers answer (estimator/model/hub.py, monitor/preflight, monitor/fleet/prometheus).
HUB_CONFIG = Limit(what="its answer", seconds=5.0, bytes=4 << 20)
"""A config.json of the hub: not more than is read of a file."""
HUB_ACCESS = Limit(what="its answer", seconds=10.0, bytes=1 << 20)
PROMETHEUS_ANSWER = Limit(what="its answer", seconds=20.0, bytes=256 << 20)
"""8,000 GPUs are some 3 MB."""


# What a host sends over ssh (monitor/fleet).
STREAM_LINE = Limit(what="a line it sent", bytes=16 << 20)
"""16 GPUs with 20,000 processes take a third of it."""
STREAM_GREETING = Limit(what="its output before the first reading", bytes=64 << 10)
STREAM_START = Limit(what="its first reading", seconds=30.0)
"""So long it keeps others waiting that are to be connected after it."""


# Who asks vramtop export (monitor/export).
EXPORTER_REQUESTS = Limit(what="a request", seconds=10.0, items=32)
"""From the connection to the end of the answer: as long as Prometheus waits. Items: connections at once."""
EXPORTER_CLIENT = Limit(what="a client", items=8)
"""Its connections at once."""
# Who asks vramtop serve (tui/serve) without its token; a browser opens several connections at once.
SERVE_REQUESTS = Limit(what="a request", seconds=10.0, items=128)
SERVE_CLIENT = Limit(what="a client", items=32)


# A memory snapshot (estimator/crash/snapshot): a million blocks or events are some 100 to 300 MB.
SNAPSHOT = Limit(what="it", bytes=2 << 30)
SNAPSHOT_READER = Limit(what="reading it", seconds=300.0, bytes=8 << 30)
"""Seconds of the processor and address space of the process that reads; a million entries take 1 GB."""
SNAPSHOT_JSON = Limit(what="it is JSON and", bytes=256 << 20)
SNAPSHOT_BLOCKS = Limit(what="it", items=4_000_000)
SNAPSHOT_EVENTS = Limit(what="its history", items=4_000_000)
"""Per GPU."""
