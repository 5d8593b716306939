"""``vramtop serve`` as its pages use it: dashboards over websockets, and the page itself in a real browser."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import aiohttp
import psutil
import pytest
from chromium import look, needs_chromium
from waiting import until

pytest.importorskip("textual_serve", reason="the extra serve is not installed")

from json_schemas import valid_json

pytestmark = pytest.mark.slow


class Server:
    """A running ``vramtop serve`` on the demo recording."""

    def __init__(
        self, folder: Path, *words: str, dashboard: tuple[str, ...] = ("--demo",), cwd: Path | None = None
    ) -> None:
        self._errors = folder / "errors"
        vramtop = Path(sys.executable).with_name("vramtop")
        command = [str(vramtop), "serve", "--json", *words, "--", *dashboard]
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=cwd)
        self.address = valid_json("serve", self.process.stdout.readline())["address"]
        self.root, self.token = self.address.rsplit("/", 2)[:2]
        self.socket = f"{self.address.replace('http', 'ws', 1)}ws"

    @property
    def dashboards(self) -> list[psutil.Process]:
        """The processes of its pages."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children()
        return []

    def end(self) -> str:
        """End it; return what it has said but for its address."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        said = "" if self.process.stdout.closed else self.process.communicate(timeout=60)[0]
        return said + self._errors.read_text()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    found = Server(tmp_path)
    yield found
    found.end()


class Page:
    """The websocket of an open page."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def until_received(self, words: str) -> None:
        """Wait until the dashboard has written this, which it is told on one line."""
        received = b""
        while words.encode() not in received:
            received += (await self._socket.receive_bytes(timeout=60))[5:]  # after the kind and the length

    async def press(self, key: str) -> None:
        await self._socket.send_json(["stdin", key])

    async def close(self) -> None:
        await self._socket.close()


@pytest.fixture
async def open_page() -> AsyncIterator[Callable[..., object]]:
    async with aiohttp.ClientSession() as session:

        async def opened(server: Server) -> Page:
            address = f"{server.socket}?width=120&height=40"
            page = Page(await session.ws_connect(address, origin=server.root))
            await page.until_received("H100 80GB HBM3")
            return page

        yield opened


async def test_a_key_works_and_the_token_is_in_no_command_line_environment_or_message(server, open_page) -> None:
    page = await open_page(server)
    await page.press("?")
    await page.until_received("Help")
    (dashboard,) = server.dashboards
    assert "--view-only" in dashboard.cmdline()
    assert server.token not in " ".join(dashboard.cmdline())
    assert server.token not in json.dumps(dashboard.environ())
    assert server.token not in " ".join(psutil.Process(server.process.pid).cmdline())
    await page.close()
    assert server.token not in server.end()


async def test_a_dashboard_ends_with_its_page_and_with_the_server(server: Server, open_page) -> None:
    page = await open_page(server)
    (first,) = server.dashboards
    await page.close()
    await asyncio.to_thread(until, lambda: not first.is_running())
    await open_page(server)
    (second,) = server.dashboards
    server.process.kill()  # it cannot tell the dashboard to end
    await asyncio.to_thread(until, lambda: not second.is_running() or second.status() == psutil.STATUS_ZOMBIE)


async def test_with_allow_actions_the_dashboard_is_that_of_a_terminal(tmp_path: Path, open_page) -> None:
    server = Server(tmp_path, "--allow-actions")
    try:
        page = await open_page(server)
        assert "--view-only" not in server.dashboards[0].cmdline()
        await page.press("f")
        await page.until_received("Fit check")
        await page.close()
    finally:
        server.end()


@needs_chromium
def test_the_pages_policy_lets_its_own_scripts_start_a_dashboard(server: Server, tmp_path: Path) -> None:
    seen = look(server.address, tmp_path)
    assert "Content Security Policy" not in seen  # the browser's words for what the policy stops
    assert "Refused" not in seen
    assert "xterm" in seen.partition("<html")[2].partition("<body")[2]
