"""The web server itself, asked over real connections: without the token it serves nothing, and starts nothing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("textual_serve", reason="the extra serve is not installed")

import aiohttp
from aiohttp.test_utils import TestServer

from vramtop.monitor.export.listen_address import HostNames
from vramtop.tui.serve import server as server_module
from vramtop.tui.serve.server import MAX_DASHBOARDS, BrowserServer, is_own_page

FILES = ("", "xterm.css", "textual.js", "font.ttf", "page.css", "page.js")


class Served:
    """A running server and a client."""

    def __init__(self, server: BrowserServer, test_server: TestServer, client: aiohttp.ClientSession) -> None:
        self.server, self.token, self.client = server, server.token, client
        self.root = f"http://127.0.0.1:{test_server.port}"

    async def get(self, path: str, **headers: str) -> tuple[int, str, Any]:
        """Return status, text and headers of an answer."""
        async with self.client.get(f"{self.root}{path}", headers=headers, allow_redirects=False) as answer:
            return answer.status, (await answer.read()).decode(errors="replace"), answer.headers

    async def ask_for_socket(self, path: str, **headers: str) -> int:
        """Return the status of the answer to a websocket's handshake."""
        handshake = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        handshake["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
        return (await self.get(path, **handshake, **headers))[0]


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    server = BrowserServer(HostNames(), ["--view-only", "--demo"])
    monkeypatch.setattr(
        "textual_serve.app_service.AppService._open_app_process", lambda *_: pytest.fail("a dashboard was started")
    )
    async with TestServer(server.application()) as test_server, aiohttp.ClientSession() as client:
        yield Served(server, test_server, client)


async def test_with_the_token_all_files_are_served_and_none_names_another_server(served: Served) -> None:
    for name in FILES:
        status, text, headers = await served.get(f"/{served.token}/{name}")
        assert status == 200
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "frame-ancestors 'none'" in policy
        if name in ("", "page.css", "page.js"):
            assert "http:" not in text
            assert "https:" not in text


@pytest.mark.parametrize("before", ["", "/wrong", "/static", "/%2e%2e", "//"])
async def test_without_the_token_every_answer_is_the_same_and_says_nothing(served: Served, before: str) -> None:
    for name in (*FILES, "ws", "static/js/textual.js"):
        status, text, _ = await served.get(f"{before}/{name}")
        assert (status, text) == (404, "The address needs its token. Open the address that vramtop serve printed.\n")
    assert await served.ask_for_socket(f"{before}/ws", Origin=served.root) == 404


async def test_nothing_beside_the_files_is_served_with_the_token(served: Served) -> None:
    for name in ("download/x", "static/", "../server.py", "%2e%2e/server.py", "page.html"):
        assert (await served.get(f"/{served.token}/{name}"))[0] == 404


async def test_a_stranger_name_is_refused_with_the_token_too(served: Served) -> None:
    for name in FILES:
        assert (await served.get(f"/{served.token}/{name}", Host="evil.example"))[0] == 403
    socket = f"/{served.token}/ws"
    assert await served.ask_for_socket(socket, Host="evil.example", Origin="http://evil.example") == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:1", "null", ""])
async def test_a_websocket_of_another_page_is_refused_before_anything_starts(served: Served, origin: str) -> None:
    socket = f"/{served.token}/ws"
    assert await served.ask_for_socket(socket, **({"Origin": origin} if origin else {})) == 403


async def test_no_more_than_the_most_pages_are_open(served: Served) -> None:
    served.server._pages = MAX_DASHBOARDS
    socket = f"/{served.token}/ws"
    assert await served.ask_for_socket(socket, Origin=served.root) == 503


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[tuple[BrowserServer, tuple[str, int]]]:
    """Yield a server that listens as the command's does, and its address and port."""
    server, ready = BrowserServer(HostNames(), ["--view-only", "--demo"]), asyncio.Future()
    serving = asyncio.create_task(server._serve("127.0.0.1", 0, lambda host, port: ready.set_result((host, port))))
    yield server, await ready
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


async def ask_raw(place: tuple[str, int], pieces: list[bytes]) -> bytes:
    """Return the first 10 bytes of the answer to bytes; none if the connection ends without one."""
    reader, writer = await asyncio.open_connection(*place)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        return (await asyncio.wait_for(reader.read(100), 20))[:10]
    except ConnectionError:
        return b""
    finally:
        writer.close()


HOST = b"Host: 127.0.0.1\r\n"
UPGRADE = HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
MALFORMED = {
    "garbage": b"\x00\xff\xfe\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 300,
    "no version": b"GET / FOO\r\n\r\n",
    "long header": b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    "null byte": b"GET /\x00 HTTP/1.1\r\n" + HOST + b"\r\n",
    "no UTF-8": b"GET /\xed\xa0\x80 HTTP/1.1\r\n" + HOST + b"\r\n",
    "host": b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n",
    "port": b"GET http://a:99999999/ HTTP/1.1\r\n" + HOST + b"\r\n",
    "expectation": b"GET / HTTP/1.1\r\n" + HOST + b"Expect: nonsense\r\n\r\n",
    "huge length": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % 10**30,
    "websocket": b"GET /ws HTTP/1.1\r\n" + UPGRADE + b"Sec-WebSocket-Version: 99\r\nSec-WebSocket-Key: x\r\n\r\n",
    "garbage behind a websocket": b"GET /ws HTTP/1.1\r\n" + UPGRADE + b"\r\n\x00\xff\r\n\r\n",
}


async def test_requests_that_are_no_http_write_nothing_on_the_terminal_and_end_nothing(caplog, capfd) -> None:
    async with running() as (server, place):
        for name, request in MALFORMED.items():
            for pieces in ([request], [request[:30], request[30:]]):
                assert await ask_raw(place, pieces) in (b"HTTP/1.0 4", b"HTTP/1.1 4", b""), name
        url = f"http://127.0.0.1:{place[1]}/{server.token}/"
        async with aiohttp.ClientSession() as client, client.get(url) as page:
            assert page.status == 200
    assert (caplog.text, *capfd.readouterr()) == ("", "", "")


async def test_an_error_of_a_page_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as (server, place), aiohttp.ClientSession() as client:
        monkeypatch.setattr(server_module, "is_own_page", lambda *_: 1 / 0)
        async with client.get(f"http://{place[0]}:{place[1]}/{server.token}/ws") as answer:
            assert answer.status == 500
    assert "ZeroDivisionError" in caplog.text


async def test_connections_that_never_ask_are_ended_and_keep_no_page_from_others() -> None:
    waiting = []
    async with running() as (server, place), aiohttp.ClientSession() as client:
        url = f"http://127.0.0.1:{place[1]}/{server.token}/"
        async with client.get(url) as answer:
            assert answer.status == 200
        for _ in range(40):
            waiting.append(await asyncio.open_connection(*place))
            waiting[-1][1].write(b"GET / HTTP/1.1\r\nX-")
        async with client.get(url) as answer, aiohttp.ClientSession() as other, other.get(url) as new:
            assert (answer.status, new.status) == (200, 200)
        assert await asyncio.wait_for(waiting[0][0].read(), 60) == b""
        for _, writer in waiting:
            writer.close()


def test_tokens_are_long_and_random() -> None:
    tokens = {BrowserServer(HostNames(), []).token for _ in range(20)}
    assert len(tokens) == 20
    assert all(len(token) >= 43 for token in tokens)  # 256 bits


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1:8000", True),
        ("http://localhost:9000", "localhost:9000", True),  # through a tunnel
        ("https://gpu.example.org", "gpu.example.org", True),
        ("http://127.0.0.1:8001", "127.0.0.1:8000", False),  # another server of this machine
        ("http://localhost:8000", "127.0.0.1:8000", False),
        ("http://evil.example", "127.0.0.1:8000", False),
        ("null", "127.0.0.1:8000", False),
        (None, "127.0.0.1:8000", False),
        ("", "", False),
        ("file://127.0.0.1:8000", "127.0.0.1:8000", False),
        ("http://[", "127.0.0.1:8000", False),
    ],
)
def test_only_a_page_of_this_server_may_open_a_websocket(origin: str | None, host: str, allowed: bool) -> None:
    assert is_own_page(origin, host) is allowed
