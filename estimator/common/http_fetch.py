"""Asks a server over HTTP within totals of time and bytes: of name, connection, redirections, head and body together.

urllib limits each wait alone, which a server that sends a byte now and then never reaches; here a wait gets what is
left.
"""

import email.message
import errno
import http.client
import io
import socket
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from .limits import Deadline, Limit
from .process_limit import start_thread

_MAX_ERROR_BYTES = 64 * 1024


class Answer(msgspec.Struct, frozen=True):
    """What a server answers."""

    status: int
    reason: str
    headers: email.message.Message
    content: bytes
    """All of it; of a status that is no success the first 64 KiB, and nothing if they cannot be read."""

    @property
    def is_success(self) -> bool:
        """True if the content is what was asked for."""
        return 200 <= self.status < 300


def fetch(
    request: urllib.request.Request, limit: Limit, *, redirects: int = 0, tls: ssl.SSLContext | None = None
) -> Answer:
    """Return the answer to a request.

    Args:
        request: its unredirected ``Authorization`` is for the host that is asked, and follows to no other.
        limit: of everything; bytes are those of one connection, with its head.
        redirects: the most that are followed; the next one is the answer.
        tls: which certificates are trusted; None: those of the system.

    Raises:
        LimitError: it takes too long, or has too many bytes.
        OSError, http.client.HTTPException, ValueError: there is no answer.
        ProcessLimitError: no thread can be started.
    """
    until = limit.deadline()
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        _Connections(limit, until, tls),
        urllib.request.HTTPDefaultErrorHandler(),
        _Redirects(redirects),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    found: list[Answer | Exception] = []

    def ask() -> None:
        try:
            found.append(_ask(opener, request))
        except Exception as error:  # noqa: BLE001 - raised below
            found.append(error)

    # a thread: looking up a name has no limit of its own
    start_thread(thread := threading.Thread(target=ask, name="http", daemon=True))
    thread.join(until.left)
    result = found[0] if found else TimeoutError()
    if isinstance(result, Answer):
        return result
    if isinstance(getattr(result, "reason", result), TimeoutError):
        raise limit.too_long() from None
    raise result


def _ask(opener: urllib.request.OpenerDirector, request: urllib.request.Request) -> Answer:
    content = b""
    try:
        with opener.open(request) as answer:
            return Answer(answer.status, answer.reason, answer.headers, _content(answer))
    except urllib.error.HTTPError as error:
        with error, suppress(OSError, http.client.HTTPException, ValueError):
            content = error.read(_MAX_ERROR_BYTES)
        return Answer(error.code, str(error.reason), error.headers, content)


def _content(answer: http.client.HTTPResponse) -> bytes:
    """Return what follows a head, in pieces: ``read()`` allocates at once what a length or a chunk announces."""
    early = ConnectionAbortedError(errno.ECONNABORTED, "the answer ended early")
    try:
        content = b"".join(iter(lambda: answer.read(64 * 1024), b""))
    except http.client.IncompleteRead:
        raise early from None
    if answer.length:  # of its Content-Length, what did not come
        raise early
    return content


class _Connections(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Connects, and reads what is received within the limits."""

    def __init__(self, limit: Limit, until: Deadline, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self._limit, self._until, self._tls = limit, until, tls

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Answer a request over HTTP."""
        return self._open(http.client.HTTPConnection, req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Answer a request over HTTPS."""
        return self._open(http.client.HTTPSConnection, req, context=self._tls)

    def _open(
        self, kind: Callable[..., Any], request: urllib.request.Request, **named: Any
    ) -> http.client.HTTPResponse:
        def response(sock: socket.socket, *rest: Any, **more: Any) -> http.client.HTTPResponse:
            received = _Received(sock, self._limit, self._until)
            return http.client.HTTPResponse(_Readable(received), *rest, **more)  # type: ignore[arg-type]

        def connection(*rest: Any, **more: Any) -> Any:
            made = kind(*rest, **more)
            made.response_class = response
            return made

        request.timeout = self._until.left  # of connecting, of the TLS handshake, and of sending
        return self.do_open(connection, request, **named)


class _Readable(msgspec.Struct, frozen=True):
    """What ``HTTPResponse`` wants of a socket."""

    received: "_Received"

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self.received)


class _Received(io.RawIOBase):
    """What a socket receives within the limits."""

    def __init__(self, sock: socket.socket, limit: Limit, until: Deadline) -> None:
        self._sock, self._limit, self._until = sock, limit, until
        self._file, self._size = sock.makefile("rb", buffering=0), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._until.left
        if left == 0.0:
            raise TimeoutError
        self._sock.settimeout(left)
        size = self._file.readinto(buffer)
        self._size += size or 0
        if self._limit.bytes is not None and self._size > self._limit.bytes:
            raise self._limit.too_large()
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections; only the host that was asked gets the token, as with huggingface_hub."""

    def __init__(self, most: int) -> None:
        self.max_redirections = most  # type: ignore[misc]  # the base class has one for all

    def redirect_request(self, req: urllib.request.Request, *rest: Any, **named: Any) -> urllib.request.Request | None:
        """Return the request of a redirection."""
        following = super().redirect_request(req, *rest, **named) if self.max_redirections else None
        token = req.get_header("Authorization")
        if following is None or not token:
            return following
        if urllib.parse.urlsplit(following.full_url)[:2] == urllib.parse.urlsplit(req.full_url)[:2]:
            following.add_unredirected_header("Authorization", token)
        return following
