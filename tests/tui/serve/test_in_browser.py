"""``vramtop serve`` in a real browser: live figures, keys, and nothing for those who may not."""

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
from chromium import needs_chromium
from waiting import until

pytest.importorskip("textual_serve", reason="the extra serve is not installed")

from browser import Browser
from json_schemas import valid_json

pytestmark = [pytest.mark.slow, needs_chromium]


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


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Browser]:
    async with Browser(tmp_path) as browser:
        yield browser


def in_use(received: list[str]) -> set[str]:
    """Every figure of memory in use that a page has received."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", "".join(received))
    return set(re.findall(r"\d+\.\d", plain))


async def figures_change(page: Browser, times: int = 3) -> None:
    """Wait until the page has received this many new figures."""
    await page.until_received("GiB")
    before = len(page.received)
    while len(in_use(page.received[before:])) < times:
        before_this = len(page.received)
        await page.until(lambda: len(page.received) > before_this)  # noqa: B023 - awaited at once


async def test_live_figures_change_and_a_key_works(server: Server, page: Browser) -> None:
    await page.open(server.address)
    await page.until_received("H100 80GB HBM3")
    await figures_change(page)
    shown = len(page.received)
    await page.press("?")
    await page.until_received("Help", after=shown)
    assert all(address.startswith((server.root, server.socket)) for address in page.asked)
    assert not [words for words in page.failed if "Content Security Policy" in words or "Refused" in words]


async def test_the_token_is_in_no_command_line_environment_or_message_of_a_dashboard(server, page) -> None:
    await page.open(server.address)
    await page.until_received("H100 80GB HBM3")
    (dashboard,) = server.dashboards
    assert "--view-only" in dashboard.cmdline()
    assert server.token not in " ".join(dashboard.cmdline())
    assert server.token not in json.dumps(dashboard.environ())
    assert server.token not in " ".join(psutil.Process(server.process.pid).cmdline())
    assert server.token not in server.end()


async def test_a_dashboard_ends_with_its_page_and_with_the_server(server: Server, page: Browser) -> None:
    await page.open(server.address)
    await page.until_received("H100 80GB HBM3")
    (first,) = server.dashboards
    await page.open("about:blank")
    await asyncio.to_thread(until, lambda: not first.is_running())
    await page.open(server.address)
    await asyncio.to_thread(until, lambda: server.dashboards)
    await page.until_received("H100 80GB HBM3", after=len(page.received))
    (second,) = server.dashboards
    server.process.kill()  # it cannot tell the dashboard to end
    await asyncio.to_thread(until, lambda: not second.is_running() or second.status() == psutil.STATUS_ZOMBIE)


async def test_with_allow_actions_the_dashboard_is_that_of_a_terminal(tmp_path: Path, page: Browser) -> None:
    server = Server(tmp_path, "--allow-actions")
    try:
        await page.open(server.address)
        await page.until_received("H100 80GB HBM3")
        assert "--view-only" not in server.dashboards[0].cmdline()
        shown = len(page.received)
        await page.press("f")
        await page.until_received("Fit check", after=shown)
    finally:
        server.end()
