"""Answers over HTTP whatever a server announces: what is read has a total, and memory is taken for what came alone."""

import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from vramtop.estimator.common.http_fetch import fetch
from vramtop.estimator.common.limits import Limit, LimitError

LIMIT = Limit(what="its answer", seconds=10.0, bytes=1 << 20)
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def serve() -> Iterator[Callable[..., urllib.request.Request]]:
    """Return a function that answers one request with bytes, over and over if ``endless``."""
    threads = []

    def start(text: bytes, *, endless: bytes = b"") -> urllib.request.Request:
        def answer() -> None:
            with listening, suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(text)
                    while endless:
                        connection.sendall(endless)

        listening = socket.create_server(("127.0.0.1", 0))
        threads.append(threading.Thread(target=answer))
        threads[-1].start()
        return urllib.request.Request(f"http://127.0.0.1:{listening.getsockname()[1]}/")

    yield start
    for each in threads:
        each.join()


@pytest.mark.parametrize(
    "head",
    [
        OK + b"Content-Length: 1000000000000000000\r\n\r\n",
        OK + b"Content-Length: %d\r\n\r\n" % 10**30,
        CHUNKED + b"de0b6b3a7640000\r\n",
        CHUNKED + b"ffffffffffffffffffffff\r\n",
    ],
    ids=["length", "length beyond 64 bits", "chunk", "chunk beyond 64 bits"],
)
def test_an_announced_size_is_never_allocated(serve, head: bytes) -> None:
    with pytest.raises(OSError, match="the answer ended early"):
        fetch(serve(head + b"few bytes"), LIMIT)
    with pytest.raises(LimitError, match="its answer has more than 1 MiB"):
        fetch(serve(head, endless=b"x" * 65_536), LIMIT)


def test_a_refusal_of_any_announced_size_is_still_one(serve) -> None:
    head = b"HTTP/1.1 503 Busy\r\nContent-Length: 1000000000000000000\r\n\r\n"
    assert fetch(serve(head + b"later"), LIMIT).status == 503


@pytest.mark.parametrize("head", [OK + b"Content-Length: 10\r\n\r\n", CHUNKED + b"a\r\n"], ids=["length", "chunk"])
def test_an_answer_that_ends_early_is_none(serve, head: bytes) -> None:
    with pytest.raises(OSError, match="the answer ended early"):
        fetch(serve(head + b"12345"), LIMIT)


@pytest.mark.parametrize(
    "text", [OK + b"Content-Length: 5\r\n\r\nabcde", CHUNKED + b"2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n", OK + b"\r\nabcde"]
)
def test_an_answer_is_read_to_its_end(serve, text: bytes) -> None:
    assert fetch(serve(text), LIMIT).content == b"abcde"
