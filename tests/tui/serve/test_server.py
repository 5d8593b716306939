"""The web server itself, asked over real connections: without the token it serves nothing, and starts nothing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("textual_serve", reason="the extra serve is not installed")

import aiohttp
from aiohttp.test_utils import TestServer

from vramtop.tui.serve.guard import Guard
from vramtop.tui.serve.server import MAX_DASHBOARDS, BrowserServer

FILES = ("", "xterm.css", "textual.js", "font.ttf", "page.css", "page.js")


class Served:
    """A running server and a client."""

    def __init__(self, server: BrowserServer, test_server: TestServer, client: aiohttp.ClientSession) -> None:
        self.server, self.guard, self.client = server, server._guard, client
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
    server = BrowserServer(Guard(), ["--view-only", "--demo"])
    monkeypatch.setattr(
        "vramtop.tui.serve.child.Dashboard._open_app_process", lambda *_: pytest.fail("a dashboard was started")
    )
    async with TestServer(server.application()) as test_server, aiohttp.ClientSession() as client:
        yield Served(server, test_server, client)


async def test_with_the_token_all_files_are_served_and_none_names_another_server(served: Served) -> None:
    for name in FILES:
        status, text, headers = await served.get(f"/{served.guard.token}/{name}")
        assert status == 200
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "frame-ancestors 'none'" in policy
        if name in ("", "page.css", "page.js"):
            assert "http:" not in text
            assert "https:" not in text


@pytest.mark.parametrize(
    ("asked", "size"), [("", 15), ("?fontsize=9", 9), ("?fontsize=9999", 48), ('?fontsize="><b', 15)]
)
async def test_letters_are_as_large_as_asked_within_bounds(served: Served, asked: str, size: int) -> None:
    _, text, _ = await served.get(f"/{served.guard.token}/{asked}")
    assert f'data-font-size="{size}"' in text


@pytest.mark.parametrize("before", ["", "/wrong", "/static", "/%2e%2e", "//"])
async def test_without_the_token_every_answer_is_the_same_and_says_nothing(served: Served, before: str) -> None:
    for name in (*FILES, "ws", "static/js/textual.js"):
        status, text, _ = await served.get(f"{before}/{name}")
        assert (status, text) == (404, "The address needs its token. Open it as vramtop serve has printed it.\n")
    assert await served.ask_for_socket(f"{before}/ws", Origin=served.root) == 404


async def test_nothing_beside_the_files_is_served_with_the_token(served: Served) -> None:
    for name in ("download/x", "static/", "../server.py", "%2e%2e/server.py", "page.html"):
        assert (await served.get(f"/{served.guard.token}/{name}"))[0] == 404


async def test_a_stranger_name_is_refused_with_the_token_too(served: Served) -> None:
    for name in FILES:
        assert (await served.get(f"/{served.guard.token}/{name}", Host="evil.example"))[0] == 403
    socket = f"/{served.guard.token}/ws"
    assert await served.ask_for_socket(socket, Host="evil.example", Origin="http://evil.example") == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:1", "null", ""])
async def test_a_websocket_of_another_page_is_refused_before_anything_starts(served: Served, origin: str) -> None:
    socket = f"/{served.guard.token}/ws"
    assert await served.ask_for_socket(socket, **({"Origin": origin} if origin else {})) == 403


async def test_no_more_than_the_most_pages_are_open(served: Served) -> None:
    served.server._dashboards.update(object() for _ in range(MAX_DASHBOARDS))  # type: ignore[misc]
    socket = f"/{served.guard.token}/ws"
    assert await served.ask_for_socket(socket, Origin=served.root) == 503
    served.server._dashboards.clear()


async def test_connections_that_never_ask_are_ended_and_keep_no_page_from_others() -> None:
    server, ready = BrowserServer(Guard(), ["--view-only", "--demo"]), asyncio.Future()
    serving = asyncio.create_task(server._serve("127.0.0.1", 0, lambda host, port: ready.set_result((host, port))))
    place = await ready
    waiting = []
    async with aiohttp.ClientSession() as client:
        url = f"http://127.0.0.1:{place[1]}/{server._guard.token}/"
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
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
