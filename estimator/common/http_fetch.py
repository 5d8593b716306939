"""Asks a server over HTTP within totals of time and bytes: of name, connection, redirections, head and body together.

urllib limits each wait alone, which a server that sends a byte now and then never reaches: a thread asks, and the
caller waits for it no longer than the total.
"""

import email.message
import errno
import http.client
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from contextlib import suppress
from typing import Any

import msgspec

from .limits import Limit, read_all
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
        limit: of everything; bytes are those of the body.
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
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=tls),
        urllib.request.HTTPDefaultErrorHandler(),
        _Redirects(redirects),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    found: list[Answer | Exception] = []

    def ask() -> None:
        try:
            found.append(_ask(opener, request, limit))
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


def _ask(opener: urllib.request.OpenerDirector, request: urllib.request.Request, limit: Limit) -> Answer:
    content = b""
    try:
        with opener.open(request, timeout=limit.seconds) as answer:
            return Answer(answer.status, answer.reason, answer.headers, _content(answer, limit))
    except urllib.error.HTTPError as error:
        with error, suppress(OSError, http.client.HTTPException, ValueError):
            content = error.read(_MAX_ERROR_BYTES)
        return Answer(error.code, str(error.reason), error.headers, content)


def _content(answer: http.client.HTTPResponse, limit: Limit) -> bytes:
    """Return what follows a head, in pieces: ``read()`` allocates at once what a length or a chunk announces."""
    early = ConnectionAbortedError(errno.ECONNABORTED, "the answer ended early")
    try:
        content = read_all(answer.read, limit)
    except http.client.IncompleteRead:
        raise early from None
    if answer.length:  # of its Content-Length, what did not come
        raise early
    return content


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
